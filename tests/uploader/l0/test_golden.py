"""The format holds still: the writer makes the golden bytes, the page shows them, and a reader
that was written from the page, without our code, reads them.

When the format changes on purpose it gets a new version, and these files stay.
"""

from __future__ import annotations

import json
import re
import struct
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from tests.uploader.l0_samples import golden, golden_kafka
from uploader.l0 import object_key, read_footer, verify

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "l0"


@pytest.fixture(params=["object", "kafka"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_writer_still_makes_the_golden_objects() -> None:
    assert golden().body == (GOLDEN / "object.l0").read_bytes()
    assert golden_kafka().body == (GOLDEN / "kafka.l0").read_bytes()


def test_a_golden_object_is_sound_and_its_key_is_its_leases(name: str) -> None:
    body = (GOLDEN / f"{name}.l0").read_bytes()
    expected = json.loads((GOLDEN / f"{name}.json").read_text())
    assert verify(body, expected["key"]) == []
    assert object_key(read_footer(body).lease_id) == expected["key"]


def test_the_page_shows_the_golden_object() -> None:
    page = (ROOT / "docs" / "l0-format.md").read_text()
    rows = re.findall(r"^([0-9a-f]{4})  ((?:[0-9a-f]{2} )+)", page, re.MULTILINE)
    assert [int(at, 16) for at, _ in rows] == list(range(0, 16 * len(rows), 16))
    shown = bytes.fromhex("".join(columns for _, columns in rows))
    assert shown == (GOLDEN / "object.l0").read_bytes()


def test_a_reader_written_from_the_page_reads_a_golden_object(name: str) -> None:
    expected = json.loads((GOLDEN / f"{name}.json").read_text())
    found = read_object((GOLDEN / f"{name}.l0").read_bytes(), expected["commit"])
    assert json.loads(json.dumps(found, default=lambda data: {"hex": data.hex()})) == {
        name: value for name, value in expected.items() if name not in ("key", "commit")
    }


# --- the reader: struct, msgpack and CRC32C by hand -------------------------------------------


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def msgpack(data: bytes, at: int) -> tuple[Any, int]:
    """The value at ``at`` and where the next one begins."""
    tag, at = data[at], at + 1
    if tag <= 0x7F:
        return tag, at
    if tag == 0xC0:
        return None, at
    if tag in (0xCC, 0xCD, 0xCE, 0xCF):
        size = 1 << tag - 0xCC
        return int.from_bytes(data[at : at + size], "big"), at + size
    if tag in (0xD0, 0xD1, 0xD2, 0xD3):
        size = 1 << tag - 0xD0
        return int.from_bytes(data[at : at + size], "big", signed=True), at + size
    if 0x90 <= tag <= 0xBF:
        kind = "array" if tag < 0xA0 else "str"
        length = tag & (0x0F if tag < 0xA0 else 0x1F)
    else:
        kind, size = {
            0xC4: ("bin", 1),
            0xC5: ("bin", 2),
            0xC6: ("bin", 4),
            0xD9: ("str", 1),
            0xDA: ("str", 2),
            0xDB: ("str", 4),
            0xDC: ("array", 2),
            0xDD: ("array", 4),
        }[tag]
        length, at = int.from_bytes(data[at : at + size], "big"), at + size
    if kind == "array":
        items = []
        for _ in range(length):
            item, at = msgpack(data, at)
            items.append(item)
        return items, at
    raw = data[at : at + length]
    return raw.decode() if kind == "str" else raw, at + length


def varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        number |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return (number >> 1) ^ -(number & 1), at


def kafka_batch(data: bytes) -> list[list[Any]]:
    """The records of a batch of codec 2, as codec 1 would have them."""
    base, length, _, magic, checksum, attributes, last, base_ts = struct.unpack(
        ">qiibIhiq", data[:35]
    )
    assert (base, length, magic, attributes) == (0, len(data) - 12, 2, 0)
    assert crc32c(data[21:]) == checksum
    (count,) = struct.unpack(">i", data[57:61])
    assert last == count - 1
    at = 61

    def some() -> bytes | None:
        nonlocal at
        size, at = varint(data, at)
        at += max(0, size)
        return None if size < 0 else data[at - size : at]

    def told(value: bytes) -> Any:
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": b64encode(value).decode()}

    records = []
    for number in range(count):
        size, at = varint(data, at)
        end = at + size
        delta, at = varint(data, at + 1)
        assert varint(data, at)[0] == number
        _, at = varint(data, at)
        key, value = some(), some()
        headers, at = varint(data, at)
        pairs = [((some() or b"").decode(), some()) for _ in range(headers)]
        assert at == end
        meta: dict[str, Any] = {}
        text: Any = None if key is None else told(key)
        if isinstance(text, dict):
            text, meta["key"] = text["base64"], "base64"
        if value is None:
            meta["value"] = None
        if pairs:
            meta["headers"] = [[name, None if v is None else told(v)] for name, v in pairs]
        found = json.dumps({"kafka": meta}, separators=(",", ":")) if meta else None
        records.append(
            ["null" if value is None else value, base_ts + delta, text, None, None, found]
        )
    return records


def read_object(body: bytes, commit: list[dict[str, Any]]) -> dict[str, Any]:
    """Everything in an object; ``commit`` is what the ledger says of each extent."""
    assert body[:8] == body[-8:] == b"HEADGATE"
    assert struct.unpack("<II", body[8:16]) == (1, 0)
    checksum, length = struct.unpack("<II", body[-16:-8])
    footer = body[-16 - length : -16]
    assert crc32c(footer) == checksum
    (version, lease_id, created_ms, extents, conditions, seen, *_), end = msgpack(footer, 0)
    assert (version, end) == (1, length)
    records = []
    for extent, given in zip(extents, commit, strict=True):
        name, _, partition, start, size, count, _, _, codec, checksum, *_ = extent
        data = body[start : start + size]
        assert crc32c(data) == checksum
        at = index = 0
        offset = given["first_offset"]
        void = {i for first, number in given["voids"] for i in range(first, first + number)}
        while at < size:
            p, in_batch, arrival_ms, checksum, codec, _ = struct.unpack(
                "<IIQIHH", data[at : at + 24]
            )
            payload = data[at + 24 : at + 24 + p]
            assert crc32c(payload) == checksum
            decoded = msgpack(payload, 0)[0] if codec == 1 else kafka_batch(payload)
            assert len(decoded) == in_batch
            for record in decoded:
                value, ts, key, tag, node, meta = record + [None] * (6 - len(record))
                if index not in void:
                    ts = arrival_ms if ts is None else ts
                    records.append([name, partition, offset, ts, value, key, tag, node, meta])
                    offset += 1
                index += 1
            at += 24 + p
        assert index == count
    return {
        "lease_id": lease_id,
        "created_ms": created_ms,
        "extents": extents,
        "conditions": conditions,
        "commits_seen": seen,
        "records": records,
    }
