"""The chaos run: a daemon under kills and store faults, and a check of its answers and its data."""
