"""The other end of a daemon's HTTP API: calls, and the streams that `produce` and `read` make."""
