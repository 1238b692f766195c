"""Commands that send and print records."""
