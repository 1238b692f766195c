"""What `subscriptions` and `consume` are made of."""
