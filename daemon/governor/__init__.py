"""The governor: from sensors to pressure, and from pressure to latency."""
