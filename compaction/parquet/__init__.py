"""The tables' data files: writing, reading and merging Parquet."""
