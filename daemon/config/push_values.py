"""Reads ``push_allow`` and ``push_deny``: whom push may call, from lists or text with commas."""

from __future__ import annotations

from daemon.config.values import ValueType
from delivery.push.addresses import AllowList


def read_allowed(value: object) -> tuple[str, ...]:
    """The entries, each checked; an empty list allows nobody."""
    return AllowList(_entries(value), ()).entries


def read_denied(value: object) -> tuple[str, ...]:
    """The entries, each checked; an empty list denies nobody."""
    return AllowList((), _entries(value)).denied


def _entries(value: object) -> list[str]:
    given = value.split(",") if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or not all(isinstance(each, str) for each in given):
        raise ValueError("must be a list of hosts and networks, or text with commas between them")
    entries = [each.strip() for each in given]
    return [] if entries == [""] else entries


ALLOWED = ValueType("list of hosts and networks", read_allowed)
DENIED = ValueType("list of networks", read_denied)
