"""``headgate import``: files and objects become records, exactly once (docs/decisions/0013)."""
