"""Reads ``push_allow``: whom push may call, from a list or from text with commas."""

from __future__ import annotations

from daemon.config.values import ValueType
from delivery.push.addresses import AllowList


def read_allowed(value: object) -> tuple[str, ...]:
    """The entries, each checked; an empty list allows nobody."""
    given = value.split(",") if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or not all(isinstance(each, str) for each in given):
        raise ValueError("must be a list of hosts and networks, or text with commas between them")
    entries = [each.strip() for each in given]
    return AllowList(() if entries == [""] else entries).entries


ALLOWED = ValueType("list of hosts and networks", read_allowed)
