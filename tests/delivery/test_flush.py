"""The flush: what sources offer is written in one transaction, conditionally, and they are told."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence, Set
from contextlib import nullcontext
from pathlib import Path

import pytest

from delivery.flush import INTERVAL_NS, Flush, pause_ns
from ledger import changes, cursors, topics
from ledger.cursors import Setting
from ledger.delivery import progress, push_rates, subscriptions
from ledger.delivery.progress import SubscriptionFlush
from ledger.delivery.push_rates import LearnedRate, SenderId
from ledger.delivery.subscriptions import SubscriptionConfig
from ledger.errors import LedgerBusy
from ledger.ledger import Ledger
from ledger.types import CursorMove, TopicConfig
from shards.clock import monotonic_ns


class Source:
    """Offers what it was given, once."""

    def __init__(self) -> None:
        self.offered: list[CursorMove] = []
        self.told: list[tuple[CursorMove, bool]] = []

    def moves(self, limit: int) -> Sequence[CursorMove]:
        taken, self.offered = self.offered[:limit], self.offered[limit:]
        return taken

    def flushed(self, move: CursorMove, *, moved: bool) -> None:
        self.told.append((move, moved))


class Place:
    """A ledger with three cursors, and a flush that counts its connections and its end."""

    def __init__(self, path: Path) -> None:
        self.path = path / "ledger.db"
        self.ledger = self.opened()
        for name in "abc":
            self.ledger.write(cursors.create, f"router/{name}", "router", 1)
        self.opened_count = 0
        self.fails = False
        self.sources = [Source(), Source()]

    def opened(self) -> Ledger:
        return Ledger(self.path, nullcontext())

    def open_ledger(self) -> Ledger:
        self.opened_count += 1
        if self.fails:
            raise LedgerBusy(self.path, 1)
        return self.opened()

    def flush(self) -> Flush:
        made = Flush(self.open_ledger, monotonic_ns, lambda: pytest.fail("it ended"))
        for source in self.sources:
            made.add(source)
        return made

    def at(self, cursor_id: int, partition: int = 0) -> int | None:
        key = (cursor_id, partition)
        return self.ledger.read(cursors.positions_of, [key]).get(key)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def test_moves_of_all_sources_are_one_change_and_each_is_told_its_own(place: Place) -> None:
    one, other = place.sources
    good, late = CursorMove(1, 0, 0, 5), CursorMove(2, 0, 3, 4)
    deleted = CursorMove(3, 0, 0, 9)
    one.offered, other.offered = [good, late], [deleted]
    place.ledger.write(cursors.delete, "router/c", "router", 1)
    before = place.ledger.read(changes.latest)
    flush = place.flush()
    await flush.flush()
    await flush.stop()
    assert one.told == [(good, True), (late, False)]
    assert other.told == [(deleted, False)]
    assert (place.at(1), place.at(2), place.at(3)) == (5, 0, None)
    assert place.ledger.read(changes.latest) == before + 1


def test_a_flush_of_a_stopped_owner_takes_nothing_back(place: Place) -> None:
    """It read the cursor at 0, was stopped, and its successor moved it."""
    source = place.sources[0]
    source.offered = [CursorMove(1, 0, 0, 5)]
    place.ledger.write(cursors.set_positions, "router/a", "router", [Setting(0, 8)])
    asyncio.run(place.flush().flush())
    assert place.at(1) == 8
    assert [moved for _, moved in source.told] == [False]


async def test_a_round_without_moves_opens_no_connection(place: Place) -> None:
    flush = place.flush()
    assert await flush.flush() == 0
    await flush.stop()
    assert place.opened_count == 0


async def test_a_ledger_that_fails_is_tried_again_in_the_next_round(place: Place) -> None:
    source = place.sources[0]
    move = CursorMove(1, 0, 0, 5)
    flush = place.flush()
    place.fails = True
    source.offered = [move]
    await flush.flush()
    place.fails = False
    source.offered = [move]
    await flush.flush()
    await flush.stop()
    assert source.told == [(move, False), (move, True)]


async def test_a_round_follows_each_pause_and_a_stop_makes_the_last_moves(place: Place) -> None:
    source = place.sources[0]
    pauses: list[float] = []
    turn = asyncio.Event()
    waits = asyncio.Event()

    async def sleep_s(seconds: float) -> None:
        pauses.append(seconds)
        waits.set()
        await turn.wait()
        turn.clear()

    flush = Flush(place.open_ledger, iter(range(0, 10**12, 10**8)).__next__,
                        lambda: pytest.fail("it ended"), sleep_s)  # fmt: skip
    flush.add(source)
    flush.start()
    for number in range(3):
        await waits.wait()
        waits.clear()
        assert place.at(1) == number
        source.offered = [CursorMove(1, 0, number, number + 1)]
        if number < 2:
            turn.set()
    await flush.stop()
    assert place.at(1) == 3
    assert pauses == [1.0, 2.0, 2.0]  # a flush takes 0.1 s of this clock


@pytest.mark.parametrize(
    ("last_ms", "pause_ms"), [(0, 1_000), (3, 1_000), (50, 1_000), (51, 1_020), (400, 8_000)]
)
def test_the_pause_is_a_second_or_twenty_times_the_last_flush(last_ms: int, pause_ms: int) -> None:
    assert pause_ns(last_ms * 1_000_000) == pause_ms * 1_000_000
    assert pause_ns(0) == INTERVAL_NS


class ProgressBook:
    """Offers rounds of progress, each once."""

    def __init__(self, *rounds: list[SubscriptionFlush]) -> None:
        self.rounds = list(rounds)
        self.told: list[Set[int] | None] = []

    @property
    def has_more(self) -> bool:
        return bool(self.rounds)

    def collect(self) -> Sequence[SubscriptionFlush]:
        return self.rounds.pop(0) if self.rounds else []

    def collected(self, ignored: Set[int] | None) -> None:
        self.told.append(ignored)


def subscribed(place: Place) -> int:
    """A subscription; its generation."""
    place.ledger.write(topics.create, "orders", TopicConfig(), 1)
    config = SubscriptionConfig()
    place.ledger.write(subscriptions.create, "orders", "s", config, "earliest", 1)
    state = place.ledger.read(progress.state_of, 1)
    assert state is not None
    return state.generation


def floor_of(generation: int, floor: int) -> SubscriptionFlush:
    return SubscriptionFlush(1, generation, floor, [(0, floor)])


async def test_progress_is_written_with_the_moves_and_each_source_told_what_was_ignored(
    place: Place,
) -> None:
    generation = subscribed(place)
    place.sources[0].offered = [CursorMove(1, 0, 0, 5)]
    book = ProgressBook([floor_of(generation, 3)])
    other = ProgressBook([SubscriptionFlush(99, 1, 1)])
    flush = place.flush()
    for each in (book, other):
        flush.add_progress(each)
    await flush.flush()
    await flush.stop()
    state = place.ledger.read(progress.state_of, 1)
    assert state is not None and state.floors == {0: 3} and place.at(1) == 5
    assert place.opened_count == 1
    assert book.told == other.told == [{99}], "each finds its own among them"


async def test_moves_and_progress_are_one_transaction(place: Place) -> None:
    generation = subscribed(place)
    place.sources[0].offered = [CursorMove(1, 0, 0, 5)]
    book = ProgressBook([SubscriptionFlush(1, generation, 1, [(0, 3)], [(0, 0, b"too short")])])
    ended: list[None] = []
    flush = Flush(place.open_ledger, monotonic_ns, lambda: ended.append(None))
    flush.add(place.sources[0])
    flush.add_progress(book)
    await flush.flush()
    await flush.stop()
    assert len(ended) == 1, "a flush that nobody expected to fail ends the process"
    assert place.at(1) == 0 and book.told == [None]
    assert [moved for _, moved in place.sources[0].told] == [False]


async def test_progress_that_could_not_be_written_is_told_so(place: Place) -> None:
    book = ProgressBook([floor_of(1, 3)])
    place.fails = True
    flush = place.flush()
    flush.add_progress(book)
    await flush.flush()
    await flush.stop()
    assert book.told == [None]


class Pauses:
    """The pauses of a flush, which last until they are ended one by one or something hurries."""

    def __init__(self) -> None:
        self.lengths_s: list[float] = []
        self._begun = asyncio.Semaphore(0)
        self._end = asyncio.Semaphore(0)

    async def sleep_s(self, seconds: float) -> None:
        self.lengths_s.append(seconds)
        self._begun.release()
        await self._end.acquire()

    async def next(self) -> None:
        """Waits until a pause has begun."""
        await self._begun.acquire()

    def end(self) -> None:
        self._end.release()


async def flushing(place: Place, book: ProgressBook) -> tuple[Flush, Pauses]:
    """A flush in its first pause."""
    pauses = Pauses()
    flush = Flush(place.open_ledger, monotonic_ns, lambda: pytest.fail("it ended"),
                        pauses.sleep_s)  # fmt: skip
    flush.add_progress(book)
    flush.start()
    await pauses.next()
    return flush, pauses


async def test_who_hurries_does_not_wait_for_the_end_of_the_pause(place: Place) -> None:
    generation = subscribed(place)
    book = ProgressBook()

    flush, pauses = await flushing(place, book)
    book.rounds = [[floor_of(generation, 1)]]
    flush.hurry()
    await pauses.next()
    assert book.told == [set()] and len(pauses.lengths_s) == 2
    await flush.stop()


async def test_a_flush_that_failed_is_not_repeated_in_a_hurry(place: Place) -> None:
    """Whoever waits hurries with each request, and the ledger would get no rest."""
    generation = subscribed(place)
    book = ProgressBook()

    flush, pauses = await flushing(place, book)
    place.fails = True
    book.rounds = [[floor_of(generation, 1)]]
    flush.hurry()
    await pauses.next()
    assert book.told == [None]
    place.fails = False
    book.rounds = [[floor_of(generation, 1)]]
    flush.hurry()
    for _ in range(10):
        await asyncio.sleep(0)
    assert book.told == [None] and pauses.lengths_s[1] >= 1.0
    pauses.end()
    await pauses.next()
    assert book.told == [None, set()]
    await flush.stop()


async def test_progress_of_several_rounds_waits_for_its_share_of_the_time_only(
    place: Place,
) -> None:
    generation = subscribed(place)
    book = ProgressBook([floor_of(generation, 1)], [floor_of(generation, 2)])
    pauses = Pauses()
    flush = Flush(place.open_ledger, iter(range(0, 10**12, 10**6)).__next__,
                        lambda: pytest.fail("it ended"), pauses.sleep_s)  # fmt: skip
    flush.add_progress(book)
    flush.start()
    for _ in range(3):
        await pauses.next()
        pauses.end()
    await pauses.next()
    assert pauses.lengths_s[1:3] == [0.02, 1.0]  # a flush takes 1 ms of this clock
    book.rounds = [[floor_of(generation, floor)] for floor in range(3, 9)]
    await flush.stop()
    state = place.ledger.read(progress.state_of, 1)
    assert state is not None and state.floors == {0: 8}, "a stop writes all of it"


class Rates:
    """Offers what senders have learned until it is written."""

    def __init__(self, sender: SenderId, rate: LearnedRate) -> None:
        self.offered = {sender: rate}

    def learned(self) -> Mapping[SenderId, LearnedRate]:
        return self.offered

    def kept(self, *, written: bool) -> None:
        if written:
            self.offered = {}


async def test_what_senders_have_learned_rides_on_the_flush_and_is_offered_again_if_it_fails(
    place: Place,
) -> None:
    place.ledger.write(topics.create, "orders", TopicConfig(), 1)
    made = place.ledger.write(
        subscriptions.create, "orders", "s", SubscriptionConfig(), "earliest", 1
    )
    source = Rates((made.subscription_id, 2), LearnedRate(1, 0.5, 80.0))
    flush = place.flush()
    flush.add_rates(source)
    place.fails = True
    await flush.flush()
    assert source.offered
    place.fails = False
    await flush.flush()
    opened = place.opened_count
    await flush.flush()
    assert place.opened_count == opened
    await flush.stop()
    assert not source.offered
    assert place.ledger.read(push_rates.of, made.subscription_id) == {2: LearnedRate(1, 0.5, 80.0)}
