"""The Iceberg tables: schema, commit, reconciliation, expiry, orphan files."""
