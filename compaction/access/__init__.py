"""How compaction, collection and checks reach a ledger: through its daemon, or alone."""
