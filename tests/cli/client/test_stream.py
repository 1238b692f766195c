"""A watch over connections that break anywhere."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commands.client.http import Client, Refused, UnknownAnswer, Unreachable
from commands.client.stream import Arrived, WatchStream
from delivery.reading.followed import Key
from delivery.streams.events import WatchTombstone
from delivery.streams.formats import SSE, Item, Origin
from delivery.watch.positions import format_position, parse_position
from uploader.l0.records import Record


class Body:
    """An answer without an end, which breaks off: its bytes in pieces, then an error or an end."""

    def __init__(self, pieces: Iterator[bytes], ends: Exception | None) -> None:
        self._pieces = pieces
        self._ends = ends
        self.closed = False

    def read(self) -> bytes:
        for piece in self._pieces:
            return piece
        if self._ends is not None:
            raise self._ends
        return b""

    def close(self) -> None:
        self.closed = True


class Daemon:
    """The other end: ``connection`` makes the bytes of one, given the position that was sent.

    It stands in for the client's sockets, which have tests of their own."""

    url = "http://daemon"
    reached = True

    def __init__(self, connection: Callable[[dict[Key, int]], Body | Exception]) -> None:
        self.connection = connection
        self.asked: list[str] = []
        self.bodies: list[Body] = []
        self.waits: list[float] = []
        self.retries = 0

    def open(
        self, path: str, headers: dict[str, str], query: dict[str, str], patience_ms: float
    ) -> Body:
        text = headers.get("Last-Event-ID", "")
        self.asked.append(text)
        body = self.connection(parse_position(text))
        if isinstance(body, Exception):
            raise body
        self.bodies.append(body)
        return body

    def sleep_ms(self, wait_ms: float) -> None:
        self.waits.append(wait_ms)

    def now_ms(self) -> float:
        return sum(self.waits)


def watching(
    daemon: Daemon, topics: dict[str, int | None], patience_ms: float = 60_000
) -> WatchStream:
    return WatchStream(
        cast(Client, daemon), "/v0/watch", {}, topics, {},
        patience_ms=patience_ms, reach_ms=0,
    )  # fmt: skip


LOST = Unreachable("http://daemon", "broken")


def records(first: int, last: int) -> list[Item]:
    return [(seq, 1_700, Record(f'{{"n":{seq}}}')) for seq in range(first, last + 1)]


class Log:
    """Topics whose records are all there. A connection sends what comes after its position, in
    writes of random sizes, as the daemon does: events, and the position after them."""

    def __init__(self, heads: dict[Key, int], names: dict[int, str], rng: random.Random) -> None:
        self.heads = heads
        self.names = names
        self.rng = rng

    def write(self, position: dict[Key, int]) -> bytes:
        left = [key for key, head in self.heads.items() if position[key] < head]
        sent = b""
        for key in self.rng.sample(left, self.rng.randint(1, len(left))):
            last = self.rng.randint(position[key] + 1, self.heads[key])
            origin = Origin(self.names[key[0]], *key, len(self.names) > 1, len(self.heads) > 1)
            items = records(position[key] + 1, last)
            sent += SSE.records(items, origin, coalesced=self.rng.random() < 0.5)
            position[key] = last
        return sent + SSE.position(format_position(position))

    def bytes_after(self, position: dict[Key, int]) -> bytes:
        position = {key: position.get(key, 0) for key in self.heads}
        sent = SSE.opening() + SSE.position(format_position(position))
        while position != self.heads:
            sent += SSE.heartbeat() if self.rng.random() < 0.2 else self.write(position)
        return sent

    def broken_off(self, position: dict[Key, int]) -> Body:
        sent = self.bytes_after(position)
        sent = sent[: self.rng.randint(0, len(sent))]
        return Body(self.cut(sent), self.rng.choice([LOST, None]))

    def cut(self, sent: bytes) -> Iterator[bytes]:
        while sent:
            size = self.rng.choice([1, 7, 100, 10_000])
            yield sent[:size]
            sent = sent[size:]


HEADS = st.dictionaries(
    st.tuples(st.integers(7, 9), st.integers(0, 2)), st.integers(1, 30), min_size=1, max_size=5
)


@given(HEADS, st.integers(0, 1 << 32))
@settings(deadline=None)
def test_every_record_comes_once_and_in_order_wherever_connections_break(
    heads: dict[Key, int], seed: int
) -> None:
    names = {topic_id: f"topic-{topic_id}" for topic_id, _ in heads}
    log = Log(heads, names, random.Random(seed))
    daemon = Daemon(log.broken_off)
    one = len(names) == 1
    stream = watching(daemon, {name: None if one else topic for topic, name in names.items()}, 1e12)
    got: dict[tuple[str, int], list[int]] = {(names[key[0]], key[1]): [] for key in heads}
    wanted = {(names[key[0]], key[1]): list(range(1, head + 1)) for key, head in heads.items()}
    told = stream.told()
    while got != wanted:
        for topic, partition, record in cast(list[Arrived], next(told)):
            got[topic, partition].append(record.seq)
            assert got[topic, partition] == list(range(1, record.seq + 1))
    assert all(body.closed for body in daemon.bodies[:-1])


def test_a_connection_resumes_after_the_records_that_had_no_position_yet() -> None:
    at = Origin("t", 7, 0)
    sent = SSE.opening() + SSE.position("7:0=0") + SSE.records(records(1, 3), at)
    again = SSE.opening() + SSE.position("7:0=3") + SSE.records(records(4, 4), at)
    bodies = iter([Body(iter([sent]), LOST), Body(iter([again]), LOST)])
    daemon = Daemon(lambda position: next(bodies))
    stream = watching(daemon, {"t": None})
    found = [told for _, told in zip(range(2), stream.told(), strict=False)]
    assert [each.record.seq for told in found for each in cast(list[Arrived], told)] == [1, 2, 3, 4]
    assert daemon.asked == ["", "7:0=3"]


def test_what_a_filter_removed_is_not_asked_for_again() -> None:
    bodies = iter([Body(iter([SSE.position("7:0=0"), SSE.position("7:0=90")]), LOST)])
    daemon = Daemon(lambda position: next(bodies, LOST))
    with pytest.raises(Unreachable):
        next(watching(daemon, {"t": None}, patience_ms=500).told())
    assert set(daemon.asked) == {"", "7:0=90"}


def test_a_recreated_topic_begins_at_its_start() -> None:
    told = SSE.tombstone(Origin("t", 7, 0), 6, 9, "recreated") + SSE.position("8:0=0")
    sent = SSE.opening() + told + SSE.records(records(1, 2), Origin("t", 8, 0))
    daemon = Daemon(lambda position: Body(iter([sent]), LOST))
    stream = WatchStream(
        cast(Client, daemon), "/v0/topics/t/watch", {}, {"t": 7}, {(7, 0): 5},
        patience_ms=0, reach_ms=0,
    )  # fmt: skip
    found = stream.told()
    gap = next(found)
    assert isinstance(gap, WatchTombstone) and (gap.gap_from, gap.gap_to) == (6, 9)
    assert [each.record.seq for each in cast(list[Arrived], next(found))] == [1, 2]
    with pytest.raises(Unreachable):
        next(found)
    assert stream.position == {(8, 0): 2}


def test_a_gap_is_not_told_twice() -> None:
    sent = SSE.position("7:0=0") + SSE.tombstone(Origin("t", 7, 0), 1, 4, "cap")
    daemon = Daemon(lambda position: Body(iter([sent]), LOST))
    stream = watching(daemon, {"t": None}, patience_ms=0)
    with pytest.raises(Unreachable):
        list(stream.told())
    assert stream.position == {(7, 0): 4}


def test_partitions_that_are_added_later_are_named_by_their_records() -> None:
    sent = SSE.position("7:0=0") + SSE.records(records(1, 1), Origin("t", 7, 0))
    grown = SSE.position("7:0=1,1=0")
    more = SSE.records(records(1, 1), Origin("t", 7, 1, shows_partition=True))
    daemon = Daemon(lambda position: Body(iter([sent, grown, more]), LOST))
    found = watching(daemon, {"t": None}).told()
    places = [
        (each.partition, each.record.seq)
        for _ in (1, 2)
        for each in cast(list[Arrived], next(found))
    ]
    assert places == [(0, 1), (1, 1)]


def test_connections_that_tell_nothing_are_tried_at_growing_intervals_until_patience_ends() -> None:
    daemon = Daemon(lambda position: Body(iter([SSE.opening()]), LOST))
    with pytest.raises(Unreachable):
        next(watching(daemon, {"t": None}, patience_ms=5_000).told())
    assert daemon.waits == [0, 100, 200, 400, 800, 1_600]


def test_news_begin_the_patience_anew() -> None:
    daemon = Daemon(
        lambda position: Body(iter([SSE.position("7:0=0"), SSE.caught_up([("t", 0, 0)])]), LOST)
    )
    found = watching(daemon, {"t": None}, patience_ms=50).told()
    for _ in range(100):
        next(found)
    assert set(daemon.waits) == {0}


def test_an_error_that_lasts_is_told_when_patience_ends() -> None:
    sent = SSE.position("7:0=0") + SSE.error("store_unavailable", "the store fails", {"a": 1})
    daemon = Daemon(lambda position: Body(iter([sent]), None))
    with pytest.raises(Refused) as told:
        next(watching(daemon, {"t": None}, patience_ms=1_000).told())
    assert (told.value.code, told.value.detail) == ("store_unavailable", {"a": 1})
    assert len(daemon.asked) > 3


def test_a_refusal_ends_it() -> None:
    daemon = Daemon(lambda position: Refused(404, "unknown_topic", "there is no topic t", {}))
    with pytest.raises(Refused):
        next(watching(daemon, {"t": None}).told())
    assert len(daemon.asked) == 1


@pytest.mark.parametrize(
    "sent",
    [
        SSE.records(records(1, 1), Origin("t", 7, 0)),
        SSE.position("7"),
        b"id: 7:0=1\n\nevent: record\ndata: {}\n\n",
        b"id: 7:0=1\n\nevent: tombstone\ndata: [\n\n",
    ],
)
def test_a_stream_of_something_else_is_named_as_that(sent: bytes) -> None:
    with pytest.raises(UnknownAnswer):
        next(watching(Daemon(lambda position: Body(iter([sent]), LOST)), {"t": None}).told())
