"""What groups of Kafka's consumers have committed: one cursor for each group and topic.

Lifecycle: the first commit creates the cursor -> later ones put it anywhere, also back -> it ends
with its topic, or with the group. A topic of the same name that is created later has another id,
so it inherits nothing.

An offset of Kafka is where a consumer reads on; ours begin at 1, so it is what has been dealt with,
which is a position. ``metadata`` is a text of the client's. Nothing but commits moves these.

Commits that are in the ledger and not yet in an entry of the owner's log are lost with the ledger's
disk, as acknowledgments of subscriptions are: consumers read again then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ledger import changes, cursors
from ledger.errors import CursorsFull
from ledger.tx import ReadTx, WriteTx

# Half of all cursors: consumers that name a group by chance must leave room for others.
GROUP_CURSORS_MAX = cursors.CURSORS_MAX // 2

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


def cursor_name(group: str, topic_id: int) -> str:
    """The name of the cursor of a group in a topic."""
    return f"{_PREFIX}{topic_id}/{group}"


def put(tx: WriteTx, commits: Sequence[GroupCommit], now_ms: int) -> RefusedCommits:
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
    tx: ReadTx, group: str, topic_ids: Iterable[int]
) -> dict[tuple[int, int], tuple[int, str]]:
    """What a group has committed of these topics, as offset and metadata by (topic, partition)."""
    found: dict[tuple[int, int], tuple[int, str]] = {}
    for topic_id in topic_ids:
        rows = tx.execute(
            "SELECT partition, seq, COALESCE(metadata, '') FROM cursor_positions AS p"
            " JOIN cursors AS c ON c.cursor_id = p.cursor_id"
            " WHERE c.name = ? AND c.deleted_ms IS NULL ORDER BY partition",
            (cursor_name(group, topic_id),),
        )
        for partition, offset, metadata in rows:
            found[topic_id, partition] = (offset, metadata)
    return found


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
    return {name.split("/", 2)[2] for (name,) in rows}


def delete(tx: WriteTx, group: str, now_ms: int) -> bool:
    """Ends all that a group has committed; False if there is nothing."""
    found = topics_of(tx, group)
    for _, topic_id in found:
        there = cursors.find(tx, cursor_name(group, topic_id))
        assert there is not None
        cursors.end(tx, there.cursor_id, now_ms)
    return bool(found)


def end_all(tx: WriteTx, topic_id: int, now_ms: int) -> None:
    """Ends what groups have committed of a topic that is deleted."""
    for each in _of_prefix(tx, f"{_PREFIX}{topic_id}/"):
        cursors.end(tx, each, now_ms)


def _of_prefix(tx: ReadTx, prefix: str) -> list[int]:
    rows = tx.execute(f"SELECT cursor_id FROM cursors WHERE {_BETWEEN}", (prefix, _after(prefix)))
    return [cursor_id for (cursor_id,) in rows.fetchall()]


def _count(tx: ReadTx) -> int:
    found = tx.execute(
        f"SELECT count(*) FROM cursors WHERE {_BETWEEN}", (_PREFIX, _after(_PREFIX))
    ).fetchone()
    return int(found[0])


def _after(prefix: str) -> str:
    return prefix[:-1] + "0"
