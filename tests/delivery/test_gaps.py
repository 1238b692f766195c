"""Offsets without a record: a reader is told of each gap once, and gets all records after it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from delivery.schemas import DiffAnswer, Tombstone
from ledger.log import recovery
from ledger.log.backup import Mark
from tests.delivery.node import ARRIVAL_MS, Node, node_in
from tests.delivery.reading.test_diff import rec, told_reader


def gap(node: Node, length: int) -> None:
    """What a recovery declares, before the readers begin."""
    node.ledger.write(recovery.prepare, Mark(), [], {node.key(): length}, 0, 1)


def commit(node: Node, *texts: str) -> None:
    node.produce(0, {0: rec(*texts)})
    assert node.commit(0) is not None


def seqs(answer: DiffAnswer) -> list[int]:
    return [record.seq for record in answer.records]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """Records 1 and 2, a gap of 3 to 5, records 6 and 7, gaps of 8 to 9 and of 10."""
    with node_in(tmp_path) as made:
        commit(made, "1", "2")
        gap(made, 3)
        commit(made, "6")
        commit(made, "7")
        gap(made, 2)
        gap(made, 1)
        yield made


def walk(node: Node, *, head: int, limit: int, **asked: Any) -> tuple[list[int], list[Tombstone]]:
    """All records from the beginning, page by page, and the tombstones on the way."""

    async def run() -> tuple[list[int], list[Tombstone]]:
        found: list[int] = []
        tombstones: list[Tombstone] = []
        with told_reader(node) as told:
            if head > 10:
                told.tell()  # then the tail comes from the rings
            from_seq = 0
            while True:
                answer = await told.diff(from_seq=from_seq, limit=limit, **asked)
                assert (answer.head_seq, answer.earliest_seq) == (head, 1)
                found += seqs(answer)
                if answer.tombstone is not None:
                    tombstones.append(answer.tombstone)
                if answer.caught_up:
                    assert answer.lag == 0
                    return found, tombstones
                assert answer.next_from_seq > from_seq
                from_seq = answer.next_from_seq

    return asyncio.run(run())


GAPS = [Tombstone(3, 5, "recovery"), Tombstone(8, 9, "recovery"), Tombstone(10, 10, "recovery")]


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_every_gap_is_named_once_and_every_record_is_read(node: Node, limit: int) -> None:
    assert walk(node, head=10, limit=limit) == ([1, 2, 6, 7], GAPS)


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_rings_and_objects_give_the_same_gaps(node: Node, limit: int) -> None:
    commit(node, "11")
    assert walk(node, head=11, limit=limit) == ([1, 2, 6, 7, 11], GAPS)


def test_a_filter_that_no_record_passes_still_names_the_gaps(node: Node) -> None:
    found, tombstones = walk(node, head=10, limit=100, tag="none has it")
    assert found == [] and len(tombstones) == 3


@pytest.mark.parametrize(
    ("from_seq", "tombstone", "records", "next_from_seq"),
    [
        (0, None, [1, 2], 2),  # the answer ends before the gap
        (2, (3, 5), [6, 7], 7),
        (3, (3, 5), [6, 7], 7),
        (4, (3, 5), [6, 7], 7),
        (5, None, [6, 7], 7),
        (7, (8, 9), [], 9),
        (8, (8, 9), [], 9),
        (9, (10, 10), [], 10),
        (10, None, [], 10),
    ],
)
async def test_a_cursor_inside_a_gap_gets_what_follows_the_gap(
    node: Node, from_seq: int, tombstone: tuple[int, int] | None, records: list[int],
    next_from_seq: int,
) -> None:  # fmt: skip
    with told_reader(node) as told:
        answer = await told.diff(from_seq=from_seq)
        named = answer.tombstone and (answer.tombstone.gap_from, answer.tombstone.gap_to)
        assert named == tombstone
        assert seqs(answer) == records
        # Where nothing more is committed up to a gap, the next answer names it.
        assert answer.next_from_seq == next_from_seq


async def test_a_time_is_found_across_a_gap(node: Node) -> None:
    with told_reader(node) as told:
        answer = await told.diff(from_ts=ARRIVAL_MS)
        assert seqs(answer) == [1, 2]
        answer = await told.diff(from_ts=ARRIVAL_MS + 1)
        assert seqs(answer) == [] and answer.caught_up


async def test_a_partition_without_gaps_has_no_tombstone(node: Node) -> None:
    with told_reader(node) as told:
        answer = await told.diff(partition=1)
        assert answer.tombstone is None and answer.caught_up
