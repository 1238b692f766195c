"""The comparison for compactions: pyarrow in two processes, without Spark.

It uses the same objects, decoding (``compaction.parquet.row_builder``) and zstd level, and writes
one file per topic and day with ``ParquetWriter``. It has no reports, fsync, spilling or repeats.
With few topics, each process takes half of the objects. With many, each takes half of the topics
and reads only their half of each object, so that no data moves between processes; only a program on
one machine can do that.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct

from compaction.inputs.objects import ExtentBytes
from compaction.parquet.row_builder import RowBuilder
from ledger.lake.types import PlannedObject
from shards.checksum import crc32c
from uploader.l0 import read_footer
from uploader.stores.open import open_store

BATCH_BYTES = 16 << 20


class Half(Struct, frozen=True):
    """The work of one process: the extents of the topics [first, last]."""

    number: int
    store_url: str
    folder: str
    objects: tuple[PlannedObject, ...]
    topics: tuple[int, int]
    zstd_level: int
    tuned: bool
    """With the column encodings of the compaction; else with the defaults of pyarrow."""


def halves(
    objects: Sequence[PlannedObject],
    topics: int,
    by_topic: bool,
    **same: Any,
) -> list[Half]:
    """The work of two processes."""
    if by_topic:
        middle = topics // 2
        return [
            Half(0, objects=tuple(objects), topics=(1, middle), **same),
            Half(1, objects=tuple(objects), topics=(middle + 1, topics), **same),
        ]
    at = len(objects) // 2
    return [
        Half(0, objects=tuple(objects[:at]), topics=(1, topics), **same),
        Half(1, objects=tuple(objects[at:]), topics=(1, topics), **same),
    ]


def run(half: Half) -> int:
    """Does one half; returns the rows written."""
    store = open_store(half.store_url)
    first, last = half.topics
    found: dict[int, list[ExtentBytes]] = {topic: [] for topic in range(first, last + 1)}
    for each in half.objects:
        own = [extent for extent in each.extents if first <= extent.topic_id <= last]
        if len(own) == len(each.extents):
            body = memoryview(store.get(each.locator))
            read_footer(body, each.key)
            start = 0
        else:
            start = own[0].byte_start
            length = own[-1].byte_start + own[-1].byte_length - start
            body = memoryview(store.get(each.locator, start, length))
        for extent in own:
            data = body[extent.byte_start - start :][: extent.byte_length]
            if crc32c(data) != extent.crc32c:
                raise ValueError(f"{each.key} is damaged")
            found[extent.topic_id].append(
                ExtentBytes(extent.partition, extent.first_offset, extent.last_offset, (), data,
                            each.key)
            )  # fmt: skip
    store.close()
    return sum(_write(half, topic, found.pop(topic)) for topic in list(found))


def _write(half: Half, topic: int, extents: list[ExtentBytes]) -> int:
    extents.sort(key=lambda extent: (extent.partition, extent.first_offset))
    writers: dict[datetime.date, pq.ParquetWriter] = {}
    batch = RowBuilder()
    rows = 0
    for index, extent in enumerate(extents):
        batch.add(extent)
        if batch.bytes < BATCH_BYTES and index < len(extents) - 1:
            continue
        table, _ = batch.take()
        rows += table.num_rows
        days = pc.cast(table.column("timestamp"), pa.date32())
        for day in pc.unique(days).to_pylist():
            if day not in writers:
                folder = f"{half.folder}/topic-{topic}/timestamp_day={day}"
                os.makedirs(folder, exist_ok=True)
                writers[day] = _writer(f"{folder}/{half.number}.parquet", table.schema, half)
            writers[day].write_table(table.filter(pc.equal(days, day)))
    for writer in writers.values():
        writer.close()
    return rows


def _writer(path: str, schema: pa.Schema, half: Half) -> pq.ParquetWriter:
    options: dict[str, Any] = {}
    if half.tuned:
        options = {
            "use_dictionary": ["partition", "key", "tag", "node"],
            "column_encoding": {
                "offset": "DELTA_BINARY_PACKED",
                "timestamp": "DELTA_BINARY_PACKED",
            },
            "write_statistics": [name for name in schema.names if name not in ("data", "meta")],
        }
    return pq.ParquetWriter(
        path, schema, compression="zstd", compression_level=half.zstd_level, **options
    )
