"""Streams of records and events to watchers."""
