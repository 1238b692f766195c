"""What clients ask of the daemon over HTTP: routes, schemas and errors."""
