"""Limits of tokens and of the daemon: their names, and how they are written.

A *rate* is an amount per second (``requests=1000/s``, ``bytes_in=10MiB/s``, ``settings=10/min``), a
*count* is how many there may be (``streams=50``). This module knows nothing of who uses them
(``daemon/access/allowance.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from daemon.config.values import read_number, read_size, size_text

PER_SECOND = {"s": 1.0, "min": 1 / 60, "h": 1 / 3600}
VALUE_MAX = 1 << 50


class Limit(NamedTuple):
    """What may be limited. ``word``: its word (shards/layout.py); None if the ledger counts it."""

    name: str
    says: str
    is_rate: bool = False
    is_bytes: bool = False
    word: int | None = None


LIMITS = (
    Limit("requests", "requests", is_rate=True, word=0),
    Limit("bytes_in", "bytes of bodies of requests", is_rate=True, is_bytes=True, word=1),
    Limit("bytes_out", "bytes of bodies of answers and of streams", is_rate=True, is_bytes=True,
          word=2),
    Limit("settings", "requests that change something other than records", is_rate=True, word=3),
    Limit("dedupe_entries", "requests with an idempotency key", is_rate=True, word=4),
    Limit("connections", "connections", word=0),
    Limit("streams", "streams", word=1),
    Limit("topics", "topics"),
    Limit("partitions", "partitions of all its topics"),
    Limit("subscriptions", "subscriptions"),
    Limit("routers", "routers"),
    Limit("cursors", "cursors"),
)  # fmt: skip
BY_NAME: Mapping[str, Limit] = {limit.name: limit for limit in LIMITS}


def read_limits(value: object) -> dict[str, float]:
    """Limits from a table, or text with commas; rates are per second. Raises ValueError."""
    if value == ():
        return {}
    if isinstance(value, str):
        pairs = [part.strip().partition("=") for part in value.split(",") if part.strip()]
        if not all(equals for _, equals, _ in pairs):
            raise ValueError("must be a table, or text like requests=1000/s,bytes_in=10MiB/s")
        value = {name.strip(): limit.strip() for name, _, limit in pairs}
    if not isinstance(value, Mapping):
        raise ValueError("must be a table, or text like requests=1000/s,bytes_in=10MiB/s")
    return {name: _read(name, each) for name, each in value.items()}


def _read(name: str, value: object) -> float:
    limit = BY_NAME.get(name)
    if limit is None:
        raise ValueError(f"must have the limits {', '.join(BY_NAME)}, not {name!r}")
    text, slash, unit = str(value).partition("/")
    if limit.is_rate != bool(slash) or (slash and unit not in PER_SECOND):
        how = "a rate like 100/s or 10/min" if limit.is_rate else "a number"
        raise ValueError(f"must have {how} for {name}, not {str(value)!r}")
    try:
        number = float(read_size(text)) if limit.is_bytes else read_number(text)
    except ValueError as error:
        raise ValueError(f"{error} for {name}, not {str(value)!r}") from None
    check_limit(name, number)
    return number * PER_SECOND[unit] if slash else number


def check_limit(name: str, number: float) -> None:
    """Raises ValueError for an unknown limit, or for a value that a limit cannot have."""
    if name not in BY_NAME:
        raise ValueError(f"{name!r} is not a limit; the limits are {', '.join(BY_NAME)}")
    if not 0 < number <= VALUE_MAX:
        raise ValueError(f"must be above 0 and at most {VALUE_MAX} for {name}, not {number:g}")


def limit_text(name: str, number: float) -> str:
    """A limit as it is written."""
    limit = BY_NAME[name]
    if not limit.is_rate:
        return f"{number:g}"
    for unit, per_second in PER_SECOND.items():
        count = number / per_second
        if count >= 1 or unit == "h":
            return f"{size_text(round(count)) if limit.is_bytes else f'{count:g}'}/{unit}"
    raise AssertionError(unit)
