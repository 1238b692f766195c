"""The dedupe table: answers of requests with an idempotency key.

An entry counts for ``window_ms`` after the commit that made it, and there are never more than
``entries_max``: the oldest are removed first, whatever their age (``kept_ms`` says how old). Times
are age time (``ages.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from ledger.decide import Answer, DedupeKey
from ledger.tx import ReadTx, WriteTx
from ledger.types import Condition

# Entries that one commit removes in addition to twice what it adds, so that pruning gains.
PRUNE_STEP = 64

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Answer)


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
