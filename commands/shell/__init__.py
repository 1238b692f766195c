"""What commands share towards the terminal: options in, text and exit codes out."""
