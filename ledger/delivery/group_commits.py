"""What groups of Kafka's consumers have committed: one cursor for each group and topic.

Lifecycle: the first commit creates the cursor -> later ones put it anywhere, also back -> it ends
with its topic, with the group, or when that has not been used for long. A topic of the same name
that is created later has another id, so it inherits nothing.

An offset of Kafka is where a consumer reads on; ours begin at 1, so it is what has been dealt with,
which is a position. ``metadata`` is a text of the client's. Nothing but commits moves these.

Commits that are in the ledger and not yet in an entry of the owner's log are lost with the ledger's
disk, as acknowledgments of subscriptions are: consumers read again then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from ledger import changes, cursors
from ledger.errors import CursorsFull
from ledger.tx import ReadTx, WriteTx

# Half of all cursors: consumers that name a group by chance must leave room for others.
GROUP_CURSORS_MAX = cursors.CURSORS_MAX // 2

# A commit notes that its group is used, if that was not noted for so long.
USED_STEP_MS = 86_400_000

SAID_BYTES = 40  # of a commit in an answer, without its metadata

_PREFIX = "kafka/"
_PUT_SQL = """INSERT INTO cursor_positions
    (cursor_id, partition, seq, set_change, set_seq, changed, metadata) VALUES (?, ?, ?, 0, 0, ?, ?)
    ON CONFLICT (cursor_id, partition) DO UPDATE
    SET seq = excluded.seq, changed = excluded.changed, metadata = excluded.metadata"""
# Names in which the prefix is followed by anything: '0' comes after '/'.
_BETWEEN = "deleted_ms IS NULL AND name >= ? AND name < ?"


class GroupCommit(NamedTuple):
    """Where a group reads on in a partition."""

    group: str
    topic_id: int
    partition: int
    offset: int
    metadata: str


class RefusedCommits(NamedTuple):
    """What was not written: of topics that do not live, and of groups for which there is no
    cursor."""

    topics: set[int]
    full: set[tuple[str, int]]


class IdleCommits(NamedTuple):
    """What a group has committed in a topic, unused for some time; None: nobody knows how long."""

    cursor_id: int
    name: str
    used_ms: int | None

    @property
    def group(self) -> str:
        """The id of the group."""
        return _group_of(self.name)


def cursor_name(group: str, topic_id: int) -> str:
    """The name of the cursor of a group in a topic."""
    return f"{_PREFIX}{topic_id}/{group}"


def belongs_to(name: str) -> tuple[int, str] | None:
    """The topic and the group of a cursor by its name; None if it is another one."""
    if not name.startswith(_PREFIX):
        return None
    _, topic_id, group = name.split("/", 2)
    return int(topic_id), group


def put(tx: WriteTx, commits: Sequence[GroupCommit], now_ms: int, age_ms: int) -> RefusedCommits:
    """Writes commits, at most one of a group for each partition."""
    refused = RefusedCommits(set(), set())
    found: dict[tuple[str, int], int | None] = {}
    rows: list[tuple[int, int, int, int, str | None]] = []
    number = changes.following(tx)
    for each in commits:
        key = (each.group, each.topic_id)
        if key not in found:
            found[key] = _cursor_id(tx, key, refused, now_ms)
        cursor_id = found[key]
        if cursor_id is not None:
            rows.append((cursor_id, each.partition, each.offset, number, each.metadata or None))
    tx.executemany(_PUT_SQL, rows)
    tx.executemany(
        "UPDATE cursors SET used_ms = ?, changed = ? WHERE cursor_id = ?"
        " AND (used_ms IS NULL OR used_ms < ?)",
        [(age_ms, number, each, age_ms - USED_STEP_MS) for each in found.values() if each],
    )
    return refused


def _cursor_id(
    tx: WriteTx, key: tuple[str, int], refused: RefusedCommits, now_ms: int
) -> int | None:
    group, topic_id = key
    lives = tx.execute(
        "SELECT 1 FROM topics WHERE topic_id = ? AND deleted_ms IS NULL", (topic_id,)
    ).fetchone()
    if lives is None:
        refused.topics.add(topic_id)
        return None
    name = cursor_name(group, topic_id)
    there = cursors.find(tx, name)
    if there is not None:
        return there.cursor_id
    if _count(tx) >= GROUP_CURSORS_MAX:
        refused.full.add(key)
        return None
    try:
        return cursors.create(tx, name, "kafka", now_ms)[0].cursor_id
    except CursorsFull:
        refused.full.add(key)
        return None


def of_topics(
    tx: ReadTx, group: str, topic_ids: Sequence[int], bytes_max: int
) -> tuple[dict[tuple[int, int], tuple[int, str]], int]:
    """What a group has committed of these topics, as offset and metadata by (topic, partition), up
    to the topic with which it is more than so much; and of how many topics."""
    found: dict[tuple[int, int], tuple[int, str]] = {}
    size = done = 0
    for topic_id in topic_ids:
        if size > bytes_max:
            break
        rows = tx.execute(
            "SELECT partition, seq, COALESCE(metadata, '') FROM cursor_positions AS p"
            " JOIN cursors AS c ON c.cursor_id = p.cursor_id"
            " WHERE c.name = ? AND c.deleted_ms IS NULL ORDER BY partition",
            (cursor_name(group, topic_id),),
        )
        for partition, offset, metadata in rows:
            found[topic_id, partition] = (offset, metadata)
            size += SAID_BYTES + len(metadata)
        done += 1
    return found, done


def absent(tx: ReadTx, group: str, topic_ids: Iterable[int]) -> list[int]:
    """Those of these topics of which a group has committed nothing."""
    return [each for each in topic_ids if cursors.find(tx, cursor_name(group, each)) is None]


def topics_of(tx: ReadTx, group: str) -> list[tuple[str, int]]:
    """The names and ids of the topics of which a group has committed anything."""
    return tx.execute(
        "SELECT t.name, t.topic_id FROM topics AS t JOIN cursors AS c"
        " ON c.name = ? || t.topic_id || '/' || ? AND c.deleted_ms IS NULL"
        " WHERE t.deleted_ms IS NULL ORDER BY t.name",
        (_PREFIX, group),
    ).fetchall()


def groups(tx: ReadTx) -> set[str]:
    """All groups that have committed anything."""
    rows = tx.execute(f"SELECT name FROM cursors WHERE {_BETWEEN}", (_PREFIX, _after(_PREFIX)))
    return {_group_of(name) for (name,) in rows}


def exist(tx: ReadTx) -> bool:
    """Whether any group has committed anything."""
    sql = f"SELECT 1 FROM cursors WHERE {_BETWEEN} LIMIT 1"
    return tx.execute(sql, (_PREFIX, _after(_PREFIX))).fetchone() is not None


def delete(tx: WriteTx, group: str, now_ms: int) -> bool:
    """Ends all that a group has committed; False if there is nothing."""
    found = topics_of(tx, group)
    for _, topic_id in found:
        there = cursors.find(tx, cursor_name(group, topic_id))
        assert there is not None
        cursors.end(tx, there.cursor_id, now_ms)
    return bool(found)


def delete_places(
    tx: WriteTx, group: str, places: Mapping[int, Collection[int]], now_ms: int, age_ms: int
) -> bool:
    """Ends what a group has committed of these partitions, by topic; False if it has committed
    nothing at all. The rest is as old as it was, or begins to age if nobody knows."""
    if not topics_of(tx, group):
        return False
    for topic_id, partitions in places.items():
        there = cursors.find(tx, cursor_name(group, topic_id))
        if there is None:
            continue
        rows = tx.execute(
            "SELECT partition, seq, metadata FROM cursor_positions WHERE cursor_id = ?",
            (there.cursor_id,),
        ).fetchall()
        kept = [row for row in rows if row[0] not in partitions]
        if len(kept) == len(rows):
            continue
        # The owner's log tells of cursors that end, not of positions: the rest gets another one.
        (used_ms,) = tx.execute(
            "SELECT used_ms FROM cursors WHERE cursor_id = ?", (there.cursor_id,)
        ).fetchone()
        cursors.end(tx, there.cursor_id, now_ms)
        if kept:
            put(tx, [GroupCommit(group, topic_id, each, seq, metadata or "")
                     for each, seq, metadata in kept],
                now_ms, age_ms if used_ms is None else used_ms)  # fmt: skip
    return True


def idle(tx: ReadTx, after: str, before_ms: int, limit: int) -> list[IdleCommits]:
    """Cursors of groups that were last used before a time, by name after ``after``."""
    rows = tx.execute(
        f"SELECT cursor_id, name, used_ms FROM cursors WHERE {_BETWEEN} AND name > ?"
        " AND (used_ms IS NULL OR used_ms < ?) ORDER BY name LIMIT ?",
        (_PREFIX, _after(_PREFIX), after, before_ms, limit),
    )
    return [IdleCommits(*row) for row in rows]


def settle_idle(
    tx: WriteTx, alive: Sequence[int], over: Sequence[int], before_ms: int, age_ms: int,
    now_ms: int,
) -> int:  # fmt: skip
    """Notes that cursors are used now, and ends those of ``over`` that were last used before a
    time; returns how many these are."""
    if alive:
        number = changes.following(tx)
        tx.executemany(
            "UPDATE cursors SET used_ms = ?, changed = ?"
            " WHERE cursor_id = ? AND deleted_ms IS NULL",
            [(age_ms, number, each) for each in alive],
        )
    ended = 0
    for each in over:
        is_over = tx.execute(
            "SELECT 1 FROM cursors WHERE cursor_id = ? AND deleted_ms IS NULL AND used_ms < ?",
            (each, before_ms),
        ).fetchone()
        if is_over:
            cursors.end(tx, each, now_ms)
            ended += 1
    return ended


def end_all(tx: WriteTx, topic_id: int, now_ms: int) -> None:
    """Ends what groups have committed of a topic that is deleted."""
    for each in _of_prefix(tx, f"{_PREFIX}{topic_id}/"):
        cursors.end(tx, each, now_ms)


def _of_prefix(tx: ReadTx, prefix: str) -> list[int]:
    rows = tx.execute(f"SELECT cursor_id FROM cursors WHERE {_BETWEEN}", (prefix, _after(prefix)))
    return [cursor_id for (cursor_id,) in rows.fetchall()]


def _group_of(name: str) -> str:
    found = belongs_to(name)
    assert found is not None
    return found[1]


def _count(tx: ReadTx) -> int:
    found = tx.execute(
        f"SELECT count(*) FROM cursors WHERE {_BETWEEN}", (_PREFIX, _after(_PREFIX))
    ).fetchone()
    return int(found[0])


def _after(prefix: str) -> str:
    return prefix[:-1] + "0"
