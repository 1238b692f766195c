"""Cursors: how far a reader or a router has got, by partition of what it follows.

Lifecycle of a cursor: created -> moved or set, any number of times -> deleted. Its row stays, its
positions go. Ids are never used twice, so a request on its way never meets another cursor of the
same name.

- A position is what has been dealt with: the next record is after it. Where nothing was ever moved
  it is 0, and there is no row.
- ``move`` belongs to the commit (``commits.py``), which has judged the requests; it takes the
  records and the positions into one transaction.
- ``flush`` moves our own cursors over what needs no record, each only from where it is expected.
- ``set_positions`` puts a cursor anywhere, also back. ``set_change`` and ``set_seq`` note it, and
  requests carry both, so a recovery that lacks it learns of it (``log/recovery.py``).
- The owner of a client's cursor may tell what it follows and how long that is. It is only shown;
  no move depends on it.
- The name of a cursor of another kind than ``client`` begins with the kind and a slash, which no
  client may send.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import NamedTuple

from ledger import changes
from ledger.decide import CursorKey
from ledger.errors import CursorMissing, CursorMoved, CursorOwned, CursorsFull
from ledger.tx import ReadTx, WriteTx
from ledger.types import Advance, Cursor, CursorKind, CursorMove, CursorPosition

# Each takes about 300 bytes of the ledger with one position. 10,000 that move in each second are
# 10,000 of its rows, so ten times as many are still bearable.
CURSORS_MAX = 100_000
# A look-up takes two of SQLite's 32,766 variables.
_LOOKED_UP_TOGETHER = 1_024

# What a client told of a source's size is not relied on for longer. An import tells it every ten
# minutes, unless it has ended; then the source may have grown.
SOURCE_KNOWN_MS = 3_600_000
# Imports are counted for each question about them: at most this many, the last told.
_IMPORTS_MAX = 10_000
# Positions in sources whose names begin so count records, all others bytes.
RECORDS_SCHEME = "kafka://"

_COLUMNS = (
    "cursor_id, name, kind, created_ms, deleted_ms, source, source_topic_id, source_bytes, told_ms"
)
_PUT_SQL = """INSERT INTO cursor_positions
    (cursor_id, partition, seq, set_change, set_seq, changed) VALUES (?, ?, ?, 0, 0, ?)
    ON CONFLICT (cursor_id, partition)
    DO UPDATE SET seq = excluded.seq, changed = excluded.changed"""
_SET_SQL = """INSERT INTO cursor_positions
    (cursor_id, partition, seq, set_change, set_seq, changed) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (cursor_id, partition) DO UPDATE SET seq = excluded.seq,
    set_change = excluded.set_change, set_seq = excluded.set_seq, changed = excluded.changed"""


class CursorPlace(NamedTuple):
    """What a request that advances a cursor carries of it."""

    cursor_id: int
    set_change: int
    set_seq: int


class SourceTold(NamedTuple):
    """What a client tells of what its cursor follows. ``size_bytes``: where it ends, as a position
    in partition 0; None: not known."""

    name: str
    topic_id: int
    size_bytes: int | None


class ImportLag(NamedTuple):
    """The sources of a topic that are not at their ends, by what their clients told. ``unknown`` of
    them have no size, or none that was told lately; of the others, ``oldest_ms`` is when the first
    was told of."""

    topic: str
    sources: int
    unknown: int
    lag_bytes: int
    lag_records: int
    oldest_ms: int | None


class Setting(NamedTuple):
    """A position that a cursor gets; ``expected`` None: wherever it is."""

    partition: int
    seq: int
    expected: int | None = None


def create(tx: WriteTx, name: str, kind: CursorKind, now_ms: int) -> tuple[Cursor, bool]:
    """The live cursor of this name, and whether this call created it. An existing one stays.

    Raises CursorsFull, and CursorOwned if it is of another kind.
    """
    if kind != "client" and not name.startswith(f"{kind}/"):
        raise ValueError(f"a cursor of kind {kind} must have a name {kind}/..., got {name!r}")
    present = find(tx, name)
    if present is not None:
        if present.kind != kind:
            raise CursorOwned(name, present.kind)
        return present, False
    if count(tx) >= CURSORS_MAX:
        raise CursorsFull(CURSORS_MAX)
    last = tx.execute("SELECT last_cursor_id FROM state WHERE id = 1").fetchone()[0]
    return restore(tx, last + 1, name, kind, now_ms), True


def restore(tx: WriteTx, cursor_id: int, name: str, kind: CursorKind, now_ms: int) -> Cursor:
    """Creates a cursor with an id that has no row. If two cursors have one name, it belongs to the
    one with the higher id; the other was deleted before."""
    present = find(tx, name)
    deleted_ms = None
    if present is not None and present.cursor_id < cursor_id:
        end(tx, present.cursor_id, now_ms)
    elif present is not None:
        deleted_ms = present.created_ms
    tx.execute(
        "INSERT INTO cursors (cursor_id, name, kind, created_ms, deleted_ms, changed)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (cursor_id, name, kind, now_ms, deleted_ms, changes.following(tx)),
    )
    tx.execute(
        "UPDATE state SET last_cursor_id = max(last_cursor_id, ?) WHERE id = 1", (cursor_id,)
    )
    return Cursor(cursor_id, name, kind, now_ms, deleted_ms)


def set_positions(
    tx: WriteTx, name: str, kind: CursorKind, settings: Sequence[Setting]
) -> list[CursorPosition]:
    """Puts a cursor where ``settings`` say, all or none; returns all its positions.

    Raises CursorMissing, CursorOwned, CursorMoved.
    """
    cursor = _of_kind(tx, name, kind)
    there = {each.partition: each.seq for each in positions(tx, cursor.cursor_id)}
    for partition, _, expected in settings:
        at = there.get(partition, 0)
        if expected is not None and expected != at:
            raise CursorMoved(name, partition, expected, at)
    if settings:
        number = changes.following(tx)
        tx.executemany(
            _SET_SQL,
            [(cursor.cursor_id, each.partition, each.seq, number, each.seq, number)
             for each in settings],
        )  # fmt: skip
    return positions(tx, cursor.cursor_id)


def tell(tx: WriteTx, name: str, kind: CursorKind, told: SourceTold, now_ms: int) -> Cursor:
    """Notes what a cursor follows. Raises CursorMissing and CursorOwned."""
    cursor_id = _of_kind(tx, name, kind).cursor_id
    tx.execute(
        "UPDATE cursors SET source = ?, source_topic_id = ?, source_bytes = ?, told_ms = ?,"
        " changed = ? WHERE cursor_id = ?",
        (*told, now_ms, changes.following(tx), cursor_id),
    )
    return _of_kind(tx, name, kind)


def imports(tx: ReadTx, now_ms: int) -> list[ImportLag]:
    """How far imports are behind, by topic."""
    rows = tx.execute(
        "SELECT name, COUNT(*), SUM(1 - known), SUM(known * (1 - records) * (source_bytes - seq)),"
        " SUM(known * records * (source_bytes - seq)),"
        " MIN(CASE WHEN known = 1 THEN told_ms END) FROM ("
        " SELECT t.name, c.told_ms, COALESCE(c.source_bytes, 0) AS source_bytes,"
        " COALESCE(p.seq, 0) AS seq, CASE WHEN c.source LIKE ? THEN 1 ELSE 0 END AS records,"
        " CASE WHEN c.source_bytes IS NOT NULL AND c.told_ms >= ? THEN 1 ELSE 0 END AS known"
        " FROM (SELECT * FROM cursors WHERE told_ms IS NOT NULL ORDER BY told_ms DESC LIMIT ?) AS c"
        " JOIN topics AS t ON t.topic_id = c.source_topic_id AND t.deleted_ms IS NULL"
        " LEFT JOIN cursor_positions AS p ON p.cursor_id = c.cursor_id AND p.partition = 0"
        " WHERE c.source_bytes IS NULL OR c.source_bytes > COALESCE(p.seq, 0)"
        ") AS unfinished GROUP BY name ORDER BY name",
        (f"{RECORDS_SCHEME}%", now_ms - SOURCE_KNOWN_MS, _IMPORTS_MAX),
    )
    return [ImportLag(*row) for row in rows]


def learn(tx: WriteTx, advance: Advance, now_ms: int) -> None:
    """What a request tells of a client's cursor that the ledger lacks; for a recovery only.

    That is the cursor itself, and its last setting. Requests with older settings tell nothing.
    """
    cursor = by_id(tx, advance.cursor_id)
    if cursor is None:
        cursor = restore(tx, advance.cursor_id, advance.name, "client", now_ms)
    if cursor.deleted_ms is not None or not advance.set_change:
        return
    key = (advance.cursor_id, advance.partition)
    known = tx.execute(
        "SELECT set_change FROM cursor_positions WHERE cursor_id = ? AND partition = ?", key
    ).fetchone()
    if known is not None and known[0] >= advance.set_change:
        return
    # The numbers of later changes must be above it, as they were.
    tx.execute(
        "UPDATE state SET change_number = max(change_number, ?) WHERE id = 1",
        (advance.set_change,),
    )
    number = changes.following(tx)
    tx.execute(_SET_SQL, (*key, advance.set_seq, advance.set_change, advance.set_seq, number))


def delete(tx: WriteTx, name: str, kind: CursorKind, now_ms: int) -> Cursor:
    """The deleted cursor. Requests on their way that advance it are void.

    Raises CursorMissing and CursorOwned.
    """
    cursor = _of_kind(tx, name, kind)
    end(tx, cursor.cursor_id, now_ms)
    return cursor


def end(tx: WriteTx, cursor_id: int, now_ms: int) -> None:
    """Deletes a cursor that lives."""
    tx.execute(
        "UPDATE cursors SET deleted_ms = ?, changed = ?, source = NULL, source_topic_id = NULL,"
        " source_bytes = NULL, told_ms = NULL WHERE cursor_id = ?",
        (now_ms, changes.following(tx), cursor_id),
    )
    tx.execute("DELETE FROM cursor_positions WHERE cursor_id = ?", (cursor_id,))


def find(tx: ReadTx, name: str) -> Cursor | None:
    """The live cursor of this name."""
    sql = f"SELECT {_COLUMNS} FROM cursors WHERE name = ? AND deleted_ms IS NULL"
    row = tx.execute(sql, (name,)).fetchone()
    return None if row is None else Cursor(*row)


def by_id(tx: ReadTx, cursor_id: int) -> Cursor | None:
    """The cursor of this id, deleted or not."""
    row = tx.execute(f"SELECT {_COLUMNS} FROM cursors WHERE cursor_id = ?", (cursor_id,)).fetchone()
    return None if row is None else Cursor(*row)


def count(tx: ReadTx) -> int:
    """How many cursors live."""
    sql = "SELECT count(*) FROM cursors WHERE deleted_ms IS NULL"
    return int(tx.execute(sql).fetchone()[0])


def page(tx: ReadTx, after_name: str = "", limit: int = 1_000) -> list[Cursor]:
    """Live cursors after ``after_name`` by name, a page at a time."""
    rows = tx.execute(
        f"SELECT {_COLUMNS} FROM cursors WHERE deleted_ms IS NULL AND name > ?"
        " ORDER BY name LIMIT ?",
        (after_name, limit),
    )
    return [Cursor(*row) for row in rows]


def positions(tx: ReadTx, cursor_id: int) -> list[CursorPosition]:
    """Where a cursor is in the partitions that it has been in, in their order."""
    rows = tx.execute(
        "SELECT partition, seq FROM cursor_positions WHERE cursor_id = ? ORDER BY partition",
        (cursor_id,),
    )
    return [CursorPosition(*row) for row in rows]


def place(tx: ReadTx, name: str, partition: int) -> CursorPlace | None:
    """What a request that advances the cursor of this name must carry; None: there is none."""
    row = tx.execute(
        "SELECT c.cursor_id, COALESCE(p.set_change, 0), COALESCE(p.set_seq, 0)"
        " FROM cursors AS c LEFT JOIN cursor_positions AS p"
        " ON p.cursor_id = c.cursor_id AND p.partition = ?"
        " WHERE c.name = ? AND c.deleted_ms IS NULL",
        (partition, name),
    ).fetchone()
    return None if row is None else CursorPlace(*row)


def settings_of(tx: ReadTx, keys: Iterable[CursorKey]) -> dict[CursorKey, tuple[int, int]]:
    """The number of the last setting and the position of each of these that has one."""
    found: dict[CursorKey, tuple[int, int]] = {}
    for key in keys:
        row = tx.execute(
            "SELECT set_change, seq FROM cursor_positions WHERE cursor_id = ? AND partition = ?",
            key,
        ).fetchone()
        if row is not None:
            found[key] = row
    return found


def positions_of(tx: ReadTx, keys: Iterable[CursorKey]) -> dict[CursorKey, int]:
    """The positions of these cursors; nothing of those that do not live."""
    found: dict[CursorKey, int] = {}
    left = iter(keys)
    while some := list(islice(left, _LOOKED_UP_TOGETHER)):
        # Sizes are powers of two, so that a handful of statements stays prepared; no id is 0.
        size = 1 << (len(some) - 1).bit_length()
        values = [0] * (2 * size)
        values[: 2 * len(some) : 2] = [cursor_id for cursor_id, _ in some]
        values[1 : 2 * len(some) : 2] = [partition for _, partition in some]
        for cursor_id, partition, seq in tx.execute(_positions_sql(size), values):
            found[cursor_id, partition] = seq
    return found


def move(tx: WriteTx, moves: Mapping[CursorKey, int]) -> None:
    """Writes positions that the caller has judged in this transaction."""
    number = changes.following(tx)
    tx.executemany(
        _PUT_SQL,
        [(cursor_id, partition, seq, number) for (cursor_id, partition), seq in moves.items()],
    )


def flush(tx: WriteTx, moves: Sequence[CursorMove]) -> dict[CursorKey, int | None]:
    """Moves each cursor that is at its ``expected``; of the others it returns where they are.

    None: the cursor does not live any more. At most one move for each cursor and partition.
    """
    there = positions_of(tx, [(each.cursor_id, each.partition) for each in moves])
    done: dict[CursorKey, int] = {}
    refused: dict[CursorKey, int | None] = {}
    for each in moves:
        key = (each.cursor_id, each.partition)
        at = there.get(key)
        if at == each.expected:
            done[key] = each.next
        else:
            refused[key] = at
    if done:
        move(tx, done)
    return refused


@cache
def _positions_sql(size: int) -> str:
    # As in commits.py: a join with the list finds each row by its key.
    places = ", ".join(["(?, ?)"] * size)
    return (
        f"WITH wanted (cursor_id, partition) AS (VALUES {places})"
        " SELECT c.cursor_id, wanted.partition, COALESCE(p.seq, 0)"
        " FROM wanted JOIN cursors AS c"
        " ON c.cursor_id = wanted.cursor_id AND c.deleted_ms IS NULL"
        " LEFT JOIN cursor_positions AS p"
        " ON p.cursor_id = wanted.cursor_id AND p.partition = wanted.partition"
    )


def _of_kind(tx: ReadTx, name: str, kind: CursorKind) -> Cursor:
    cursor = find(tx, name)
    if cursor is None:
        raise CursorMissing(name)
    if cursor.kind != kind:
        raise CursorOwned(name, cursor.kind)
    return cursor
