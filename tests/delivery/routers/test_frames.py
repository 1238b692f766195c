"""The frame of a copy: partitions, order and timestamps."""

from __future__ import annotations

import msgspec

from delivery.partitioner import partition_of
from delivery.routers.frames import parts_of
from uploader.l0 import records
from uploader.l0.records import Record


def test_a_copy_keeps_every_field_and_the_timestamp_of_its_source() -> None:
    full = Record('{"a":1}', 5, "k", "t", "n", '{"m":1}')
    bare = Record(b"\x00\xff")
    (part,) = parts_of([(1, 5, full), (2, 77, bare)], 9, 1, 0)
    assert part[:3] == (9, 0, 2)
    assert (part.first_timestamp_ms, part.last_timestamp_ms) == (5, 77)
    assert records.decode(part.payload) == [full, Record(b"\x00\xff", 77)]


def test_keys_choose_the_partition_and_records_without_one_stay_together() -> None:
    items = [(n, n, Record(str(n), None, f"k{n % 5}" if n % 3 else None)) for n in range(1, 40)]
    parts = parts_of(items, 9, 4, source_partition=6)
    assert [part.partition for part in parts] == sorted(part.partition for part in parts)
    for part in parts:
        wanted = [
            item[2].data
            for item in items
            if (2 if item[2].key is None else partition_of(item[2].key, 4)) == part.partition
        ]
        assert [record.data for record in records.decode(part.payload)] == wanted
        assert part.record_count == len(wanted)
    assert sum(part.record_count for part in parts) == 39


def test_a_record_is_stored_as_short_as_a_producers_would_be() -> None:
    (part,) = parts_of([(1, 5, Record("1", None, None, None, "n"))], 9, 1, 0)
    assert part.payload == msgspec.msgpack.encode([["1", 5, None, None, "n"]])
