"""Commands about ledger, store and lake."""
