"""What a daemon does besides serving: ownership, retention, collection, and repair."""
