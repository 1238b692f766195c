"""What delivery keeps in the ledger: routers, subscriptions, and how far each is."""
