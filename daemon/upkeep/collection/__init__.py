"""``headgate gc``: deletes what nothing needs any more, by one procedure for three kinds."""
