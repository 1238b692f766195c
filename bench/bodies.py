"""Request bodies of exact sizes, with random records made from a seed.

All bodies of one size hold the same number of records of about the same length, so that formats
and peers differ only in the format. Pure: the same arguments give the same bytes.
"""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

NDJSON = "ndjson"
MSGPACK = "msgpack"
FORMATS = (NDJSON, MSGPACK)
SEED = 7_440

_LETTERS = string.ascii_letters + string.digits + "     .,-"
_KINDS = ("view", "click", "order", "refund", "login", "search")


class Size(NamedTuple):
    """A size of bodies; ``connections`` is how many connections saturate a core with it."""

    name: str
    size_bytes: int
    records: int
    connections: int


SIZES = (
    Size("200B", 200, 1, 1024),
    Size("1KiB", 1024, 1, 1024),
    Size("64KiB", 64 * 1024, 320, 64),
    Size("1MiB", 1024 * 1024, 5120, 16),
)


class Body(NamedTuple):
    """A body as it is sent."""

    content_type: str
    records: int
    data: bytes


def size_named(name: str) -> Size:
    """The size of that name."""
    return next(size for size in SIZES if size.name == name)


def of(size: Size, body_format: str) -> Body:
    """The body for a size and one of our formats."""
    if body_format == NDJSON:
        return ndjson(size.size_bytes, size.records)
    return msgpack(size.size_bytes, size.records)


def ndjson(size_bytes: int, records: int) -> Body:
    """One JSON object per line; each line ends with a newline."""
    rng = random.Random(SEED)
    lines = [_filled(rng, share - 1, _json) + b"\n" for share in _shares(size_bytes, records)]
    return Body("application/x-ndjson", records, b"".join(lines))


def msgpack(size_bytes: int, records: int) -> Body:
    """A map with the list ``records``, each ``{"data": {...}}``."""
    rng = random.Random(SEED)
    encode = msgspec.msgpack.encode
    # Everything around the records: the heads of the map and the list, and the key.
    head = encode({"records": [None] * records})[:-records]
    shares = _shares(size_bytes - len(head), records)
    items = [_filled(rng, share, lambda event: encode({"data": event})) for share in shares]
    return Body("application/msgpack", records, head + b"".join(items))


def s2(size_bytes: int, records: int) -> Body:
    """The same events for s2-lite: text bodies in its JSON form."""
    rng = random.Random(SEED)

    def item(event: dict[str, Any]) -> bytes:
        return _json({"body": _json(event).decode()})

    # The outer object, and a comma after each record but the last.
    around = len(b'{"records":[]}') + records - 1
    items = [_filled(rng, share, item) for share in _shares(size_bytes - around, records)]
    return Body("application/json", records, b'{"records":[' + b",".join(items) + b"]}")


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _shares(total: int, count: int) -> list[int]:
    """``total`` in ``count`` whole parts that differ by one at most."""
    return [total * (i + 1) // count - total * i // count for i in range(count)]


def _filled(
    rng: random.Random, size_bytes: int, encode: Callable[[dict[str, Any]], bytes]
) -> bytes:
    """An event of exactly this many bytes; its note fills what the other fields leave."""
    event: dict[str, Any] = {
        "id": rng.getrandbits(48),
        "kind": rng.choice(_KINDS),
        "amount": rng.randrange(1, 10_000_000) / 100,
        "host": f"host-{rng.randrange(1000):04d}",
        "note": "",
    }
    note_length = 0
    for _ in range(4):  # the note's own head may grow with it, by up to 4 bytes
        event["note"] = "n" * note_length
        missing = size_bytes - len(encode(event))
        if missing == 0:
            break
        note_length += missing
        if note_length < 0:
            raise ValueError(f"an event does not fit into {size_bytes} bytes, {missing} too many")
    else:
        raise ValueError(f"no event is encoded in exactly {size_bytes} bytes")
    event["note"] = "".join(rng.choices(_LETTERS, k=note_length))
    return encode(event)
