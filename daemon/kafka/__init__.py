"""Kafka's protocol: requests of its clients to the ring, and records to them."""
