"""Makes up for a run that was killed between its Iceberg commit and the ledger's switch.

Its files are in the table and the ledger does not know them. What they hold is in their footers,
and whether they fill holes of the quarantine in their rows (``headgate quarantine retry``);
what was rewritten is what the ledger has live, the table has not any more, and one of those files
span: same day, same partitions, all of the offsets. (A file that is gone without that was removed
by somebody else, and stays in the ledger.)

A table whose metadata is where the last switch left it is not read at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from compaction.tables.datafiles import ranges_of
from compaction.tables.errors import ForeignTable, LakeError
from compaction.tables.lake import Lake, live_files
from compaction.tables.names import day_of_file, identifier_of
from compaction.tables.prepare import TopicFailure
from compaction.tables.table_state import (
    TableState,
    check_not_behind,
    check_not_rolled_back,
    owner_of,
    state_of,
)
from ledger.lake import lake_files, lake_tables
from ledger.lake.types import Hole, LakeFile, LakeRange, LakeTable, NewFile, TableSwitch
from ledger.tx import Reads
from ledger.types import Topic

if TYPE_CHECKING:
    from pyiceberg.table import Table


class Seen:
    """What the ledger says of a topic, read before the tables are."""

    def __init__(self, topic: Topic, ledger: Reads) -> None:
        self.topic = topic
        self.table: LakeTable | None = ledger.read(lake_tables.find, topic.topic_id)
        self.compacted = ledger.read(lake_tables.compacted_seqs, topic.topic_id)


def reconcile(
    lake: Lake, topics: Iterable[Topic], ledger: Reads
) -> tuple[list[TableSwitch], list[TopicFailure]]:
    """The switches that the ledger lacks, and topics whose table is not as it should be.

    A switch without files only tells the ledger where the metadata is now (somebody else's commit,
    an expiry that was killed). Raises LakeUnusable.
    """
    moved = _moved(lake, [Seen(topic, ledger) for topic in topics])

    switches: list[TableSwitch] = []
    failures: list[TopicFailure] = []
    for seen, found in zip(moved, lake.attempt(lambda seen: _look(lake, seen), moved), strict=True):
        if isinstance(found, LakeError):
            failures.append(TopicFailure(seen.topic.topic_id, seen.topic.name, found))
        elif found is not None:
            try:
                switches.append(_switch(lake, seen, *found, ledger))
            except LakeError as error:
                failures.append(TopicFailure(seen.topic.topic_id, seen.topic.name, error))
    return switches, failures


def _moved(lake: Lake, seen: Sequence[Seen]) -> list[Seen]:
    """Those whose table may not be where the ledger thinks."""
    locations = lake.locations()
    moved = []
    for each in seen:
        name = identifier_of(each.topic)
        if name not in locations:
            continue
        location = locations[name]
        if location is None or each.table is None or each.table.metadata_location != location:
            moved.append(each)
    return moved


def _look(lake: Lake, seen: Seen) -> tuple[Table, TableState] | None:
    name = identifier_of(seen.topic)
    with lake.about(name):
        loaded = lake.load(name)
    if loaded is None or not loaded.location().startswith(f"{lake.place.lake}/"):
        return None  # `prepare` says what is wrong, once the topic has something to compact
    try:
        if owner_of(loaded.metadata.properties, name) != seen.topic.topic_id:
            return None
    except ForeignTable:
        return None
    if seen.table is not None and seen.table.metadata_location == loaded.metadata_location:
        return None
    state = state_of(loaded.metadata.properties, name)
    check_not_behind(state, seen.compacted, name)
    check_not_rolled_back(loaded.metadata, state, name)
    if not state.run:
        return None  # made, and nothing committed yet
    return loaded, state


def _switch(lake: Lake, seen: Seen, loaded: Table, state: TableState, ledger: Reads) -> TableSwitch:
    topic_id = seen.topic.topic_id
    name = ".".join(loaded.name())
    with lake.about(name):
        files = {
            file.path: file
            for file in ledger.read(lake_files.of_topic, topic_id, with_dropped=True)
        }
        there = {file.file_path: file.file_size_in_bytes for file in live_files(loaded)}
        unknown = [(path, size) for path, size in there.items() if path not in files]
        read = lake.map(lambda item: _read(lake, *item), unknown)
        added = [file for file in read if file is not None]
        gone = [f for f in files.values() if f.dropped_ms is None and f.path not in there]
        dropped = covered(gone, ledger.read(lake_files.ranges, topic_id), added) if added else []
        restored = [
            hole
            for hole in (ledger.read(lake_tables.holes, topic_id) if added else [])
            if any(_has_rows(lake, file, hole) for file in added)
        ]
    return TableSwitch(
        topic_id=topic_id,
        table=name,
        metadata_location=loaded.metadata_location,
        watermarks=state.watermarks,
        added=tuple(added),
        dropped=tuple(dropped),
        holes=tuple(
            hole for hole in state.holes if hole.last_offset > seen.compacted.get(hole.partition, 0)
        ),
        restored=tuple(restored),
    )


def covered(
    files: Iterable[LakeFile],
    ranges: dict[int, tuple[LakeRange, ...]],
    added: Sequence[NewFile],
) -> list[str]:
    """Paths of those files whose rows are in added files of their day.

    Files that only append begin behind the watermark, so none of them reaches down to a file that
    the ledger knows.
    """
    hulls: dict[tuple[str | None, int], tuple[int, int]] = {}
    for file in added:
        for one in file.ranges:
            key = (day_of_file(file.path), one.partition)
            low, high = hulls.get(key, (one.first_offset, one.last_offset))
            hulls[key] = (min(low, one.first_offset), max(high, one.last_offset))

    def has(file: LakeFile, one: LakeRange) -> bool:
        hull = hulls.get((day_of_file(file.path), one.partition))
        return hull is not None and hull[0] <= one.first_offset and one.last_offset <= hull[1]

    return [
        file.path
        for file in files
        if ranges.get(file.file_id) and all(has(file, one) for one in ranges[file.file_id])
    ]


def _read(lake: Lake, path: str, size_bytes: int) -> NewFile | None:
    filesystem, _ = lake.place.filesystem()
    footer = pq.read_metadata(lake.place.path_of(path), filesystem=filesystem)
    ranges = ranges_of(footer)
    return None if ranges is None else NewFile(path, size_bytes, footer.num_rows, ranges)


def _has_rows(lake: Lake, file: NewFile, hole: Hole) -> bool:
    """Whether a file has a row with an offset of a hole; it has all or none."""
    if not any(
        one.partition == hole.partition
        and one.first_offset <= hole.last_offset
        and one.last_offset >= hole.first_offset
        for one in file.ranges
    ):
        return False
    filesystem, _ = lake.place.filesystem()
    found = pq.read_table(
        lake.place.path_of(file.path),
        filesystem=filesystem,
        columns=["offset"],
        partitioning=None,
        filters=[
            ("partition", "==", hole.partition),
            ("offset", ">=", hole.first_offset),
            ("offset", "<=", hole.last_offset),
        ],
    )
    return bool(found.num_rows)
