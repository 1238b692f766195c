"""Admission: who is promised space, who is refused and how, and who waits for how long.

Requests that ask for it wait with their bodies unread. Here they come through real connections
without sockets, so what a connection does not read is seen to stay with the client.
"""

from __future__ import annotations

import asyncio
import gzip
import json
from contextlib import closing

import pytest

from daemon.governor.producers_gate import ClosedBy
from daemon.http.request import Request
from daemon.intake import admission as admissions
from daemon.intake.admission import FRAME_BYTES
from daemon.intake.topic_cache import TopicCache
from shards import layout as at
from shards.clock import monotonic_ns
from tests.daemon.intake.serving import BODY_BYTES_MAX, RING_BYTES, Client, Intake

S = 1_000_000_000
WAIT = "?disable_backpressure=true"


def post(size: int, query: str = "", *headers: str, body: bytes | None = None) -> bytes:
    """A request with one record of ``size`` bytes, or with this body."""
    content = "application/octet-stream"
    if body is None:
        body = b"x" * size
    elif body[:1] == b"{":
        content = "application/json"
    lines = [
        f"POST /v0/topics/t{query} HTTP/1.1", "Host: h", f"Content-Type: {content}",
        f"Content-Length: {len(body)}", *headers,
    ]  # fmt: skip
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def head_of(request: bytes) -> bytes:
    return request[: request.index(b"\r\n\r\n") + 4]


def body_of(request: bytes) -> bytes:
    return request[len(head_of(request)) :]


def fill(intake: Intake) -> Client:
    """Nothing fits any more; the ring holds requests that are not committed."""
    client = intake.connect()
    size = BODY_BYTES_MAX
    while intake.admission.free_bytes >= FRAME_BYTES:
        size = min(size, intake.admission.free_bytes - FRAME_BYTES)
        client.send(post(max(1, size)))
    assert not client.answers
    return client


class TestRefused:
    def test_a_full_ring_refuses_before_the_body_and_says_when_to_come_back(
        self, intake: Intake
    ) -> None:
        fill(intake)
        head = intake.ring.head
        later = set()
        for _ in range(50):
            client = intake.connect()
            client.send(head_of(post(BODY_BYTES_MAX)))
            (answer,) = client.answers
            assert (answer.status, answer.code) == (429, "throttled")
            detail = answer.json["error"]["detail"]
            assert detail["ring_bytes"] == RING_BYTES
            assert 1_000 <= detail["retry_after_ms"] <= 3_000
            # The header has seconds: those that the milliseconds need.
            assert int(answer.headers["retry-after"]) == -(-detail["retry_after_ms"] // 1000)
            assert "disable_backpressure=true in the query" in answer.json["error"]["message"]
            later.add(detail["retry_after_ms"])
        assert len(later) > 40  # they do not come back together
        assert intake.refused == {"throttled": 50}
        assert intake.ring.head == head

    @pytest.mark.parametrize(
        ("word", "value", "code", "close"),
        [
            (at.G_GATE, ClosedBy.STORE_FAILING, "store_failing", False),
            (at.G_GATE, ClosedBy.STORE_FAILING | ClosedBy.STORE_DISK, "store_failing", False),
            (at.G_GATE, ClosedBy.LEDGER_DISK, "disk_full", False),
            (at.G_GATE, ClosedBy.STORE_DISK, "disk_full", False),
            (at.G_DRAINING, 1, "shutting_down", True),
            (at.G_SUPERSEDED, 1, "superseded", True),
        ],
    )
    def test_a_closed_gate_refuses_everyone_and_says_why_and_when_to_come_back(
        self, intake: Intake, word: int, value: int, code: str, close: bool
    ) -> None:
        fill(intake)
        waiting = intake.connect()
        waiting.send(post(100, WAIT))
        assert intake.admission.queued == 1
        intake.shut(word, value)
        later = set()
        for query in ("", WAIT) * 20:
            client = intake.connect()
            client.send(head_of(post(100, query)))
            (answer,) = client.answers
            assert (answer.status, answer.code) == (503, code)
            assert (answer.headers.get("connection") == "close") == close
            assert "nothing of this request was stored" in answer.json["error"]["message"]
            later.add(answer.json["error"]["detail"]["retry_after_ms"])
        assert len(later) > 30 and min(later) >= 1_000
        assert intake.refused == {code: 41}
        # Who waits is told too, and is not kept until the gate opens.
        assert waiting.answers[-1].code == code
        intake.shut(word, 0)
        intake.commit()
        client = intake.connect()
        client.send(post(100))
        intake.commit()
        assert client.statuses == [200]


class TestWaiting:
    def test_a_request_that_asks_waits_with_its_body_unread_until_there_is_space(
        self, intake: Intake
    ) -> None:
        fill(intake)
        client = intake.connect()
        request = post(30_000, WAIT)
        client.send(request[:1_000])
        assert intake.admission.queued == 1
        client.send(request[1_000:])
        assert client.transport.paused
        assert client.unsent == request[1_000:]
        intake.commit()
        assert not client.unsent
        intake.commit()
        assert client.statuses == [200]

    def test_a_request_that_came_whole_waits_with_what_was_received(self, intake: Intake) -> None:
        fill(intake)
        client = intake.connect()
        client.send(post(3_000, WAIT))
        assert intake.admission.queued == 1 and client.transport.paused
        intake.commit()
        intake.commit()
        assert client.statuses == [200]

    @pytest.mark.parametrize("asked", [True, False])
    def test_the_body_can_ask_if_it_came_with_its_head(self, intake: Intake, asked: bool) -> None:
        fill(intake)
        document = {"records": [{"data": "disable_backpressure"}], "disable_backpressure": asked}
        client = intake.connect()
        client.send(post(0, body=json.dumps(document).encode()))
        assert intake.admission.queued == asked
        intake.commit()
        intake.commit()
        assert client.statuses == [200 if asked else 429]

    def test_a_body_that_is_not_there_cannot_ask_and_the_429_says_what_can(
        self, intake: Intake
    ) -> None:
        fill(intake)
        document = {"records": [{"data": "x" * 999}], "disable_backpressure": True}
        request = post(0, body=json.dumps(document).encode())
        client = intake.connect()
        client.send(request[:-1])
        assert client.statuses == [429]
        assert (
            "disable_backpressure=true in the query" in client.answers[0].json["error"]["message"]
        )

    def test_an_object_may_ask_in_the_query_too(self, intake: Intake) -> None:
        fill(intake)
        client = intake.connect()
        client.send(post(0, WAIT, body=b'{"records":[{"data":1}]}'))
        intake.commit()
        intake.commit()
        assert client.statuses == [200]

    def test_a_value_that_is_neither_true_nor_false_is_refused(self, intake: Intake) -> None:
        client = intake.connect()
        client.send(post(10, "?disable_backpressure=yes"))
        assert client.statuses == [400]
        assert client.answers[0].json["error"]["detail"] == {"parameter": "disable_backpressure"}

    @pytest.mark.parametrize("framing", ["chunked", "gzip"])
    def test_a_body_of_unknown_length_waits_for_the_space_of_the_largest(
        self, intake: Intake, framing: str
    ) -> None:
        fill(intake)
        client = intake.connect()
        record = b"x" * 2_000
        if framing == "gzip":
            request = post(0, WAIT, "Content-Encoding: gzip", body=gzip.compress(record))
        else:
            head = head_of(post(0, WAIT)).replace(
                b"Content-Length: 0", b"Transfer-Encoding: chunked"
            )
            request = head + b"7d0\r\n" + record + b"\r\n0\r\n\r\n"
        client.send(request)
        assert intake.admission._queue.reserved_bytes == FRAME_BYTES + BODY_BYTES_MAX
        intake.commit()
        intake.commit()
        assert client.statuses == [200]
        assert intake.admission.free_bytes == RING_BYTES

    def test_a_client_that_expects_100_gets_it_when_it_is_admitted(self, intake: Intake) -> None:
        fill(intake)
        client = intake.connect()
        request = post(5_000, WAIT, "Expect: 100-continue")
        client.send(head_of(request))
        assert not client.transport.written
        intake.commit()
        assert client.transport.written == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(body_of(request))
        client.transport.written.clear()
        intake.commit()
        assert client.statuses == [200]

    def test_requests_pipelined_after_a_waiting_one_wait_too_and_keep_their_order(
        self, intake: Intake
    ) -> None:
        fill(intake)
        client = intake.connect()
        small, large = post(10, WAIT), post(20_000, WAIT)
        client.send(large + small + post(11) + b"GET /nothing HTTP/1.1\r\nHost: h\r\n\r\n")
        client.send(small)
        assert intake.admission.queued == 1
        intake.commit()
        intake.commit()
        assert client.statuses == [200, 200, 200, 404, 200]
        firsts = [answer.json["first_seq"] for answer in client.answers if answer.status == 200]
        assert firsts == list(range(firsts[0], firsts[0] + 4))

    def test_a_request_after_unanswered_ones_waits_and_is_answered_after_them(
        self, intake: Intake
    ) -> None:
        client = fill(intake)
        client.send(post(10, WAIT))
        assert intake.admission.queued == 1
        before = len(client.connection.queue) - 1
        intake.commit()
        intake.commit()
        assert client.statuses == [200] * (before + 1)

    def test_a_connection_that_closes_after_its_request_waits_and_is_answered(
        self, intake: Intake
    ) -> None:
        fill(intake)
        client = intake.connect()
        client.send(post(10, WAIT, "Connection: close"))
        intake.commit()
        intake.commit()
        assert client.statuses == [200] and client.transport.ended


class TestOrder:
    def test_first_in_first_out_whatever_the_size(self, intake: Intake) -> None:
        filler = fill(intake)
        clients = [intake.connect() for _ in range(5)]
        for client, size in zip(clients, (30_000, 10, 20_000, 20, 30), strict=True):
            client.send(post(size, WAIT))
        assert intake.admission.queued == 5
        intake.commit()
        intake.commit()
        firsts = [client.answers[0].json["first_seq"] for client in clients]
        assert firsts == sorted(firsts)
        assert filler.statuses == [200] * len(filler.statuses)

    def test_what_the_first_needs_is_given_to_nobody_else(self, intake: Intake) -> None:
        fill(intake)
        first = intake.connect()
        first.send(head_of(post(BODY_BYTES_MAX, WAIT)))
        other = intake.connect()
        # Some space becomes free, not enough for the first: requests that would fit are refused.
        intake.words[intake.segment.layout.shard(0) + at.S_COMMITTED] += BODY_BYTES_MAX
        intake.admission.read_gate()
        assert intake.ring.free_bytes >= BODY_BYTES_MAX
        for _ in range(3):
            other.send(post(100))
        assert other.statuses == [429] * 3
        assert intake.admission.queued == 1
        assert intake.admission.free_bytes < 0  # nor is there room for routers
        intake.words[intake.segment.layout.shard(0) + at.S_COMMITTED] += BODY_BYTES_MAX
        intake.admission.read_gate()
        assert intake.admission.queued == 0
        # What is free beyond it is given to whoever comes.
        other.send(post(100))
        assert other.statuses == [429] * 3
        intake.commit()
        assert other.statuses == [429] * 3 + [200]

    def test_those_that_wait_leave_a_fifth_to_those_that_do_not(self, intake: Intake) -> None:
        """Everyone comes again as soon as they are answered; a commit makes room for little."""
        fill(intake)
        waiting = [intake.connect() for _ in range(20)]
        others = [intake.connect() for _ in range(5)]
        size, published = 4_000, {True: 0, False: 0}
        for client in waiting:
            client.send(post(size + 1, WAIT))
        committed = intake.segment.layout.shard(0) + at.S_COMMITTED
        for _ in range(400):
            for client in others:
                client.send(post(size))
            intake.words[committed] = min(intake.ring.head, intake.words[committed] + 9_000)
            intake.admission.read_gate()
            intake.check()
            for client in waiting:  # the queue never ends
                if not client.transport.paused:
                    client.send(post(size + 1, WAIT))
        for each in intake.pending._waiting:
            assert isinstance(each.request, Request)
            if each.body_bytes in (size, size + 1):
                published[each.body_bytes > size] += 1
        assert published[True] > 3 * published[False] > published[True] / 2

    def test_nor_is_the_memory_that_the_first_needs(self, intake: Intake) -> None:
        intake.shut(at.G_BODIES_BYTES, 40_000)
        slow = intake.connect()
        slow.send(head_of(post(10_000)))
        first = intake.connect()
        first.send(head_of(post(30_000, WAIT)))
        assert intake.admission.queued == 1
        for _ in range(3):
            other = intake.connect()
            other.send(head_of(post(100)))
            assert [answer.code for answer in other.answers] == ["memory_short"]
        slow.leave()
        assert intake.admission.queued == 0

    def test_space_that_a_slow_body_gives_back_is_given_to_who_waits(self, intake: Intake) -> None:
        slow = [intake.connect() for _ in range(3)]
        for each in slow:
            each.send(head_of(post(BODY_BYTES_MAX)))
        client = intake.connect()
        client.send(post(BODY_BYTES_MAX, WAIT))
        assert intake.admission.queued == 1
        slow[1].leave()
        assert intake.admission.queued == 0
        intake.commit()
        assert client.statuses == [200]


class TestBounds:
    def test_more_than_the_limit_are_refused(
        self, intake: Intake, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(intake.admission._queue, "count_max", 3)
        fill(intake)
        clients = [intake.connect() for _ in range(4)]
        for client in clients:
            client.send(post(10, WAIT))
        assert [client.statuses for client in clients] == [[], [], [], [429]]
        message = clients[3].answers[0].json["error"]["message"]
        assert "3 requests wait for space already, with 30 bytes" in message
        assert "the limits are 3 and 131072" in message
        intake.commit()
        intake.commit()
        assert [client.statuses for client in clients] == [[200], [200], [200], [429]]

    def test_what_connections_had_received_is_bounded(self, intake: Intake) -> None:
        fill(intake)
        clients = [intake.connect() for _ in range(10)]
        for client in clients:  # 15,000 bytes of the body, and of what is pipelined after it
            client.send(post(5_000, WAIT) + head_of(post(9_999)) + b"x" * 9_900)
        assert [client.statuses[:1] for client in clients] == [[]] * 8 + [[429]] * 2
        intake.check()

    def test_a_body_that_no_ring_can_hold_is_refused_and_does_not_wait(
        self, topics: TopicCache
    ) -> None:
        with closing(Intake(topics, 64 << 10, 128 << 10)) as intake:
            client = intake.connect()
            client.send(head_of(post(100_000, WAIT)))
            assert client.statuses == [413]
            message = client.answers[0].json["error"]["message"]
            assert "needs 104096 bytes of the ring, which has 65536" in message

    def test_a_client_that_leaves_makes_place(self, intake: Intake) -> None:
        fill(intake)
        first, second = intake.connect(), intake.connect()
        first.send(post(BODY_BYTES_MAX, WAIT)[:5_000])
        second.send(post(10, WAIT))
        assert intake.admission.queued == 2
        first.leave()
        assert intake.admission.queued == 1
        intake.check()
        intake.commit()
        intake.commit()
        assert second.statuses == [200]
        assert len(intake.published) == len(set(intake.published))

    def test_those_that_leave_while_they_are_admitted_give_their_space_back(
        self, intake: Intake
    ) -> None:
        fill(intake)
        client = intake.connect()
        client.send(post(BODY_BYTES_MAX, WAIT)[:500])
        intake.commit()
        assert intake.admission.free_bytes == RING_BYTES - BODY_BYTES_MAX - FRAME_BYTES
        client.leave()
        assert intake.admission.free_bytes == RING_BYTES


class TestMemory:
    """Bodies under way: they come in between two looks at the memory, faster than a gate closes."""

    @pytest.fixture(autouse=True)
    def two_bodies(self, intake: Intake) -> None:
        intake.words[at.G_BODIES_BYTES] = 2 * (FRAME_BYTES + BODY_BYTES_MAX)
        intake.admission.read_gate()

    def slow(self, intake: Intake, query: str = "") -> Client:
        client = intake.connect()
        client.send(head_of(post(BODY_BYTES_MAX, query)))
        return client

    def test_no_more_are_let_in_than_there_is_memory_for(self, intake: Intake) -> None:
        first, second = self.slow(intake), self.slow(intake)
        assert intake.ring.free_bytes > 3 * (FRAME_BYTES + BODY_BYTES_MAX)
        third = self.slow(intake)
        assert (first.statuses, second.statuses) == ([], [])
        [answer] = third.answers
        assert (answer.status, answer.code) == (503, "memory_short")
        assert int(answer.headers["retry-after"]) >= 1
        assert intake.refused == {"memory_short": 1}
        first.leave()
        assert self.slow(intake).statuses == []

    def test_one_may_always_come(self, intake: Intake) -> None:
        intake.words[at.G_BODIES_BYTES] = 1
        intake.admission.read_gate()
        client = self.slow(intake)
        assert self.slow(intake).statuses == [503]
        client.send(body_of(post(BODY_BYTES_MAX)))
        intake.commit()
        assert client.statuses == [200]

    def test_who_waits_is_let_in_when_a_body_is_over(self, intake: Intake) -> None:
        first, _ = self.slow(intake), self.slow(intake)
        waiting = self.slow(intake, WAIT)
        assert intake.admission.queued == 1
        first.leave()
        assert intake.admission.queued == 0
        waiting.send(body_of(post(BODY_BYTES_MAX)))
        intake.commit()
        assert waiting.statuses == [200]


class TestDeadline:
    @pytest.mark.parametrize("whole", [True, False])
    @pytest.mark.parametrize(("query", "limit_s"), [(WAIT, 20), (WAIT + "&ack_timeout_ms=3000", 3)])
    def test_a_request_waits_no_longer_than_its_ack_timeout(
        self, intake: Intake, query: str, limit_s: int, whole: bool
    ) -> None:
        fill(intake)
        client = intake.connect()
        request = post(5_000, query)
        began_ns = monotonic_ns()
        client.send(request if whole else request[:-1])
        intake.later(began_ns + limit_s * S - 1)
        assert not client.answers and intake.admission.queued == 1
        intake.later(monotonic_ns() + limit_s * S)
        (answer,) = client.answers
        assert (answer.status, answer.code) == (503, "ack_timeout")
        assert answer.json["error"]["detail"]["ack_timeout_ms"] == limit_s * 1000
        # The rest of the body is read past, and the connection serves on.
        client.send((b"" if whole else request[-1:]) + post(10))
        assert client.statuses == [503, 429]

    def test_the_body_says_how_long_if_it_is_there(self, intake: Intake) -> None:
        fill(intake)
        client = intake.connect()
        document = b'{"records":[{"data":1}],"disable_backpressure":true,"ack_timeout_ms":500}'
        client.send(post(0, body=document))
        intake.later(monotonic_ns() + S // 2)
        assert [answer.code for answer in client.answers] == ["ack_timeout"]

    def test_a_client_that_expected_100_is_not_kept_after_a_refusal(self, intake: Intake) -> None:
        fill(intake)
        client = intake.connect()
        client.send(head_of(post(5_000, WAIT, "Expect: 100-continue")))
        intake.later(monotonic_ns() + 20 * S)
        (answer,) = client.answers
        assert (answer.status, answer.headers["connection"]) == (503, "close")
        assert client.transport.ended

    def test_what_a_request_waited_is_taken_off_the_time_until_its_commit(
        self, intake: Intake
    ) -> None:
        fill(intake)
        client = intake.connect()
        sent_ns = monotonic_ns()
        client.send(post(10, WAIT))
        (queued,) = intake.admission._queue._waiting
        queued.since_ns -= 15 * S
        before_ns = monotonic_ns()
        intake.commit()
        (waiting,) = intake.pending._waiting
        assert 5 * S - (monotonic_ns() - sent_ns) <= waiting.timeout_ns <= 5 * S
        # Its group is told that it cannot wait as long as the others.
        assert intake.short == [(waiting.request.arrival_ns, waiting.timeout_ns)]
        # Its arrival is that of its admission: arrivals in the ring are in order.
        assert waiting.request.arrival_ns >= before_ns
        overdue = intake.producer.overdue(waiting)
        assert overdue.detail["ack_timeout_ms"] == 20_000

    def test_a_deadline_in_the_body_that_has_passed_meanwhile_stores_nothing(
        self, intake: Intake
    ) -> None:
        fill(intake)
        client = intake.connect()
        client.send(post(0, WAIT, body=b'{"records":[{"data":1}],"ack_timeout_ms":1000}'))
        (queued,) = intake.admission._queue._waiting
        queued.since_ns -= 2 * S
        head = intake.ring.head
        intake.commit()
        assert [answer.code for answer in client.answers] == ["ack_timeout"]
        assert intake.ring.head == head


@pytest.mark.parametrize("query", ["", WAIT])
def test_a_request_that_was_promised_space_but_not_that_of_a_pad_waits_for_it_if_it_asked(
    topics: TopicCache, query: str
) -> None:
    async def go(intake: Intake) -> None:
        size = BODY_BYTES_MAX - 100
        filler, client = intake.connect(), intake.connect()
        for _ in range(3):  # the next one does not fit before the end of the ring
            filler.send(post(size))
        filler.send(post(size // 2))
        committed = intake.segment.layout.shard(0) + at.S_COMMITTED
        intake.words[committed] += 40_000  # and neither does it with its pad
        client.send(post(size - 2 * FRAME_BYTES, query))
        if not query:
            assert client.statuses == [429]
            assert "to its end" in client.answers[0].json["error"]["message"]
            return
        assert not client.statuses
        intake.check()
        # It keeps its promise.
        assert intake.admission.free_bytes == intake.ring.free_bytes - size + FRAME_BYTES
        intake.commit()
        await intake.producer._tasks.wait()
        intake.commit()
        assert client.statuses == [200]

    with closing(Intake(topics, RING_BYTES, BODY_BYTES_MAX)) as intake:
        asyncio.run(go(intake))


async def test_many_that_wait_are_admitted_in_turns_of_the_loop(
    topics: TopicCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admissions, "ADMITTED_A_TURN", 4)
    with closing(Intake(topics, RING_BYTES, BODY_BYTES_MAX)) as intake:
        fill(intake)
        clients = [intake.connect() for _ in range(10)]
        for client in clients:
            client.send(post(10, WAIT))
        intake.commit()
        left = []
        while intake.admission.queued:
            left.append(intake.admission.queued)
            await asyncio.sleep(0)
        assert left == [6, 2]
        intake.commit()
        assert [client.statuses for client in clients] == [[200]] * 10
