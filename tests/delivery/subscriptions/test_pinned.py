"""Subscriptions that an owner cannot run, for lack of room or because the ledger cannot be read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from delivery.reading import followed
from delivery.reading.blocks import Wanted
from delivery.subscriptions.requests import Describe, OwnerRefused, Poll, Seek
from ledger import reads, topics
from ledger.delivery import subscriptions
from ledger.delivery.subscriptions import Subscription, SubscriptionConfig
from ledger.errors import LedgerError
from ledger.types import TopicConfig
from shards.boards.rowboard import RowPhase
from tests.delivery.node import Node
from tests.delivery.subscriptions.owning import Owner, messages, record, started_owner


def elsewhere(owner: Owner, partitions: int = 1) -> Subscription:
    """A subscription of another topic."""
    owner.node.ledger.write(topics.create, "other", TopicConfig(partitions=partitions), 1)
    made = owner.node.ledger.write(
        subscriptions.create, "other", "o", SubscriptionConfig(), "earliest", 1
    )
    owner.changes += 1
    return made


def delete(owner: Owner, topic: str, name: str) -> None:
    owner.node.ledger.write(subscriptions.delete, topic, name, 2)
    owner.changes += 1


def phase(owner: Owner, made: Subscription) -> RowPhase | None:
    row = owner.board.read(made.slot, made.subscription_id)
    return None if row is None else row.phase


async def test_a_subscription_without_room_for_its_partitions_says_so_and_runs_when_there_is(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed, "PINNED_MAX", 3)

    async with started_owner(node) as owner:
        other = elsewhere(owner, partitions=3)
        await owner.later(0.1)
        owner.produce(record(1), record(2))
        made = owner.create()
        await owner.later(0.1)
        state = await owner.ask(Describe(made.subscription_id))
        assert "already keeps the tails of 3 partitions" in state["held"]
        assert (state["lag"], state["partitions"][0]["head_seq"]) == (2, 2)
        row = owner.board.read(made.slot, made.subscription_id)
        assert row is not None
        assert (row.phase, row.reason, row.lag) == (RowPhase.HELD, state["held"], 2)
        with pytest.raises(OwnerRefused, match="already keeps the tails") as refused:
            await owner.ask(Poll(made.subscription_id, "p", [], 1, 0))
        assert (refused.value.status, refused.value.code) == (503, "too_many_partitions")

        delete(owner, "other", other.name)
        for _ in range(2):
            await owner.later(0.1)
        client = await owner.consume(made, "c")
        assert [each["data"] for each in messages(client)] == [1, 2]
        assert (await owner.ask(Describe(made.subscription_id)))["held"] == ""
        await owner.later(1.1)
        assert phase(owner, made) is RowPhase.RUNNING


async def test_partitions_that_are_added_without_room_are_told_of_and_delivered_later(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed, "PINNED_MAX", 6)

    async with started_owner(node) as owner:
        other = elsewhere(owner, partitions=3)
        made = owner.create()
        await owner.later(0.1)
        client = await owner.consume(made, "c")
        grown = msgspec.structs.replace(node.topic.config, partitions=4)
        owner.subscriptions.topic_changed(node.ledger.write(topics.alter, "t", grown))
        await owner.later(0.1)
        owner.produce(record(1))
        owner.produce(record(2), partition=3)
        await owner.rest()
        assert [each["data"] for each in messages(client)] == [1], "the others go on"
        assert "keeps the tails" in (await owner.ask(Describe(made.subscription_id)))["held"]
        delete(owner, "other", other.name)
        for _ in range(2):
            await owner.later(0.1)
        assert [each["data"] for each in messages(client)] == [1, 2]
        assert (await owner.ask(Describe(made.subscription_id)))["held"] == ""


async def test_a_subscription_without_room_for_added_partitions_follows_its_settings_and_seeks(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed, "PINNED_MAX", 6)

    async with started_owner(node) as owner:
        other = elsewhere(owner, partitions=3)
        made = owner.create()
        await owner.later(0.1)
        client = await owner.consume(made, "c")
        for partitions in (4, 5):
            grown = msgspec.structs.replace(node.topic.config, partitions=partitions)
            owner.subscriptions.topic_changed(node.ledger.write(topics.alter, "t", grown))
            owner.produce(record(1))
            await owner.rest()

        async def sent() -> list[int]:
            await owner.later(0.1)
            await owner.rest()
            return [each["data"] for each in messages(client)]

        def alter(**changes: Any) -> None:
            node.ledger.write(subscriptions.alter, "t", "s", changes)
            owner.changes += 1

        assert await sent() == [1, 1]
        alter(paused=True)
        await owner.later(0.1)
        owner.produce(record(2))
        assert await sent() == [1, 1]
        alter(paused=False)
        assert await sent() == [1, 1, 2]
        await owner.ack(made, "c", *messages(client))
        owner.produce(record("passed by the seek"), partition=4)
        await owner.ask(Seek(made.subscription_id, dict.fromkeys(range(4), 0) | {4: 1}))
        assert await sent() == [1, 1, 2] * 2
        alter(mode="shared")
        assert await sent() == [1, 1, 2] * 3
        await owner.ack(made, "c", *messages(client)[-3:])
        state = await owner.ask(Describe(made.subscription_id))
        assert "keeps the tails" in state["held"] and state["lag"] == 0
        owner.produce(record(3), partition=4)
        delete(owner, "other", other.name)
        for _ in range(2):
            await owner.later(0.1)
        assert await sent() == [1, 1, 2] * 3 + [3]
        state = await owner.ask(Describe(made.subscription_id))
        assert (state["held"], state["lag"]) == ("", 1)


async def test_what_is_read_for_one_subscription_is_nothing_to_another_that_has_no_room_yet(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition that was added is delivered by one subscription a heartbeat before the other."""
    monkeypatch.setattr(followed, "PINNED_MAX", 6)

    async with started_owner(node) as owner:
        other = elsewhere(owner, partitions=3)
        made = [owner.create(name) for name in ("a", "b")]
        await owner.later(0.1)
        grown = msgspec.structs.replace(node.topic.config, partitions=4)
        owner.subscriptions.topic_changed(node.ledger.write(topics.alter, "t", grown))
        owner.produce(record(1), partition=3)
        await owner.later(0.1)
        delete(owner, "other", other.name)
        owner.subscriptions.look()
        await owner.subscriptions._changes.asked()
        owner.subscriptions.look()
        await owner.subscriptions._changes.asked()
        there = [owner.subscriptions._running[each.subscription_id] for each in made]
        assert sorted(len(each.window.look_aheads) for each in there) == [3, 4]
        key = node.topic.topic_id, 3
        owner.subscriptions._loading.add(wanted := Wanted(key, 1))
        await owner.subscriptions._load(wanted)
        await owner.subscriptions._look_at_evictions(key)
        for each in made:
            client = await owner.consume(each, "c")
            await owner.later(0.1)
            assert [message["data"] for message in messages(client)] == [1]


async def test_a_subscription_that_is_deleted_while_there_is_no_room_leaves_nothing(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed, "PINNED_MAX", 3)

    async with started_owner(node) as owner:
        elsewhere(owner, partitions=3)
        await owner.later(0.1)
        made = owner.create()
        await owner.later(0.1)
        assert phase(owner, made) is RowPhase.HELD
        delete(owner, "t", "s")
        await owner.later(0.1)
        assert phase(owner, made) is None
        with pytest.raises(OwnerRefused, match="was deleted"):
            await owner.ask(Describe(made.subscription_id))
        again = owner.create()
        await owner.later(0.1)
        assert phase(owner, again) is RowPhase.HELD


async def test_a_head_that_could_not_be_read_is_read_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started_owner(node) as owner:
        owner.produce(record(1), record(2), tell=False)
        monkeypatch.setattr(owner.partitions.followed, "_recent", tuple)  # only the ledger knows
        failing = [1]
        read = owner.ledger.read

        async def fails_once(function: Callable[..., Any], *asked: Any) -> Any:
            if function is reads.partition_state and failing:
                failing.pop()
                raise LedgerError("the disk is full")
            return await read(function, *asked)

        monkeypatch.setattr(owner.ledger, "read", fails_once)
        made = owner.create()
        for _ in range(2):
            await owner.later(0.1)
        assert not failing
        assert (await owner.ask(Describe(made.subscription_id)))["lag"] == 2
        client = await owner.consume(made, "c")
        assert [each["data"] for each in messages(client)] == [1, 2]
