"""Who may do what: tokens, their file, and the rights of a request."""
