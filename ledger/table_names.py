"""Which table of the lake a topic has: decided when the topic is created, and kept for its life.

A table has the name of its topic with ``.``, ``:`` and ``-`` replaced by ``_``. A name longer than
TABLE_NAME_MAX is cut and ends in a hash of the whole. To many catalogs, names that differ only in
case are the same, so no two live topics have such names.

``decide`` is for existing topics without a table name (from a former version's ledger or entries,
or found by a recovery in objects). A compacted topic keeps its table; of the others the oldest gets
the name, and a later one a name that ends in a hash.
"""

from __future__ import annotations

import re
from hashlib import blake2b

from ledger.tx import ReadTx, WriteTx

NAMESPACE = "headgate"
# Hive and AWS Glue take 128 characters and more; the table's folder has the topic's id too.
TABLE_NAME_MAX = 128
_HASH_BYTES = 8

_REPLACED = re.compile(r"[.:\-]")


def table_name(topic: str) -> str:
    """The name of a topic's table, without its namespace; at most TABLE_NAME_MAX characters."""
    name = _REPLACED.sub("_", topic)
    return name if len(name) <= TABLE_NAME_MAX else _with_hash(name, topic)


def former_name(table: str, topic_id: int) -> str:
    """The name that the table of a former topic gets when another topic needs its name."""
    return f"{table}__{topic_id}"


def holder_of(tx: ReadTx, table: str) -> str | None:
    """The live topic whose table has this name, in any case."""
    row = tx.execute(
        "SELECT name FROM topics WHERE lower(table_name) = lower(?) AND deleted_ms IS NULL",
        (table,),
    ).fetchone()
    return None if row is None else str(row[0])


def free_name(tx: ReadTx, topic: str) -> str:
    """A table name for an existing topic: its own, or one that no other topic has."""
    name = table_name(topic)
    salted = topic
    while holder_of(tx, name) is not None:
        name = _with_hash(_REPLACED.sub("_", topic), salted)
        salted += "'"  # in no topic's name
    return name


def undecided(tx: ReadTx) -> bool:
    """Whether some live topic has no table name yet."""
    row = tx.execute(
        "SELECT 1 FROM topics WHERE table_name IS NULL AND deleted_ms IS NULL LIMIT 1"
    ).fetchone()
    return row is not None


def decide(tx: WriteTx) -> list[int]:
    """Gives each live topic without a table name one; returns their ids, oldest first."""
    undecided = tx.execute(
        "SELECT t.topic_id, t.name, l.name FROM topics AS t"
        " LEFT JOIN lake_tables AS l ON l.topic_id = t.topic_id"
        " WHERE t.table_name IS NULL AND t.deleted_ms IS NULL"
        " ORDER BY l.name IS NULL, t.topic_id"
    ).fetchall()
    for topic_id, topic, compacted in undecided:
        name = (
            free_name(tx, topic) if compacted is None else compacted.removeprefix(f"{NAMESPACE}.")
        )
        tx.execute("UPDATE topics SET table_name = ? WHERE topic_id = ?", (name, topic_id))
    return sorted(topic_id for topic_id, *_ in undecided)


def _with_hash(name: str, hashed: str) -> str:
    digest = blake2b(hashed.encode(), digest_size=_HASH_BYTES).hexdigest()
    return f"{name[: TABLE_NAME_MAX - len(digest) - 1]}_{digest}"
