"""A shard's routers over real rings, a real ledger and a real store; commits and time by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, nullcontext
from pathlib import Path
from typing import Any

import pytest

from delivery.dispatch import Dispatcher
from delivery.ledger_thread import LedgerThread
from delivery.reading import followed
from delivery.reading.followed import FollowedPartitions
from delivery.reading.partition import PartitionReader
from delivery.reading.tail import TailReader
from delivery.ready import Kind, PriorityInputs
from delivery.routers import shard_routers
from delivery.routers.outbox import DestinationFull, RingShareUsed
from delivery.routers.router_plan import HOLD_NS, Lane
from delivery.routers.schemas import RouterStatus, status_of
from delivery.routers.shard_routers import Routers
from ledger import cursors, topics
from ledger.delivery import routers
from ledger.delivery.record_filter import NO_FILTER, RecordFilter
from ledger.delivery.routers import Start
from ledger.ledger import Ledger
from ledger.tx import WriteTx
from ledger.types import Advance, Commit, Topic, TopicConfig
from shards.boards.rowboard import RouterRow, router_board
from shards.clock import monotonic_ns
from shards.frame import FLAG_WAITS, Part, encode_conditions
from tests.delivery.fifo import FifoReadySet
from tests.delivery.node import Node, l0_reader, node_in, raise_it, stored_reader
from uploader.l0.records import Record
from uploader.stores.base import StoreError

HANG_NS = 60 * 10**9
RING_BYTES = 64 << 10


class RingOutbox:
    """The ring of one shard; ``room`` and ``full`` say what it and the destination take."""

    def __init__(self, node: Node, shard: int) -> None:
        self._node = node
        self.shard = shard
        self.room = 1 << 20
        self.full = False
        self.refuses = ""
        self.full_partitions: set[int] = set()
        self.appended = 0
        self.meanwhile: list[Callable[[], None]] = []  # what happens during the next ``append``
        self.on_their_way: dict[int, Callable[[bool], None]] = {}
        self.dest_ids: dict[int, int] = {}

    def room_bytes(self) -> int:
        return self.room

    def knows(self, dest: Topic) -> bool:
        return True

    async def learn(self, dest: Topic) -> None:
        raise AssertionError("what is known need not be learned")

    def append(
        self,
        dest: Topic,
        parts: Sequence[Part],
        advance: Advance | None,
        settled: Callable[[bool], None],
    ) -> None:
        if not self.room:
            raise RingShareUsed(1)
        if self.refuses:
            raise DestinationFull(self.refuses)
        if self.full and sum(part.record_count for part in parts) > 2:
            raise DestinationFull("it takes two records at a time")
        if self.full_partitions & {part.partition for part in parts}:
            raise DestinationFull("a partition is full")
        conditions = encode_conditions(None, None, advance)
        writer = self._node._writers[self.shard]
        position = writer.append(0, 0, conditions, parts, FLAG_WAITS)
        self.on_their_way[position] = settled
        self.dest_ids[position] = dest.topic_id
        self.appended += 1
        if self.meanwhile:
            self.meanwhile.pop()()

    def committed(self, commit: Commit) -> None:
        void = {verdict.position for verdict in commit.verdicts if verdict.shard == self.shard}
        deleted = {run.topic_id for run in commit.runs if not run.first_offset}
        for source in commit.ranges:
            if source.shard == self.shard:
                for position in [p for p in self.on_their_way if p < source.end]:
                    settled, dest_id = self.on_their_way.pop(position), self.dest_ids[position]
                    settled(position not in void and dest_id not in deleted)


class World:
    """A node and the routers of its shards, each with an outbox of its own."""

    def __init__(self, node: Node, reader_of: Callable[[], PartitionReader], ledger: Any) -> None:
        self.node = node
        self.dest: Topic = node.ledger.write(topics.create, "copies", TopicConfig(partitions=2), 1)[
            0
        ]
        self._reader_of = reader_of
        self._ledger = ledger
        self.now_ns = 1
        self.changes = 1
        self.failed = False
        self.shards: list[tuple[Routers, RingOutbox, PartitionReader]] = []
        self.dispatchers: list[Dispatcher] = []

    def add(self, shard: int = 0) -> RingOutbox:
        """Another owner of all routers, whose frames go to a shard's ring."""
        outbox = RingOutbox(self.node, shard)
        reader = self._reader_of()
        dispatcher = Dispatcher(FifoReadySet(), lambda _: PriorityInputs(), lambda: self.now_ns)
        made = Routers(
            0, 1, reader, self._ledger, outbox, router_board(self.node.segment), dispatcher.dirty,
            lambda: self.changes, lambda: self.now_ns, lambda _: None, self._end,
        )  # fmt: skip
        dispatcher.start(asyncio.get_running_loop(), {Kind.ROUTE: made.serve}, raise_it)
        self.shards.append((made, outbox, reader))
        self.dispatchers.append(dispatcher)
        return outbox

    def _end(self, _: Exception) -> None:
        self.failed = True

    def create(self, start: Start = "earliest", filter_: RecordFilter = NO_FILTER) -> None:
        self.node.ledger.write(routers.create, "r", "t", "copies", filter_, start, False, 5)
        self.changes += 1

    def look(self) -> None:
        for made, _, _ in self.shards:
            made.look()

    def commit(self, *shards: int) -> None:
        commit = self.node.commit(*shards)
        if commit is None:
            return
        for made, outbox, reader in self.shards:
            made.committed(reader.followed.apply(commit), self.now_ns)
            outbox.committed(commit)

    async def until(self, holds: Callable[[], object], *, commits: bool = True) -> None:
        """Turns everything until a condition holds."""
        end_ns = monotonic_ns() + HANG_NS
        while not holds():
            assert not self.failed and monotonic_ns() < end_ns
            self.look()
            if commits:
                self.commit()
            await asyncio.sleep(0.001)

    def status(self) -> RouterStatus:
        view = self.node.ledger.read(routers.view, "r")
        assert view is not None
        row = router_board(self.node.segment).read(view.router.slot, view.router.router_id)
        return status_of(view, row)

    def copies(self) -> list[str]:
        found = [
            record.data
            for partition in (0, 1)
            for _, record in self.node.records[self.dest.topic_id, partition]
        ]
        assert len(set(found)) == len(found), "a copy was made twice"
        return sorted(found)

    def done(self) -> bool:
        self.look()
        return not self.status().lag


@asynccontextmanager
async def world_in(directory: Path) -> AsyncIterator[World]:
    with (
        node_in(directory, ring_bytes=RING_BYTES) as node,
        closing(Ledger(directory / "ledger.db", nullcontext())) as opened,
        ThreadPoolExecutor(1) as thread,
        l0_reader(node) as (l0, _),
    ):
        ledger = LedgerThread(opened, thread)

        def reader_of() -> PartitionReader:
            # Only the ledger knows of earlier commits.
            followed, tail = FollowedPartitions(), TailReader(node.segment)
            return PartitionReader(
                followed, tail, ledger, stored_reader(node, ledger, l0), lambda _: 1
            )

        world = World(node, reader_of, ledger)
        yield world
        for made, _, _ in world.shards:
            made.close()
        await asyncio.sleep(0)
        world.shards.clear()


def run(directory: Path, body: Callable[[World], Any]) -> None:
    async def main() -> None:
        async with world_in(directory) as world:
            await body(world)

    asyncio.run(main())


def produce(world: World, *data: str, partition: int = 0, tag: str | None = None) -> None:
    world.node.produce(1, {partition: [Record(each, None, None, tag) for each in data]})


async def test_copies_come_from_the_rings_and_move_the_cursor_in_their_commit(
    tmp_path: Path,
) -> None:
    async with world_in(tmp_path) as world:
        world.create()
        world.add()
        await world.until(lambda: len(world.shards[0][0]))
        for n in range(3):
            produce(world, f"{n}a", f"{n}b", partition=n)
        world.commit()
        await world.until(lambda: world.shards[0][1].appended == 3, commits=False)
        assert world.copies() == []
        assert world.status().lag == 6
        world.commit()
        assert world.status().lag == 0
        assert world.copies() == ["0a", "0b", "1a", "1b", "2a", "2b"]
        assert not world.node.store.gets, "the rings held everything"
        await world.until(lambda: world.status().copied == 6)


async def test_routers_that_are_paused_leave_their_cursors_and_settle_what_is_on_its_way(
    tmp_path: Path,
) -> None:
    async with world_in(tmp_path) as world:
        world.create()
        outbox = world.add()
        made = world.shards[0][0]
        await world.until(lambda: len(made))
        produce(world, "a")
        world.commit()
        await world.until(lambda: outbox.appended == 1, commits=False)
        made.pause("the memory is almost full")
        for n in range(50):  # from the rings, and, once they are overwritten, from the store
            produce(world, f"b{n}")
            world.commit()
        await world.until(lambda: world.copies() == ["a"])
        assert outbox.appended == 1 and not outbox.on_their_way
        await world.until(lambda: world.status().state == "held")
        status = world.status()
        assert (status.reason, status.lag) == ("the memory is almost full", 50)
        made.resume()
        await world.until(world.done)
        assert len(world.copies()) == 51
        await world.until(lambda: world.status().state == "running")


async def test_a_page_that_was_being_read_is_not_taken_while_routers_are_paused(
    tmp_path: Path,
) -> None:
    async with world_in(tmp_path) as world:
        for n in range(5):
            produce(world, *(f"{n}.{m}" for m in range(4)))
            world.node.commit()
        world.create([7, 0, 0])
        outbox = world.add()
        made = world.shards[0][0]
        await world.until(lambda: any(lane.busy for lane in lanes_of(made)), commits=False)
        made.pause("a disk is almost full")
        await world.until(lambda: not any(lane.busy for lane in lanes_of(made)), commits=False)
        assert not outbox.appended
        made.resume()
        await world.until(world.done)
        assert len(world.copies()) == 13


def lanes_of(made: Routers) -> list[Lane]:
    return [lane for running in made._running.values() for lane in running.plan.lanes]


async def test_what_the_rings_do_not_hold_comes_from_the_store(tmp_path: Path) -> None:
    async with world_in(tmp_path) as world:
        for n in range(5):
            produce(world, *(f"{n}.{m}" for m in range(4)))
            world.node.commit()
        world.create([7, 0, 0])
        world.add()
        await world.until(world.done)
        assert world.copies() == sorted(f"{n // 4}.{n % 4}" for n in range(7, 20))
        assert world.node.store.gets


async def test_others_may_be_served_while_a_page_of_the_store_is_appended(tmp_path: Path) -> None:
    """What is committed meanwhile is delivered immediately, also by the router itself."""

    async with world_in(tmp_path) as world:
        world.create()
        outbox = world.add()
        await world.until(lambda: len(world.shards[0][0]))
        produce(world, "other", partition=1)
        await world.until(lambda: world.copies() == ["other"])

        def meanwhile() -> None:
            produce(world, "meanwhile", partition=1)
            world.commit(1)  # the ring of the producers, not that of the copies
            appended = outbox.appended
            world.dispatchers[0].serve_now()
            assert outbox.appended == appended + 1, "nothing was served meanwhile"

        outbox.meanwhile.append(meanwhile)
        produce(world, "stored")
        world.node.commit()  # which the rings are not told of
        produce(world, "and more")
        await world.until(world.done)
        assert not outbox.meanwhile
        assert world.copies() == ["and more", "meanwhile", "other", "stored"]


async def test_two_owners_in_different_rings_copy_everything_once_between_them(
    tmp_path: Path,
) -> None:
    async with world_in(tmp_path) as world:
        world.create()
        world.add(0)
        world.add(1)
        for n in range(20):
            produce(world, f"{n:02}a", f"{n:02}b", partition=n % 3)
            world.commit()
            for _ in range(3):
                world.look()
                await asyncio.sleep(0.001)
        await world.until(world.done)
        await world.until(lambda: not any(outbox.on_their_way for _, outbox, _ in world.shards))
        assert len(world.copies()) == 40
        assert sum(outbox.appended for _, outbox, _ in world.shards) > 20, "they never met"


async def test_a_stretch_that_the_filter_leaves_out_is_passed_by_a_flush(tmp_path: Path) -> None:
    async with world_in(tmp_path) as world:
        world.create("earliest", RecordFilter(tag="yes"))
        outbox = world.add()
        produce(world, "a", "b", tag="no")
        produce(world, "c", tag="yes")
        produce(world, "d", "e", tag="no")
        world.commit()
        await world.until(lambda: outbox.appended, commits=False)
        made = world.shards[0][0]
        assert made.moves(10) == []  # a frame is on its way, and carries more
        world.commit()
        await world.until(lambda: not outbox.on_their_way)
        produce(world, "f", tag="no")
        world.commit()
        (lane, *_) = lanes_of(made)
        await world.until(lambda: lane.read_to == 6, commits=False)
        (move,) = made.moves(10)
        assert world.status().lag == move.next - move.expected
        assert world.node.ledger.write(cursors.flush, [move]) == {}
        made.flushed(move, moved=True)
        assert world.status().lag == 0
        await world.until(lambda: world.status().filtered == 5)
        assert world.copies() == ["c"]
        # A flush that was refused, because another owner has moved the cursor.
        produce(world, "g", tag="no")
        world.commit()
        await world.until(lambda: lane.read_to == 7, commits=False)
        (move,) = made.moves(10)
        made.flushed(move, moved=False)
        produce(world, "h", tag="yes")
        world.commit()
        await world.until(world.done)
        assert world.copies() == ["c", "h"]


async def test_without_room_in_the_ring_a_router_waits_and_then_goes_on(tmp_path: Path) -> None:
    async with world_in(tmp_path) as world:
        world.create()
        outbox = world.add()
        outbox.room = 0
        produce(world, "a", "b")
        world.commit()
        for _ in range(20):
            world.look()
            await asyncio.sleep(0.001)
        assert not outbox.appended
        outbox.room = 1 << 20
        await world.until(world.done)
        assert world.copies() == ["a", "b"]


async def test_a_destination_that_takes_less_gets_smaller_frames(tmp_path: Path) -> None:
    async with world_in(tmp_path) as world:
        world.create()
        outbox = world.add()
        outbox.full = True
        produce(world, *(f"{n}" for n in range(9)))
        world.commit()
        await world.until(world.done)
        assert world.copies() == [f"{n}" for n in range(9)]
        assert outbox.appended >= 5


def quarantined(tx: WriteTx, topic_id: int) -> None:
    tx.execute(
        "INSERT INTO quarantine (topic_id, partition, first_offset, last_offset, key, reason,"
        " found_ms) VALUES (?, 0, 3, 4, 'object', 'damaged', 1)",
        (topic_id,),
    )


async def test_offsets_in_quarantine_hold_a_router_until_they_are_back(tmp_path: Path) -> None:
    async with world_in(tmp_path) as world:
        for n in range(3):
            produce(world, f"{n}a", f"{n}b")
            world.node.commit()
        world.node.ledger.write(quarantined, world.node.topic.topic_id)
        world.create([2, 0, 0])
        world.add()
        await world.until(lambda: world.status().state == "held")
        assert world.status().reason.startswith("offsets 3 to 4 of partition 0 are in quarantine")
        assert world.copies() == []
        with world.node.ledger.writing() as tx:
            tx.execute("DELETE FROM quarantine")
        world.now_ns += HOLD_NS
        await world.until(world.done)
        assert world.copies() == ["1a", "1b", "2a", "2b"]


async def test_a_source_that_cannot_be_read_holds_a_router_and_says_why(tmp_path: Path) -> None:
    async with world_in(tmp_path) as world:

        def fail() -> None:
            raise StoreError("the bucket is gone", retryable=False)

        produce(world, "a")
        world.node.commit()
        world.node.store.before = fail
        world.create()
        world.add()
        await world.until(lambda: world.status().state == "held")
        assert "cannot be read after offset 0 of partition 0: the bucket is gone" in (
            world.status().reason
        )
        world.node.store.before = lambda: None
        world.now_ns += HOLD_NS
        await world.until(world.done)
        assert world.copies() == ["a"]


async def test_a_deleted_router_copies_nothing_more_and_its_frames_are_void(tmp_path: Path) -> None:
    async with world_in(tmp_path) as world:
        world.create()
        outbox = world.add()
        produce(world, "a")
        world.commit()
        await world.until(lambda: outbox.appended, commits=False)
        world.node.ledger.write(routers.delete, "r", 9)
        world.changes += 1
        world.commit()
        await world.until(lambda: not len(world.shards[0][0]))
        assert world.copies() == []
        assert not outbox.on_their_way
        world.shards[0][2].followed.check_invariants()


async def test_a_change_of_a_topic_reaches_its_routers_only(tmp_path: Path) -> None:
    async with world_in(tmp_path) as world:
        world.create()
        world.add()
        made = world.shards[0][0]
        await world.until(lambda: len(made))
        other = world.node.ledger.write(topics.create, "other", TopicConfig(), 1)[0]
        made.topic_changed(other)
        assert not made._changes.stale
        grown = world.node.ledger.write(topics.alter, "t", TopicConfig(partitions=5))
        made.topic_changed(grown)
        produce(world, "late", partition=4)
        world.commit()
        await world.until(world.done)
        assert world.copies() == ["late"]
        gone = world.node.ledger.write(topics.delete, "copies", 9)
        made.topic_changed(gone)
        await world.until(lambda: next(iter(made._running.values())).plan.stopped)
        assert world.status().state == "stopped"


async def test_a_start_with_many_partitions_begins_few_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world_in(tmp_path) as world:
        monkeypatch.setattr(shard_routers, "TASKS_MAX", 2)
        for n in range(6):
            produce(world, f"{n}a", f"{n}b", partition=n % 3)
            world.node.commit()
        world.create()
        world.add()
        most = 0

        def done() -> bool:
            nonlocal most
            most = max(most, len(world.shards[0][0]._tasks))
            return world.done()

        await world.until(done)
        assert len(world.copies()) == 12
        assert most <= 3  # with the one that asks for settings


async def test_a_router_without_room_for_its_partitions_goes_on_when_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world_in(tmp_path) as world:
        produce(world, "a")
        world.commit()
        world.create()
        world.add()
        made, _, reader = world.shards[0]
        other = (99, 0)
        reader.followed.pin(other)
        monkeypatch.setattr(followed, "PINNED_MAX", world.node.topic.config.partitions)
        await world.until(lambda: len(made) and world.status().state == "stopped")
        reader.followed.unpin(other)
        world.now_ns += 2_000_000_000
        await world.until(world.done)
        assert (world.status().state, world.copies()) == ("running", ["a"])


async def test_a_router_says_how_far_behind_it_is_and_at_which_record_it_stands(
    tmp_path: Path,
) -> None:
    async with world_in(tmp_path) as world:
        second_ns = 10**9
        world.now_ns = second_ns
        world.create()
        outbox = world.add()
        await world.until(lambda: len(world.shards[0][0]))
        outbox.refuses = "partition 0 of topic 'copies' is full"
        produce(world, *(f"{n}" for n in range(9)), partition=1)
        world.commit()

        def row() -> RouterRow:
            world.now_ns += second_ns // 4
            view = world.node.ledger.read(routers.view, "r")
            assert view is not None
            found = router_board(world.node.segment).read(view.router.slot, view.router.router_id)
            return found or RouterRow()

        await world.until(lambda: row().stands_since_ns)
        found = row()
        assert (found.router, found.source, found.dest) == ("r", "t", "copies")
        assert (found.lag, found.phase.name) == (9, "HELD")
        assert found.stands == "record 1:1 waits: partition 0 of topic 'copies' is full"
        outbox.refuses = ""
        await world.until(lambda: not row().stands_since_ns and not row().lag)
        world.node.ledger.write(routers.delete, "r", 9)
        world.changes += 1
        await world.until(lambda: not router_board(world.node.segment).rows())
