"""Push subscriptions: senders that deliver records by HTTP POST."""
