"""Which conditional requests of a lease are void: pure, no SQL, no clock.

Vocabulary as in ``types``. Conditions are judged in pull order, and each sees the effect of those
before it. The records of an extent are in pull order too, so the head that an expectation meets is
``next_seq - 1`` plus the records before it in the extent that get offsets.

The order of checks is fixed: deleted topic, idempotency key, producer, cursor, expected_seq. A void
request never records its key, so a request with a sequence mismatch can be tried again with the
same key. Nor does it move its cursor or settle its offset; a stored one always does. Other records
under a known key are not a repeat: they are void as *key_reused*.

A *producer* is idempotent, as Kafka's are: its batches in a partition have sequence numbers without
gaps, and a batch that is sent again has its first answer, if it is one of the last RECENT_MAX. What
is known of a producer is its newest epoch and these batches; of an unknown one, any is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from ledger.errors import DraftInvalid
from ledger.types import (
    SEQUENCE_MAX,
    Advance,
    AnswerPart,
    CommitDraft,
    Condition,
    ConditionPart,
    ExtentDraft,
    ProducerBatch,
    Verdict,
    VerdictKind,
)

PartitionKey = tuple[int, int]
CursorKey = tuple[int, int]  # cursor id, partition
OffsetKey = tuple[int, int, int]  # cursor id, partition, offset
DedupeKey = tuple[int, str]
ProducerKey = tuple[int, int, int]  # topic id, partition, producer id
Ranges = list[tuple[int, int]]


class PartitionNow(NamedTuple):
    """A partition's row before the commit."""

    next_seq: int
    live_count: int
    live_bytes: int
    max_timestamp_ms: int
    deleted: int


class Answer(Struct, frozen=True, array_like=True):
    """What a stored request was answered; ``head_seq`` is of the first part's partition.

    ``fingerprint`` is of its records; None if it is not known, as of a former version.
    """

    parts: tuple[AnswerPart, ...]
    head_seq: int
    fingerprint: int | None = None

    def is_of(self, condition: Condition) -> bool:
        """Whether the request may be the one that was answered, as far as is known."""
        known = (self.fingerprint, condition.fingerprint)
        return None in known or known[0] == known[1]


RECENT_MAX = 5  # batches of a producer in a partition; no client has more under way


class StoredBatch(Struct, frozen=True, array_like=True):
    """A producer's batch that has offsets, from ``first_seq`` on."""

    first: int
    last: int
    first_seq: int


Judged = StoredBatch | VerdictKind | None


class ProducerNow(NamedTuple):
    """What is known of a producer in a partition; ``recent`` is its last batches, oldest first."""

    epoch: int
    recent: tuple[StoredBatch, ...]

    def judge(self, batch: ProducerBatch, *, accepts_gaps: bool) -> Judged:
        """None: it is the next one. A batch that is stored already, or why it is refused."""
        if batch.epoch == self.epoch:
            last = self.recent[-1].last
            if batch.first == (0 if last == SEQUENCE_MAX else last + 1):
                return None
            for stored in self.recent:
                if stored.first == batch.first and stored.last == batch.last:
                    return stored
        elif batch.epoch < self.epoch:
            return "producer_fenced"
        elif batch.first == 0:
            return None
        return None if accepts_gaps else "out_of_order"

    def and_then(self, batch: ProducerBatch, first_seq: int) -> ProducerNow:
        """With a batch that was stored."""
        before = self.recent if batch.epoch == self.epoch else ()
        stored = StoredBatch(batch.first, batch.last, first_seq)
        return ProducerNow(batch.epoch, (*before[-RECENT_MAX + 1 :], stored))


class CommitDecision(NamedTuple):
    """``voids``: ascending (record index, count) ranges of extents whose topic is alive.

    ``stored``: answers of the requests with an idempotency key that got offsets. ``moves``: where
    cursors that moved are now. ``settled``: offsets of subscriptions that are finished now.
    ``producers``: what is known of those that had something stored.
    """

    voids: dict[PartitionKey, Ranges]
    verdicts: tuple[Verdict, ...]
    stored: dict[DedupeKey, Answer]
    moves: dict[CursorKey, int]
    settled: set[OffsetKey]
    producers: dict[ProducerKey, ProducerNow]


NOTHING_TO_DECIDE = CommitDecision({}, (), {}, {}, set(), {})
_NO_CURSORS: Mapping[CursorKey, int] = {}
_NO_PRODUCERS: Mapping[ProducerKey, ProducerNow] = {}


def decide(
    draft: CommitDraft,
    partitions: Mapping[PartitionKey, PartitionNow],
    answers: Mapping[DedupeKey, Answer],
    cursors: Mapping[CursorKey, int] = _NO_CURSORS,
    finished: Set[OffsetKey] = frozenset(),
    producers: Mapping[ProducerKey, ProducerNow] = _NO_PRODUCERS,
) -> CommitDecision:
    """Judges the draft's conditions; ``answers`` are those of its keys that are still known.

    ``cursors`` are the positions of the cursors that its advances name; none of an unknown cursor.
    ``finished`` are those of the offsets that it would settle that are finished already.
    ``producers`` are what is known of those that have batches in it.
    """
    if not draft.conditions:
        return NOTHING_TO_DECIDE
    lease = _Lease(draft, partitions)
    stored: dict[DedupeKey, Answer] = {}
    verdicts: list[Verdict] = []
    repeats: list[tuple[int, DedupeKey]] = []
    steps = _Steps(cursors, finished)
    sequences: dict[ProducerKey, ProducerNow] = {}
    for condition in draft.conditions:
        lease.check(condition)
        topic_id, first = condition.topic_id, condition.parts[0]
        key = None if condition.idempotency_key is None else (topic_id, condition.idempotency_key)
        earlier = None if key is None else answers.get(key) or stored.get(key)
        where = (condition.shard, condition.position)
        advance = condition.advance
        at = None if advance is None else steps.position(advance)
        batch = condition.producer
        producer = (topic_id, first.partition, 0 if batch is None else batch.producer_id)
        known = None
        judged: Judged = None
        if batch is not None:
            known = sequences.get(producer) or producers.get(producer)
            if known is not None:
                judged = known.judge(batch, accepts_gaps=condition.accepts_gaps)
        if lease.deleted(topic_id, first.partition):
            verdicts.append(Verdict(*where, "topic_deleted"))
        elif earlier is not None and not earlier.is_of(condition):
            verdicts.append(Verdict(*where, "key_reused", earlier.parts))
            lease.make_void(condition)
        elif earlier is not None:
            if key is not None and key in stored:
                repeats.append((len(verdicts), key))
            verdicts.append(Verdict(*where, "deduped", earlier.parts, earlier.head_seq))
            lease.make_void(condition)
        elif isinstance(judged, StoredBatch):
            head = judged.first_seq + first.record_count - 1
            part = AnswerPart(first.partition, judged.first_seq, head)
            verdicts.append(Verdict(*where, "deduped", (part,), head))
            lease.make_void(condition)
        elif judged is not None:
            verdicts.append(Verdict(*where, judged))
            lease.make_void(condition)
        elif advance is not None and at is None:
            verdicts.append(Verdict(*where, "cursor_unknown"))
            lease.make_void(condition)
        elif advance is not None and at is not None and not steps.fits(advance):
            verdicts.append(Verdict(*where, "cursor_moved", cursor_seq=at))
            lease.make_void(condition)
        elif condition.expected_seq is not None and condition.expected_seq != lease.head_before(
            topic_id, first
        ):
            head = lease.head_before(topic_id, first)
            verdicts.append(Verdict(*where, "sequence_mismatch", (), head))
            lease.make_void(condition)
        else:
            if key is not None:
                stored[key] = Answer(lease.offsets(condition), 0, condition.fingerprint)
            if advance is not None:
                steps.make(advance)
            if batch is not None:
                known = known or ProducerNow(batch.epoch, ())
                sequences[producer] = known.and_then(batch, lease.head_before(topic_id, first) + 1)
    # Heads after the commit are known only now.
    given = {
        key: replace(answer, head_seq=lease.head_after(key[0], answer.parts[0].partition))
        for key, answer in stored.items()
    }
    for at, key in repeats:
        verdicts[at] = replace(verdicts[at], head_seq=given[key].head_seq)
    return CommitDecision(
        lease.voids, tuple(verdicts), given, steps.moves, steps.settled, sequences
    )


def void_records(ranges: Ranges, before: int) -> int:
    """How many records with an index below ``before`` the ranges cover."""
    return sum(min(start + count, before) - start for start, count in ranges if start < before)


class _Steps:
    """Cursors as of the requests looked at, and what these do to them."""

    def __init__(self, cursors: Mapping[CursorKey, int], finished: Set[OffsetKey]) -> None:
        self.moves: dict[CursorKey, int] = {}
        self.settled: set[OffsetKey] = set()
        self._cursors = cursors
        self._finished = finished

    def position(self, advance: Advance) -> int | None:
        """Where the cursor is; None: it does not live."""
        key = (advance.cursor_id, advance.partition)
        return self.moves.get(key, self._cursors.get(key))

    def fits(self, advance: Advance) -> bool:
        """Whether the cursor is where the advance expects it, or what it settles is open."""
        if advance.settles:
            key = _origin(advance)
            return key not in self._finished and key not in self.settled
        return self.position(advance) == advance.expected

    def make(self, advance: Advance) -> None:
        if advance.settles:
            self.settled.add(_origin(advance))
        else:
            self.moves[advance.cursor_id, advance.partition] = advance.next


def _origin(advance: Advance) -> OffsetKey:
    return advance.cursor_id, advance.partition, advance.expected


def _name(condition: Condition) -> str:
    return f"the condition of shard {condition.shard} at position {condition.position}"


class _Lease:
    """What has been decided so far; ``seen`` is each extent's end of the parts looked at."""

    def __init__(self, draft: CommitDraft, partitions: Mapping[PartitionKey, PartitionNow]) -> None:
        self.voids: dict[PartitionKey, Ranges] = {}
        self._partitions = partitions
        self._extents: dict[PartitionKey, ExtentDraft] = {
            (extent.topic_id, extent.partition): extent for extent in draft.extents
        }
        self._void_counts: dict[PartitionKey, int] = {}
        self._seen: dict[PartitionKey, int] = {}

    def check(self, condition: Condition) -> None:
        """Raises DraftInvalid for a condition whose parts are not where pull order puts them."""
        is_of_one = condition.expected_seq is not None or condition.producer is not None
        if not condition.parts or (is_of_one and len(condition.parts) > 1):
            raise DraftInvalid(
                f"{_name(condition)} has {len(condition.parts)} parts; it needs one, and more only"
                f" without expected_seq and producer"
            )
        for part in condition.parts:
            key = (condition.topic_id, part.partition)
            extent = self._extents.get(key)
            if extent is None or key not in self._partitions:
                raise DraftInvalid(
                    f"{_name(condition)} is about {key}, which is not an extent of its draft"
                )
            end = part.record_index + part.record_count
            seen = self._seen.get(key, 0)
            if part.record_count < 1 or part.record_index < seen or end > extent.record_count:
                raise DraftInvalid(
                    f"{_name(condition)} has records [{part.record_index}, {end}) of extent {key};"
                    f" they must come after the previous condition ({seen}) and be within the"
                    f" extent's {extent.record_count} records"
                )
            self._seen[key] = end

    def deleted(self, topic_id: int, partition: int) -> bool:
        return bool(self._partitions[topic_id, partition].deleted)

    def head_before(self, topic_id: int, part: ConditionPart) -> int:
        key = (topic_id, part.partition)
        void_count = self._void_counts.get(key, 0)
        return self._partitions[key].next_seq - 1 + part.record_index - void_count

    def head_after(self, topic_id: int, partition: int) -> int:
        key = (topic_id, partition)
        live = self._extents[key].record_count - self._void_counts.get(key, 0)
        return self._partitions[key].next_seq - 1 + live

    def offsets(self, condition: Condition) -> tuple[AnswerPart, ...]:
        parts = []
        for part in condition.parts:
            head = self.head_before(condition.topic_id, part)
            parts.append(AnswerPart(part.partition, head + 1, head + part.record_count))
        return tuple(parts)

    def make_void(self, condition: Condition) -> None:
        for part in condition.parts:
            key = (condition.topic_id, part.partition)
            ranges = self.voids.setdefault(key, [])
            if ranges and sum(ranges[-1]) == part.record_index:
                ranges[-1] = (ranges[-1][0], ranges[-1][1] + part.record_count)
            else:
                ranges.append((part.record_index, part.record_count))
            self._void_counts[key] = self._void_counts.get(key, 0) + part.record_count
