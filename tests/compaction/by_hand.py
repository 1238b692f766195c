"""Compaction of what a data directory holds, without Spark and without Iceberg: files, and the
switch in the ledger. For tests of what reads L1, which looks at nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from compaction.inputs.objects import ExtentBytes
from compaction.inputs.place import Place
from compaction.parquet.row_builder import RowBuilder
from compaction.parquet.writer import FileNames, Syncs, TopicWriter
from ledger import commits, reads
from ledger import topics as ledger_topics
from ledger.lake import lake_tables, runs
from ledger.lake.types import PlannedObject, TableSwitch
from ledger.ledger import Ledger
from ledger.types import Extent, Topic
from shards import locks
from shards.clock import wall_ms
from shards.locks import LockFile, SharedLock


@contextmanager
def opened(data: Path) -> Iterator[Ledger]:
    """The ledger of a data directory whose daemon may run."""
    file = LockFile(data / "lock")
    ledger = Ledger(data / "ledger" / "ledger.db", SharedLock(file, locks.LEDGER), must_exist=True)
    try:
        yield ledger
    finally:
        ledger.close()
        file.close()


def place_of(data: Path) -> Place:
    """The embedded store of a data directory."""
    return Place(f"file://{data}/store")


def compact(
    data: Path, run: str, topics: Sequence[str], *, objects_max: int = 1_000,
    place: Place | None = None,
) -> None:  # fmt: skip
    """Switches the oldest ``objects_max`` objects of the topics to L1."""
    with opened(data) as ledger:
        ledger.write(runs.begin, run, "a test", wall_ms())
        found = [
            topic for name in topics if (topic := ledger.read(ledger_topics.find, name)) is not None
        ]
        ids = {topic.topic_id for topic in found}
        planned = ledger.read(
            lake_tables.plan_objects,
            0,
            ledger.read(commits.latest_number),
            objects_max,
            frozenset(ids),
        )
        where = place or place_of(data)
        switches = [_written(where, run, topic, planned) for topic in found]
        ledger.write(lake_tables.switch, run, switches, wall_ms())
        ledger.write(runs.end, run, wall_ms())


def _written(place: Place, run: str, topic: Topic, planned: Sequence[PlannedObject]) -> TableSwitch:
    extents = sorted(
        (
            extent
            for each in planned
            for extent in each.extents
            if extent.topic_id == topic.topic_id
        ),
        key=lambda extent: (extent.partition, extent.first_offset),
    )
    watermarks: dict[int, int] = {}
    builder = RowBuilder()
    for extent in extents:
        builder.add(_bytes(place, extent))
        watermarks[extent.partition] = extent.last_offset
    syncs = Syncs()
    names = FileNames(f"{place.lake}/{topic.name}", topic.topic_id, run, 0)
    writer = TopicWriter(place, names, syncs)
    if extents:
        writer.write(*builder.take())
    files = tuple(each.file for each in writer.close())
    syncs.wait()
    return TableSwitch(topic.topic_id, topic.name, f"{run}.json", watermarks, files)


def _bytes(place: Place, extent: Extent) -> ExtentBytes:
    data = place.store().get(extent.locator, extent.byte_start, extent.byte_length)
    return ExtentBytes(
        partition=extent.partition, first_offset=extent.first_offset,
        last_offset=extent.last_offset, voids=extent.voids, key=extent.key, data=data,
    )  # fmt: skip


def delete_compacted(data: Path, place: Place | None = None) -> int:
    """Deletes every object that nothing in the ledger needs, as a collection does when no lease
    holds them; returns how many."""
    deleted = 0
    with opened(data) as ledger:
        needed = {
            each.key
            for each in ledger.read(
                lake_tables.plan_objects, 0, ledger.read(commits.latest_number), 10_000
            )
        }
        for row in ledger.read(reads.objects, 0, 10_000):
            if row.key not in needed:
                (place or place_of(data)).store().delete([row.locator])
                deleted += 1
    return deleted
