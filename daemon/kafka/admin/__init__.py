"""Topics and their settings, as Kafka's tools create, show and delete them."""
