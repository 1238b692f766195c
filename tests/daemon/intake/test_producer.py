"""Admission: promises to bodies, plus what the ring holds, never exceed the ring. A body that is
in the ring is nowhere else.

A model of a few lines says of each request whether there is room. No request comes near the ring's
end here: a pad is promised to nobody, so the request that makes one may be refused late.
"""

from __future__ import annotations

import asyncio
import gzip
import io
import random
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.access.allowance import Allowances
from daemon.access.rights import Rights, of_everybody
from daemon.access.token_file import Scope
from daemon.http.application import QUEUED
from daemon.http.head import Head, parse_head
from daemon.http.limits import HttpLimits
from daemon.http.request import Request
from daemon.http.server import Server
from daemon.intake.admission import FRAME_BYTES
from daemon.intake.cursor_cache import CursorCache
from daemon.intake.formats import BodyLimits
from daemon.intake.pending import PendingRequests
from daemon.intake.producer import Producer
from daemon.intake.topic_cache import TopicCache
from daemon.schemas.errors import ApiError
from shards import layout as at
from shards.boards.namecounts import TopicTally
from shards.clock import monotonic_ns
from shards.latency import Stage, counted
from shards.layout import Layout
from shards.ring import RingFull, RingWriter
from shards.segment import Segment
from tests.daemon.http.front import Script
from tests.daemon.http.memory_transport import connect
from tests.daemon.intake.serving import topics_in
from tests.e2e.daemon import HANG_S
from tests.e2e.load import read_answer

RING_BYTES = 1 << 20
BODY_BYTES_MAX = 200_000


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TopicCache]:
    """Shared by the examples, none of which changes a topic."""
    with topics_in(tmp_path_factory.mktemp("produce")) as made:
        yield made


class Intake:
    """One shard's intake next to a model of its space: ``promises`` and what the ring holds."""

    def __init__(self, topics: TopicCache, auto_create: bool = True) -> None:
        self._segment = Segment.create(Layout(1, RING_BYTES))
        self._words = self._segment.words
        self._base = self._segment.layout.shard(0)
        self._ring = RingWriter(self._segment, 0)
        limits = BodyLimits(body_bytes_max=BODY_BYTES_MAX)
        self.publications = 0
        self.producer = Producer(
            self._segment, 0, topics, cast(CursorCache, None), self._ring,
            PendingRequests(self._segment, 0, lambda _: TopicTally()), limits, self._published,
            lambda *_: None, random.Random(1), 20_000, auto_create=auto_create,
        )  # fmt: skip
        server = Server()
        server.application, server.limits = Script(), HttpLimits()
        self.connection, self.transport = connect(server)
        self.promises: list[tuple[Head, int, int]] = []  # head, body, what it was promised

    def _published(self) -> None:
        self.publications += 1

    @property
    def free_bytes(self) -> int:
        used = self._words[self._base + at.S_HEAD] - self._words[self._base + at.S_COMMITTED]
        return int(RING_BYTES - used - sum(promised for *_, promised in self.promises))

    def head(self, length: int | None, encoding: str = "", path: str = "/v0/topics/t") -> Head:
        framing = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
        lines = [f"POST {path} HTTP/1.1", "Host: h", "Content-Type: application/octet-stream"]
        lines += [framing, *([f"Content-Encoding: {encoding}"] if encoding else [])]
        return parse_head("\r\n".join(lines).encode() + b"\r\n\r\n", HttpLimits())

    def request(self, head: Head, body: bytes) -> Request:
        made = Request(head, body, monotonic_ns(), self.connection)
        self.connection.queue.append(made)
        return made

    def arriving(self, head: Head) -> Request:
        """A request whose body is still on its way."""
        return Request(head, b"", monotonic_ns(), self.connection)

    def announce(self, length: int | None, encoding: str, body_bytes: int) -> None:
        """A head comes; its body is still on its way."""
        head = self.head(length, encoding)
        most = BODY_BYTES_MAX if length is None or encoding else length
        if self.free_bytes < FRAME_BYTES + most:
            with refused(429):
                self.producer.admit(self.arriving(head), length)
            return
        token = self.producer.admit(self.arriving(head), length)
        assert token is not QUEUED
        self.promises.append((head, body_bytes, FRAME_BYTES + most))
        assert token == FRAME_BYTES + most

    def complete(self, which: int) -> None:
        """The body of a request that was admitted is there."""
        head, body_bytes, promised = self.promises[which]
        request = self.request(head, body(head, body_bytes))
        self.producer.produce(request, "t", promised)
        assert not request.body and not request.answered, "the ring has it now"
        self.give_back(which)

    def give_back(self, which: int) -> None:
        """A request that was admitted is over."""
        *_, promised = self.promises.pop(which)
        self.producer.admission.release(promised)

    def whole(self, encoding: str, body_bytes: int) -> None:
        """A request comes in one piece."""
        head = self.head(body_bytes, encoding)
        request = self.request(head, body(head, body_bytes))
        most = BODY_BYTES_MAX if encoding else body_bytes
        if self.free_bytes < FRAME_BYTES + most:
            with refused(429):
                self.producer.take(request, "t", body_bytes)
        else:
            before = self.publications
            self.producer.take(request, "t", body_bytes)
            assert self.publications == before + 1
            assert not request.body and not request.answered, "the ring has it now"

    def sampled(self, stage: Stage) -> int:
        return counted(self._segment, stage).total

    def commit(self) -> None:
        """What the ring holds becomes durable."""
        self._words[self._base + at.S_COMMITTED] = self._words[self._base + at.S_HEAD]

    def check(self) -> None:
        """Just what the model says is free can be promised, to the byte."""
        assert self.free_bytes >= 0
        before = len(self.promises)
        while self.free_bytes >= FRAME_BYTES:
            self.announce(min(self.free_bytes - FRAME_BYTES, BODY_BYTES_MAX), "", 0)
        self.announce(0, "", 0)  # refused
        self.whole("", 1)  # refused
        while len(self.promises) > before:
            self.give_back(-1)

    def close(self) -> None:
        self._segment.close()


def body(head: Head, body_bytes: int) -> bytes:
    """One record of that many bytes, as the head says that it comes."""
    record = b"x" * body_bytes
    return gzip.compress(record) if head.content_encoding else record


def refused(status: int) -> pytest.RaisesExc[ApiError]:
    return pytest.raises(ApiError, check=lambda error: error.status == status)


sizes = st.integers(1, 20_000)
steps_strategy = st.lists(
    st.one_of(
        st.tuples(st.just("announce"), sizes),
        st.tuples(st.just("announce chunked"), sizes),
        st.tuples(st.just("announce gzip"), sizes),
        st.tuples(st.just("complete"), st.integers(0, 20)),
        st.tuples(st.just("give back"), st.integers(0, 20)),
        st.tuples(st.just("whole"), sizes),
        st.tuples(st.just("whole gzip"), sizes),
        st.tuples(st.just("commit"), st.just(0)),
    ),
    max_size=25,
)


@given(steps=steps_strategy)
def test_promises_and_used_bytes_are_never_more_than_the_ring_and_each_is_given_back_whole(
    topics: TopicCache, steps: list[tuple[str, int]]
) -> None:
    with closing(Intake(topics)) as intake:
        for what, number in steps:
            if what == "announce":
                intake.announce(number, "", number)
            elif what == "announce chunked":
                intake.announce(None, "", number)
            elif what == "announce gzip":
                intake.announce(number, "gzip", number)
            elif what == "whole":
                intake.whole("", number)
            elif what == "whole gzip":
                intake.whole("gzip", number)
            elif what == "commit":
                intake.commit()
            elif intake.promises and what == "complete":
                intake.complete(number % len(intake.promises))
            elif intake.promises:
                intake.give_back(number % len(intake.promises))
            intake.check()


@pytest.mark.parametrize(
    ("create", "auto_create", "status"),
    [("true", True, 200), ("false", True, 404), ("true", False, 404)],
)
def test_requests_that_wait_for_their_topic_keep_their_promises_until_they_are_worked_off(
    tmp_path: Path, create: str, auto_create: bool, status: int
) -> None:
    async def go(intake: Intake) -> None:
        head = intake.head(BODY_BYTES_MAX, path=f"/v0/topics/new?create={create}")
        fitting = RING_BYTES // (FRAME_BYTES + BODY_BYTES_MAX)
        for _ in range(fitting):
            request = intake.request(head, body(head, BODY_BYTES_MAX))
            intake.producer.take(request, "new", BODY_BYTES_MAX)
        waiting = [request for request in intake.connection.queue if request.body]
        assert len(waiting) == fitting
        request = intake.request(head, body(head, BODY_BYTES_MAX))
        with refused(429):
            intake.producer.take(request, "new", BODY_BYTES_MAX)
        with refused(429):
            intake.producer.admit(intake.arriving(head), BODY_BYTES_MAX)
        assert intake.publications == 0
        await intake.producer._tasks.wait()
        if status == 200:
            assert intake.publications == intake.sampled(Stage.ADMITTED) == fitting
            assert not any(request.body for request in waiting), "the ring has them now"
        else:
            stream = io.BytesIO(bytes(intake.transport.written))
            answers = [read_answer(stream) for _ in range(fitting)]
            assert [answer and answer.status for answer in answers] == [status] * fitting
            told = b"auto_create_topics is false; create it with PUT /v0/topics/new"
            assert (told in intake.transport.written) is not auto_create
        intake.check()
        intake.commit()
        intake.check()

    with topics_in(tmp_path) as topics, closing(Intake(topics, auto_create)) as intake:
        asyncio.run(go(intake))


def test_a_request_that_waits_for_its_topic_ends_at_its_deadline_though_the_ledger_is_held(
    tmp_path: Path,
) -> None:
    async def go(intake: Intake, topics: TopicCache) -> None:
        is_free = threading.Event()
        topics._ledger._thread.submit(
            is_free.wait
        )  # as while another process holds the ledger's lock
        head = intake.head(10, path="/v0/topics/new?ack_timeout_ms=1000")
        late = intake.request(head, b"0123456789")
        late.arrival_ns -= 1_000_000_000
        try:
            intake.producer.take(late, "new", 10)
            async with asyncio.timeout(HANG_S):
                await intake.producer._tasks.wait()
        finally:
            is_free.set()
        in_time = intake.request(head, b"0123456789")
        in_time.arrival_ns += 60_000_000_000
        intake.producer.take(in_time, "new", 10)
        await intake.producer._tasks.wait()
        answer = read_answer(io.BytesIO(bytes(intake.transport.written)))
        assert answer is not None and answer.status == 503
        assert answer.json["error"]["code"] == "ack_timeout"
        assert intake.publications == 1 and not in_time.answered
        intake.check()

    with topics_in(tmp_path) as topics, closing(Intake(topics)) as intake:
        asyncio.run(go(intake, topics))


def test_what_is_held_back_is_compared_with_its_rights_again_before_it_is_published(
    tmp_path: Path,
) -> None:
    async def go(intake: Intake, topics: TopicCache) -> None:
        is_free = threading.Event()
        topics._ledger._thread.submit(is_free.wait)
        head = intake.head(10, path="/v0/topics/new")
        revoked = intake.head(10, path="/v0/topics/new")
        revoked.rights = Rights(None, [Scope.PRODUCE], ["*"])
        first = intake.request(head, b"0123456789")
        second = intake.request(revoked, b"0123456789")
        for request in (first, second):
            intake.producer.take(request, "new", 10)
        revoked.rights.live = False
        is_free.set()
        await intake.producer._tasks.wait()
        assert intake.publications == 1
        assert second.answered and not first.answered
        assert isinstance(second.answer, tuple) and second.answer[0] == 401
        intake.check()

    with topics_in(tmp_path) as topics, closing(Intake(topics)) as intake:
        asyncio.run(go(intake, topics))


@pytest.mark.parametrize(
    ("why", "status"), [(RingFull(1, 0), 429), (ValueError("too large for the ring"), 413)]
)
def test_a_key_of_a_request_that_the_ring_refuses_is_given_back(
    topics: TopicCache, monkeypatch: pytest.MonkeyPatch, why: Exception, status: int
) -> None:
    def refuse(*_: object) -> int:
        raise why

    with (
        closing(Segment.create(Layout(1, RING_BYTES))) as segment,
        closing(Intake(topics)) as intake,
    ):
        allowances = Allowances(segment, 0, {"dedupe_entries": 1 / 60})  # one a minute
        head = intake.head(10, path="/v0/topics/t?idempotency_key=k")
        head.rights = of_everybody(allowances)

        def produce() -> None:
            intake.producer.produce(intake.request(head, b"0123456789"), "t", 0)

        with monkeypatch.context() as patch:
            patch.setattr(RingWriter, "append", refuse)
            with refused(status):
                produce()
        produce()
        assert intake.publications == 1
        with pytest.raises(ApiError, match="idempotency key"):
            produce()
        assert intake.publications == 1


def test_the_first_request_in_each_millisecond_is_a_sample_of_publication(
    topics: TopicCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    times_ms = iter([1, 1, 1, 2, 4, 4, 5])
    monkeypatch.setattr("daemon.intake.producer.wall_ms", lambda: next(times_ms))
    with closing(Intake(topics)) as intake:
        for _ in range(7):
            intake.whole("", 10)
        assert intake.sampled(Stage.PUBLISHED) == 4
        assert intake.sampled(Stage.ADMITTED) == 0, "none has waited"
