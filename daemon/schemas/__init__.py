"""What the HTTP API takes and answers: its types, its names, and its refusals."""
