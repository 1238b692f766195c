"""The processes: what starts them, what watches them, and what a shard is wired of."""
