"""From a lease to its commit."""
