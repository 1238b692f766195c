"""Compactions of a node without Spark: real Parquet files, a real switch, real deletions.

``compact`` does what a run does, one task, by the same writer; ``rewrite`` puts all files of the
topic together again; ``collect`` deletes what is not needed any more, immediately and without
grace.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from compaction.inputs.objects import ExtentBytes
from compaction.parquet.row_builder import RowBuilder
from compaction.parquet.writer import FileNames, Syncs, TopicWriter
from ledger import commits, reads
from ledger.lake import lake_files, lake_tables, runs
from ledger.lake.types import Hole, NewFile, TableSwitch
from ledger.space import unreferenced
from ledger.types import Extent
from tests.delivery.node import Node


def compact(
    node: Node, to_commit: int | None = None, *, damaged: AbstractSet[int] = frozenset()
) -> None:
    """Compacts up to a commit; objects of the commits ``damaged`` are put in quarantine."""
    topic_id = node.topic.topic_id
    head = node.ledger.read(commits.latest_number) if to_commit is None else to_commit
    planned = node.ledger.read(lake_tables.plan_objects, 0, head, 1_000, frozenset({topic_id}))
    if not planned:
        return
    watermarks: dict[int, int] = {}
    holes: list[Hole] = []
    extents: list[tuple[Extent, str]] = []
    for item in planned:
        for one in item.extents:
            watermarks[one.partition] = one.last_offset
            if item.commit_number in damaged:
                holes.append(Hole(topic_id, one.partition, one.first_offset, one.last_offset,
                                  item.key, "torn"))  # fmt: skip
            else:
                extents.append((one, item.key))
    run = f"run{node.runs}"
    added: list[NewFile] = []
    if extents:
        piece = RowBuilder()
        for one, key in sorted(extents, key=lambda e: (e[0].partition, e[0].first_offset)):
            data = node.store.get(one.locator, one.byte_start, one.byte_length)
            piece.add(
                ExtentBytes(
                    partition=one.partition, first_offset=one.first_offset,
                    last_offset=one.last_offset, voids=one.voids, data=data, key=key,
                )
            )  # fmt: skip
        added = _written(node, run, *piece.take())
    _switch(node, run, TableSwitch(topic_id, "headgate.t", "m", watermarks, tuple(added),
                                   (), tuple(holes)))  # fmt: skip


def rewrite(node: Node) -> None:
    """Rewrites all rows of the topic into new files and removes the old ones."""
    topic_id = node.topic.topic_id
    files = node.ledger.read(lake_files.of_topic, topic_id)
    if not files:
        return
    shares: dict[int, list[int]] = {}
    for ranges in node.ledger.read(lake_files.ranges, topic_id).values():
        for one in ranges:
            share = shares.setdefault(one.partition, [0, 0])
            share[0] += one.rows
            share[1] += one.bytes
    rows = pa.concat_tables([pq.read_table(local(file.path)) for file in files])
    rows = rows.sort_by([("partition", "ascending"), ("offset", "ascending")]).combine_chunks()
    run = f"run{node.runs}"
    dropped = tuple(file.path for file in files)
    added = tuple(_written(node, run, rows, shares))
    _switch(node, run, TableSwitch(topic_id, "headgate.t", "m", {}, added, dropped))
    for path in dropped:
        local(path).unlink()


def collect(node: Node) -> None:
    """Deletes all unreferenced objects except that of the last commit."""
    head = node.ledger.read(commits.latest_number)
    topic_id = node.topic.topic_id
    needed = {
        one.commit_number
        for one in node.ledger.read(lake_tables.plan_objects, 0, head, 1_000, frozenset({topic_id}))
    }
    held = {hole.key for hole in node.ledger.read(lake_tables.holes, topic_id)}
    for item in node.ledger.read(reads.objects):
        if item.commit_number not in needed | {head} and item.key not in held:
            node.ledger.write(unreferenced.forget, [item.key], "m")
            node.store.delete([item.locator])


def local(url: str) -> Path:
    """The file of a file:// URL."""
    return Path(urlsplit(url).path)


def _written(node: Node, run: str, rows: pa.Table, shares: dict[int, list[int]]) -> list[NewFile]:
    location = f"{node.place.lake}/t-{node.topic.topic_id}"
    syncs = Syncs()
    writer = TopicWriter(node.place, FileNames(location, node.topic.topic_id, run, 1), syncs)
    writer.write(rows, shares)
    files = [each.file for each in writer.close()]
    syncs.wait()
    return files


def _switch(node: Node, run: str, switch: TableSwitch) -> None:
    node.runs += 1
    node.ledger.write(runs.begin, run, "test", 1)
    node.ledger.write(lake_tables.switch, run, [switch], 1)
    node.ledger.write(runs.end, run, 1)
