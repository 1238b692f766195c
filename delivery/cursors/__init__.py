"""Cursors of what this shard owns: routers, later subscriptions."""
