"""The chaos run: a daemon under kills and store faults, and the check of what it said and kept."""
