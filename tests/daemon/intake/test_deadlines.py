"""Deadlines of requests that wait for their commit: who is taken back, whose outcome is unknown."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.intake.caps import CapTracker
from daemon.intake.pending import (
    EARLY_ANSWERED_MAX,
    NEVER,
    Callback,
    ExpiredRequests,
    PendingRequest,
)
from daemon.intake.producer import outcome_unknown
from daemon.intake.topic_cache import TopicEntry
from daemon.schemas.errors import ApiError
from ledger.types import ExtentRun, PartitionHead, Topic, TopicConfig
from tests.daemon.http.front import post
from tests.daemon.http.memory_transport import connect
from tests.daemon.intake.test_pending import ME, S, Shard, commit, one, shard, topic
from tests.long import examples

__all__ = ["shard"]  # a fixture


def expire(shard: Shard, now_ns: int, pulled: int) -> ExpiredRequests:
    """What a heartbeat does; the ring is not asked."""
    assert shard.pending.is_due(now_ns)
    expired = shard.pending.expired(now_ns, pulled, shard.position)
    answer_expired(shard, expired)
    return expired


def answer_expired(shard: Shard, expired: ExpiredRequests) -> None:
    """Answers what has expired."""
    shard.pending.end(
        expired,
        lambda _: ApiError(503, "ack_timeout", "too late"),
        lambda waiting: outcome_unknown(waiting.timeout_ns // 1_000_000),
    )


def arrives(shard: Shard, at_ns: int, timeout_ns: int = 20 * S) -> int:
    """A request on a connection of its own; its position."""
    connection, shard.transport = connect(shard.server)
    connection.data_received(post("/later", b"x" * 10))
    request = shard.script.later[-1]
    request.arrival_ns = at_ns
    return shard.hands_in(request, topic(7), ((0, 1),), timeout_ns=timeout_ns)


def test_what_nobody_pulled_in_time_is_answered_503_and_takes_no_offsets(shard: Shard) -> None:
    first = arrives(shard, 1 * S)
    gone, second = shard.transport, arrives(shard, 2 * S)
    third = arrives(shard, 10 * S)
    assert not shard.pending.is_due(21 * S - 1)
    expired = expire(shard, 22 * S, pulled=0)
    assert expired.runs == [(first, third)] and not expired.unknown
    assert b"HTTP/1.1 503 " in gone.written and b"ack_timeout" in gone.written
    shard.takes(
        commit(
            shard, ExtentRun(ME, 7, 0, 11, 1), heads=(PartitionHead(7, 0, 11),), end=shard.position
        )
    )
    assert shard.said() == [(200, one(11, 11, 11))]
    assert second and len(shard.pending) == 0


class Walked(deque[Any]):
    """Counts how often it was walked through."""

    walks = 0

    def __iter__(self) -> Iterator[Any]:
        Walked.walks += 1
        return super().__iter__()


def test_what_a_room_has_in_flight_is_walked_once_however_much_is_taken_back(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daemon.intake.caps.deque", Walked)
    tracker = CapTracker(Topic(7, "t7", TopicConfig(cap_records=1_000, discard="reject"), 0))
    entry = TopicEntry(tracker.topic, tracker)
    for _ in range(100):
        request, *_ = shard.another_connection()
        request.arrival_ns = 1 * S
        tracker.published(shard.hands_in(request, entry, ((0, 1),)), [(0, 1, b"x", 1, 1)])
    Walked.walks = 0
    expired = expire(shard, 22 * S, pulled=0)
    assert len(expired.void) == 100 and tracker.idle and Walked.walks == 1


def test_what_is_pulled_is_answered_504_at_its_deadline_and_keeps_its_offsets_and_connection(
    shard: Shard,
) -> None:
    arrives(shard, 1 * S)
    pulled, second = shard.transport, arrives(shard, 1 * S)
    back, third = shard.transport, arrives(shard, 10 * S)
    expired = expire(shard, 22 * S, pulled=second)
    assert expired.runs == [(second, third)] and len(expired.unknown) == 1
    assert pulled.written.startswith(b"HTTP/1.1 504 ") and not pulled.ended
    assert b'"outcome_unknown"' in pulled.written and b'"ack_timeout_ms":20000' in pulled.written
    assert b"Retry-After" not in pulled.written and b"close" not in pulled.written
    answered = bytes(pulled.written)
    assert b"HTTP/1.1 503 " in back.written
    assert not shard.pending.is_due(29 * S)  # what ended is not looked at again
    shard.takes(
        commit(
            shard, ExtentRun(ME, 7, 0, 11, 2), heads=(PartitionHead(7, 0, 12),), end=shard.position
        )
    )
    assert shard.said() == [(200, one(12, 12, 12))]
    assert pulled.written == answered, "one answer, though its commit is known now"
    later = arrives(shard, 40 * S)
    assert expire(shard, 60 * S, pulled=later).runs == [(later, shard.position)]


def test_each_request_has_a_deadline_of_its_own_and_runs_are_as_long_as_they_can_be(
    shard: Shard,
) -> None:
    positions = [arrives(shard, 1 * S, timeout * S) for timeout in (20, 1, 1, 30, 1)]
    expired = expire(shard, 3 * S, pulled=0)
    assert expired.runs == [(positions[1], positions[3]), (positions[4], shard.position)]
    expired = expire(shard, 21 * S, pulled=0)
    assert expired.runs == [(positions[0], positions[3])]
    expired = expire(shard, 31 * S, pulled=0)
    assert expired.runs == [(positions[3], shard.position)]
    assert len(shard.pending) == 0


@given(
    st.sampled_from([1, 5, 20, NEVER]),
    st.lists(
        st.one_of(
            st.tuples(st.just("arrives"), st.integers(1, 30)),
            st.tuples(st.just("passes"), st.integers(1, 6)),
            st.tuples(st.just("is committed"), st.integers(1, 5)),
        ),
        max_size=60,
    ),
)
@settings(max_examples=examples(100))
def test_a_deadline_ends_its_request_and_no_other_whatever_the_others_are(
    usual_s: int, steps: list[tuple[str, int]]
) -> None:
    shard = Shard(usual_s * S)
    now_ns, waiting = S, {}  # deadlines by position
    for what, number in steps:
        if what == "arrives":
            waiting[arrives(shard, now_ns, number * S)] = now_ns + number * S
        elif what == "passes":
            now_ns += number * S
        elif waiting:
            count = min(number, len(waiting))
            gone = sorted(waiting)[:count]
            for position in gone:
                del waiting[position]
            runs = ExtentRun(ME, 7, 0, 11, count)
            end = min(waiting, default=shard.position)
            shard.takes(commit(shard, runs, heads=(PartitionHead(7, 0, 11),), end=end))
        due = {position for position, due_ns in waiting.items() if due_ns <= now_ns}
        is_due = shard.pending.is_due(now_ns)
        assert is_due or not due
        assert usual_s < NEVER or is_due == bool(due)  # else one with more time may be the oldest
        expired = shard.pending.expired(now_ns, 0, shard.position)
        assert {each.position for each in expired.void} == due
        answer_expired(shard, expired)
        waiting = {position: due_ns for position, due_ns in waiting.items() if due_ns > now_ns}
        assert len(shard.pending._early) <= 2 * len(shard.pending) + EARLY_ANSWERED_MAX + 1
    shard.segment.close()


def test_deadlines_of_requests_that_were_answered_do_not_pile_up(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daemon.intake.pending.EARLY_ANSWERED_MAX", 10)
    for number in range(100):
        position = arrives(shard, S, 5 * S)
        run = ExtentRun(ME, 7, 0, 1 + number, 1)
        shard.takes(commit(shard, run, heads=(PartitionHead(7, 0, 1 + number),), end=position + 1))
        assert len(shard.pending._early) <= 14


def test_a_request_whose_commit_is_known_has_its_answer_whatever_its_deadline(
    shard: Shard,
) -> None:
    first = arrives(shard, 1 * S)
    known = shard.transport
    second = arrives(shard, 2 * S)
    late = shard.transport
    third = arrives(shard, 3 * S)
    run = ExtentRun(ME, 7, 0, 11, 1)
    shard.pending.committed(commit(shard, run, heads=(PartitionHead(7, 0, 11),), end=second))
    expired = expire(shard, 60 * S, pulled=third)
    assert [waiting.position for waiting in expired.unknown] == [second]
    assert expired.runs == [(third, shard.position)]
    assert not known.written and late.written.startswith(b"HTTP/1.1 504 ")
    shard.transport = known
    shard.pending.answer(lambda: 0, 1)
    assert shard.said() == [(200, one(11, 11, 11))]
    assert first == 0 and len(shard.pending) == 1, "the one whose outcome is unknown"


def test_requests_after_one_whose_outcome_is_unknown_are_answered_in_their_order(
    shard: Shard,
) -> None:
    connection, shard.transport = connect(shard.server)
    connection.data_received(post("/later", b"1") + post("/later", b"2") + post("/later", b"3"))
    positions = []
    for request, arrived_s, timeout_s in zip(
        shard.script.later, (1, 1, 1), (60, 2, 60), strict=True
    ):
        request.arrival_ns = arrived_s * S
        positions.append(shard.hands_in(request, topic(7), ((0, 1),), timeout_ns=timeout_s * S))
    assert len(expire(shard, 4 * S, pulled=shard.position).unknown) == 1
    assert shard.transport.written == b"", "the one before it has no answer yet"
    run = ExtentRun(ME, 7, 0, 11, 3)
    shard.takes(commit(shard, run, heads=(PartitionHead(7, 0, 13),), end=shard.position))
    statuses = re.findall(rb"HTTP/1.1 (\d+)", shard.transport.written)
    assert statuses == [b"200", b"504", b"200"] and not shard.transport.ended
    assert b'"first_seq":11' in shard.transport.written
    assert b'"first_seq":13' in shard.transport.written, "it may be stored, and was"


def lines(shard: Shard) -> tuple[list[str], dict[str, int], Callable[..., None]]:
    """Who was refused, where each is, and what makes one arrive."""
    refused: list[str] = []
    positions: dict[str, int] = {}

    def arrives_in(line: str | None, name: str, at_ns: int, timeout_ns: int = 20 * S) -> None:
        waits = Callback(at_ns, lambda _: None, lambda _: refused.append(name), line)
        positions[name] = shard.position
        shard.pending.add(
            PendingRequest(shard.position, waits, topic(7), ((0, 1),), 1, None, timeout_ns)
        )
        shard.position += 100

    return refused, positions, arrives_in


def test_what_follows_in_its_line_is_found_after_what_has_time_left(shard: Shard) -> None:
    refused, _, arrives_in = lines(shard)
    arrives_in("a", "a1", 1 * S)
    for number in range(3):
        arrives_in("b", f"b{number}", 15 * S)
    arrives_in("a", "a2", 20 * S)
    expire(shard, 21 * S, pulled=0)
    assert refused == ["a1", "a2"]


def test_what_follows_in_its_line_is_taken_back_with_a_batch(shard: Shard) -> None:
    refused, positions, arrives_in = lines(shard)
    arrives_in("a", "pulled", 1 * S)
    arrives_in("a", "a1", 1 * S)
    arrives_in("b", "b1", 5 * S)
    arrives_in("a", "a2", 9 * S)
    arrives_in(None, "router", 9 * S)
    arrives_in("b", "b2", 9 * S, timeout_ns=5 * S)
    arrives_in("a", "a3", 21 * S)
    arrives_in("b", "b3", 21 * S)
    expired = expire(shard, 21 * S, pulled=positions["a1"])
    assert [each.position for each in expired.unknown] == [positions["pulled"]]
    assert refused == ["a1", "a2", "b2", "a3", "b3", "pulled"]
    assert expired.runs == [
        (positions["a1"], positions["b1"]),
        (positions["a2"], positions["router"]),
        (positions["b2"], shard.position),
    ]
    assert len(shard.pending) == 3
