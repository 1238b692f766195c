"""One compaction run: its plan, its Spark job, its session."""
