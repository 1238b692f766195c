"""What a daemon does in addition to serving: ownership, retention, collection, and repair."""
