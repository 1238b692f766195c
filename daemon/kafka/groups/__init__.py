"""Consumer groups of Kafka's protocol (the classic one): who reads which partitions, how far."""
