"""Topics of a Kafka cluster as a source: its address, its client, its records, its partitions."""
