"""Produce requests that wait for their commit, and what each is answered.

A request is published in the ring -> waits here, in the order of the ring -> its commit arrives
through the commit log (``committed``) -> it is answered with its offsets, or with the commit's
verdict (``answer``). A request whose connection is lost is dropped here; its records stay. Requests
that a dead predecessor of this process left in the ring have nobody waiting: they only count when
offsets are given to ours.

A commit may have thousands of requests, so they are answered in slices. Between two slices the loop
delivers the same records to readers. What is *known* has a commit and waits for a slice only: it
counts as unanswered, and no deadline ends it.

A request whose deadline passes before its commit is taken back and answered 503 if nobody has
pulled it (uploader/pipeline/voids.py). Otherwise its outcome is unknown, and it is answered 504;
its commit then counts for nobody.

Invariant I1: nothing is answered before its commit is in the log, which follows the ledger.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import NamedTuple, final

import msgspec

from daemon.http.request import Request
from daemon.intake.topic_cache import TopicEntry
from daemon.schemas.api import Produced, ProducedPart, ProducedSpread
from daemon.schemas.errors import ApiError, cursor_moved, cursor_unknown
from ledger.types import Advance, Commit, LeasedRange, Verdict
from shards import layout as at
from shards.boards.namecounts import TopicTally
from shards.frame import VOID_BYTES_MAX
from shards.latency import SAMPLED, LatencyHistogram, Stage
from shards.ring import RequestAt
from shards.segment import Segment

NEVER = 1 << 63
_encode = msgspec.json.Encoder().encode
RUN_BYTES = VOID_BYTES_MAX // 2  # a run ends with the request that exceeds it
EARLY_ANSWERED_MAX = 1_000  # in the heap of deadlines, in addition to one for each that waits
# Requests that are answered between two looks at the clock, in about 80 microseconds. The one after
# each look is a sample of the latency, so the others cost nothing for it.
PARTS_A_LOOK = SAMPLED


@final
class Callback:
    """Whoever waits for a frame other than by HTTP: a router, whose copy (``copies.py``) has
    no deadline, or a connection of Kafka's protocol. ``settled`` is given the first offset, 0 if
    nothing was stored; ``judged`` the commit's verdict instead, if there is one. What is taken back
    takes back all that follows it in its ``line``."""

    __slots__ = ("answered", "arrival_ns", "judged", "line", "refused", "settled")

    def __init__(
        self,
        arrival_ns: int,
        settled: Callable[[int], None],
        refused: Callable[[ApiError], None] | None = None,
        line: Hashable | None = None,
        judged: Callable[[Verdict], None] | None = None,
    ) -> None:
        self.judged = judged
        self.arrival_ns = arrival_ns
        self.line = line
        self.settled = settled
        self.refused = refused
        self.answered = False

    def refuse(self, error: ApiError) -> None:
        """The deadline has passed."""
        self.answered = True
        if self.refused is not None:
            self.refused(error)

    give_up = refuse


class PendingRequest(NamedTuple):
    """A published request: its frame's ``position``, and (partition, records) of each part."""

    position: int
    request: Request | Callback
    topic: TopicEntry
    parts: tuple[tuple[int, int], ...]
    body_bytes: int
    expected_seq: int | None
    timeout_ns: int
    advance: Advance | None = None


class ExpiredRequests(NamedTuple):
    """Requests whose deadline has passed: ``void`` are to be taken back, in ``runs`` of the ring;
    ``unknown`` have been pulled."""

    void: list[PendingRequest]
    runs: list[tuple[int, int]]
    unknown: list[PendingRequest]


class _Left(NamedTuple):
    """A request that a predecessor published: ((topic id, partition), records) of its parts."""

    position: int
    parts: tuple[tuple[tuple[int, int], int], ...]


class _Answering(NamedTuple):
    """A commit of which requests up to ``end`` are being answered; ``offsets`` moves with them."""

    end: int
    offsets: dict[tuple[int, int], int]
    heads: dict[tuple[int, int], int]
    verdicts: dict[int, Verdict]
    published_ns: int


class PendingRequests:
    """The waiting requests of one shard. The ring bounds how many there are.

    Most have the usual timeout, so their deadlines are in the order of the ring. Those with less
    time (their own timeout, or a wait for admission) are also in a heap, by deadline: the requests
    are walked through only when one of them has really passed its own.
    """

    def __init__(
        self,
        segment: Segment,
        shard: int,
        tally_of: Callable[[str], TopicTally],
        usual_timeout_ns: int = NEVER,
    ) -> None:
        self._tally_of = tally_of
        self._shard = shard
        self._words = segment.words
        self._counters = segment.layout.shard(shard)
        self._waiting: deque[PendingRequest] = deque()
        self._left: deque[_Left] = deque()  # all of them come before those that wait
        self._known: deque[tuple[LeasedRange, Commit]] = deque()
        self._known_end = 0  # requests before it have a commit
        self._answering: _Answering | None = None
        self._given_up = 0  # how many at the front were given up at their deadline
        self._usual_ns = usual_timeout_ns
        # Deadline, position and request; some are answered already.
        self._early: list[tuple[int, int, PendingRequest]] = []
        self._since_look = 0  # parts that were answered
        self._answered_after = LatencyHistogram(segment, shard, Stage.ANSWERED)
        self._acknowledged_after = LatencyHistogram(segment, shard, Stage.ACKNOWLEDGED)

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, waiting: PendingRequest) -> None:
        """Takes a request that was just published."""
        self._waiting.append(waiting)
        if waiting.timeout_ns < self._usual_ns:
            early = self._early
            if len(early) > 2 * len(self._waiting) + EARLY_ANSWERED_MAX:
                self._early = early = [each for each in early if not self._is_over(each)]
                heapify(early)
            due_ns = waiting.request.arrival_ns + waiting.timeout_ns
            heappush(early, (due_ns, waiting.position, waiting))

    def inherit(self, requests: Iterable[RequestAt]) -> None:
        """Takes what a dead predecessor published and is not committed; call it before ``add``."""
        for request in requests:
            parts = tuple(((b.topic_id, b.partition), b.record_count) for b in request.batches)
            self._left.append(_Left(request.position, parts))

    def committed(self, commit: Commit) -> None:
        """Takes a commit, in order; ``answer`` answers this shard's requests in it."""
        for leased in commit.ranges:
            if leased.shard == self._shard:
                self._known.append((leased, commit))
                self._known_end = leased.end

    @property
    def has_known(self) -> bool:
        """Whether ``answer`` has something to do."""
        return self._answering is not None or bool(self._known)

    def answer(self, now_ns: Callable[[], int], until_ns: int) -> None:
        """Answers requests whose commit is known, in their order, until the clock says so."""
        while self.has_known:
            if self._answering is None:
                self._answering = self._begin(*self._known.popleft())
            if not self._answer(self._answering, now_ns, until_ns):
                return
            published_ns = self._answering.published_ns
            self._answering = None
            done_ns = now_ns()
            if published_ns:
                self._answered_after.observe(done_ns - published_ns)
            if done_ns >= until_ns:
                return

    def _begin(self, leased: LeasedRange, commit: Commit) -> _Answering:
        shard = self._shard
        offsets = {
            (r.topic_id, r.partition): r.first_offset for r in commit.runs if r.shard == shard
        }
        heads = {(h.topic_id, h.partition): h.head_seq for h in commit.heads}
        verdicts = {v.position: v for v in commit.verdicts if v.shard == shard}
        while self._left and self._left[0].position < leased.end:
            position, left = self._left.popleft()
            # What was committed before this process followed the log is not part of this run.
            if position < leased.start or position in verdicts:
                continue
            for place, count in left:
                if offsets[place]:
                    offsets[place] += count
        return _Answering(leased.end, offsets, heads, verdicts, commit.published_ns)

    def _answer(self, known: _Answering, now_ns: Callable[[], int], until_ns: int) -> bool:
        """Answers requests of one commit; False if the time was over before the last one."""
        end, offsets, heads, verdicts, _ = known
        waiting = self._waiting
        passed = len(waiting)
        requests = records = sizes = 0
        since_look = self._since_look
        counted: TopicEntry | None = None  # its requests are counted together, in ``tally``
        tally = TopicTally()
        records_before = sizes_before = 0  # the first of them
        while waiting and waiting[0].position < end:
            if since_look >= PARTS_A_LOOK:
                since_look = 0
                looked_ns = now_ns()
                if looked_ns >= until_ns:
                    break
                sampled = waiting[0].request
                if type(sampled) is not Callback:
                    self._acknowledged_after.observe(looked_ns - sampled.arrival_ns)
            position, request, topic, parts, size, expected_seq, _, advance = waiting.popleft()
            width = len(parts)
            since_look += width
            verdict = verdicts.get(position) if verdicts else None
            if type(request) is Callback:  # cheaper than isinstance, once per request
                if verdict is not None and request.judged is not None:
                    request.judged(verdict)
                    continue
                # Without conditions there is no verdict that its topic is deleted.
                first = 0 if verdict is not None else offsets[topic.topic_id, parts[0][0]]
                if first:
                    for partition, count in parts:
                        offsets[topic.topic_id, partition] += count
                request.settled(first)
                if not size or not first:  # a copy counts as nobody's
                    continue
                count = parts[0][1]
            elif verdict is not None:
                answer_verdict(request, topic, verdict, expected_seq, advance)
                continue
            elif width == 1:
                partition, count = parts[0]
                key = (topic.topic_id, partition)
                first = offsets[key]
                if not first:
                    request.refuse(topic_deleted(topic))
                    continue
                offsets[key] = first + count
                if not request.connection_closed:
                    last = first + count - 1
                    head_seq = heads[key]
                    request.respond_ok_json(
                        _encode(
                            Produced(topic.name, partition, first, last, count, head_seq, False)
                        )
                    )
            else:
                if not offsets[topic.topic_id, parts[0][0]]:
                    request.refuse(topic_deleted(topic))
                    continue
                answer: list[ProducedPart] = []
                count = 0
                for partition, added in parts:
                    key = (topic.topic_id, partition)
                    first = offsets[key]
                    offsets[key] = first + added
                    answer.append(
                        ProducedPart(partition, first, first + added - 1, added, heads[key])
                    )
                    count += added
                request.respond_ok_json(_spread(topic, answer, deduped=False))
            if topic is not counted:
                tally.records += records - records_before
                tally.bytes += sizes - sizes_before
                records_before, sizes_before = records, sizes
                counted, tally = topic, topic.tally or self._tally(topic)
            requests += 1
            records += count
            sizes += size
        tally.records += records - records_before
        tally.bytes += sizes - sizes_before
        self._since_look = since_look
        if self._given_up:
            self._given_up = max(0, self._given_up - passed + len(waiting))
        words, base = self._words, self._counters
        words[base + at.S_REQUESTS_ACKED] += requests
        words[base + at.S_RECORDS_ACKED] += records
        words[base + at.S_BYTES_ACKED] += sizes
        return not waiting or waiting[0].position >= end

    def _tally(self, topic: TopicEntry) -> TopicTally:
        """Where a topic is counted, from its first acknowledgment on."""
        topic.tally = self._tally_of(topic.name)
        return topic.tally

    def is_due(self, now_ns: int) -> bool:
        """Whether a deadline may have passed. Cheap; False is always right."""
        return self._shortest_due_ns(now_ns) < NEVER

    def _shortest_due_ns(self, now_ns: int) -> int:
        """No request with a shorter timeout has passed its deadline; NEVER: none has."""
        if len(self._waiting) <= self._given_up:
            return NEVER
        early = self._early
        while early and self._is_over(early[0]):
            heappop(early)
        oldest_ns = now_ns - self._waiting[self._given_up].request.arrival_ns
        shortest_ns = self._usual_ns if oldest_ns >= self._usual_ns else NEVER
        if early and early[0][0] <= now_ns:
            due = (waiting.timeout_ns for due_ns, _, waiting in early if due_ns <= now_ns)
            shortest_ns = min(shortest_ns, *due)
        return shortest_ns

    def _is_over(self, early: tuple[int, int, PendingRequest]) -> bool:
        """Whether a request has its answer, or its commit is known."""
        _, position, waiting = early
        return position < self._known_end or waiting.request.answered

    def expired(self, now_ns: int, pulled: int, head: int) -> ExpiredRequests:
        """The requests past their deadline, and what follows in the lines of those to be taken
        back: none of it is pulled either. Arrivals are in order, so it stops at the first that
        cannot be. A run goes from a request that is taken back to the next one that is not."""
        found = ExpiredRequests([], [], [])
        shortest_ns = self._shortest_due_ns(now_ns)
        start = -1
        lines: set[Hashable] = set()
        for waiting in islice(self._waiting, self._given_up, None):
            position, request = waiting.position, waiting.request
            if position < self._known_end:
                continue
            waited_ns = now_ns - request.arrival_ns
            line = request.line if type(request) is Callback else None
            if position >= pulled and (waited_ns >= waiting.timeout_ns or line in lines):
                found.void.append(waiting)
                if line is not None:
                    lines.add(line)
                if start < 0:
                    start = position
                elif position - start >= RUN_BYTES:
                    found.runs.append((start, position))
                    start = position
                continue
            if start >= 0:
                found.runs.append((start, position))
                start = -1
            if waited_ns < shortest_ns and not lines:
                return found
            if waited_ns >= waiting.timeout_ns and not request.answered:
                found.unknown.append(waiting)
        if start >= 0:
            found.runs.append((start, head))
        return found

    def end(
        self,
        expired: ExpiredRequests,
        taken_back: Callable[[PendingRequest], ApiError],
        unknown: Callable[[PendingRequest], ApiError],
    ) -> None:
        """Answers what has expired, after ``expired.void`` was made void in the ring."""
        gone = {waiting.position for waiting in expired.void}
        if gone:
            self._waiting = deque(w for w in self._waiting if w.position not in gone)
        for tracker in {waiting.topic.tracker for waiting in expired.void}:
            if tracker is not None:
                tracker.taken_back(gone)
        for waiting in expired.void:
            waiting.request.refuse(taken_back(waiting))
        for waiting in expired.unknown:
            waiting.request.give_up(unknown(waiting))
        for waiting in islice(self._waiting, self._given_up, None):
            if not waiting.request.answered:
                break
            self._given_up += 1


def answer_verdict(
    request: Request,
    topic: TopicEntry,
    verdict: Verdict,
    expected_seq: int | None,
    advance: Advance | None,
) -> None:
    """Answers a request that the commit made void."""
    if verdict.kind == "topic_deleted":
        request.refuse(topic_deleted(topic))
    elif verdict.kind == "cursor_unknown":
        assert advance is not None
        request.refuse(cursor_unknown(advance.name))
    elif verdict.kind == "cursor_moved":
        assert advance is not None
        request.refuse(
            cursor_moved(advance.name, advance.partition, advance.expected, verdict.cursor_seq)
        )
    elif verdict.kind == "sequence_mismatch":
        request.refuse(
            ApiError(
                412,
                "sequence_mismatch",
                f"expected_seq is {expected_seq}, but the partition's head_seq is"
                f" {verdict.head_seq}; nothing was stored",
                {"expected_seq": expected_seq, "head_seq": verdict.head_seq},
            )
        )
    elif verdict.kind == "key_reused":
        part = verdict.parts[0]
        request.refuse(
            ApiError(
                422,
                "idempotency_key_reused",
                "other records were stored with the same idempotency_key: offsets"
                f" {part.first_seq} to {part.last_seq} of partition {part.partition}; nothing of"
                " this request was stored. Send it with a key of its own, or a repeat with the"
                " bytes of the first attempt",
                {
                    "partition": part.partition,
                    "first_seq": part.first_seq,
                    "last_seq": part.last_seq,
                },
            )
        )
    elif len(verdict.parts) == 1:
        part = verdict.parts[0]
        count = part.last_seq - part.first_seq + 1
        request.respond_ok_json(
            _encode(
                Produced(
                    topic.name, part.partition, part.first_seq, part.last_seq, count,
                    verdict.head_seq, True,
                )
            )
        )  # fmt: skip
    else:
        answer = [
            ProducedPart(
                p.partition, p.first_seq, p.last_seq, p.last_seq - p.first_seq + 1, p.last_seq
            )
            for p in verdict.parts
        ]
        request.respond_ok_json(_spread(topic, answer, deduped=True))


def _spread(topic: TopicEntry, parts: list[ProducedPart], *, deduped: bool) -> bytes:
    count = sum(part.count for part in parts)
    return _encode(ProducedSpread(topic.name, parts, count, deduped))


def topic_deleted(topic: TopicEntry) -> ApiError:
    """404 ``topic_deleted``: the topic was deleted between the request and its commit."""
    return ApiError(
        404,
        "topic_deleted",
        f"topic {topic.name!r} was deleted before the request was committed; nothing was stored",
        {"topic": topic.name},
    )
