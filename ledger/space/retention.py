"""Evictions and trims: from which offset on a partition can still be read.

Vocabulary: the *limits* of a topic are its caps and its time to live, per partition, like Kafka's
retention. A *step* is what is evicted as a whole: an extent, or for compacted offsets a range of a
Parquet file (and an extent in quarantine). An *eviction* raises ``earliest_seq`` to an offset; it
deletes nothing, neither an object nor a row of a table.

What holds, in this order:

- ``earliest_seq`` never falls.
- ``cap_records`` keeps exactly the newest N records.
- ``cap_bytes`` and ``ttl_ms`` evict only what is completely outside the limit: steps from the
  oldest on, up to the first that must stay. So at most one step more is kept than the limit says (a
  little more if Parquet files of two days overlap in offsets).
- Time is the records' own: a step is old if its greatest timestamp is, and those of all steps
  before it. A record from the future holds back everything after it until its time has come.

A topic may ask that what subscriptions hold back stays: ``retain_for_subscriptions`` is a number of
bytes. As long as a partition has no more than this, a cap or the time to live evicts nothing of it
that a reliable subscription has not finished with. Beyond it the oldest records go, finished or
not: a subscription without consumers fills no store. A trim holds for everybody.

Gaps have no records and are never counted. A hole is counted until it is evicted: its records have
offsets. ``bytes`` of a partition are those of the steps that hold a readable offset.

An eviction is decided without the lock and carried out only if the topic has not changed since
(``topics.changed``: another eviction, a trim, a switch, new settings). So the lock is held for a
few row updates, however much is evicted.

``kept_from``, ``first_kept`` and ``limits_of`` are pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from msgspec import Struct

from ledger import cursors, reads, topics
from ledger.delivery import subscriptions
from ledger.errors import PartitionMissing, TopicMissing, TrimBeyondHead
from ledger.lake.types import Evicted
from ledger.tx import ReadTx, Transactions, WriteTx
from ledger.types import PartitionState, Topic, TopicConfig

# Steps that one call looks at; the next call continues.
STEPS_MAX = 20_000
NEVER_MS = (1 << 63) - 1

CAP = "cap"
TTL = "ttl"
TRIM = "trim"


class RetentionLimits(Struct, frozen=True):
    """What a partition of a topic keeps; None: everything."""

    cap_records: int | None = None
    cap_bytes: int | None = None
    ttl_ms: int | None = None

    @property
    def any(self) -> bool:
        """Whether there is a limit."""
        return self != RetentionLimits()


class EvictionStep(NamedTuple):
    """Offsets that are evicted together, and the greatest timestamp of their records."""

    first_offset: int
    last_offset: int
    bytes: int
    last_timestamp_ms: int


class Eviction(Struct, frozen=True):
    """A decision; ``version`` is the topic's last change when it was made."""

    topic: str
    topic_id: int
    partition: int
    version: int
    earliest_seq: int
    bytes: int
    reason: str


class DueEvictions(Struct, frozen=True):
    """What is to be evicted, and when the time to live alone may evict more."""

    evictions: list[Eviction]
    due_ms: int


class _View(NamedTuple):
    partition: int
    next_seq: int
    earliest_seq: int
    compacted_seq: int
    records: int
    bytes: int


_VIEW_SQL = """SELECT partition, next_seq, earliest_seq, compacted_seq, count, bytes
    FROM partitions WHERE topic_id = ? AND deleted = 0"""
_RANGES_SQL = """SELECT r.first_offset, r.last_offset, r.bytes, r.last_timestamp_ms
    FROM lake_ranges AS r JOIN lake_files AS f ON f.file_id = r.file_id
    WHERE r.topic_id = ? AND r.partition = ? AND r.last_offset >= ? AND f.dropped_ms IS NULL"""
# Extents that are readable by number, though not by their object.
_QUARANTINED_SQL = """SELECT e.first_offset, e.last_offset, e.byte_length, e.last_timestamp_ms
    FROM quarantine AS q JOIN extents AS e ON e.topic_id = q.topic_id
        AND e.partition = q.partition AND e.last_offset = q.last_offset
    WHERE q.topic_id = ? AND q.partition = ? AND q.last_offset >= ? AND q.last_offset <= ?"""
_EXTENTS_SQL = """SELECT first_offset, last_offset, byte_length, last_timestamp_ms
    FROM extents WHERE topic_id = ? AND partition = ? AND last_offset >= ?
    ORDER BY last_offset"""


def limits_of(config: TopicConfig) -> RetentionLimits:
    """The limits that evict. A topic that rejects what exceeds its caps evicts nothing by them."""
    if config.discard == "reject":
        return RetentionLimits(ttl_ms=config.ttl_ms)
    return RetentionLimits(config.cap_records, config.cap_bytes, config.ttl_ms)


def kept_from(next_seq: int, keep: int, gaps: Sequence[tuple[int, int]]) -> int:
    """The offset from which on there are ``keep`` records, at least 1; 1 if there are fewer.

    ``gaps`` are (first, last) offsets without records, ascending.
    """
    end = next_seq
    for gap_from, gap_to in reversed(gaps):
        after = end - 1 - gap_to
        if after >= keep:
            break
        keep -= after
        end = gap_from
    return max(1, end - keep)


class KeptFrom(NamedTuple):
    """Where a walk over steps ended: offsets below ``from_offset`` go. ``until_ms`` is the
    timestamp of the first step that is too young."""

    from_offset: int
    until_ms: int


def first_kept(
    steps: Iterable[EvictionStep], spare_bytes: int | None, older_than_ms: int | None
) -> tuple[KeptFrom, KeptFrom]:
    """From which offset on records stay, by bytes and by time. ``steps`` are ordered by first
    offset.

    ``spare_bytes`` is by how much the cap is exceeded, None without one; from ``older_than_ms`` on
    records stay. Steps may overlap: every step that begins below the result is outside the limit,
    and so is each record that goes.
    """
    reached = 1
    by_bytes = None if spare_bytes is not None else KeptFrom(1, 0)
    by_time = None if older_than_ms is not None else KeptFrom(1, 0)
    left = spare_bytes or 0
    for step in steps:
        if by_bytes is None:
            left -= step.bytes
            if left < 0:
                by_bytes = KeptFrom(step.first_offset, 0)
        if (
            by_time is None
            and older_than_ms is not None
            and step.last_timestamp_ms >= older_than_ms
        ):
            by_time = KeptFrom(step.first_offset, step.last_timestamp_ms)
        if by_bytes is not None and by_time is not None:
            return by_bytes, by_time
        reached = max(reached, step.last_offset + 1)
    end = KeptFrom(reached, NEVER_MS)
    return by_bytes or end, by_time or end


def due_evictions(tx: ReadTx, topic: Topic, now_ms: int | None) -> DueEvictions:
    """What the topic's limits evict at ``now_ms``; None: the time to live evicts nothing."""
    limits = limits_of(topic.config)
    row = tx.execute(
        "SELECT changed FROM topics WHERE topic_id = ? AND deleted_ms IS NULL", (topic.topic_id,)
    ).fetchone()
    if row is None or not limits.any:
        return DueEvictions([], NEVER_MS)
    found: list[Eviction] = []
    due_ms = NEVER_MS
    older_than_ms = None
    if now_ms is not None and limits.ttl_ms is not None:
        older_than_ms = now_ms - limits.ttl_ms
    kept = held_of(tx, topic.topic_id, topic.config.retain_for_subscriptions)
    views = [_View(*columns) for columns in tx.execute(_VIEW_SQL, (topic.topic_id,))]
    for view in views:
        if kept is not None and kept.nothing_goes(view.partition, view.earliest_seq, view.bytes):
            continue
        target, reason, until_ms = _target(tx, topic.topic_id, view, limits, older_than_ms)
        if limits.ttl_ms is not None and until_ms < NEVER_MS - limits.ttl_ms:
            due_ms = min(due_ms, until_ms + limits.ttl_ms + 1)
        if kept is not None and target > view.earliest_seq:
            kept_from = partial(_kept_without, tx, topic.topic_id, view)
            target = kept.lowered(view.partition, target, view.bytes, kept_from)
        if target > view.earliest_seq:
            found.append(_eviction(tx, topic, int(row[0]), view, target, reason))
    return DueEvictions(found, due_ms)


def _target(
    tx: ReadTx,
    topic_id: int,
    view: _View,
    limits: RetentionLimits,
    older_than_ms: int | None,
) -> tuple[int, str, int]:
    """(new earliest offset, reason, timestamp of the first step that is too young)."""
    by_records = 1
    if limits.cap_records is not None and view.records > limits.cap_records:
        gaps = _gaps(tx, topic_id, view)
        by_records = kept_from(view.next_seq, limits.cap_records, gaps)
    spare_bytes = None
    if limits.cap_bytes is not None and view.bytes > limits.cap_bytes:
        spare_bytes = view.bytes - limits.cap_bytes
    by_bytes, by_time = KeptFrom(1, 0), KeptFrom(1, NEVER_MS)
    if spare_bytes is not None or older_than_ms is not None:
        steps = _steps(tx, topic_id, view)
        by_bytes, by_time = first_kept(steps, spare_bytes, older_than_ms)
    by_cap = max(by_records, by_bytes.from_offset)
    until_ms = by_time.until_ms if older_than_ms is not None else NEVER_MS
    if by_time.from_offset > by_cap:
        return by_time.from_offset, TTL, until_ms
    return by_cap, CAP, until_ms


def _kept_without(tx: ReadTx, topic_id: int, view: _View, spare_bytes: int) -> int:
    return first_kept(_steps(tx, topic_id, view), spare_bytes, None)[0].from_offset


def _steps(tx: ReadTx, topic_id: int, view: _View) -> Iterator[EvictionStep]:
    """The partition's steps with a readable offset, by first offset."""
    where = (topic_id, view.partition, view.earliest_seq)
    compacted = [EvictionStep(*row) for row in tx.execute(_RANGES_SQL, where)]
    if view.compacted_seq >= view.earliest_seq:
        rows = tx.execute(_QUARANTINED_SQL, (*where, view.compacted_seq))
        compacted += [EvictionStep(*row) for row in rows]
    yield from sorted(compacted)
    offset = max(view.earliest_seq, view.compacted_seq + 1)
    rows = tx.execute(f"{_EXTENTS_SQL} LIMIT ?", (*where[:2], offset, STEPS_MAX))
    for count, row in enumerate(rows, 1):
        step = EvictionStep(*row)
        if count == STEPS_MAX:
            # Not the end of the partition: this one stays until the next call.
            step = step._replace(bytes=1 << 62, last_timestamp_ms=NEVER_MS)
        yield step


def _gaps(tx: ReadTx, topic_id: int, view: _View) -> list[tuple[int, int]]:
    return tx.execute(
        "SELECT gap_from, gap_to FROM gaps WHERE topic_id = ? AND partition = ? AND gap_to >= ?"
        " ORDER BY gap_from",
        (topic_id, view.partition, view.earliest_seq),
    ).fetchall()


def _eviction(
    tx: ReadTx,
    topic: Topic,
    version: int,
    view: _View,
    target: int,
    reason: str,
) -> Eviction:
    going = _bytes_before(tx, topic.topic_id, view, target)
    return Eviction(topic.name, topic.topic_id, view.partition, version, target, going, reason)


def _bytes_before(tx: ReadTx, topic_id: int, view: _View, target: int) -> int:
    """Bytes of the steps that hold a readable offset and none from ``target`` on."""
    key = (topic_id, view.partition)
    (ranges,) = tx.execute(
        f"SELECT COALESCE(SUM(bytes), 0) FROM ({_RANGES_SQL} AND r.last_offset < ?)",
        (*key, view.earliest_seq, target),
    ).fetchone()
    (quarantined,) = tx.execute(
        f"SELECT COALESCE(SUM(byte_length), 0) FROM ({_QUARANTINED_SQL})",
        (*key, view.earliest_seq, min(view.compacted_seq, target - 1)),
    ).fetchone()
    (extents,) = tx.execute(
        "SELECT COALESCE(SUM(byte_length), 0) FROM extents WHERE topic_id = ? AND partition = ?"
        " AND last_offset >= ? AND last_offset < ?",
        (*key, max(view.earliest_seq, view.compacted_seq + 1), target),
    ).fetchone()
    return int(ranges) + int(quarantined) + int(extents)


def trim(ledger: Transactions, name: str, partition: int, before_seq: int) -> PartitionState:
    """Raises where a partition begins to ``before_seq``, unless it begins later already.

    Decided and carried out in two transactions, like an eviction. Raises TopicMissing,
    PartitionMissing, TrimBeyondHead.
    """
    while True:
        decided, state = ledger.read(_trim_to, name, partition, before_seq)
        if decided is None:
            return state
        ledger.write(evict, [decided])  # does nothing if the topic has changed since: decide again


def _trim_to(
    tx: ReadTx, name: str, partition: int, before_seq: int
) -> tuple[Eviction | None, PartitionState]:
    """The trim, None if the partition begins at ``before_seq`` or later; and the partition."""
    topic = topics.find(tx, name)
    if topic is None:
        raise TopicMissing(name)
    state = reads.partition_state(tx, topic.topic_id, partition)
    if state is None:
        raise PartitionMissing(name, partition, topic.config.partitions)
    if before_seq > state.next_seq:
        raise TrimBeyondHead(name, partition, before_seq, state.next_seq)
    if before_seq <= state.earliest_seq:
        return None, state
    columns = tx.execute(f"{_VIEW_SQL} AND partition = ?", (topic.topic_id, partition)).fetchone()
    (version,) = tx.execute(
        "SELECT changed FROM topics WHERE topic_id = ?", (topic.topic_id,)
    ).fetchone()
    return _eviction(tx, topic, int(version), _View(*columns), before_seq, TRIM), state


def evict(tx: WriteTx, evictions: list[Eviction]) -> list[Evicted]:
    """Carries out what was decided, except where the topic has changed since."""
    done: list[Evicted] = []
    touched: set[int] = set()
    for one in evictions:
        row = tx.execute(
            "SELECT p.earliest_seq, p.next_seq, p.count FROM partitions AS p JOIN topics AS t"
            " ON t.topic_id = p.topic_id WHERE p.topic_id = ? AND p.partition = ?"
            " AND p.deleted = 0 AND t.changed = ?",
            (one.topic_id, one.partition, one.version),
        ).fetchone()
        if row is None or row[0] >= one.earliest_seq or row[1] < one.earliest_seq:
            continue
        _, next_seq, before = row
        count = _records_from(tx, one, next_seq)
        involuntary = one.reason != TRIM
        tx.execute(
            "UPDATE partitions SET earliest_seq = ?, count = ?,"
            " bytes = CASE WHEN ? THEN max(0, bytes - ?) ELSE 0 END,"
            " lost_seq = CASE WHEN ? THEN ? ELSE lost_seq END,"
            " lost_reason = CASE WHEN ? THEN ? ELSE lost_reason END"
            " WHERE topic_id = ? AND partition = ?",
            (one.earliest_seq, count, count > 0, one.bytes, involuntary, one.earliest_seq - 1,
             involuntary, one.reason, one.topic_id, one.partition),
        )  # fmt: skip
        touched.add(one.topic_id)
        done.append(
            Evicted(one.topic, one.topic_id, one.partition, one.earliest_seq, before - count,
                    one.reason)
        )  # fmt: skip
    for topic_id in sorted(touched):
        topics.touch(tx, topic_id)
    return done


def _records_from(tx: ReadTx, one: Eviction, next_seq: int) -> int:
    """Records from the new ``earliest_seq`` on: all offsets except those of gaps."""
    (gaps,) = tx.execute(
        "SELECT COALESCE(SUM(gap_to + 1 - max(gap_from, ?)), 0) FROM gaps"
        " WHERE topic_id = ? AND partition = ? AND gap_to >= ?",
        (one.earliest_seq, one.topic_id, one.partition, one.earliest_seq),
    ).fetchone()
    return next_seq - one.earliest_seq - int(gaps)


def recount_bytes(tx: WriteTx, topic_id: int) -> None:
    """Counts ``bytes`` of a topic's partitions again, after a switch: L1 has its own.

    Reads the ranges of the topic and what is not compacted yet, which is little then.
    """
    for row in tx.execute(_VIEW_SQL, (topic_id,)).fetchall():
        view = _View(*row)
        tx.execute(
            "UPDATE partitions SET bytes = ? WHERE topic_id = ? AND partition = ?",
            (_bytes_before(tx, topic_id, view, NEVER_MS), topic_id, view.partition),
        )


def changed_topics(tx: ReadTx, after: tuple[int, int], limit: int = 1_000) -> list[tuple[int, int]]:
    """(catalog version of its last change, topic id) after such a pair; deleted ones too."""
    return tx.execute(
        "SELECT changed, topic_id FROM topics WHERE (changed, topic_id) > (?, ?)"
        " ORDER BY changed, topic_id LIMIT ?",
        (*after, limit),
    ).fetchall()


class HeldPartitions(Struct, frozen=True):
    """The first offset of each partition that some subscription has not finished with, and up to
    how many bytes it is held."""

    unfinished_from: dict[int, int]
    bytes_max: int

    def nothing_goes(self, partition: int, earliest_seq: int, bytes_held: int) -> bool:
        """Whether a partition can be left alone, whatever its limits are."""
        first = self.unfinished_from.get(partition)
        return first is not None and first <= earliest_seq and bytes_held <= self.bytes_max

    def lowered(
        self, partition: int, target: int, bytes_held: int, kept_from: Callable[[int], int]
    ) -> int:
        """The offset up to which a partition is evicted when its limits say ``target``.

        ``kept_from`` gives the offset from which on all stays if this many bytes are too many.
        """
        first = self.unfinished_from.get(partition)
        if first is None or first >= target:
            return target
        spare = bytes_held - self.bytes_max
        return min(target, max(first, kept_from(spare) if spare > 0 else 1))


def held_of(tx: ReadTx, topic_id: int, bytes_max: int | None) -> HeldPartitions | None:
    """What is held of a topic with this setting; None: nothing."""
    if bytes_max is None:
        return None
    reliable = [each for each in subscriptions.page(tx, topic_id) if each.config.reliable]
    if not reliable:
        return None
    partitions = [state.partition for state in reads.partition_states(tx, topic_id)]
    floors = [
        {at.partition: at.seq for at in cursors.positions(tx, each.cursor_id)} for each in reliable
    ]
    return HeldPartitions(_lowest(partitions, floors), bytes_max)


def _lowest(partitions: Iterable[int], floors: list[dict[int, int]]) -> dict[int, int]:
    return {
        partition: 1 + min(each.get(partition, 0) for each in floors) for partition in partitions
    }
