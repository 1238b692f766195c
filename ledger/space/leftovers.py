"""Rows that deleted topics, subscriptions and routers leave behind, and when these go.

Vocabulary: a *leftover* is the row of something that was deleted. The owner's log and the shards
learn of the deletion from it, so it stays until both have *heard*: an accepted entry has the row as
deleted, and every shard has read it. Then it goes, once nothing names it:

- a cursor of a router, of a subscription or of a group of Kafka;
- a router, a subscription;
- a topic and its partitions: no extent, hole, table or file of the lake is of it, and no row of a
  router or of a subscription has its id. Records that come later are void (``commits.py``).

No entry tells that a leftover has gone. A recovery may find the row again, as deleted, because the
entry that says so comes after each that does not; then it goes again. What was given and must not
be given again stays: ids in ``state`` and in notes, and a number above those of all batches.
"""

from __future__ import annotations

from msgspec import Struct

from ledger import notes
from ledger.delivery import progress, routers, subscriptions
from ledger.tx import ReadTx, Transactions, WriteTx

ROWS_MAX = 500  # of a kind in one transaction, but at least one topic: some milliseconds

_OVER = "deleted_ms IS NOT NULL AND changed <= ?"
_CURSORS_SQL = f"SELECT cursor_id FROM cursors WHERE {_OVER} AND kind <> 'client' LIMIT ?"
_ROUTERS_SQL = f"SELECT router_id FROM routers WHERE {_OVER} LIMIT ?"
_SUBSCRIPTIONS_SQL = f"SELECT subscription_id FROM subscriptions WHERE {_OVER} LIMIT ?"
_TOPICS_SQL = f"""SELECT topic_id,
    1 + (SELECT count(*) FROM partitions AS p WHERE p.topic_id = t.topic_id)
    FROM topics AS t WHERE {_OVER}
    AND topic_id NOT IN (SELECT source_id FROM routers UNION SELECT dest_id FROM routers
        UNION SELECT topic_id FROM subscriptions
        UNION SELECT dead_letter_id FROM subscriptions WHERE dead_letter_id IS NOT NULL)
    AND NOT EXISTS (SELECT 1 FROM extents AS e WHERE e.topic_id = t.topic_id)
    AND NOT EXISTS (SELECT 1 FROM quarantine AS q WHERE q.topic_id = t.topic_id)
    AND NOT EXISTS (SELECT 1 FROM lake_tables AS l WHERE l.topic_id = t.topic_id)
    AND NOT EXISTS (SELECT 1 FROM lake_files AS f WHERE f.topic_id = t.topic_id) LIMIT ?"""
_OF_TOPICS = ("partitions", "partition_growth", "gaps", "lost")


class Heard(Struct, frozen=True):
    """Up to which changes of topics, and of routers and subscriptions, the owner's log and all
    shards know them."""

    catalog_version: int
    change_number: int


class Leftovers(Struct, frozen=True):
    """Ids of some that may go."""

    cursors: list[int]
    routers: list[int]
    subscriptions: list[int]
    topics: list[int]

    def __bool__(self) -> bool:
        return bool(self.cursors or self.routers or self.subscriptions or self.topics)


def remove_some(ledger: Transactions, heard: Heard) -> bool:
    """Removes some leftovers; False if there was none."""
    return bool(ledger.read(found, heard)) and bool(ledger.write(remove, heard))


def found(tx: ReadTx, heard: Heard) -> Leftovers:
    """Some that may go."""
    of_cursors, of_routers, of_subscriptions = (
        [row[0] for row in tx.execute(sql, (heard.change_number, ROWS_MAX))]
        for sql in (_CURSORS_SQL, _ROUTERS_SQL, _SUBSCRIPTIONS_SQL)
    )
    of_topics: list[int] = []
    rows = 0
    for topic_id, count in tx.execute(_TOPICS_SQL, (heard.catalog_version, ROWS_MAX)).fetchall():
        rows += count
        if of_topics and rows > ROWS_MAX:
            break
        of_topics.append(topic_id)
    return Leftovers(of_cursors, of_routers, of_subscriptions, of_topics)


def remove(tx: WriteTx, heard: Heard) -> Leftovers:
    """Removes some that may go; returns them."""
    some = found(tx, heard)
    _delete(tx, "cursors", "cursor_id", some.cursors)
    notes.raise_to(tx, routers.LAST_ID_NOTE, max(some.routers, default=0))
    _delete(tx, "routers", "router_id", some.routers)
    notes.raise_to(tx, subscriptions.LAST_ID_NOTE, max(some.subscriptions, default=0))
    epochs = (progress.epoch_of(tx, subscription_id) for subscription_id in some.subscriptions)
    notes.raise_to(tx, progress.LAST_EPOCH_NOTE, max(epochs, default=0))
    for table in ("subscription_epochs", "subscriptions"):
        _delete(tx, table, "subscription_id", some.subscriptions)
    for table in (*_OF_TOPICS, "topics"):
        _delete(tx, table, "topic_id", some.topics)
    return some


def _delete(tx: WriteTx, table: str, column: str, ids: list[int]) -> None:
    tx.executemany(f"DELETE FROM {table} WHERE {column} = ?", [(each,) for each in ids])
