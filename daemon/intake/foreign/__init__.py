"""Requests in the formats of others, which become produce requests of ours (docs/producers.md)."""
