"""What the daemon counts and measures: the status, and the metrics made of it."""
