"""Limits of a produce body, and the refusals that name them."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import force_setattr

from daemon.schemas.decoding import NESTING_MAX
from daemon.schemas.errors import ApiError, invalid, too_large
from uploader.l0.records import TIMESTAMP_MS_MAX

# Units that are sent instead of milliseconds by mistake, with the end of the year 9999 in them.
_UNITS = (
    ("microseconds", 1_000 * TIMESTAMP_MS_MAX),
    ("nanoseconds", 1_000_000 * TIMESTAMP_MS_MAX),
)
# A record that is nested deeper than NESTING_MAX has at least this many characters.
NESTED_CHARACTERS_MIN = 2 * NESTING_MAX + 1


class BodyLimits(Struct, frozen=True, kw_only=True):
    """What one produce request may hold; set from the configuration."""

    body_bytes_max: int = 16 << 20
    record_bytes_max: int = 1 << 20
    records_max: int = 10_000
    suspect_from: int = 0
    """A text with fewer characters is neither too large (a character has at most 4 bytes) nor
    nested too deep. Follows from the others."""

    def __post_init__(self) -> None:
        suspect_from = min(NESTED_CHARACTERS_MIN, self.record_bytes_max // 4 + 1)
        force_setattr(self, "suspect_from", suspect_from)


def too_many_records(limits: BodyLimits) -> ApiError:
    """413: more records than a request may have."""
    return too_large(
        f"the request has more than {limits.records_max} records; send smaller batches",
        limit_records=limits.records_max,
    )


def record_too_large(where: dict[str, int], size: int, limits: BodyLimits) -> ApiError:
    """413: one record is too large. ``where`` is its line or its index."""
    return too_large(
        f"{place(where)} has {size} bytes, the limit for a record is {limits.record_bytes_max}",
        limit_bytes=limits.record_bytes_max,
        bytes=size,
        **where,
    )


def nested_too_deep(where: dict[str, int]) -> ApiError:
    """400: arrays and objects are nested too deep."""
    return invalid(
        f"{place(where)} is nested deeper than {NESTING_MAX} levels",
        limit_levels=NESTING_MAX,
        **where,
    )


def check_ts(ts: int, where: dict[str, int]) -> None:
    """Raises ApiError 400 for a time that readers cannot represent: mostly another unit."""
    if 0 <= ts <= TIMESTAMP_MS_MAX:
        return
    unit = next((name for name, most in _UNITS if TIMESTAMP_MS_MAX < ts <= most), None)
    shown = str(ts) if ts.bit_length() <= 64 else "a number of over 64 bits"
    looks = f"{shown}, which looks like {unit}" if unit else shown
    raise invalid(
        f"ts of {place(where)} is {looks}; ts is in milliseconds, from 0 to {TIMESTAMP_MS_MAX} (the"
        " end of the year 9999)",
        field="ts",
        limit_ms=TIMESTAMP_MS_MAX,
        **where,
    )


def no_records() -> ApiError:
    """400: there is nothing to store."""
    return invalid("the request has no records")


def no_body() -> ApiError:
    """400: the body is empty."""
    return invalid("the body is empty, so there is nothing to store")


def named_twice() -> ApiError:
    """400: a field that counts once is there twice: the first one would be lost."""
    return invalid("the body has two fields of one name; put all records into one `records`")


def given_twice(name: str, where: dict[str, int]) -> ApiError:
    """The same of another field than ``records``."""
    return invalid(f"{place(where)} has the field {name} twice; send it once", field=name, **where)


def place(where: dict[str, int]) -> str:
    """``record 3`` or ``line 4``, for a sentence."""
    for name, number in where.items():
        return f"{name} {number}"
    return "the body"


def utf8_bytes(text: str) -> int:
    """The length of ``text`` in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())
