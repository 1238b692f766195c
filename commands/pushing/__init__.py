"""Push subscriptions on the command line."""
