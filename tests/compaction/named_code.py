"""Code that a property of a table may name. Nothing may ever call it."""

from __future__ import annotations

CALLS: list[object] = []


def called(*arguments: object) -> None:
    """Stands for a shell command."""
    CALLS.append(arguments)
