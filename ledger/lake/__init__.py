"""What the ledger knows of the lake: tables, files, quarantine, read leases."""
