"""What the log of ownership carries of a ledger, and how one is rebuilt from it."""
