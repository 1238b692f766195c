"""Routers: copies of one topic's records into another, each exactly once."""
