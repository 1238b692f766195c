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
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

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
_raw_decoder = msgspec.msgpack.Decoder(list[Raw])
_ARRAY_32 = b"\xdd"  # the mark of an array whose length has 32 bits
_HEADS_KEPT = 1024  # of texts with fewer bytes


class RecordsError(ValueError):
    """A payload that is not a msgpack array of records."""


encode: Callable[[Sequence[Record] | Sequence[tuple[str | bytes, ...]]], bytes] = _encoder.encode
"""The payload of a batch. A tuple ``(data,)`` is a record without other fields."""


class Texts(NamedTuple):
    """Records that are JSON text and nothing else, ready to be encoded."""

    texts: list[Raw]  # in UTF-8
    heads: list[bytes]  # what stands before each of them in a payload
    bytes_max: int  # none is longer; it may be that none is as long


def texts_of(texts: list[Raw]) -> Texts:
    """Records of these texts, which must be UTF-8."""
    try:
        return Texts(texts, list(map(_head_of_size, map(len, texts))), _HEADS_KEPT - 1)
    except IndexError:
        sizes = list(map(len, texts))
        return Texts(texts, list(map(_text_head, sizes)), max(sizes))


def encode_texts(records: Texts) -> bytes:
    """The payload that ``encode`` makes of ``(text,)`` for each, without a str for each."""
    texts, heads, _ = records
    pieces: list[bytes | Raw] = [_array_head(len(texts))] * (2 * len(texts) + 1)
    pieces[1::2] = heads
    pieces[2::2] = texts
    return b"".join(pieces)


def _array_head(count: int) -> bytes:
    if count < 16:
        return bytes((0x90 | count,))
    if count < 1 << 16:
        return b"\xdc" + count.to_bytes(2, "big")
    return _ARRAY_32 + count.to_bytes(4, "big")


def _text_head(size: int) -> bytes:
    """What stands before a text of ``size`` bytes: an array of one, and the head of a str."""
    if size < 32:
        return bytes((0x91, 0xA0 | size))
    if size < 1 << 8:
        return b"\x91\xd9" + size.to_bytes(1, "big")
    if size < 1 << 16:
        return b"\x91\xda" + size.to_bytes(2, "big")
    return b"\x91\xdb" + size.to_bytes(4, "big")


_head_of_size = list(map(_text_head, range(_HEADS_KEPT))).__getitem__


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
