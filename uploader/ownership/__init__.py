"""Who owns a prefix of a store: the log of entries, images, and what no entry lists."""
