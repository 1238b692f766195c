"""What must hold in a ledger, and how a breach is named."""
