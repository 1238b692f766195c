"""Topics and their partitions' rows.

Every change of a topic raises ``catalog_version``.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ledger import changes, table_names
from ledger.delivery import group_commits, progress
from ledger.errors import (
    ColumnsRefused,
    PartitionsFull,
    PartitionsRefused,
    TableNameTaken,
    TopicHoldsDeadLetters,
    TopicMissing,
)
from ledger.tx import ReadTx, WriteTx
from ledger.types import PARTITIONS_MAX, Topic, TopicConfig

# Below every timestamp; what an empty partition has seen.
TIMESTAMP_MIN_MS = -(2**63)

_COLUMNS = "topic_id, name, config, created_ms, deleted_ms, table_name"
_config_encoder = msgspec.json.Encoder()
_config_decoder = msgspec.json.Decoder(TopicConfig)
_heads_decoder = msgspec.json.Decoder(list[int])


def create(
    tx: WriteTx, name: str, config: TopicConfig, now_ms: int, partitions_max: int | None = None
) -> tuple[Topic, bool]:
    """The live topic of this name, and whether this call created it. An existing one stays as it
    is. ``partitions_max`` is the limit of the partitions of all live topics, if there is one.

    Raises PartitionsRefused, PartitionsFull and TableNameTaken.
    """
    present = find(tx, name)
    if present is not None:
        return present, False
    _check_partitions(name, 0, config.partitions)
    _check_all_partitions(tx, name, config.partitions, partitions_max)
    table = table_names.table_name(name)
    other = table_names.holder_of(tx, table)
    if other is not None:
        raise TableNameTaken(name, table, other)
    row = tx.execute("SELECT last_topic_id FROM state WHERE id = 1").fetchone()
    topic_id = int(row[0]) + 1
    tx.execute(
        "UPDATE state SET last_topic_id = ? WHERE id = 1",
        (topic_id,),
    )
    tx.execute(
        f"INSERT INTO topics ({_COLUMNS}, changed) VALUES (?, ?, ?, ?, NULL, ?, 0)",
        (topic_id, name, _config_encoder.encode(config).decode(), now_ms, table),
    )
    touch(tx, topic_id)
    _add_partitions(tx, topic_id, 0, config.partitions)
    _take_dead_letters(tx, topic_id, name)
    return Topic(topic_id, name, config, now_ms, table=table), True


def alter(tx: WriteTx, name: str, config: TopicConfig, partitions_max: int | None = None) -> Topic:
    """The topic with its new configuration.

    Raises TopicMissing, PartitionsRefused, PartitionsFull and ColumnsRefused.
    """
    present = find(tx, name)
    if present is None:
        raise TopicMissing(name)
    if present.config == config:
        return present
    _check_partitions(name, present.config.partitions, config.partitions)
    more = config.partitions - present.config.partitions
    _check_all_partitions(tx, name, more, partitions_max)
    for column, kind in present.config.columns.items():
        wanted = config.columns.get(column, kind)
        if wanted != kind:
            raise ColumnsRefused(name, column, kind, wanted)
    tx.execute(
        "UPDATE topics SET config = ? WHERE topic_id = ?",
        (_config_encoder.encode(config).decode(), present.topic_id),
    )
    if config.partitions > present.config.partitions:
        _note_growth(tx, present.topic_id, present.config.partitions)
    _add_partitions(tx, present.topic_id, present.config.partitions, config.partitions)
    touch(tx, present.topic_id)
    return msgspec.structs.replace(present, config=config)


def delete(
    tx: WriteTx, name: str, now_ms: int, *, force: bool = False, topic_id: int | None = None
) -> Topic:
    """The deleted topic. Extents that are committed later are void. Its subscriptions, and what
    groups of Kafka have committed of it, are deleted with it. Its rows go later
    (``space/leftovers.py``). ``topic_id``: of the topic that is meant, if that is known.

    Raises TopicMissing and, unless it is forced, TopicHoldsDeadLetters.
    """
    present = find(tx, name)
    if present is None or topic_id not in (None, present.topic_id):
        raise TopicMissing(name)
    senders = [] if force else _senders_of_dead_letters(tx, present.topic_id)
    if senders:
        raise TopicHoldsDeadLetters(name, senders)
    tx.execute("UPDATE topics SET deleted_ms = ? WHERE topic_id = ?", (now_ms, present.topic_id))
    _delete_partitions(tx, present.topic_id)
    progress.end_all(tx, present.topic_id, now_ms)
    group_commits.end_all(tx, present.topic_id, now_ms)
    touch(tx, present.topic_id)
    return msgspec.structs.replace(present, deleted_ms=now_ms)


def restore(tx: WriteTx, topic_id: int, name: str, config: TopicConfig, created_ms: int) -> None:
    """Creates a topic with an id that was given before and is missing here; for recovery only.

    If two topics have one name, it belongs to the one with the higher id; the other was deleted
    before.
    """
    present = find(tx, name)
    if present is not None and present.topic_id < topic_id:
        delete(tx, name, created_ms, force=True)
        present = None
    deleted_ms = None if present is None else present.created_ms
    table = table_names.free_name(tx, name)
    tx.execute(
        f"INSERT INTO topics ({_COLUMNS}, changed) VALUES (?, ?, ?, ?, ?, ?, 0)",
        (topic_id, name, _config_encoder.encode(config).decode(), created_ms, deleted_ms, table),
    )
    tx.execute("UPDATE state SET last_topic_id = max(last_topic_id, ?) WHERE id = 1", (topic_id,))
    _add_partitions(tx, topic_id, 0, config.partitions)
    if deleted_ms is not None:
        _delete_partitions(tx, topic_id)
    else:
        _take_dead_letters(tx, topic_id, name)
    touch(tx, topic_id)


def _senders_of_dead_letters(tx: ReadTx, topic_id: int) -> list[str]:
    """The live subscriptions whose dead letters go to a topic, each with its own topic."""
    rows = tx.execute(
        "SELECT s.name, t.name FROM subscriptions AS s JOIN topics AS t ON t.topic_id = s.topic_id"
        " WHERE s.dead_letter_id = ? AND s.deleted_ms IS NULL ORDER BY t.name, s.name",
        (topic_id,),
    )
    return [f"{name} of {topic}" for name, topic in rows.fetchall()]


def _take_dead_letters(tx: WriteTx, topic_id: int, name: str) -> None:
    """A new topic takes the dead letters that went to a deleted one of its name. It has no way out
    yet, so it closes no cycle."""
    rows = tx.execute(
        "SELECT s.subscription_id FROM subscriptions AS s"
        " JOIN topics AS d ON d.topic_id = s.dead_letter_id"
        " WHERE s.deleted_ms IS NULL AND d.deleted_ms IS NOT NULL AND d.name = ?",
        (name,),
    )
    for (subscription_id,) in rows.fetchall():
        tx.execute(
            "UPDATE subscriptions SET dead_letter_id = ?, changed = ? WHERE subscription_id = ?",
            (topic_id, changes.following(tx), subscription_id),
        )


def decide_tables(tx: WriteTx) -> None:
    """Gives every live topic a table name."""
    for topic_id in table_names.decide(tx):
        touch(tx, topic_id)


def grow(tx: WriteTx, present: Topic, partitions: int, partitions_max: int | None = None) -> Topic:
    """A live topic with more partitions, its other settings as they are. Raises as ``alter``."""
    config = msgspec.structs.replace(present.config, partitions=partitions)
    return alter(tx, present.name, config, partitions_max)


def find(tx: ReadTx, name: str) -> Topic | None:
    """The live topic of this name."""
    sql = f"SELECT {_COLUMNS} FROM topics WHERE name = ? AND deleted_ms IS NULL"
    row = tx.execute(sql, (name,)).fetchone()
    return None if row is None else _topic(row)


def by_id(tx: ReadTx, topic_id: int) -> Topic | None:
    """The topic of this id, deleted or not; None: there never was one.

    Only the id is known of a deleted one whose rows have gone (``space/leftovers.py``).
    """
    there = row_of(tx, topic_id)
    if there is not None:
        return there
    (last,) = tx.execute("SELECT last_topic_id FROM state WHERE id = 1").fetchone()
    if not 0 < topic_id <= last:
        return None
    return Topic(topic_id, f"(id {topic_id})", TopicConfig(), 0, deleted_ms=0)


def row_of(tx: ReadTx, topic_id: int) -> Topic | None:
    """The topic of this id, deleted or not, if its row is there."""
    sql = f"SELECT {_COLUMNS} FROM topics WHERE topic_id = ?"
    row = tx.execute(sql, (topic_id,)).fetchone()
    return None if row is None else _topic(row)


def page(tx: ReadTx, after_name: str = "", limit: int = 1_000) -> list[Topic]:
    """Live topics after ``after_name`` by name, a page at a time."""
    rows = tx.execute(
        f"SELECT {_COLUMNS} FROM topics WHERE deleted_ms IS NULL AND name > ?"
        " ORDER BY name LIMIT ?",
        (after_name, limit),
    )
    return [_topic(row) for row in rows]


def secrets_ids(tx: ReadTx) -> set[str]:
    """The ids of the secrets that hooks of live topics are signed with."""
    rows = tx.execute(
        "SELECT config FROM topics WHERE deleted_ms IS NULL AND config LIKE '%\"secrets_id\"%'"
    )
    hooks = [_config_decoder.decode(config).hook for (config,) in rows.fetchall()]
    return {each.secrets_id for each in hooks if each is not None}


def changed_since(tx: ReadTx, version: int, limit: int) -> tuple[int, list[Topic]]:
    """The topics that changed after a catalog version, deleted ones too, in the order of their
    changes, at most ``limit``; and the version up to which that is all."""
    rows = tx.execute(
        f"SELECT {_COLUMNS}, changed FROM topics WHERE changed > ? ORDER BY changed LIMIT ?",
        (version, limit),
    ).fetchall()
    now = rows[-1][-1] if len(rows) == limit else catalog_version(tx)
    return max(now, version), [_topic(row[:-1]) for row in rows]


def _topic(row: Any) -> Topic:
    topic_id, name, config, created_ms, deleted_ms, table = row
    decoded = _config_decoder.decode(config)
    return Topic(topic_id, name, decoded, created_ms, deleted_ms, table or "")


def _check_partitions(name: str, present: int, wanted: int) -> None:
    if wanted < max(present, 1) or wanted > PARTITIONS_MAX:
        raise PartitionsRefused(name, present, wanted, PARTITIONS_MAX)


def _check_all_partitions(tx: ReadTx, name: str, more: int, maximum: int | None) -> None:
    if maximum is None or not more:
        return
    (present,) = tx.execute("SELECT partitions FROM state WHERE id = 1").fetchone()
    if present + more > maximum:
        raise PartitionsFull(name, present, more, maximum)


def _add_partitions(tx: WriteTx, topic_id: int, start: int, stop: int) -> None:
    tx.executemany(
        "INSERT INTO partitions"
        " (topic_id, partition, next_seq, earliest_seq, count, bytes, max_timestamp_ms, deleted)"
        " VALUES (?, ?, 1, 1, 0, 0, ?, 0)",
        [(topic_id, partition, TIMESTAMP_MIN_MS) for partition in range(start, stop)],
    )
    _count(tx, stop - start)


def _delete_partitions(tx: WriteTx, topic_id: int) -> None:
    gone = tx.execute(
        "UPDATE partitions SET deleted = 1 WHERE topic_id = ? AND deleted = 0", (topic_id,)
    )
    _count(tx, -gone.rowcount)


def _count(tx: WriteTx, more: int) -> None:
    """Counting the rows would take 10 ms with 100,000."""
    tx.execute("UPDATE state SET partitions = partitions + ? WHERE id = 1", (more,))


def _note_growth(tx: WriteTx, topic_id: int, first: int) -> None:
    """Notes the heads, which bound the subscriptions of the topic: these have changed, too."""
    rows = tx.execute(
        "SELECT next_seq - 1 FROM partitions WHERE topic_id = ? ORDER BY partition", (topic_id,)
    )
    heads = msgspec.json.encode([row[0] for row in rows]).decode()
    tx.execute(
        "INSERT INTO partition_growth (topic_id, first_partition, heads) VALUES (?, ?, ?)",
        (topic_id, first, heads),
    )
    tx.execute(
        "UPDATE subscriptions SET changed = ? WHERE topic_id = ? AND deleted_ms IS NULL",
        (changes.following(tx), topic_id),
    )


def growth(tx: ReadTx, topic_id: int) -> list[tuple[int, list[int]]]:
    """When partitions were added, oldest first: the first of them, and the last offsets that those
    before it had then."""
    rows = tx.execute(
        "SELECT first_partition, heads FROM partition_growth WHERE topic_id = ?"
        " ORDER BY first_partition",
        (topic_id,),
    )
    return [(first, _heads_decoder.decode(heads)) for first, heads in rows]


def catalog_version(tx: ReadTx) -> int:
    """A number that changes with each change of topics; one primary-key read."""
    return int(tx.execute("SELECT catalog_version FROM state WHERE id = 1").fetchone()[0])


def touch(tx: WriteTx, topic_id: int) -> None:
    """Raises the catalog version and notes it in the topic: news for the owner's log."""
    tx.execute("UPDATE state SET catalog_version = catalog_version + 1 WHERE id = 1")
    tx.execute(
        "UPDATE topics SET changed = (SELECT catalog_version FROM state WHERE id = 1)"
        " WHERE topic_id = ?",
        (topic_id,),
    )
