"""A stream of msgpack maps, as docs/http-api.md and docs/l0-format.md describe it. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec

JSON_TEXTS = 1  # the codec: an array of records, each an array that begins with its data

# By the first byte: bytes of the size that follows, or of the value.
_SIZED = {
    0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4,
}  # fmt: skip
_FIXED = {
    0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1,
    0xD1: 2, 0xD2: 4, 0xD3: 8,
}  # fmt: skip
_ARRAYS = {0xDC: 2, 0xDD: 4}
_MAPS = {0xDE: 2, 0xDF: 4}


def msgpack_end(data: bytes) -> int | None:
    """Where the first value ends; None if it is not all there. Raises ValueError."""
    at, values = 0, 1  # values that are still to be passed
    while values:
        if at >= len(data):
            return None
        first = data[at]
        at += 1
        values -= 1
        if first <= 0x7F or first >= 0xE0:
            continue
        if first <= 0x8F:
            values += 2 * (first & 0x0F)
        elif first <= 0x9F:
            values += first & 0x0F
        elif first <= 0xBF:
            at += first & 0x1F
        elif first in _FIXED:
            at += _FIXED[first]
        else:
            width = _SIZED.get(first) or _ARRAYS.get(first) or _MAPS.get(first)
            if width is None:
                raise ValueError(f"the byte {first:#x} does not begin a value that a stream has")
            if at + width > len(data):
                return None
            size = int.from_bytes(data[at : at + width], "big")
            at += width
            if first in _SIZED:
                at += size
            else:
                values += size * (2 if first in _MAPS else 1)
    return at if at <= len(data) else None


def batch_records(batch: Any) -> Iterator[dict[str, Any]]:
    """The records of a batch that the watcher does not have yet."""
    assert batch["codec"] == JSON_TEXTS, batch
    records = msgspec.msgpack.decode(batch["payload"])
    assert len(records) == batch["count"], batch
    for index in range(batch["skip"], batch["count"]):
        yield _of(batch, batch["first_seq"] + index, records[index][0])


def map_records(document: Any) -> Iterator[dict[str, Any]]:
    """The records of an event ``records``."""
    for record in document["records"]:
        yield _of(document, record["seq"], record["data"])


def _of(document: Any, seq: int, text: str) -> dict[str, Any]:
    return {
        "topic": document["topic"],
        "partition": document["partition"],
        "seq": seq,
        "data": json.loads(text),
    }
