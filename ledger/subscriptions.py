"""Subscriptions: who shares the records of a topic, by which rules, and what is finished.

Lifecycle of a subscription: created -> changed or sought, any number of times -> deleted, by itself
or with its topic. Its row stays, its cursor goes with it. It is bound to the id of its topic, and
to that of its topic of dead letters.

- Each subscription has a cursor of the kind ``subscription``. Its position in a partition is the
  *floor*: this offset and all before it are finished (``progress.py``).
- Where it begins is resolved to offsets in the transaction that creates it, so no commit falls
  between the two.
- Dead letters go where no record comes back from (``copy_paths.py``).
- ``slot`` is its place in the shared segment; no two live subscriptions have the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from ledger import changes, copy_paths, cursors, progress, reads, start_offsets, topics
from ledger.errors import TopicMissing
from ledger.push_settings import PushSettings
from ledger.start_offsets import SubscriptionStart
from ledger.subscription_errors import (
    DeadLetterCycle,
    SubscriptionMissing,
    SubscriptionRefused,
    SubscriptionsFull,
)
from ledger.tx import ReadTx, WriteTx
from ledger.types import PartitionState, Topic

SUBSCRIPTIONS_MAX = 1_024  # of a daemon; each has a row of the shared segment
CONSUMERS_MAX = 1_000  # of a subscription

Mode = Literal["key_shared", "shared", "exclusive"]
Poison = Literal["block", "drop", "dead_letter"]
Unmatched = Literal["hold", "skip"]


Milliseconds = Annotated[int, Meta(ge=1, le=86_400_000)]


class SubscriptionConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a subscription."""

    mode: Annotated[
        Mode,
        Meta(
            description="`key_shared`: consumers share the keys, and each key is in order;"
            " `shared`: they share all messages, without an order; `exclusive`: one gets everything"
            " in order, the others stand by"
        ),
    ] = "key_shared"
    reliable: Annotated[
        bool,
        Meta(
            description="false: nothing is acknowledged or sent again, and what a consumer does not"
            " take immediately is dropped"
        ),
    ] = True
    ack_timeout_ms: Annotated[
        Milliseconds,
        Meta(description="how long a consumer may take for a message; then it is sent again"),
    ] = 30_000
    redeliveries_max: Annotated[
        int,
        Meta(ge=0, le=1_000, description="how often a message is sent again, before `poison`"),
    ] = 5
    backoff_ms: Annotated[
        tuple[Milliseconds, Milliseconds],
        Meta(
            description="how long a message waits before it is sent again: the first of the two,"
            " each time double, at most the second"
        ),
    ] = (1_000, 60_000)
    poison: Annotated[
        Poison,
        Meta(
            description="what becomes of a message that was sent too often: `block` (its key waits"
            " for `retry` or `skip`), `drop`, or `dead_letter` (copied to `dead_letter_topic`)"
        ),
    ] = "block"
    dead_letter_topic: (
        Annotated[str, Meta(description="a topic that exists; for `poison` = `dead_letter`")] | None
    ) = None
    window_max: Annotated[
        int,
        Meta(ge=1, le=1_000_000, description="messages that all consumers have at a time"),
    ] = 10_000
    consumer_max: Annotated[
        int,
        Meta(ge=1, le=1_000_000, description="messages that one consumer has at a time"),
    ] = 1_000
    unmatched: Annotated[
        Unmatched,
        Meta(
            description="what becomes of a key that no consumer's filter matches: `hold` (it waits"
            " for a consumer), or `skip` (it counts as finished)"
        ),
    ] = "hold"
    paused: Annotated[bool, Meta(description="nothing is sent while it is")] = False
    push: (
        Annotated[PushSettings, Meta(description="the daemon itself sends to this receiver")] | None
    ) = None


class Subscription(Struct, frozen=True):
    """A subscription. Ids are never used twice; a deleted one's row stays."""

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
        last + 1, name, topic.topic_id, config, now_ms, None, cursor.cursor_id, slot, dead_letter_id
    )
    tx.execute(
        f"INSERT INTO subscriptions ({_COLUMNS}, changed) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            made.subscription_id, name, made.topic_id, _encoder.encode(config).decode(), now_ms,
            None, made.cursor_id, slot, dead_letter_id, changes.following(tx),
        ),
    )  # fmt: skip
    return made


def alter(tx: WriteTx, topic_name: str, name: str, wanted: Mapping[str, Any]) -> Subscription:
    """Changes the settings that are given, by field, as values of their types.

    A topic of dead letters that is named again is looked up again: it may be another one of the
    same name. Raises TopicMissing, SubscriptionMissing, SubscriptionRefused, DeadLetterCycle.
    """
    topic = _topic(tx, topic_name)
    present = _live(tx, topic, name)
    config = msgspec.structs.replace(present.config, **wanted)
    _check(name, config)
    dead_letter_id = present.dead_letter_id
    if "dead_letter_topic" in wanted:
        dead_letter_id = _dead_letter(tx, topic, name, config)
    changed = msgspec.structs.replace(present, config=config, dead_letter_id=dead_letter_id)
    if changed != present:
        tx.execute(
            "UPDATE subscriptions SET config = ?, dead_letter_id = ?, changed = ?"
            " WHERE subscription_id = ?",
            (
                _encoder.encode(config).decode(), dead_letter_id, changes.following(tx),
                present.subscription_id,
            ),
        )  # fmt: skip
    return changed


def seek(
    tx: WriteTx, subscription_id: int, floors: Mapping[int, int], now_ms: int
) -> Subscription | None:
    """Goes on after these floors, by partition; the others stay where they are. It has another
    generation then, and nothing above its floors is finished. None: it does not live."""
    row = tx.execute(
        f"SELECT {_COLUMNS} FROM subscriptions WHERE subscription_id = ? AND deleted_ms IS NULL",
        (subscription_id,),
    ).fetchone()
    if row is None:
        return None
    present = _subscription(row)
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
    those with the ids ``also`` that ever were; and the number of the last change.

    Ids are given one after the other, so the remainder spreads subscriptions evenly. A flush is not
    a change.
    """
    rows = tx.execute(
        f"SELECT {_COLUMNS} FROM subscriptions WHERE changed > ? AND subscription_id % ? = ?"
        " ORDER BY subscription_id",
        (after, shards, shard),
    )
    found = {each.subscription_id: each for each in map(_subscription, rows.fetchall())}
    sql = f"SELECT {_COLUMNS} FROM subscriptions WHERE subscription_id = ?"
    for subscription_id in also:
        row = tx.execute(sql, (subscription_id,)).fetchone()
        if row is not None:
            found[subscription_id] = _subscription(row)
    return changes.latest(tx), [_view(tx, each) for each in found.values()]


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


def _topic(tx: ReadTx, name: str) -> Topic:
    topic = topics.find(tx, name)
    if topic is None:
        raise TopicMissing(name)
    return topic


def _subscription(row: Any) -> Subscription:
    subscription_id, name, topic_id, config, *columns = row
    return Subscription(subscription_id, name, topic_id, _decoder.decode(config), *columns)
