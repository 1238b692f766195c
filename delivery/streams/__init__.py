"""Answers without an end: where their bytes go, and what they look like."""
