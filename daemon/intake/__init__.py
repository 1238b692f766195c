"""From a request's body to the ring, and from its commit to its answer."""
