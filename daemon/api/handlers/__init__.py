"""The handlers of the routes, one module per subject."""
