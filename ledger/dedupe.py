"""What tells that something was stored already: the dedupe table and the table of producers.

The dedupe table has the answers of requests with an idempotency key. An entry counts for
``window_ms`` after the commit that made it, and there are never more than ``entries_max``: the
oldest are removed first, whatever their age (``kept_ms`` says how old). Times are age time
(``ages.py``).

The table of producers has what ``decide.ProducerNow`` says, for each partition that an idempotent
producer writes to. A row counts for PRODUCER_KEPT_MS after its last batch, and there are at most
PRODUCERS_MAX after every 64th commit: the longest unused go first. Of a producer that is forgotten
any batch is taken, as by Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from ledger import changes
from ledger.decide import Answer, DedupeKey, ProducerKey, ProducerNow, StoredBatch
from ledger.tx import ReadTx, WriteTx
from ledger.types import Condition, ProducerBatch

# Entries that one commit removes in addition to twice what it adds, so that pruning gains.
PRUNE_STEP = 64

PRODUCER_KEPT_MS = 24 * 3_600_000  # as Kafka keeps them
PRODUCERS_MAX = 100_000  # at 300 bytes each

_PRODUCER_SQL = """INSERT INTO producers
    (topic_id, partition, producer_id, epoch, recent, used_ms, changed)
    VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (topic_id, partition, producer_id) DO UPDATE SET
    epoch = excluded.epoch, recent = excluded.recent, used_ms = excluded.used_ms,
    changed = excluded.changed"""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Answer)
_recent_decoder = msgspec.msgpack.Decoder(tuple[StoredBatch, ...])


class DedupeLimits(Struct, frozen=True):
    """How long and how many. A million entries with 100-byte keys are about 300 MB of file."""

    window_ms: int = 120_000
    entries_max: int = 1_000_000


def answers(
    tx: WriteTx,
    conditions: Sequence[Condition],
    now_ms: int,
    limits: DedupeLimits,
) -> dict[DedupeKey, Answer]:
    """The answers that count for the conditions' keys; removes entries past the window."""
    found: dict[DedupeKey, Answer] = {}
    for condition in conditions:
        if condition.idempotency_key is None:
            continue
        key = (condition.topic_id, condition.idempotency_key)
        row = tx.execute(
            "SELECT id, created_ms, answer FROM dedupe WHERE topic_id = ? AND key = ?", key
        ).fetchone()
        if row is None:
            continue
        entry_id, created_ms, answer = row
        if created_ms < now_ms - limits.window_ms:
            tx.execute("DELETE FROM dedupe WHERE id = ?", (entry_id,))
        else:
            found[key] = _decoder.decode(answer)
    return found


def kept_ms(tx: ReadTx, now_ms: int, limits: DedupeLimits) -> int | None:
    """How long keys are remembered if their number cuts the window; None: the whole window."""
    oldest = tx.execute("SELECT id, created_ms FROM dedupe ORDER BY id LIMIT 1").fetchone()
    if oldest is None:
        return None
    last = tx.execute("SELECT max(id) FROM dedupe").fetchone()[0]
    age_ms = max(0, now_ms - oldest[1])
    is_full = last - oldest[0] + 1 >= limits.entries_max
    return age_ms if is_full and age_ms < limits.window_ms else None


def knows(tx: ReadTx, topic_id: int, key: str, now_ms: int, limits: DedupeLimits) -> bool:
    """Whether a request with this idempotency key was stored and is remembered."""
    row = tx.execute(
        "SELECT 1 FROM dedupe WHERE topic_id = ? AND key = ? AND created_ms >= ?",
        (topic_id, key, now_ms - limits.window_ms),
    ).fetchone()
    return row is not None


def keep(
    tx: WriteTx,
    stored: Mapping[DedupeKey, Answer],
    now_ms: int,
    limits: DedupeLimits,
) -> None:
    """Adds the answers of this commit, then removes what is too old or too many."""
    if stored:
        tx.executemany(
            "INSERT INTO dedupe (topic_id, key, created_ms, answer) VALUES (?, ?, ?, ?)",
            [
                (topic_id, key, now_ms, _encoder.encode(answer))
                for (topic_id, key), answer in stored.items()
            ],
        )
    front = tx.execute(
        "SELECT id, created_ms FROM dedupe ORDER BY id LIMIT ?", (PRUNE_STEP + 2 * len(stored),)
    ).fetchall()
    if not front:
        return
    last = tx.execute("SELECT max(id) FROM dedupe").fetchone()[0]
    # Ids may have gaps, so this removes at least as many as needed, and at most one step.
    remove_to = min(last - limits.entries_max, front[-1][0])
    for entry_id, created_ms in front:
        if created_ms >= now_ms - limits.window_ms:
            break
        remove_to = max(remove_to, entry_id)
    if remove_to >= front[0][0]:
        tx.execute("DELETE FROM dedupe WHERE id <= ?", (remove_to,))


def producers(
    tx: ReadTx, conditions: Sequence[Condition], now_ms: int
) -> dict[ProducerKey, ProducerNow]:
    """What is known of the producers that have batches among the conditions."""
    found: dict[ProducerKey, ProducerNow] = {}
    for topic_id, partition, producer_id in {
        (each.topic_id, each.parts[0].partition, each.producer.producer_id)
        for each in conditions
        if each.producer is not None and each.parts
    }:
        key = (topic_id, partition, producer_id)
        known = _producer(tx, key, now_ms)
        if known is not None:
            found[key] = known
    return found


def knows_batch(
    tx: ReadTx, topic_id: int, partition: int, batch: ProducerBatch, now_ms: int
) -> bool:
    """Whether a producer's batch was stored and is remembered."""
    known = _producer(tx, (topic_id, partition, batch.producer_id), now_ms)
    return known is not None and isinstance(known.judge(batch, accepts_gaps=False), StoredBatch)


def _producer(tx: ReadTx, key: ProducerKey, now_ms: int) -> ProducerNow | None:
    row = tx.execute(
        "SELECT epoch, recent FROM producers"
        " WHERE topic_id = ? AND partition = ? AND producer_id = ? AND used_ms >= ?",
        (*key, now_ms - PRODUCER_KEPT_MS),
    ).fetchone()
    return None if row is None else ProducerNow(row[0], _recent_decoder.decode(row[1]))


def keep_producers(tx: WriteTx, known: Mapping[ProducerKey, ProducerNow], now_ms: int) -> None:
    """Writes what is known of producers that had something stored."""
    number = changes.following(tx)
    tx.executemany(
        _PRODUCER_SQL,
        [
            (*key, producer.epoch, _encoder.encode(producer.recent), now_ms, number)
            for key, producer in known.items()
        ],
    )


def forget_producers(tx: WriteTx, now_ms: int) -> None:
    """Removes what is too old or too many; changes are in the order of their times."""
    count = int(tx.execute("SELECT count(*) FROM producers").fetchone()[0])
    excess = max(PRUNE_STEP, count - PRODUCERS_MAX)
    front = tx.execute(
        "SELECT changed, used_ms FROM producers ORDER BY changed LIMIT ?", (excess,)
    ).fetchall()
    over = count - PRODUCERS_MAX
    gone = [
        changed
        for index, (changed, used_ms) in enumerate(front)
        if index < over or used_ms < now_ms - PRODUCER_KEPT_MS
    ]
    if gone:
        tx.execute("DELETE FROM producers WHERE changed <= ?", (max(gone),))
