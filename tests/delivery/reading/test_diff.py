"""DiffReader over real rings, ledger and store, told of commits late, in lots, or not at all."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delivery.reading import partition as reader_module
from delivery.reading.diff import DiffReader, OffsetPastEnd
from delivery.reading.followed import FollowedPartitions
from delivery.reading.partition import TURN_RECORDS, PartitionReader
from delivery.reading.tail import TailReader
from delivery.reading.waiters import Waiters
from delivery.schemas import DiffAnswer, DiffRequest
from ledger.types import Commit
from shards.ring import RingFull
from tests.delivery.node import ARRIVAL_MS, Node, l0_reader, ledger_thread, node_in, stored_reader
from tests.long import examples
from uploader.l0.records import Record


class Told:
    """A reader, and how far it has been told of commits."""

    def __init__(self, node: Node, partitions: PartitionReader, reader: DiffReader) -> None:
        self.node = node
        self.partitions = partitions
        self.reader = reader
        self.seen = 0
        self.version = 0  # the shared catalog word
        self.reaches = False

    async def reach(self) -> None:
        if self.reaches:
            self.tell()

    def recent(self) -> list[Commit]:
        return self.node.tail_of(self.seen)

    def tell(self, most: int = 1000) -> None:
        """The next commits of the log, in order."""
        for commit in self.node.commits[self.seen : self.seen + most]:
            self.seen = commit.number
            self.reader.waiters.wake(self.partitions.followed.apply(commit))

    async def diff(self, **asked: Any) -> DiffAnswer:
        return await self.reader.answer(self.node.topic.topic_id, DiffRequest(**asked))


@contextmanager
def told_reader(node: Node) -> Iterator[Told]:
    with ledger_thread(node) as ledger, l0_reader(node) as (l0, _):
        told: Told
        partitions = PartitionReader(
            FollowedPartitions(lambda: told.recent()), TailReader(node.segment), ledger,
            stored_reader(node, ledger, l0), lambda _: told.version, lambda: told.reach(),
        )  # fmt: skip
        told = Told(node, partitions, DiffReader(partitions, ledger))
        yield told


def data_of(answer: DiffAnswer) -> list[str]:
    return [bytes(r.data).decode() for r in answer.records if isinstance(r.data, msgspec.Raw)]


def rec(*texts: str) -> list[Record]:
    return [Record(text) for text in texts]


steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("produce"),
            st.integers(0, 1),
            st.dictionaries(st.integers(0, 1), st.integers(1, 5), min_size=1),
            st.sampled_from([None, None, "a", "b"]),
        ),
        st.tuples(st.just("commit"), st.sampled_from([(), (0,), (1,)])),
        st.tuples(st.just("tell"), st.integers(1, 3)),
        st.tuples(
            st.just("read"), st.integers(0, 1), st.integers(0, 30), st.integers(1, 8),
            st.integers(1, 300),
        ),
        st.tuples(st.just("since"), st.integers(0, 1), st.integers(-3, 3), st.integers(1, 8)),
    ),
    max_size=40,
)  # fmt: skip


@settings(max_examples=examples(60))
@given(steps)
def test_any_sequence_of_reads_returns_what_was_committed(
    taken: list[tuple[Any, ...]],
) -> None:
    """Rings come round, commits are told late, requests are void: no reader can tell."""
    number = 0

    def produce(shard: int, counts: dict[int, int], key: str | None) -> None:
        nonlocal number
        parts = {}
        for partition, count in counts.items():
            parts[partition] = [
                Record(f'"{number + n:040}"', ARRIVAL_MS + (number + n) * 7 % 5 - 2)
                for n in range(count)
            ]
            number += count
        try:
            node.produce(shard, parts, idempotency_key=key)
        except RingFull:
            node.commit()
            node.produce(shard, parts, idempotency_key=key)

    def stored(partition: int) -> list[str]:
        return [str(record.data) for _, record in node.records[node.key(partition)]]

    def told_head(partition: int) -> int:
        heads = [
            head.head_seq
            for commit in node.tail_of(told.seen)
            for head in commit.heads
            if head.partition == partition
        ]
        return heads[-1] if heads else 0

    async def read(partition: int, from_seq: int, limit: int, max_bytes: int) -> None:
        if from_seq > len(stored(partition)):
            with pytest.raises(OffsetPastEnd) as caught:
                await told.diff(partition=partition, from_seq=from_seq, limit=limit)
            assert caught.value.head_seq == len(stored(partition))
            return
        answer = await told.diff(
            partition=partition, from_seq=from_seq, limit=limit, max_bytes=max_bytes
        )
        expected = stored(partition)
        found = data_of(answer)
        assert found == expected[from_seq : from_seq + len(found)]
        assert [r.seq for r in answer.records] == [from_seq + 1 + n for n in range(len(found))]
        assert answer.next_from_seq == from_seq + len(found)
        assert len(found) <= min(limit, max(1, max_bytes // 42))
        assert told_head(partition) <= answer.head_seq <= len(expected)
        assert answer.caught_up == (answer.next_from_seq >= answer.head_seq)
        assert answer.lag == max(0, answer.head_seq - answer.next_from_seq)
        if from_seq < told_head(partition):
            assert found, "what the reader was told of is there"

    async def since(partition: int, delta: int, limit: int) -> None:
        from_ts = ARRIVAL_MS + delta
        answer = await told.diff(partition=partition, from_ts=from_ts, limit=limit)
        records = node.records[node.key(partition)]
        first = next((n for n, (ts, _) in enumerate(records) if ts >= from_ts), len(records))
        found = data_of(answer)
        assert found == [str(r.data) for _, r in records[first : first + len(found)]]
        if first < told_head(partition):
            assert found

    async def go() -> None:
        for action, *operands in taken:
            if action == "produce":
                produce(*operands)
            elif action == "commit":
                node.commit(*operands[0])
            elif action == "tell":
                told.tell(*operands)
            elif action == "read":
                await read(*operands)
            else:
                await since(*operands)
        node.commit()
        told.tell()
        for partition in (0, 1):
            answer = await told.diff(partition=partition, limit=1000)
            assert data_of(answer) == stored(partition)

    with (
        tempfile.TemporaryDirectory() as directory,
        node_in(Path(directory)) as node,
        told_reader(node) as told,
    ):
        asyncio.run(go())


def test_a_commit_during_the_search_for_a_time_is_found_without_a_wait(
    tmp_path: Path,
) -> None:
    """The head from before the question would have made the poll sleep over it."""

    async def go() -> None:
        node.produce(0, {0: rec("1")})
        node.commit()
        told.tell()
        await told.diff()
        node.produce(0, {0: [Record("2", ARRIVAL_MS + 5)]})
        node.commit()
        poll = asyncio.create_task(told.diff(from_ts=ARRIVAL_MS + 5, wait_ms=30_000))
        await asyncio.sleep(0)  # the poll has asked the ledger, which knows the second commit
        told.tell()
        assert data_of(await poll) == ["2"]

    with node_in(tmp_path) as node, told_reader(node) as told:
        asyncio.run(asyncio.wait_for(go(), 20))


@pytest.mark.parametrize("reaches", [False, True])
def test_a_reader_that_reaches_the_log_sees_what_it_was_not_told_of(
    tmp_path: Path, reaches: bool
) -> None:
    with node_in(tmp_path) as node, told_reader(node) as told:
        asyncio.run(told.diff())
        node.produce(0, {0: rec("1")})
        node.commit()
        told.reaches = reaches
        assert data_of(asyncio.run(told.diff())) == (["1"] if reaches else [])


async def test_a_filter_reads_a_bounded_number_of_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "SCANNED_MAX", 5)
    with node_in(tmp_path) as node, told_reader(node) as told:
        node.produce(0, {0: [*rec(*"1234567"), Record("8", tag="x")]})
        node.commit()
        told.tell()
        answer = await told.diff(tag="x")
        assert (answer.records, answer.next_from_seq, answer.caught_up) == ([], 5, False)
        answer = await told.diff(tag="x", from_seq=5)
        assert (data_of(answer), answer.caught_up) == (["8"], True)


async def test_a_search_for_a_time_runs_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "SCANNED_MAX", 5)
    with node_in(tmp_path) as node, told_reader(node) as told:
        records = [Record(str(n), 10) for n in range(12)] + [Record("late", 20)]
        node.produce(0, {0: records})
        node.commit()
        told.tell()
        answer = await told.diff(from_ts=15)
        assert (data_of(answer), answer.next_from_seq) == (["late"], 13)


class TestWaiters:
    def test_a_waiter_wakes_for_its_own_partition(self) -> None:
        async def go() -> None:
            waiters = Waiters()
            mine = asyncio.create_task(waiters.wait((1, 0), 60))
            other = asyncio.create_task(waiters.wait((1, 1), 60))
            await asyncio.sleep(0)
            waiters.wake([(1, 0), (2, 0)])
            await mine
            assert not other.done()
            waiters.wake_all()
            await other
            assert waiters._waiting == {}, "nothing is left of them"

        asyncio.run(asyncio.wait_for(go(), 20))

    def test_a_wait_ends_with_its_time(self) -> None:
        async def go() -> None:
            waiters = Waiters()
            await waiters.wait((1, 0), 0.01)
            assert waiters._waiting == {}

        asyncio.run(asyncio.wait_for(go(), 20))

    def test_a_waiter_that_is_cancelled_leaves_nothing(self) -> None:
        async def go() -> None:
            waiters = Waiters()
            task = asyncio.create_task(waiters.wait((1, 0), 60))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert waiters._waiting == {}

        asyncio.run(asyncio.wait_for(go(), 20))

    def test_ending_wakes_all_waiters_and_later_ones_do_not_wait(self) -> None:
        async def go() -> None:
            waiters = Waiters()
            task = asyncio.create_task(waiters.wait((1, 0), 60))
            await asyncio.sleep(0)
            waiters.end()
            await task
            await waiters.wait((1, 0), 60)

        asyncio.run(asyncio.wait_for(go(), 20))


async def test_others_have_their_turn_while_a_page_looks_for_records(tmp_path: Path) -> None:
    turns, seen = 0, Counter[int]()

    def passes(_: Record) -> bool:
        seen[turns] += 1
        return False

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    count = 3 * TURN_RECORDS
    with node_in(tmp_path, ring_bytes=1 << 20) as node, told_reader(node) as told:
        node.produce(0, {0: [Record("x") for _ in range(count)]})
        node.commit()
        told.tell()
        meanwhile = asyncio.ensure_future(others())
        page = await told.partitions.page(
            node.key(), 0, count, limit=10, bytes_max=1 << 20, passes=passes
        )
        meanwhile.cancel()
        assert (page.items, page.reached) == ([], count)
    assert seen.total() == count and max(seen.values()) == TURN_RECORDS
