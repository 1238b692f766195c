"""Commands about what a daemon keeps by name: topics, routers, subscriptions, cursors."""
