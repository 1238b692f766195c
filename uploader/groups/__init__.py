"""Which shards upload together, when, and what one pull takes."""
