"""``headgate import``: files and objects become records, each exactly once (docs/decisions/0041)."""
