"""Codec 1: a batch's payload is a msgpack array of records.

A record is a msgpack array ``[data, ts, key, tag, node, meta]`` that ends with its last present
field. A field that is nil or beyond the end is absent; ``""`` is a value. ``data`` is a str with
the record's JSON text as received, or bin. ``ts`` is epoch milliseconds; if absent, the batch's
arrival counts. ``meta`` is JSON text.

The layout is specified in docs/l0-format.md. This module does not know HTTP.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import msgspec

# The last millisecond of the year 9999, where the calendars of most readers end.
TIMESTAMP_MS_MAX = 253_402_300_799_999


class Record(msgspec.Struct, array_like=True, frozen=True):
    """A record as it is stored. ``data`` is JSON text (str) or bytes."""

    data: Any
    ts: int | None = None
    key: str | None = None
    tag: str | None = None
    node: str | None = None
    meta: str | None = None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Record])
_raw_decoder = msgspec.msgpack.Decoder(list[msgspec.Raw])
_ARRAY_32 = b"\xdd"  # the mark of an array whose length has 32 bits


class RecordsError(ValueError):
    """A payload that is not a msgpack array of records."""


encode: Callable[[Sequence[Record] | Sequence[tuple[str | bytes, ...]]], bytes] = _encoder.encode
"""The payload of a batch. A tuple ``(data,)`` is a record without other fields."""


def decode(payload: bytes | memoryview) -> list[Record]:
    """The records of a payload. Raises RecordsError."""
    try:
        return _decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordsError(f"the payload is not an array of records: {error}") from error


def cuts(payload: bytes, every: int) -> array[int]:
    """Where each ``every``-th record of a payload begins, and where the last one ends. It takes a
    third of the time of ``decode``. Raises RecordsError."""
    try:
        sizes = list(map(len, _raw_decoder.decode(payload)))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordsError(f"the payload is not an array: {error}") from error
    places = list(accumulate(sizes, initial=len(payload) - sum(sizes)))
    found = array("I", places[:-1:every])
    found.append(places[-1])
    return found


def payload_of(count: int, rows: bytes) -> bytes:
    """The payload whose ``count`` records are ``rows``, as they are between two cuts."""
    return b"".join((_ARRAY_32, count.to_bytes(4, "big"), rows))
