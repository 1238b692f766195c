"""The shards of a daemon under a virtual clock: what a load costs, and how it is uploaded."""
