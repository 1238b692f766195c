"""Subscriptions: who shares the records of a topic, by which rules, and what is finished.

Lifecycle of a subscription: created -> changed or sought, any number of times -> deleted, by itself
or with its topic, and its cursor with it. Its row goes later (``space/leftovers.py``). It is bound
to the id of its topic, and to that of its topic of dead letters.

- Each subscription has a cursor of the kind ``subscription``. Its position in a partition is the
  *floor*: this offset and all before it are finished (``progress.py``).
- Where it begins is resolved to offsets in the transaction that creates it, so no commit falls
  between the two.
- Dead letters go where no record comes back from (``copy_paths.py``).
- ``slot`` is its place in the shared segment; no two live subscriptions have the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from ledger import changes, cursors, notes, reads, topics
from ledger.delivery import copy_paths, progress, start_offsets
from ledger.delivery.push_settings import PushSettings, problem_of
from ledger.delivery.start_offsets import SubscriptionStart
from ledger.delivery.subscription_errors import (
    DeadLetterCycle,
    SubscriptionMissing,
    SubscriptionRefused,
    SubscriptionsFull,
)
from ledger.delivery.subscription_rules import SubscriptionRules
from ledger.errors import TopicMissing
from ledger.tx import ReadTx, WriteTx
from ledger.types import SUBSCRIPTIONS_MAX, PartitionState, Topic

CONSUMERS_MAX = 1_000  # of a subscription
# A note: the last id whose row is not there any more (ledger/space/leftovers.py).
LAST_ID_NOTE = "last_subscription_id"


class SubscriptionConfig(SubscriptionRules, frozen=True, forbid_unknown_fields=True):
    """All settings of a subscription."""

    push: PushSettings | None = None


class Subscription(Struct, frozen=True):
    """A subscription. Ids are never used twice."""

    subscription_id: int
    name: str
    topic_id: int
    config: SubscriptionConfig
    created_ms: int
    deleted_ms: int | None
    cursor_id: int
    slot: int
    dead_letter_id: int | None = None

    @property
    def generation(self) -> int:
        """Grows with each seek, which gives it another cursor; nothing of an older one counts."""
        return self.cursor_id


class PartitionGrowth(Struct, frozen=True):
    """The partitions from ``first_partition`` on were added when those before it had ``heads``.

    A key may have moved to a new partition, so the order of its records goes on there only after
    what is up to these heads.
    """

    first_partition: int
    heads: list[int]


class SubscriptionView(Struct, frozen=True):
    """A subscription with its topic and, by partition, (floor, state) as of one moment; and what
    its floors have not passed of the topic's growth, oldest first."""

    subscription: Subscription
    topic: Topic
    partitions: list[tuple[int, PartitionState]]
    dead_letter: Topic | None = None
    growth: list[PartitionGrowth] = []


_COLUMNS = (
    "subscription_id, name, topic_id, config, created_ms, deleted_ms, cursor_id, slot,"
    " dead_letter_id"
)
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(SubscriptionConfig)


def create(
    tx: WriteTx,
    topic_name: str,
    name: str,
    config: SubscriptionConfig,
    start: SubscriptionStart,
    now_ms: int,
) -> Subscription:
    """A new subscription; the topic has none of this name.

    Raises TopicMissing, SubscriptionRefused, DeadLetterCycle, SubscriptionsFull, CursorsFull.
    """
    topic = _topic(tx, topic_name)
    dead_letter_id = _dead_letter(tx, topic, name, config)
    _check(name, config)
    slot = _free_slot(tx)
    floors = start_offsets.floors_at(tx, topic.topic_id, name, start)
    cursor_name = f"subscription/{topic.topic_id}/{name}"
    cursor, _ = cursors.create(tx, cursor_name, "subscription", now_ms)
    cursors.move(
        tx, {(cursor.cursor_id, partition): floor for partition, floor in floors.items() if floor}
    )
    (last,) = tx.execute("SELECT coalesce(max(subscription_id), 0) FROM subscriptions").fetchone()
    made = Subscription(
        1 + max(last, notes.number(tx, LAST_ID_NOTE)), name, topic.topic_id, config, now_ms, None,
        cursor.cursor_id, slot, dead_letter_id,
    )  # fmt: skip
    tx.execute(
        f"INSERT INTO subscriptions ({_COLUMNS}, changed) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            made.subscription_id, name, made.topic_id, _encoder.encode(config).decode(), now_ms,
            None, made.cursor_id, slot, dead_letter_id, changes.following(tx),
        ),
    )  # fmt: skip
    progress.number_after_namesakes(tx, made.subscription_id, topic_name, name)
    return made


def alter(tx: WriteTx, topic_name: str, name: str, wanted: Mapping[str, Any]) -> Subscription:
    """Changes the settings that are given, by field, as values of their types.

    A topic of dead letters that is named again is looked up again: it may be another one of the
    same name. Raises TopicMissing, SubscriptionMissing, SubscriptionRefused, DeadLetterCycle.
    """
    topic = _topic(tx, topic_name)
    present = _live(tx, topic, name)
    config = msgspec.structs.replace(present.config, **wanted)
    if not config.paused:
        config = msgspec.structs.replace(config, paused_because="")
    _check(name, config)
    dead_letter_id = present.dead_letter_id
    if "dead_letter_topic" in wanted:
        dead_letter_id = _dead_letter(tx, topic, name, config)
    changed = msgspec.structs.replace(present, config=config, dead_letter_id=dead_letter_id)
    if changed != present:
        _store(tx, changed)
    return changed


def pause(tx: WriteTx, subscription_id: int, endpoint: str, because: str) -> Subscription | None:
    """Pauses a subscription whose receiver wants no more, and says why; an operator must resume it.

    None, and nothing is changed: it does not live, is paused, or is pushed elsewhere by now.
    """
    present = _by_id(tx, subscription_id)
    if present is None or present.config.paused:
        return None
    if present.config.push is None or present.config.push.endpoint != endpoint:
        return None
    config = msgspec.structs.replace(present.config, paused=True, paused_because=because)
    paused = msgspec.structs.replace(present, config=config)
    _store(tx, paused)
    return paused


def seek(
    tx: WriteTx, subscription_id: int, floors: Mapping[int, int], now_ms: int
) -> Subscription | None:
    """Goes on after these floors, by partition; the others stay where they are. It has another
    generation then, and nothing above its floors is finished. None: it does not live."""
    present = _by_id(tx, subscription_id)
    if present is None:
        return None
    at = {each.partition: each.seq for each in cursors.positions(tx, present.cursor_id)}
    cursor_id = progress.restart(tx, present.cursor_id, at | dict(floors), now_ms)
    tx.execute(
        "UPDATE subscriptions SET cursor_id = ?, changed = ? WHERE subscription_id = ?",
        (cursor_id, changes.following(tx), subscription_id),
    )
    return msgspec.structs.replace(present, cursor_id=cursor_id)


def delete(tx: WriteTx, topic_name: str, name: str, now_ms: int) -> Subscription:
    """The deleted subscription. Its dead letters on their way are void, because its cursor is gone.

    Raises TopicMissing, SubscriptionMissing.
    """
    present = _live(tx, _topic(tx, topic_name), name)
    progress.end(tx, present.subscription_id, present.cursor_id, now_ms)
    return msgspec.structs.replace(present, deleted_ms=now_ms)


def find(tx: ReadTx, topic_id: int, name: str) -> Subscription | None:
    """The live subscription of this name."""
    row = tx.execute(
        f"SELECT {_COLUMNS} FROM subscriptions"
        " WHERE topic_id = ? AND name = ? AND deleted_ms IS NULL",
        (topic_id, name),
    ).fetchone()
    return None if row is None else _subscription(row)


def page(
    tx: ReadTx, topic_id: int, after_name: str = "", limit: int = SUBSCRIPTIONS_MAX
) -> list[Subscription]:
    """Live subscriptions of a topic after ``after_name`` by name."""
    rows = tx.execute(
        f"SELECT {_COLUMNS} FROM subscriptions"
        " WHERE topic_id = ? AND name > ? AND deleted_ms IS NULL ORDER BY name LIMIT ?",
        (topic_id, after_name, limit),
    )
    return [_subscription(row) for row in rows.fetchall()]


def view(tx: ReadTx, topic_id: int, name: str) -> SubscriptionView | None:
    """The live subscription of this name with its topics and floors."""
    found = find(tx, topic_id, name)
    return None if found is None else _view(tx, found)


def views(
    tx: ReadTx, topic_id: int, after_name: str = "", limit: int = SUBSCRIPTIONS_MAX
) -> list[SubscriptionView]:
    """Live subscriptions of a topic after ``after_name`` by name, with their topics and floors."""
    return [_view(tx, each) for each in page(tx, topic_id, after_name, limit)]


def all_views(
    tx: ReadTx, after_id: int = 0, limit: int = SUBSCRIPTIONS_MAX
) -> list[SubscriptionView]:
    """Live subscriptions of all topics after an id, in the order of ids."""
    rows = tx.execute(
        f"SELECT {_COLUMNS} FROM subscriptions"
        " WHERE subscription_id > ? AND deleted_ms IS NULL ORDER BY subscription_id LIMIT ?",
        (after_id, limit),
    )
    return [_view(tx, each) for each in map(_subscription, rows.fetchall())]


def owned(
    tx: ReadTx, shard: int, shards: int, after: int = 0, also: Iterable[int] = ()
) -> tuple[int, list[SubscriptionView]]:
    """The subscriptions of a shard that changed after a change number, deleted ones included, and
    those with the ids ``also`` whose rows are there; and the number of the last change.

    Ids are given one after the other, so the remainder spreads subscriptions evenly. A flush is not
    a change.
    """
    found = _changed(tx, "subscription_id % ? = ?", (shards, shard), after, also)
    return changes.latest(tx), [_view(tx, each) for each in found]


def changed(
    tx: ReadTx, after: int = 0, also: Iterable[int] = ()
) -> tuple[int, list[tuple[Subscription, Topic]]]:
    """As ``owned``, of all shards, each with its topic only."""
    there = []
    for each in _changed(tx, "1", (), after, also):
        topic = topics.by_id(tx, each.topic_id)
        assert topic is not None  # rows of topics stay
        there.append((each, topic))
    return changes.latest(tx), there


def last_change(tx: ReadTx, topic_id: int) -> int:
    """The number of the last change of a topic's live subscriptions; 0 without one."""
    (number,) = tx.execute(
        "SELECT coalesce(max(changed), 0) FROM subscriptions"
        " WHERE topic_id = ? AND deleted_ms IS NULL",
        (topic_id,),
    ).fetchone()
    return int(number)


def _changed(
    tx: ReadTx, which: str, values: tuple[int, ...], after: int, also: Iterable[int]
) -> Iterable[Subscription]:
    rows = tx.execute(
        f"SELECT {_COLUMNS} FROM subscriptions WHERE changed > ? AND {which}"
        " ORDER BY subscription_id",
        (after, *values),
    )
    found = {each.subscription_id: each for each in map(_subscription, rows.fetchall())}
    sql = f"SELECT {_COLUMNS} FROM subscriptions WHERE subscription_id = ?"
    for subscription_id in also:
        row = tx.execute(sql, (subscription_id,)).fetchone()
        if row is not None:
            found[subscription_id] = _subscription(row)
    return found.values()


def secrets_ids(tx: ReadTx) -> set[str]:
    """The ids of the secrets that live subscriptions have; at most SUBSCRIPTIONS_MAX."""
    rows = tx.execute("SELECT config FROM subscriptions WHERE deleted_ms IS NULL")
    settings = [_decoder.decode(config).push for (config,) in rows.fetchall()]
    return {each.secrets_id for each in settings if each is not None and each.secrets_id}


def _store(tx: WriteTx, changed: Subscription) -> None:
    tx.execute(
        "UPDATE subscriptions SET config = ?, dead_letter_id = ?, changed = ?"
        " WHERE subscription_id = ?",
        (
            _encoder.encode(changed.config).decode(), changed.dead_letter_id,
            changes.following(tx), changed.subscription_id,
        ),
    )  # fmt: skip


def _check(name: str, config: SubscriptionConfig) -> None:
    first_ms, last_ms = config.backoff_ms
    if first_ms > last_ms:
        raise SubscriptionRefused(
            name, "backoff_ms", f"is [{first_ms}, {last_ms}]; the first must not be above the last"
        )
    if config.poison == "dead_letter" and config.dead_letter_topic is None:
        raise SubscriptionRefused(
            name, "dead_letter_topic", 'is null, but the poison policy is "dead_letter"; name one'
        )
    if config.push is None:
        return
    problem = problem_of(config.push)
    if problem is not None:
        raise SubscriptionRefused(name, f"push.{problem.field}", problem.says)


def _dead_letter(tx: ReadTx, topic: Topic, name: str, config: SubscriptionConfig) -> int | None:
    if config.dead_letter_topic is None:
        return None
    dest = _topic(tx, config.dead_letter_topic)
    names = copy_paths.cycle(tx, topic.topic_id, dest.topic_id)
    if names is not None:
        raise DeadLetterCycle(name, names)
    return dest.topic_id


def _free_slot(tx: ReadTx) -> int:
    rows = tx.execute("SELECT slot FROM subscriptions WHERE deleted_ms IS NULL")
    taken = {row[0] for row in rows}
    if len(taken) >= SUBSCRIPTIONS_MAX:
        raise SubscriptionsFull(SUBSCRIPTIONS_MAX)
    return next(slot for slot in range(SUBSCRIPTIONS_MAX) if slot not in taken)


def _view(tx: ReadTx, subscription: Subscription) -> SubscriptionView:
    topic = topics.by_id(tx, subscription.topic_id)
    assert topic is not None  # rows of topics stay
    dead_letter = None
    if subscription.dead_letter_id is not None:
        dead_letter = topics.by_id(tx, subscription.dead_letter_id)
    at = {each.partition: each.seq for each in cursors.positions(tx, subscription.cursor_id)}
    states = reads.partition_states(tx, subscription.topic_id)
    growth = [
        PartitionGrowth(first, heads)
        for first, heads in topics.growth(tx, subscription.topic_id)
        if any(at.get(partition, 0) < head for partition, head in enumerate(heads))
    ]
    floors = [(at.get(state.partition, 0), state) for state in states]
    return SubscriptionView(subscription, topic, floors, dead_letter, growth)


def _live(tx: ReadTx, topic: Topic, name: str) -> Subscription:
    found = find(tx, topic.topic_id, name)
    if found is None:
        raise SubscriptionMissing(topic.name, name)
    return found


def _by_id(tx: ReadTx, subscription_id: int) -> Subscription | None:
    row = tx.execute(
        f"SELECT {_COLUMNS} FROM subscriptions WHERE subscription_id = ? AND deleted_ms IS NULL",
        (subscription_id,),
    ).fetchone()
    return None if row is None else _subscription(row)


def _topic(tx: ReadTx, name: str) -> Topic:
    topic = topics.find(tx, name)
    if topic is None:
        raise TopicMissing(name)
    return topic


def _subscription(row: Any) -> Subscription:
    subscription_id, name, topic_id, config, *columns = row
    return Subscription(subscription_id, name, topic_id, _decoder.decode(config), *columns)
