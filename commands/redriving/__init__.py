"""``headgate deadletters``: reading dead letters, and sending them back where they came from."""
