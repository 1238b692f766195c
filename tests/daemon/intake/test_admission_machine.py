"""Admission under any order of events: nobody who waits is forgotten, passed over or served twice.

Clients send requests that wait and requests that do not, whole or in two parts, leave, or let their
deadlines pass; commits make room, and the gate closes and opens. At the end the clients send what
they owe, and commits alone must get everyone an answer: what leaves the ring has no gate.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.governor.producers_gate import ClosedBy
from daemon.intake import producer as producers
from daemon.intake.topic_cache import TopicCache
from shards import layout as at
from shards.clock import monotonic_ns
from tests.daemon.intake.serving import Client, Intake, topics_in
from tests.daemon.intake.test_admission import WAIT, post
from tests.long import examples

RING_BYTES = 64 << 10
BODY_BYTES_MAX = RING_BYTES // 4
CLIENTS = 5
S = 1_000_000_000


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TopicCache]:
    """Shared by the examples, none of which changes a topic."""
    with topics_in(tmp_path_factory.mktemp("machine")) as made:
        yield made


class Peers:
    """The clients, each with what it still owes of its last request and how many it has sent."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self.clients = [intake.connect() for _ in range(CLIENTS)]
        self.owed = [b""] * CLIENTS
        self.asked: list[list[bool]] = [[] for _ in range(CLIENTS)]  # whether each waits

    def send(self, which: int, size: int, *, waits: bool, whole: bool) -> None:
        if self._is_ended(self.clients[which]):
            return
        self.finish(which)
        request = post(size, WAIT if waits else "")
        cut = len(request) if whole else len(request) - 1 - size // 2
        self.owed[which] = request[cut:]
        self.asked[which].append(waits)
        self.clients[which].send(request[:cut])

    def finish(self, which: int) -> None:
        data, self.owed[which] = self.owed[which], b""
        if data and not self._is_ended(self.clients[which]):
            self.clients[which].send(data)

    def leave(self, which: int) -> None:
        self.clients[which].leave()
        self.clients[which] = self._intake.connect()
        self.owed[which] = b""
        self.asked[which] = []

    @staticmethod
    def _is_ended(client: Client) -> bool:
        return client.transport.ended or client.transport.closed


which = st.integers(0, CLIENTS - 1)
sizes = st.one_of(st.integers(1, BODY_BYTES_MAX), st.integers(1, 200))
steps_strategy = st.lists(
    st.one_of(
        st.tuples(st.just("send"), which, sizes, st.booleans(), st.booleans()),
        st.tuples(st.just("wait"), which, sizes, st.booleans()),
        st.tuples(st.just("finish"), which),
        st.tuples(st.just("leave"), which),
        st.tuples(st.just("commit")),
        st.tuples(st.just("deadline")),
        st.tuples(st.just("close"), st.sampled_from([ClosedBy.MEMORY, ClosedBy.STORE_FAILING])),
        st.tuples(st.just("open")),
    ),
    max_size=40,
)


async def play(intake: Intake, steps: list[tuple[object, ...]]) -> None:
    peers = Peers(intake)
    for what, *more in steps:
        numbers = [number for number in more if isinstance(number, int)]
        if what == "send":
            peers.send(numbers[0], numbers[1], waits=bool(numbers[2]), whole=bool(numbers[3]))
        elif what == "wait":
            peers.send(numbers[0], numbers[1], waits=True, whole=bool(numbers[2]))
        elif what == "finish":
            peers.finish(numbers[0])
        elif what == "leave":
            peers.leave(numbers[0])
        elif what == "commit":
            intake.commit()
        elif what == "deadline":
            before = set(intake.admission._queue._waiting)
            intake.later(monotonic_ns() + 21 * S)
            assert not before & set(intake.admission._queue._waiting)  # but for pipelined ones
        elif what == "close":
            intake.shut(at.G_GATE, numbers[0])
            assert not intake.admission.queued or numbers[0] == ClosedBy.MEMORY
        else:
            intake.shut(at.G_GATE, 0)
        await asyncio.sleep(0)
        intake.check()
    intake.shut(at.G_GATE, ClosedBy.MEMORY)
    for _ in range(3):  # those that were held back for a pad find their space
        await asyncio.sleep(0)
        intake.commit()
    assert not intake.ring.used_bytes and not len(intake.pending)  # the way out has no gate
    intake.shut(at.G_GATE, 0)
    for _ in range(2 * len(steps) + 2):
        for index in range(CLIENTS):
            peers.finish(index)
        intake.commit()
        await asyncio.sleep(0)
        intake.check()
    assert not intake.admission.queued and not intake.producer._held_back
    assert intake.admission.free_bytes == RING_BYTES
    for client, asked in zip(peers.clients, peers.asked, strict=True):
        assert len(client.statuses) == len(asked)
        firsts = [each.json["first_seq"] for each in client.answers if each.status == 200]
        assert firsts == sorted(firsts)
        for status, waits in zip(client.statuses, asked, strict=True):
            assert status in ((200, 503, 429) if not waits else (200, 503))


@given(steps=steps_strategy)
@settings(max_examples=examples(150))
def test_everyone_is_answered_once_and_no_space_is_lost(
    topics: TopicCache, steps: list[tuple[object, ...]]
) -> None:
    with (
        pytest.MonkeyPatch.context() as patch,
        closing(Intake(topics, RING_BYTES, BODY_BYTES_MAX)) as intake,
    ):
        patch.setattr(producers, "RING_LOOK_S", 0)
        patch.setattr(intake.admission._queue, "bytes_max", 1 << 20)
        asyncio.run(play(intake, steps))
