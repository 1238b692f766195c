"""A receiver of pushed records, for tests and benchmarks: a process of its own."""
