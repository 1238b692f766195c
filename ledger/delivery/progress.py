"""What a subscription has finished: floors, and finished offsets above them.

Lifecycle of an offset: not finished -> finished, by its bit in a row of 4,096, while something
before it is not -> below the floor, and its row is deleted once the floor has passed all of it.

- The floor of a partition is the position of the subscription's cursor: this offset and all before
  it are finished. It never falls.
- Bits are never taken back: ``flush`` adds what its caller knows to what is stored. So a
  *settlement* (the copy of a dead letter, committed with the bit of its origin) stays, although
  the owner of the subscription may flush what it knew before.
- A seek begins another *generation*: the cursor is deleted with its positions and rows, and another
  one of the same name takes its place. What is on its way for the former one is void or ignored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct

from ledger import changes, cursors, notes
from ledger.decide import CursorKey, OffsetKey
from ledger.delivery import push_rates
from ledger.tx import ReadTx, WriteTx

ROW_OFFSETS = 4_096
ROW_BYTES = ROW_OFFSETS // 8
# A note: no subscription whose row is not there any more had a batch with a higher number.
LAST_EPOCH_NOTE = "last_batch_number"

_LIVE_SQL = """SELECT cursor_id FROM subscriptions
    WHERE subscription_id = ? AND deleted_ms IS NULL"""
_RAISE_SQL = """INSERT INTO cursor_positions
    (cursor_id, partition, seq, set_change, set_seq, changed) VALUES (?, ?, ?, 0, 0, ?)
    ON CONFLICT (cursor_id, partition) DO UPDATE SET seq = excluded.seq, changed = excluded.changed
    WHERE excluded.seq > cursor_positions.seq"""
_EPOCH_SQL = """INSERT INTO subscription_epochs (subscription_id, epoch, changed) VALUES (?, ?, ?)
    ON CONFLICT (subscription_id) DO UPDATE SET epoch = excluded.epoch, changed = excluded.changed
    WHERE excluded.epoch > subscription_epochs.epoch"""
_NAMESAKES_SQL = """SELECT coalesce(max(epoch), 0) FROM subscription_epochs
    JOIN subscriptions USING (subscription_id) JOIN topics USING (topic_id)
    WHERE topics.name = ? AND subscriptions.name = ?"""
_ROW_SQL = "SELECT bits FROM finished_rows WHERE cursor_id = ? AND partition = ? AND row_number = ?"
_PUT_SQL = """INSERT INTO finished_rows (cursor_id, partition, row_number, bits, changed)
    VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (cursor_id, partition, row_number)
    DO UPDATE SET bits = excluded.bits, changed = excluded.changed"""
_PASSED_SQL = "DELETE FROM finished_rows WHERE cursor_id = ? AND partition = ? AND row_number < ?"


class SubscriptionProgress(Struct, frozen=True):
    """How far a subscription has got, for a new owner.

    A partition without a floor has the floor 0. ``rows`` are (partition, row, bits): bit ``i`` of
    row ``r``, least significant first, stands for the offset 4,096 ``r`` + ``i``. No batch with a
    number above ``epoch`` has been sent, or at most 2^20 more.
    """

    floors: dict[int, int]
    rows: list[tuple[int, int, bytes]]
    generation: int
    epoch: int


class SubscriptionFlush(Struct, frozen=True):
    """What an owner writes down: ``floors`` are (partition, floor), ``rows`` as above."""

    subscription_id: int
    generation: int
    epoch: int
    floors: Sequence[tuple[int, int]] = ()
    rows: Sequence[tuple[int, int, bytes]] = ()


def state_of(tx: ReadTx, subscription_id: int) -> SubscriptionProgress | None:
    """How far a living subscription has got; None: it does not live."""
    found = tx.execute(_LIVE_SQL, (subscription_id,)).fetchone()
    if found is None:
        return None
    (cursor_id,) = found
    rows = tx.execute(
        "SELECT partition, row_number, bits FROM finished_rows WHERE cursor_id = ?"
        " ORDER BY partition, row_number",
        (cursor_id,),
    ).fetchall()
    floors = {each.partition: each.seq for each in cursors.positions(tx, cursor_id)}
    return SubscriptionProgress(floors, rows, cursor_id, epoch_of(tx, subscription_id))


def epoch_of(tx: ReadTx, subscription_id: int) -> int:
    """The highest number of a batch that a flush told of."""
    row = tx.execute(
        "SELECT epoch FROM subscription_epochs WHERE subscription_id = ?", (subscription_id,)
    ).fetchone()
    return 0 if row is None else int(row[0])


def number_after_namesakes(tx: WriteTx, subscription_id: int, topic: str, name: str) -> None:
    """A new subscription numbers its batches after those of all former ones of its name, of a topic
    of this name: consumers that were theirs may still acknowledge batches. Only the highest number
    of all is known of some."""
    (epoch,) = tx.execute(_NAMESAKES_SQL, (topic, name)).fetchone()
    epoch = max(epoch, notes.number(tx, LAST_EPOCH_NOTE))
    if epoch:
        tx.execute(_EPOCH_SQL, (subscription_id, epoch, changes.following(tx)))


def flush(tx: WriteTx, flushes: Iterable[SubscriptionFlush]) -> set[int]:
    """Writes down what owners know. Returns the ids of the subscriptions that it ignored: they do
    not live any more, or have another generation."""
    number = changes.following(tx)
    ignored: set[int] = set()
    for each in flushes:
        found = tx.execute(_LIVE_SQL, (each.subscription_id,)).fetchone()
        if found is None or found[0] != each.generation:
            ignored.add(each.subscription_id)
            continue
        cursor_id = each.generation
        tx.execute(_EPOCH_SQL, (each.subscription_id, each.epoch, number))
        tx.executemany(
            _RAISE_SQL, [(cursor_id, partition, floor, number) for partition, floor in each.floors]
        )
        if each.rows:
            # An owner that was stopped meanwhile may tell of rows that its successor has passed.
            keys = {(cursor_id, partition) for partition, _, _ in each.rows}
            floors = cursors.positions_of(tx, keys)
            bits = {
                (cursor_id, partition, row): bits
                for partition, row, bits in each.rows
                if row >= _rows_passed(floors[cursor_id, partition])
            }
            _add(tx, bits, number)
        tx.executemany(
            _PASSED_SQL,
            [(cursor_id, partition, _rows_passed(floor)) for partition, floor in each.floors],
        )
    return ignored


def restart(tx: WriteTx, cursor_id: int, floors: Mapping[int, int], now_ms: int) -> int:
    """Puts another cursor with these floors in the place of a subscription's; returns its id."""
    former = cursors.by_id(tx, cursor_id)
    assert former is not None  # rows of cursors stay
    forget(tx, cursor_id, now_ms)
    cursor, _ = cursors.create(tx, former.name, "subscription", now_ms)
    cursors.move(
        tx, {(cursor.cursor_id, partition): floor for partition, floor in floors.items() if floor}
    )
    return cursor.cursor_id


def forget(tx: WriteTx, cursor_id: int, now_ms: int) -> None:
    """Deletes a subscription's cursor and what is finished after its floors."""
    cursors.end(tx, cursor_id, now_ms)
    tx.execute("DELETE FROM finished_rows WHERE cursor_id = ?", (cursor_id,))


def end_all(tx: WriteTx, topic_id: int, now_ms: int) -> None:
    """Deletes the subscriptions of a topic that is deleted."""
    sql = "SELECT subscription_id, cursor_id FROM subscriptions WHERE topic_id = ?"
    for subscription_id, cursor_id in tx.execute(
        f"{sql} AND deleted_ms IS NULL", (topic_id,)
    ).fetchall():
        end(tx, subscription_id, cursor_id, now_ms)


def end(tx: WriteTx, subscription_id: int, cursor_id: int, now_ms: int) -> None:
    """Deletes a living subscription."""
    forget(tx, cursor_id, now_ms)
    push_rates.forget(tx, subscription_id)
    tx.execute(
        "UPDATE subscriptions SET deleted_ms = ?, changed = ? WHERE subscription_id = ?",
        (now_ms, changes.following(tx), subscription_id),
    )


def remove_passed(
    tx: WriteTx, ended: Iterable[int], floors: Iterable[tuple[int, int, int]]
) -> None:
    """Removes what changes of the owner's log leave over: all of cursors that ended, and rows that
    floors, (cursor id, partition, floor), have passed."""
    for cursor_id in ended:
        tx.execute("DELETE FROM cursor_positions WHERE cursor_id = ?", (cursor_id,))
        tx.execute("DELETE FROM finished_rows WHERE cursor_id = ?", (cursor_id,))
    tx.executemany(_PASSED_SQL, [(*key, _rows_passed(floor)) for *key, floor in floors])


def is_finished(tx: ReadTx, subscription_id: int, partition: int, offset: int) -> bool:
    """Whether an offset of a living subscription is finished."""
    found = tx.execute(_LIVE_SQL, (subscription_id,)).fetchone()
    if found is None:
        return False
    floors = cursors.positions_of(tx, [(found[0], partition)])
    return bool(finished_of(tx, [(found[0], partition, offset)], floors))


# Settlements, by the commit


def finished_of(
    tx: ReadTx, keys: Iterable[OffsetKey], floors: Mapping[CursorKey, int]
) -> set[OffsetKey]:
    """Which of these offsets are finished; ``floors`` are those of the living cursors."""
    found: set[OffsetKey] = set()
    for key in keys:
        cursor_id, partition, offset = key
        if offset <= floors.get((cursor_id, partition), -1):
            found.add(key)
            continue
        row = tx.execute(_ROW_SQL, (cursor_id, partition, offset // ROW_OFFSETS)).fetchone()
        if row is not None and row[0][offset % ROW_OFFSETS // 8] >> offset % 8 & 1:
            found.add(key)
    return found


def settle(tx: WriteTx, keys: Collection[OffsetKey]) -> None:
    """Sets the bits of offsets that the caller has judged in this transaction."""
    bits: dict[tuple[int, int, int], int] = {}
    for cursor_id, partition, offset in keys:
        key = (cursor_id, partition, offset // ROW_OFFSETS)
        bits[key] = bits.get(key, 0) | 1 << offset % ROW_OFFSETS
    rows = {key: value.to_bytes(ROW_BYTES, "little") for key, value in bits.items()}
    _add(tx, rows, changes.following(tx))


def _add(tx: WriteTx, rows: Mapping[tuple[int, int, int], bytes], number: int) -> None:
    written = []
    for key, bits in rows.items():
        if len(bits) != ROW_BYTES:
            raise ValueError(f"a row of finished offsets has {ROW_BYTES} bytes, got {len(bits)}")
        there = tx.execute(_ROW_SQL, key).fetchone()
        if there is not None:
            both = int.from_bytes(there[0], "little") | int.from_bytes(bits, "little")
            bits = both.to_bytes(ROW_BYTES, "little")
            if bits == there[0]:
                continue
        written.append((*key, bits, number))
    tx.executemany(_PUT_SQL, written)


def _rows_passed(floor: int) -> int:
    """How many rows a floor has passed: all their offsets are finished."""
    return (floor + 1) // ROW_OFFSETS
