"""What producers are told when a commit comes: hand-made commits, real requests and connections."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from daemon.http.limits import HttpLimits
from daemon.http.request import Request
from daemon.http.server import Server
from daemon.intake import pending as pending_module
from daemon.intake.pending import (
    PendingRequest,
    PendingRequests,
)
from daemon.intake.topic_cache import TopicEntry
from ledger.types import (
    AnswerPart,
    Commit,
    ExtentRun,
    LeasedRange,
    LeaseId,
    PartitionHead,
    Topic,
    TopicConfig,
    Verdict,
    VerdictKind,
)
from shards import layout as at
from shards.boards.namecounts import TopicTally
from shards.frame import Part, encode_conditions
from shards.latency import Stage, counted
from shards.layout import Layout
from shards.ring import RingReader, RingWriter
from shards.segment import Segment
from tests.daemon.http.front import Script, post
from tests.daemon.http.memory_transport import MemoryTransport, connect
from tests.e2e.load import read_answer

ME, OTHER = 1, 0
S = 1_000_000_000
LEASE = LeaseId(1, 1, OTHER, 1)


def topic(topic_id: int, partitions: int = 1) -> TopicEntry:
    """A topic named after its id."""
    return TopicEntry(Topic(topic_id, f"t{topic_id}", TopicConfig(partitions=partitions), 0))


class Shard:
    """A shard's answers, with producers on one connection."""

    def __init__(self, usual_timeout_ns: int = 20 * S) -> None:
        self.segment = Segment.create(Layout(shards=2, ring_bytes=4096))
        self.tallies: dict[str, TopicTally] = {}
        self.pending = PendingRequests(self.segment, ME, self.tally_of, usual_timeout_ns)
        self.server = Server()
        self.script = Script()
        self.server.application = self.script
        self.server.limits = HttpLimits()
        self._connection, self.transport = connect(self.server)
        self.position = 0

    def waits(
        self, topic: TopicEntry, *parts: tuple[int, int], expected_seq: int | None = None
    ) -> int:
        """A request with (partition, records) parts; the position that it was given."""
        self._connection.data_received(post("/later", b"x" * 10))
        return self.hands_in(self.script.later[-1], topic, parts, expected_seq)

    def hands_in(
        self,
        request: Request,
        topic: TopicEntry,
        parts: tuple[tuple[int, int], ...],
        expected_seq: int | None = None,
        timeout_ns: int = 20 * S,
    ) -> int:
        """The request is published after the earlier ones."""
        position = self.position
        self.position += 100
        self.pending.add(
            PendingRequest(
                position, request, topic, parts, len(request.body), expected_seq, timeout_ns
            )
        )
        return position

    def tally_of(self, name: str) -> TopicTally:
        return self.tallies.setdefault(name, TopicTally())

    def takes(self, commit: Commit) -> None:
        """A commit arrives, and all that is known is answered."""
        self.pending.committed(commit)
        self.pending.answer(lambda: 0, 1)

    def said(self) -> list[tuple[int, Any]]:
        """(status, document) of all answers since the last call."""
        stream = io.BytesIO(bytes(self.transport.written))
        self.transport.written.clear()
        found = []
        while (answer := read_answer(stream)) is not None:
            found.append((answer.status, answer.json))
        return found

    def word(self, word: int) -> int:
        return int(self.segment.words[self.segment.layout.shard(ME) + word])

    def another_connection(self) -> tuple[Request, MemoryTransport, Any]:
        """A request on a connection of its own."""
        connection, transport = connect(self.server)
        connection.data_received(post("/later", b"x"))
        return self.script.later[-1], transport, connection


@pytest.fixture
def shard() -> Iterator[Shard]:
    """A fresh shard."""
    made = Shard()
    yield made
    made.segment.close()


def commit(
    shard: Shard, *runs: ExtentRun, heads: tuple[PartitionHead, ...] = (),
    verdicts: tuple[Verdict, ...] = (), end: int | None = None,
) -> Commit:  # fmt: skip
    """A commit of all that waits (or of what ends at ``end``)."""
    sources = (
        LeasedRange(OTHER, 0, 50),
        LeasedRange(ME, 0, shard.position if end is None else end),
    )
    return Commit(1, LEASE, sources, runs, heads, verdicts)


def one(
    first: int, last: int, head: int, topic_id: int = 7, partition: int = 0, **more: Any
) -> Any:
    """The answer for one partition."""
    return {
        "topic": f"t{topic_id}", "partition": partition, "first_seq": first, "last_seq": last,
        "count": last - first + 1, "head_seq": head, "deduped": False, **more,
    }  # fmt: skip


def test_requests_of_a_run_get_its_offsets_one_after_the_other(shard: Shard) -> None:
    shard.waits(topic(7), (0, 2))
    shard.waits(topic(7), (0, 3))
    shard.takes(commit(shard, ExtentRun(ME, 7, 0, 11, 5), heads=(PartitionHead(7, 0, 20),)))
    assert shard.said() == [(200, one(11, 12, 20)), (200, one(13, 15, 20))]
    assert len(shard.pending) == 0
    counters = (at.S_REQUESTS_ACKED, at.S_RECORDS_ACKED, at.S_BYTES_ACKED)
    assert [shard.word(word) for word in counters] == [2, 5, 20]


@pytest.mark.parametrize("first", [ME, OTHER])
def test_another_shards_run_in_the_same_commit_is_not_ours(shard: Shard, first: int) -> None:
    shard.waits(topic(7), (0, 1))
    ours, others = (1, 2) if first == ME else (5, 1)
    runs = [ExtentRun(ME, 7, 0, ours, 1), ExtentRun(OTHER, 7, 0, others, 4)]
    shard.takes(
        commit(shard, *(runs if first == ME else runs[::-1]), heads=(PartitionHead(7, 0, 5),))
    )
    assert shard.said() == [(200, one(ours, ours, 5))]


def test_a_commit_of_other_shards_only_answers_nobody(shard: Shard) -> None:
    shard.waits(topic(7), (0, 1))
    foreign = Commit(1, LEASE, (LeasedRange(OTHER, 0, 1000),), (ExtentRun(OTHER, 7, 0, 1, 4),), ())
    shard.takes(foreign)
    assert shard.said() == [] and len(shard.pending) == 1


def test_what_lies_after_the_commits_range_goes_on_waiting(shard: Shard) -> None:
    shard.waits(topic(7), (0, 1))
    later = shard.waits(topic(7), (0, 1))
    shard.takes(
        commit(shard, ExtentRun(ME, 7, 0, 1, 1), heads=(PartitionHead(7, 0, 1),), end=later)
    )
    assert shard.said() == [(200, one(1, 1, 1))]
    assert len(shard.pending) == 1


def test_what_a_dead_predecessor_left_in_the_ring_is_passed_over(shard: Shard) -> None:
    shard.position = 300  # three requests of the predecessor
    shard.takes(commit(shard, ExtentRun(ME, 7, 0, 1, 3), heads=(PartitionHead(7, 0, 3),)))
    assert shard.said() == []
    shard.waits(topic(7), (0, 1))
    shard.takes(commit(shard, ExtentRun(ME, 7, 0, 4, 1), heads=(PartitionHead(7, 0, 4),)))
    assert shard.said() == [(200, one(4, 4, 4))]


def test_a_request_that_keys_spread_is_told_of_each_partition(shard: Shard) -> None:
    wide = topic(7, partitions=3)
    shard.waits(wide, (0, 2), (2, 1))
    shard.waits(wide, (2, 4))
    runs = (ExtentRun(ME, 7, 0, 10, 2), ExtentRun(ME, 7, 2, 30, 5))
    shard.takes(commit(shard, *runs, heads=(PartitionHead(7, 0, 11), PartitionHead(7, 2, 40))))
    spread = {
        "topic": "t7", "count": 3, "deduped": False,
        "partitions": [
            {"partition": 0, "first_seq": 10, "last_seq": 11, "count": 2, "head_seq": 11},
            {"partition": 2, "first_seq": 30, "last_seq": 30, "count": 1, "head_seq": 40},
        ],
    }  # fmt: skip
    assert shard.said() == [(200, spread), (200, one(31, 34, 40, partition=2))]
    assert shard.word(at.S_RECORDS_ACKED) == 7


def verdict(position: int, kind: VerdictKind, *parts: AnswerPart, head_seq: int = 0) -> Verdict:
    """A verdict on this shard's request."""
    return Verdict(ME, position, kind, parts, head_seq)


def test_a_void_request_takes_no_offsets_from_those_after_it(shard: Shard) -> None:
    shard.waits(topic(7), (0, 2))
    void = shard.waits(topic(7), (0, 5), expected_seq=3)
    shard.waits(topic(7), (0, 1))
    mismatch = verdict(void, "sequence_mismatch", head_seq=9)
    shard.takes(
        commit(
            shard,
            ExtentRun(ME, 7, 0, 10, 8),
            heads=(PartitionHead(7, 0, 12),),
            verdicts=(mismatch,),
        )
    )
    first, refused, last = shard.said()
    assert first == (200, one(10, 11, 12)) and last == (200, one(12, 12, 12))
    assert refused[0] == 412 and refused[1]["error"]["code"] == "sequence_mismatch"
    assert refused[1]["error"]["detail"] == {"expected_seq": 3, "head_seq": 9}
    assert shard.word(at.S_RECORDS_ACKED) == 3


def test_a_repeat_gets_the_first_answer_and_deduped(shard: Shard) -> None:
    wide = topic(7, partitions=2)
    single = shard.waits(wide, (0, 3))
    spread = shard.waits(wide, (0, 1), (1, 2))
    verdicts = (
        verdict(single, "deduped", AnswerPart(0, 4, 6), head_seq=6),
        verdict(spread, "deduped", AnswerPart(0, 7, 7), AnswerPart(1, 1, 2)),
    )
    runs = (ExtentRun(ME, 7, 0, 50, 4), ExtentRun(ME, 7, 1, 60, 2))
    shard.takes(commit(shard, *runs, verdicts=verdicts))
    first, second = shard.said()
    assert first == (200, one(4, 6, 6) | {"deduped": True})
    assert second[0] == 200 and second[1]["deduped"] is True and second[1]["count"] == 3
    assert [(p["first_seq"], p["last_seq"]) for p in second[1]["partitions"]] == [(7, 7), (1, 2)]
    assert shard.word(at.S_REQUESTS_ACKED) == 0


def test_all_requests_to_a_topic_that_was_deleted_are_refused(shard: Shard) -> None:
    wide = topic(7, partitions=2)
    shard.waits(wide, (0, 1), (1, 1))
    shard.waits(wide, (0, 2))
    shard.waits(wide, (0, 1), (1, 1))
    conditional = shard.waits(wide, (1, 1))
    shard.waits(topic(8), (0, 1))
    runs = (ExtentRun(ME, 7, 0, 0, 4), ExtentRun(ME, 7, 1, 0, 3), ExtentRun(ME, 8, 0, 1, 1))
    shard.takes(
        commit(
            shard, *runs, heads=(PartitionHead(8, 0, 1),),
            verdicts=(verdict(conditional, "topic_deleted"),),
        )
    )  # fmt: skip
    *refused, kept = shard.said()
    assert [(status, body["error"]["code"]) for status, body in refused] == 4 * [
        (404, "topic_deleted")
    ]
    assert kept == (200, one(1, 1, 1, topic_id=8))
    assert (shard.word(at.S_REQUESTS_ACKED), shard.word(at.S_RECORDS_ACKED)) == (1, 1)


def test_an_answer_to_a_connection_that_is_gone_goes_nowhere_and_keeps_the_count(
    shard: Shard,
) -> None:
    request, transport, connection = shard.another_connection()
    shard.hands_in(request, topic(7), ((0, 2),))
    connection.connection_lost(None)
    shard.waits(topic(7), (0, 1))
    shard.takes(commit(shard, ExtentRun(ME, 7, 0, 1, 3), heads=(PartitionHead(7, 0, 3),)))
    assert not transport.written
    assert shard.said() == [(200, one(3, 3, 3))]


def left_behind(shard: Shard, *requests: tuple[tuple[int, int, int], ...], key: int = -1) -> int:
    """A predecessor publishes requests of (topic id, partition, records) parts and dies; the one
    at index ``key`` has an idempotency key. Where its ring ends, the successor goes on."""
    ring = RingWriter(shard.segment, ME)
    for index, parts in enumerate(requests):
        conditions = encode_conditions("k", None) if index == key else b""
        ring.append(1, 1, conditions, [Part(t, p, count, b"", 1, 1) for t, p, count in parts])
    shard.position = ring.head
    shard.pending.inherit(RingReader(shard.segment, ME).requests(0, ring.head))
    return ring.head


def test_what_a_dead_predecessor_left_in_the_same_commit_has_its_offsets_before_ours(
    shard: Shard,
) -> None:
    left_behind(shard, ((7, 0, 2),), ((7, 0, 1), (7, 1, 4)))
    shard.waits(topic(7), (0, 3))
    shard.waits(topic(7), (1, 1))
    runs = ExtentRun(ME, 7, 0, 11, 6), ExtentRun(ME, 7, 1, 21, 5)
    shard.takes(commit(shard, *runs, heads=(PartitionHead(7, 0, 16), PartitionHead(7, 1, 25))))
    assert shard.said() == [(200, one(14, 16, 16)), (200, one(25, 25, 25, partition=1))]


def test_a_void_request_of_a_predecessor_takes_no_offsets(shard: Shard) -> None:
    left_behind(shard, ((7, 0, 2),), ((7, 0, 1),), key=0)
    shard.waits(topic(7), (0, 3))
    void = Verdict(ME, 0, "deduped", (AnswerPart(0, 1, 2),), 9)
    made = commit(
        shard, ExtentRun(ME, 7, 0, 11, 6), heads=(PartitionHead(7, 0, 14),), verdicts=(void,)
    )
    shard.takes(made)
    assert shard.said() == [(200, one(12, 14, 14))]


def test_a_run_of_a_predecessor_whose_topic_is_deleted_moves_no_offsets(shard: Shard) -> None:
    left_behind(shard, ((8, 0, 2),))
    shard.waits(topic(8), (0, 1))
    shard.waits(topic(7), (0, 1))
    runs = ExtentRun(ME, 7, 0, 11, 1), ExtentRun(ME, 8, 0, 0, 3)
    shard.takes(commit(shard, *runs, heads=(PartitionHead(7, 0, 11),)))
    (status, _), ours = shard.said()
    assert (status, ours) == (404, (200, one(11, 11, 11)))


def test_what_was_committed_before_the_successor_followed_the_log_is_no_part_of_its_runs(
    shard: Shard,
) -> None:
    begins = left_behind(shard, ((7, 0, 2),))
    shard.waits(topic(7), (0, 3))
    sources = (LeasedRange(ME, begins, shard.position),)
    shard.takes(Commit(2, LEASE, sources, (ExtentRun(ME, 7, 0, 3, 3),), (PartitionHead(7, 0, 5),)))
    assert shard.said() == [(200, one(3, 5, 5))]


def test_a_predecessors_requests_may_be_committed_in_several_parts(shard: Shard) -> None:
    left_behind(shard, ((7, 0, 2),), ((7, 0, 1),))
    second = RingReader(shard.segment, ME).requests(0, shard.position)
    next(iter(second))
    middle = next(iter(second)).position
    shard.waits(topic(7), (0, 3))
    shard.takes(
        commit(shard, ExtentRun(ME, 7, 0, 1, 2), heads=(PartitionHead(7, 0, 2),), end=middle)
    )
    sources = (LeasedRange(ME, middle, shard.position),)
    shard.takes(Commit(2, LEASE, sources, (ExtentRun(ME, 7, 0, 3, 4),), (PartitionHead(7, 0, 6),)))
    assert shard.said() == [(200, one(4, 6, 6))]


# Slices


class Ticking:
    """A clock that goes on by 1 each time it is read."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        self.now_ns += 1
        return self.now_ns


def two_commits(shard: Shard) -> tuple[Commit, Commit]:
    """60 requests of two partitions in a commit, 20 in the next one, one of them a repeat."""
    for number in range(60):
        shard.waits(topic(7, 2), (number % 2, 1))
    middle = shard.position
    repeat = [shard.waits(topic(7, 2), (0, 1)) for _ in range(20)][7]
    runs = ExtentRun(ME, 7, 0, 1, 30), ExtentRun(ME, 7, 1, 1, 30)
    first = commit(
        shard, *runs, heads=(PartitionHead(7, 0, 30), PartitionHead(7, 1, 30)), end=middle
    )
    void = Verdict(ME, repeat, "deduped", (AnswerPart(0, 3, 3),), 9)
    sources = (LeasedRange(ME, middle, shard.position),)
    run = ExtentRun(ME, 7, 0, 31, 20)
    return first, Commit(2, LEASE, sources, (run,), (PartitionHead(7, 0, 49),), (void,))


@given(slices=st.lists(st.integers(1, 6), max_size=12))
def test_answers_in_slices_are_the_answers_in_one_go(slices: list[int]) -> None:
    whole, sliced = Shard(), Shard()
    for made in two_commits(whole):
        whole.takes(made)
    for made in two_commits(sliced):
        sliced.pending.committed(made)
    clock = Ticking()
    for length in [*slices, 1_000]:
        left = len(sliced.pending)
        sliced.pending.answer(clock, clock.now_ns + length)
        assert left - len(sliced.pending) <= (length + 1) * pending_module.PARTS_A_LOOK or (
            length == 1_000
        )
        assert sliced.pending.has_known == bool(len(sliced.pending))
    words = at.S_REQUESTS_ACKED, at.S_RECORDS_ACKED, at.S_BYTES_ACKED
    assert [sliced.word(word) for word in words] == [whole.word(word) for word in words]
    assert sliced.said() == whole.said()
    whole.segment.close()
    sliced.segment.close()


def test_a_slice_ends_when_its_time_is_over_and_the_next_one_continues(shard: Shard) -> None:
    for made in two_commits(shard):
        shard.pending.committed(made)
    assert shard.said() == [] and len(shard.pending) == 80, "what is known waits for its slice"
    shard.pending.answer(Ticking(), 1)
    assert len(shard.said()) == pending_module.PARTS_A_LOOK
    assert len(shard.pending) == 80 - pending_module.PARTS_A_LOOK
    shard.pending.answer(Ticking(), 1_000)
    assert len(shard.said()) == 80 - pending_module.PARTS_A_LOOK
    assert not shard.pending.has_known


def test_one_request_in_sixteen_is_a_sample_of_the_latency_also_over_small_commits(
    shard: Shard,
) -> None:
    for number in range(40):
        position = shard.waits(topic(7), (0, 1))
        made = commit(shard, ExtentRun(ME, 7, 0, number + 1, 1),
                      heads=(PartitionHead(7, 0, number + 1),))  # fmt: skip
        made = replace(made, ranges=(LeasedRange(ME, position, shard.position),), published_ns=50)
        shard.pending.committed(made)
        shard.pending.answer(lambda: 5_000_050, 10_000_000)
    answered = counted(shard.segment, Stage.ANSWERED)
    acknowledged = counted(shard.segment, Stage.ACKNOWLEDGED)
    assert acknowledged.total == 2
    assert (answered.total, answered.sum_ns) == (40, 40 * 5_000_000), "each commit is counted"


def test_a_commit_that_was_published_at_an_unknown_time_gives_no_time_of_answers(
    shard: Shard,
) -> None:
    for _ in range(17):
        shard.waits(topic(7), (0, 1))
    shard.takes(commit(shard, ExtentRun(ME, 7, 0, 1, 17), heads=(PartitionHead(7, 0, 17),)))
    assert counted(shard.segment, Stage.ANSWERED).total == 0
    assert counted(shard.segment, Stage.ACKNOWLEDGED).total == 1


def test_a_topics_acknowledged_records_and_bytes_are_counted_and_those_that_are_void_are_not(
    shard: Shard,
) -> None:
    seven, eight = topic(7), topic(8, partitions=2)
    shard.waits(seven, (0, 3))
    shard.waits(eight, (0, 1), (1, 4))
    void = shard.waits(seven, (0, 1))
    shard.waits(seven, (0, 2))
    shard.takes(commit(
        shard, ExtentRun(ME, 7, 0, 1, 6), ExtentRun(ME, 8, 0, 1, 1), ExtentRun(ME, 8, 1, 1, 4),
        heads=(PartitionHead(7, 0, 5), PartitionHead(8, 0, 1), PartitionHead(8, 1, 4)),
        verdicts=(Verdict(ME, void, "deduped", (AnswerPart(0, 1, 1),), 5),),
    ))  # fmt: skip
    found = {name: (tally.records, tally.bytes) for name, tally in shard.tallies.items()}
    assert found == {"t7": (5, 20), "t8": (5, 10)}
    assert shard.word(at.S_RECORDS_ACKED) == 10
