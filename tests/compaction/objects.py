"""L0 objects for tests of the compaction: what a ledger plans of them, and the rows they hold.

``rows_of`` says what must be in the table by ``records_of``, the reader that ``diff`` uses, and
shares nothing with the decoding under test. ``rows_in`` reads files with pyarrow alone.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from compaction.inputs.place import Place
from compaction.parquet.writer import DAY_US, WrittenFile, day_text
from ledger.lake.types import PlannedObject
from ledger.types import Extent, LeaseId
from shards.checksum import crc32c
from shards.frame import CODEC_KAFKA, CODEC_MIXED, CODEC_RECORDS
from tests.uploader.l0_samples import batch, from_kafka
from uploader.l0 import ExtentParts, RingRun, build, object_key, read_extent, records_of
from uploader.l0.records import TIMESTAMP_MS_MAX, Record
from uploader.stores.base import ObjectStore

DAY_MS = 86_400_000
NOON_MS = 19_675 * DAY_MS + DAY_MS // 2

Row = tuple[int, int, int, str | None, str | None, str | None, str | None, str, bool]
"""(partition, offset, microseconds, key, tag, node, meta, data, data_is_base64)."""

Batches = list[tuple[int, list[Record]]]
"""(arrival, records) of each batch."""


class Draft(NamedTuple):
    """An extent to be: of a topic and a partition, its batches and void ranges."""

    topic_id: int
    partition: int
    batches: Batches
    voids: tuple[tuple[int, int], ...] = ()
    of_kafka: frozenset[int] = frozenset()
    """Which batches came from Kafka's clients."""


class Heads:
    """Gives offsets and numbers as a ledger does."""

    def __init__(self) -> None:
        self.commits = 0
        self._next: dict[tuple[int, int], int] = {}

    def give(self, topic_id: int, partition: int, count: int, skipped: int = 0) -> int:
        """The first of ``count`` offsets, after ``skipped`` ones that are not assigned."""
        place = (topic_id, partition)
        first = self._next.get(place, 1) + skipped
        self._next[place] = first + count
        return first


def put(store: ObjectStore, heads: Heads, drafts: Sequence[Draft]) -> PlannedObject:
    """Puts an object of these extents and plans all of them that have live records."""
    parts = []
    for draft in drafts:
        records = [(arrival, record) for arrival, some in draft.batches for record in some]
        times = [arrival if record.ts is None else record.ts for arrival, record in records]
        parts.append(
            ExtentParts(
                f"topic-{draft.topic_id}",
                draft.topic_id,
                draft.partition,
                CODEC_MIXED if draft.of_kafka else CODEC_RECORDS,
                [
                    batch(some, arrival, CODEC_KAFKA if n in draft.of_kafka else CODEC_RECORDS)
                    for n, (arrival, some) in enumerate(draft.batches)
                ],
                len(records),
                min(times),
                max(times),
                (RingRun(0, 0, 0, len(records)),),
            )
        )
    heads.commits += 1
    lease = LeaseId(incarnation=1, epoch=1, shard=0, counter=heads.commits)
    built = build(lease, NOON_MS, parts)
    key = object_key(lease)
    locator = store.put(key, built.body, crc32c(built.body))
    voids = {(draft.topic_id, draft.partition): draft.voids for draft in drafts}
    extents = []
    for each in built.drafts:
        place = (each.topic_id, each.partition)
        live = each.record_count - sum(count for _, count in voids[place])
        if live:
            first = heads.give(*place, live)
            extents.append(
                Extent(*place, first, first + live - 1, each.record_count, locator,
                       len(built.body), each.byte_start, each.byte_length, each.crc32c, each.codec,
                       each.first_timestamp_ms, each.last_timestamp_ms, voids[place])
            )  # fmt: skip
    return PlannedObject(heads.commits, key, locator, len(built.body), tuple(extents))


def rows_of(store: ObjectStore, objects: Iterable[PlannedObject]) -> dict[int, list[Row]]:
    """What the tables must hold, by topic, in the order of partition and offset."""
    found: dict[int, list[Row]] = {}
    for each in objects:
        body = store.get(each.locator)
        for extent in each.extents:
            rows = found.setdefault(extent.topic_id, [])
            for offset, ts_ms, record in records_of(
                read_extent(body, extent, each.key), extent.first_offset, extent.voids
            ):
                coded = isinstance(record.data, bytes)
                data = base64.b64encode(record.data).decode() if coded else record.data
                rows.append(
                    (extent.partition, offset, ts_ms * 1000, record.key, record.tag, record.node,
                     record.meta, data, coded)
                )  # fmt: skip
    return {topic_id: sorted(rows, key=lambda row: row[:2]) for topic_id, rows in found.items()}


def table_of(place: Place, written: WrittenFile) -> pa.Table:
    """All columns of a file."""
    return pq.ParquetFile(place.path_of(written.file.path)).read()


def rows_in(place: Place, files: Iterable[WrittenFile]) -> list[Row]:
    """The base columns of files, sorted by partition and offset."""
    rows: list[Any] = []
    for written in files:
        table = table_of(place, written)
        columns = [table.column(name) for name in table.schema.names[:9]]
        columns[2] = columns[2].cast(pa.int64())  # Python's dates end at the year 9999
        rows += zip(*(column.to_pylist() for column in columns), strict=True)
    return sorted(rows, key=lambda row: row[:2])


def check_file(place: Place, written: WrittenFile) -> None:
    """One day, sorted, and described as it is."""
    table = table_of(place, written)
    partitions = table.column("partition").to_pylist()
    offsets = table.column("offset").to_pylist()
    times = table.column("timestamp").cast(pa.int64()).to_pylist()
    assert list(zip(partitions, offsets, strict=True)) == sorted(
        zip(partitions, offsets, strict=True)
    )
    assert {time // DAY_US for time in times} == {written.day}
    assert f"/timestamp_day={day_text(written.day)}/" in written.file.path
    assert written.file.rows == table.num_rows
    path = Path(place.path_of(written.file.path))
    assert path.stat().st_size == written.file.size_bytes
    assert [each.partition for each in written.file.ranges] == sorted(set(partitions))
    for each in written.file.ranges:
        own = [at for at, partition in enumerate(partitions) if partition == each.partition]
        assert (each.first_offset, each.last_offset, each.rows) == (
            offsets[own[0]],
            offsets[own[-1]],
            len(own),
        )
        own_ms = [times[at] // 1000 for at in own]
        assert (each.first_timestamp_ms, each.last_timestamp_ms) == (min(own_ms), max(own_ms))


_words = st.none() | st.text(max_size=4)
records = st.builds(
    Record,
    data=st.text(max_size=20) | st.binary(max_size=20),
    ts=st.none()
    | st.integers(NOON_MS, NOON_MS + 3 * DAY_MS)
    | st.sampled_from([0, 1, DAY_MS - 1, DAY_MS, TIMESTAMP_MS_MAX]),
    key=_words,
    tag=_words,
    node=_words,
    meta=_words,
)


@st.composite
def drafts(draw: st.DrawFn) -> list[Draft]:
    """The extents of an object: up to four, of three topics and two partitions, with voids."""
    places = draw(
        st.lists(
            st.tuples(st.integers(1, 3), st.integers(0, 1)), unique=True, min_size=1, max_size=4
        )
    )
    found = []
    for topic_id, partition in places:
        made = draw(
            st.lists(
                st.tuples(
                    st.integers(NOON_MS, NOON_MS + DAY_MS),
                    st.tuples(st.just(False), st.lists(records, min_size=1, max_size=5))
                    | st.tuples(st.just(True), st.lists(from_kafka, min_size=1, max_size=5)),
                ),
                min_size=1,
                max_size=3,
            )
        )
        batches = [(arrival, some) for arrival, (_, some) in made]
        of_kafka = frozenset(number for number, (_, (is_of, _)) in enumerate(made) if is_of)
        count = sum(len(some) for _, some in batches)
        voids: list[tuple[int, int]] = []
        for index in range(count):
            if draw(st.integers(0, 4)) == 0 and (not voids or sum(voids[-1]) < index):
                voids.append((index, draw(st.integers(1, min(2, count - index)))))
        found.append(Draft(topic_id, partition, batches, tuple(voids), of_kafka))
    return found
