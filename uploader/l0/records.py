"""Codec 1: a batch's payload is a msgpack array of records.

A record is a msgpack array ``[data, ts, key, tag, node, meta]``, cut off behind its last present
field; a field that is nil or cut off is absent, ``""`` is a value. ``data`` is a str that holds
the record's JSON text as received, or bin. ``ts`` is epoch milliseconds and, when absent, the
batch's arrival. ``meta`` is JSON text.

The layout is specified in docs/l0-format.md. This module knows nothing of HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

# The last millisecond of the year 9999, with which the calendars of most readers end.
TIMESTAMP_MS_MAX = 253_402_300_799_999


class Record(msgspec.Struct, array_like=True, frozen=True):
    """One record as it is stored. ``data`` is JSON text (str) or bytes."""

    data: Any
    ts: int | None = None
    key: str | None = None
    tag: str | None = None
    node: str | None = None
    meta: str | None = None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Record])


class RecordsError(ValueError):
    """A payload that is no msgpack array of records."""


encode: Callable[[Sequence[Record] | Sequence[tuple[str | bytes, ...]]], bytes] = _encoder.encode
"""The payload of a batch. Tuples ``(data,)`` stand for records without further fields."""


def decode(payload: bytes | memoryview) -> list[Record]:
    """The records of a payload. Raises RecordsError."""
    try:
        return _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordsError(f"the payload is no array of records: {error}") from error
