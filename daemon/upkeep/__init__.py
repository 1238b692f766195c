"""What a daemon does beside serving: ownership, retention, collection, and repair."""
