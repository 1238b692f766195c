"""Byte pipes between shards: requests with an answer, and streams with credit."""
