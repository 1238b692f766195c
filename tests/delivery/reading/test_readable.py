"""Who is told of what: a tombstone if and only if records were lost without being asked for."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.reading import readable
from delivery.reading.followed import Key
from delivery.reading.readable import ReadableRange, ReadableRanges
from delivery.schemas import DiffAnswer, Tombstone
from ledger import topics
from ledger.space import retention
from ledger.types import Gap, TopicConfig
from tests.delivery.lakes import collect, compact
from tests.delivery.node import ARRIVAL_MS, Node, ledger_thread
from tests.delivery.reading.test_diff import Told, rec, told_reader
from tests.ledger.upkeep import evict_all

CAP_5 = TopicConfig(partitions=3, cap_records=5)


def gap(first: int, last: int) -> Gap:
    return Gap(1, 0, first, last, "recovery")


@pytest.mark.parametrize(
    ("cursor", "expected"),
    [
        (0, (10, Tombstone(1, 10, "cap"))),
        (7, (10, Tombstone(8, 10, "cap"))),
        (8, (10, None)),  # all that was evicted had been read, and the rest was trimmed
        (9, (10, None)),
        (10, (10, None)),
        (12, (12, None)),
        (14, (17, Tombstone(15, 17, "recovery"))),
        (16, (17, Tombstone(15, 17, "recovery"))),
        (17, (17, None)),
        (99, (99, None)),
    ],
)
def test_where_a_cursor_continues(cursor: int, expected: tuple[int, Tombstone | None]) -> None:
    """Evicted up to 8, trimmed up to 10, a gap from 15 to 17."""
    assert ReadableRange(11, 8, "cap", (gap(15, 17),)).enter(cursor) == expected


@pytest.mark.parametrize(
    ("cursor", "expected"),
    [(8, (10, Tombstone(9, 10, "ttl"))), (9, (10, Tombstone(10, 10, "ttl"))), (10, (10, None))],
)
def test_a_reader_that_had_not_read_the_last_evicted_offset_has_missed_it(
    cursor: int, expected: tuple[int, Tombstone | None]
) -> None:
    assert ReadableRange(11, 10, "ttl").enter(cursor) == expected


def test_a_trim_into_a_gap_still_names_the_gap() -> None:
    assert ReadableRange(6, 0, "", (gap(5, 7),)).enter(0) == (7, Tombstone(5, 7, "recovery"))


def test_an_eviction_into_a_gap_is_named_first() -> None:
    readable = ReadableRange(6, 5, "ttl", (gap(5, 7),))
    assert readable.enter(0) == (5, Tombstone(1, 5, "ttl"))
    assert readable.enter(5) == (7, Tombstone(5, 7, "recovery"))


@given(
    st.integers(1, 30), st.integers(0, 30), st.integers(0, 40),
    st.lists(st.integers(1, 40), max_size=6, unique=True).map(sorted),
)  # fmt: skip
def test_a_tombstone_names_what_was_lost_and_nothing_else(
    earliest_seq: int, lost_seq: int, cursor: int, ends: list[int]
) -> None:
    gaps = tuple(
        gap(a, b) for a, b in zip(ends[::2], ends[1::2], strict=False) if b >= earliest_seq
    )
    lost_seq = min(lost_seq, earliest_seq - 1)
    readable = ReadableRange(earliest_seq, lost_seq, "cap", gaps)
    reached, tombstone = readable.enter(cursor)
    assert reached >= max(cursor, earliest_seq - 1)
    if tombstone is None:
        assert reached == max(cursor, earliest_seq - 1)
        assert cursor >= lost_seq and readable.can_be_read(reached + 1)
    elif tombstone.reason == "cap":
        assert cursor < lost_seq
        assert tombstone == Tombstone(cursor + 1, earliest_seq - 1, "cap")
    else:
        assert cursor >= lost_seq
        assert not readable.can_be_read(max(cursor, earliest_seq - 1) + 1)
        assert tombstone.gap_to == reached
    # A tombstone comes once: the next answer has the next one, if any.
    again = readable.enter(reached)[1]
    assert again is None or again != tombstone


# Against a ledger


def commit(node: Node, *texts: str) -> None:
    node.produce(0, {0: rec(*texts)})
    assert node.commit(0) is not None


def seqs(answer: DiffAnswer) -> list[int]:
    return [record.seq for record in answer.records]


def evict(node: Node, told: Told | None = None) -> None:
    """Evicts by the topic's limits; a reader's word moves."""
    assert evict_all(node.ledger, ARRIVAL_MS)
    if told is not None:
        told.version += 1


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("ring", [False, True])
async def test_a_cap_is_named_to_readers_that_it_overtook(
    node: Node, compacted: bool, ring: bool
) -> None:
    for number in range(5):
        commit(node, str(number), "x")
    with told_reader(node) as told:
        if ring:
            told.tell()  # the rings still hold all of it
        answer = await told.diff(from_seq=0, limit=3)
        assert (seqs(answer), answer.earliest_seq, answer.tombstone) == ([1, 2, 3], 1, None)
        node.topic = node.ledger.write(topics.alter, "t", CAP_5)
        if compacted:
            compact(node)
        evict(node, told)
        collect(node)
        answer = await told.diff(from_seq=answer.next_from_seq)
        assert answer.tombstone == Tombstone(4, 5, "cap")
        assert (seqs(answer), answer.earliest_seq, answer.lag) == ([6, 7, 8, 9, 10], 6, 0)
        answer = await told.diff(from_seq=5, limit=1)
        assert (seqs(answer), answer.tombstone, answer.lag) == ([6], None, 4)


async def test_a_trim_moves_the_reader_without_a_tombstone(node: Node) -> None:
    commit(node, *"1234567890")
    with told_reader(node) as told:
        await told.diff()
        retention.trim(node.ledger, "t", 0, 6)
        told.version += 1
        answer = await told.diff(from_seq=2)
        assert (seqs(answer), answer.earliest_seq) == ([6, 7, 8, 9, 10], 6)
        assert answer.tombstone is None


def test_new_readers_after_a_restart_get_the_same_tombstones(node: Node) -> None:
    commit(node, *"1234567890")
    node.topic = node.ledger.write(topics.alter, "t", CAP_5)
    evict(node)
    retention.trim(node.ledger, "t", 0, 8)
    for cursor, told_of in ((0, Tombstone(1, 7, "cap")), (4, Tombstone(5, 7, "cap")), (5, None)):
        with told_reader(node) as told:
            answer = asyncio.run(told.diff(from_seq=cursor))
            assert (answer.tombstone, seqs(answer)) == (told_of, [8, 9, 10])


async def test_a_partition_may_be_evicted_completely(node: Node) -> None:
    commit(node, *"123")
    retention.trim(node.ledger, "t", 0, 4)
    with told_reader(node) as told:
        answer = await told.diff()
        assert answer.tombstone is None and answer.records == []
        assert (answer.next_from_seq, answer.head_seq, answer.earliest_seq) == (3, 3, 4)
        assert answer.caught_up and answer.lag == 0
        answer = await told.diff(from_ts=0)
        assert (answer.next_from_seq, answer.records) == (3, [])


async def test_a_late_word_is_corrected_when_the_store_is_read(node: Node) -> None:
    """The reader was not told, and the rings are gone: the ledger knows better."""
    for number in range(5):
        commit(node, str(number), "x")
    with told_reader(node) as told:
        assert seqs(await told.diff(limit=2)) == [1, 2]
        node.topic = node.ledger.write(topics.alter, "t", CAP_5)
        evict(node)
        answer = await told.diff(from_seq=2)
        assert answer.tombstone == Tombstone(3, 5, "cap")
        assert (seqs(answer), answer.earliest_seq) == ([6, 7, 8, 9, 10], 6)
        answer = await told.diff(from_ts=0, limit=2)
        assert seqs(answer) == [6, 7]


async def test_an_eviction_between_two_reads_ends_the_answer(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was found before it is given; the next answer tells of it."""
    monkeypatch.setattr("delivery.reading.stored.EXTENTS_AT_ONCE", 2)
    for number in range(5):
        commit(node, str(number), "x")
    with told_reader(node) as told:
        node.topic = node.ledger.write(topics.alter, "t", CAP_5)
        node.store.before = lambda: evict(node) if len(node.store.gets) == 2 else None
        answer = await told.diff()
        assert (seqs(answer), answer.tombstone) == ([1, 2, 3, 4], None)
        answer = await told.diff(from_seq=4)
        assert answer.tombstone == Tombstone(5, 5, "cap")
        assert seqs(answer) == [6, 7, 8, 9, 10]


async def test_the_tail_is_read_without_the_ledger(node: Node) -> None:
    commit(node, *"123")
    with told_reader(node) as told:
        told.tell()
        await told.diff()
        questions = 0
        ledger = told.reader._ledger
        ask = ledger.read

        async def counted(question: Any, *args: Any) -> object:
            nonlocal questions
            questions += 1
            return await ask(question, *args)

        monkey = pytest.MonkeyPatch()
        monkey.setattr(ledger, "read", counted)
        for _ in range(3):
            assert seqs(await told.diff(from_seq=1)) == [2, 3]
        assert questions == 0
        told.version += 1
        for _ in range(3):
            await told.diff(from_seq=1)
        assert questions == 1, "once for each change"
        monkey.undo()


async def test_a_reader_that_has_waited_at_the_head_does_not_ask_what_was_evicted(
    node: Node,
) -> None:
    commit(node, *"123")
    with told_reader(node) as told, ledger_thread(node) as ledger:
        await told.diff(from_seq=3)
        waits, wait = asyncio.Event(), told.reader.waiters.wait

        async def waiting_at_the_head(key: Key, timeout_s: float) -> None:
            waits.set()
            await wait(key, timeout_s)

        monkey = pytest.MonkeyPatch()
        monkey.setattr(told.reader.waiters, "wait", waiting_at_the_head)
        waiting = asyncio.create_task(told.diff(from_seq=3, wait_ms=60_000))
        await waits.wait()
        commit(node, *"45")
        retention.trim(node.ledger, "t", 0, 5)
        told.version += 1
        monkey.setattr(ledger.ledger, "read", lambda *_: pytest.fail("the ledger is asked"))
        told.tell()
        assert seqs(await waiting) == [4, 5]
        monkey.undo()
        assert seqs(await told.diff(from_seq=3)) == [5], "the next reader does"


async def test_readable_ranges_are_kept_for_a_bounded_number_of_partitions(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readable, "KEPT_MAX", 2)

    with ledger_thread(node) as ledger:
        ranges = ReadableRanges(ledger, lambda _: 0)
        for partition in (0, 1, 2):
            assert await ranges.of(node.key(partition)) == ReadableRange()
        assert [ranges.known(node.key(p)) is None for p in (0, 1, 2)] == [True, False, False]


async def test_an_eviction_known_before_its_commits_moves_the_head(node: Node) -> None:
    """The log's news of commits come later than the ledger's of what was trimmed of them."""
    commit(node, *"123")
    with told_reader(node) as told:
        await told.diff()
        commit(node, *"45")
        retention.trim(node.ledger, "t", 0, 6)
        told.version += 1
        answer = await told.diff(from_seq=3)
        assert (answer.next_from_seq, answer.head_seq) == (5, 5)
        assert answer.caught_up and answer.lag == 0
