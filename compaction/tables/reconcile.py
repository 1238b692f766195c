"""Compares tables with the ledger: completes a run that died after its Iceberg commit and before
the ledger switched its readers, and registers tables that the catalog has lost.

The table then has files that the ledger does not know. Their footers say what they hold; their rows
say whether they fill holes of the quarantine (``headgate quarantine retry``). The run has rewritten
those files that are live in the ledger, no longer in the table, and covered by one of the new
files: same day, same partitions, all offsets. (A file that is gone and not covered was removed from
outside, and stays in the ledger.)

A table whose metadata is where the last switch left it is not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import pyarrow.parquet as pq

from compaction.tables.datafiles import ranges_of
from compaction.tables.errors import ForeignTable, LakeError
from compaction.tables.fileio import OutsideLake
from compaction.tables.lake import Lake, live_files
from compaction.tables.names import day_of_file, identifier_of
from compaction.tables.prepare import TopicFailure, register
from compaction.tables.table_state import (
    TableState,
    check_not_behind,
    check_not_rolled_back,
    owner_of,
    state_of,
)
from ledger.lake import lake_tables, pages
from ledger.lake.catalog import is_below
from ledger.lake.types import Hole, LakeFile, LakeRange, LakeTable, NewFile, TableSwitch
from ledger.tx import Reads
from ledger.types import Topic

if TYPE_CHECKING:
    from pyiceberg.table import Table


class Seen(NamedTuple):
    """What the ledger says of a topic, read before the tables."""

    topic: Topic
    table: LakeTable | None
    compacted: dict[int, int]


def reconcile(
    lake: Lake, topics: Iterable[Topic], ledger: Reads
) -> tuple[list[TableSwitch], list[TopicFailure]]:
    """The switches that the ledger lacks, and topics whose table is not as it should be.

    A switch without files only tells the ledger where the metadata is now, after a commit by
    another writer or an expiry that was killed. Raises LakeUnusable.
    """
    listed = list(topics)
    states = pages.states(ledger, [topic.topic_id for topic in listed])
    known = [
        Seen(topic, state.table, state.compacted)
        for topic, state in zip(listed, states, strict=True)
    ]
    moved = _moved(lake, known)

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


def register_lost(
    lake: Lake, topics: Iterable[Topic], ledger: Reads
) -> tuple[list[str], list[TopicFailure]]:
    """Registers the tables that the catalog lacks, as the ledger knows them; returns their
    identifiers, and topics whose table cannot be registered. Raises LakeUnusable.

    Tables of deleted topics may have been dropped on purpose, so they are registered only in a
    catalog that has lost everything.
    """
    there = lake.locations()
    lost = {
        name: location
        for name, location in ledger.read(lake_tables.named, not there).items()
        if name not in there
    }
    found = lake.attempt(lambda item: _register(lake, *item), list(lost.items()))
    of_name = {identifier_of(topic): topic for topic in topics}
    failures = [
        TopicFailure(of_name[name].topic_id, of_name[name].name, error)
        for name, error in zip(lost, found, strict=True)
        if isinstance(error, LakeError) and name in of_name
    ]
    registered = [name for name, made in zip(lost, found, strict=True) if made is None]
    return registered, failures


def _register(lake: Lake, name: str, location: str) -> None:
    from pyiceberg.exceptions import CommitFailedException

    with lake.about(name), suppress(CommitFailedException):  # another process was quicker
        register(lake, name, location)


def _moved(lake: Lake, seen: Sequence[Seen]) -> list[Seen]:
    """The tables whose metadata may have moved."""
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
    try:
        with lake.about(name):
            loaded = lake.load(name)
        if loaded is None or not lake.has(loaded):
            return None
        if owner_of(loaded.metadata.properties, name) != seen.topic.topic_id:
            return None
    except ForeignTable:
        return None  # `prepare` refuses it when the topic has something to compact
    if seen.table is not None and seen.table.metadata_location == loaded.metadata_location:
        return None
    state = state_of(loaded.metadata.properties, name)
    check_not_behind(state, seen.compacted, name)
    check_not_rolled_back(loaded.metadata, state, name)
    if not state.run:
        return None  # new: no run has committed to it
    return loaded, state


def _switch(lake: Lake, seen: Seen, loaded: Table, state: TableState, ledger: Reads) -> TableSwitch:
    topic_id = seen.topic.topic_id
    name = ".".join(loaded.name())
    with lake.about(name):
        files = {file.path: file for file in pages.files_of(ledger, topic_id, with_dropped=True)}
        there = {file.file_path: file.file_size_in_bytes for file in live_files(loaded)}
        unknown = [(path, size) for path, size in there.items() if path not in files]
        read = lake.map(lambda item: _read(lake, *item), unknown)
        added = [file for file in read if file is not None]
        gone = [f for f in files.values() if f.dropped_ms is None and f.path not in there]
        dropped = covered(gone, pages.ranges_of(ledger, topic_id), added) if added else []
        restored = [
            hole
            for hole in (pages.holes_of(ledger, topic_id) if added else [])
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
    """Paths of those files whose rows are in added files of the same day.

    Files that only append begin after the watermark, so they cannot cover a file of the ledger.
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
    if not is_below(path, lake.place.lake):
        raise OutsideLake(f"its file {path[:300]} is not below {lake.place.lake}/")
    filesystem, _ = lake.place.filesystem()
    footer = pq.read_metadata(lake.place.path_of(path), filesystem=filesystem)
    ranges = ranges_of(footer)
    return None if ranges is None else NewFile(path, size_bytes, footer.num_rows, ranges)


def _has_rows(lake: Lake, file: NewFile, hole: Hole) -> bool:
    """Whether a file has the rows of a hole; it has all or none of them."""
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
