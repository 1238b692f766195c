"""What compactions and Spark read: where L0 and the lake are, and the extents of objects."""
