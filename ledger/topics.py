"""Statements on topics and their partitions' rows.

Functions take a connection; those that write are called inside a transaction that the ledger
lock covers (``ledger.py`` sees to both). Every change of a topic raises ``catalog_version``.
"""

from __future__ import annotations

import sqlite3
from typing import Any

import msgspec

from ledger import table_names
from ledger.errors import ColumnsRefused, PartitionsRefused, TableNameTaken, TopicMissing
from ledger.types import PARTITIONS_MAX, Topic, TopicConfig

# Below every timestamp; what an empty partition has seen.
TIMESTAMP_MIN_MS = -(2**63)

_COLUMNS = "topic_id, name, config, created_ms, deleted_ms, table_name"
_config_encoder = msgspec.json.Encoder()
_config_decoder = msgspec.json.Decoder(TopicConfig)


def create_topic(
    connection: sqlite3.Connection, name: str, config: TopicConfig, now_ms: int
) -> tuple[Topic, bool]:
    """The live topic of this name, and whether this call made it. An existing one stays as is.

    Raises PartitionsRefused, TableNameTaken.
    """
    present = topic(connection, name)
    if present is not None:
        return present, False
    _check_partitions(name, 0, config.partitions)
    table = table_names.table_name(name)
    other = table_names.holder_of(connection, table)
    if other is not None:
        raise TableNameTaken(name, table, other)
    row = connection.execute("SELECT last_topic_id FROM state WHERE id = 1").fetchone()
    topic_id = int(row[0]) + 1
    connection.execute(
        "UPDATE state SET last_topic_id = ? WHERE id = 1",
        (topic_id,),
    )
    connection.execute(
        f"INSERT INTO topics ({_COLUMNS}, changed) VALUES (?, ?, ?, ?, NULL, ?, 0)",
        (topic_id, name, _config_encoder.encode(config).decode(), now_ms, table),
    )
    touch(connection, topic_id)
    _add_partitions(connection, topic_id, 0, config.partitions)
    return Topic(topic_id, name, config, now_ms, table=table), True


def alter_topic(connection: sqlite3.Connection, name: str, config: TopicConfig) -> Topic:
    """The topic with its new configuration.

    Raises TopicMissing, PartitionsRefused, ColumnsRefused.
    """
    present = topic(connection, name)
    if present is None:
        raise TopicMissing(name)
    if present.config == config:
        return present
    _check_partitions(name, present.config.partitions, config.partitions)
    for column, kind in present.config.columns.items():
        wanted = config.columns.get(column, kind)
        if wanted != kind:
            raise ColumnsRefused(name, column, kind, wanted)
    connection.execute(
        "UPDATE topics SET config = ? WHERE topic_id = ?",
        (_config_encoder.encode(config).decode(), present.topic_id),
    )
    _add_partitions(connection, present.topic_id, present.config.partitions, config.partitions)
    touch(connection, present.topic_id)
    return msgspec.structs.replace(present, config=config)


def delete_topic(connection: sqlite3.Connection, name: str, now_ms: int) -> Topic:
    """The topic as it is now deleted. Its rows stay; raises TopicMissing."""
    present = topic(connection, name)
    if present is None:
        raise TopicMissing(name)
    connection.execute(
        "UPDATE topics SET deleted_ms = ? WHERE topic_id = ?", (now_ms, present.topic_id)
    )
    connection.execute("UPDATE partitions SET deleted = 1 WHERE topic_id = ?", (present.topic_id,))
    touch(connection, present.topic_id)
    return msgspec.structs.replace(present, deleted_ms=now_ms)


def restore_topic(
    connection: sqlite3.Connection, topic_id: int, name: str, config: TopicConfig, created_ms: int
) -> None:
    """A topic with an id that was given before and is not in the ledger; recovery only.

    The newer of two ids has the name, the other one was deleted before.
    """
    present = topic(connection, name)
    if present is not None and present.topic_id < topic_id:
        delete_topic(connection, name, created_ms)
        present = None
    deleted_ms = None if present is None else present.created_ms
    table = table_names.free_name(connection, name)
    connection.execute(
        f"INSERT INTO topics ({_COLUMNS}, changed) VALUES (?, ?, ?, ?, ?, ?, 0)",
        (topic_id, name, _config_encoder.encode(config).decode(), created_ms, deleted_ms, table),
    )
    connection.execute(
        "UPDATE state SET last_topic_id = max(last_topic_id, ?) WHERE id = 1", (topic_id,)
    )
    _add_partitions(connection, topic_id, 0, config.partitions)
    if deleted_ms is not None:
        connection.execute("UPDATE partitions SET deleted = 1 WHERE topic_id = ?", (topic_id,))
    touch(connection, topic_id)


def decide_tables(connection: sqlite3.Connection) -> None:
    """Has every live topic have a table name."""
    for topic_id in table_names.decide(connection):
        touch(connection, topic_id)


def grow_topic(connection: sqlite3.Connection, present: Topic, partitions: int) -> Topic:
    """A live topic with more partitions, its other settings as they are."""
    config = msgspec.structs.replace(present.config, partitions=partitions)
    return alter_topic(connection, present.name, config)


def topic(connection: sqlite3.Connection, name: str) -> Topic | None:
    """The live topic of this name."""
    sql = f"SELECT {_COLUMNS} FROM topics WHERE name = ? AND deleted_ms IS NULL"
    row = connection.execute(sql, (name,)).fetchone()
    return None if row is None else _topic(row)


def topic_by_id(connection: sqlite3.Connection, topic_id: int) -> Topic | None:
    """The topic of this id, deleted or not."""
    sql = f"SELECT {_COLUMNS} FROM topics WHERE topic_id = ?"
    row = connection.execute(sql, (topic_id,)).fetchone()
    return None if row is None else _topic(row)


def topics(connection: sqlite3.Connection, after_name: str, limit: int) -> list[Topic]:
    """Live topics behind ``after_name``, by name."""
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM topics WHERE deleted_ms IS NULL AND name > ?"
        " ORDER BY name LIMIT ?",
        (after_name, limit),
    )
    return [_topic(row) for row in rows]


def _topic(row: Any) -> Topic:
    topic_id, name, config, created_ms, deleted_ms, table = row
    decoded = _config_decoder.decode(config)
    return Topic(topic_id, name, decoded, created_ms, deleted_ms, table or "")


def _check_partitions(name: str, present: int, wanted: int) -> None:
    if wanted < max(present, 1) or wanted > PARTITIONS_MAX:
        raise PartitionsRefused(name, present, wanted, PARTITIONS_MAX)


def _add_partitions(connection: sqlite3.Connection, topic_id: int, start: int, stop: int) -> None:
    connection.executemany(
        "INSERT INTO partitions"
        " (topic_id, partition, next_seq, earliest_seq, count, bytes, max_timestamp_ms, deleted)"
        " VALUES (?, ?, 1, 1, 0, 0, ?, 0)",
        [(topic_id, partition, TIMESTAMP_MIN_MS) for partition in range(start, stop)],
    )


def touch(connection: sqlite3.Connection, topic_id: int) -> None:
    """Raises the catalog version and notes it at the topic: news for the owner's log."""
    connection.execute("UPDATE state SET catalog_version = catalog_version + 1 WHERE id = 1")
    connection.execute(
        "UPDATE topics SET changed = (SELECT catalog_version FROM state WHERE id = 1)"
        " WHERE topic_id = ?",
        (topic_id,),
    )
