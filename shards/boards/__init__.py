"""What processes tell each other in shared memory: rows of topics, subscriptions and senders."""
