"""Operators deal with many blocked messages in one request."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from delivery.subscriptions import repairs
from delivery.subscriptions.requests import (
    BlockedWhere,
    Describe,
    MessageRef,
    Nack,
    RepairBlocked,
    RetryKey,
    Seek,
    SkipKey,
)
from delivery.subscriptions.schemas import RepairedMessages
from ledger import topics
from ledger.delivery.subscriptions import Subscription
from ledger.types import TopicConfig
from tests.delivery.node import Node
from tests.delivery.subscriptions.owning import Owner, messages, record, started_owner
from tests.delivery.watch.watching import Client


async def failed(owner: Owner, **config: Any) -> tuple[Subscription, Client]:
    """Ten keys of two partitions and two messages without, all of which failed: with the reason 503
    in partition 0, 400 in partition 1. A second message of each key waits."""
    made = owner.create(**({"redeliveries_max": 0} | config))
    client = await owner.consume(made, "c")
    for partition in (0, 1):
        keys = [
            f"{word}-{partition}{n}" for word, count in (("a", 3), ("b", 2)) for n in range(count)
        ]
        for _ in range(2):
            owner.produce(*(record(key, key) for key in keys), partition=partition)
        owner.produce(record("loose"), partition=partition)
    await owner.rest()
    for partition, why in ((0, "said 503"), (1, "said 400")):
        refs = [
            MessageRef(partition, each["seq"], each["epoch"])
            for each in messages(client) if each["partition"] == partition
        ]  # fmt: skip
        await owner.ask(Nack(made.subscription_id, "c", refs, [], 0, why))
    return made, client


async def repaired(owner: Owner, made: Subscription, *, retry: bool, **where: Any) -> Any:
    asked = RepairBlocked(made.subscription_id, retry, BlockedWhere(**where))
    found = await owner.ask(asked)
    await owner.rest()
    return found


def again(client: Client, before: int) -> list[str]:
    return sorted(str(each["data"]) for each in messages(client)[before:])


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({}, 12),
        ({"partition": 1}, 6),
        ({"key": "a-*"}, 6),
        ({"key": "?-?1", "reason": "*503"}, 2),
        ({"reason": "*400", "partition": 0}, 0),
        ({"key": "*"}, 10),
    ],
)
async def test_blocked_messages_that_match_all_conditions_are_sent_again(
    node: Node, where: dict[str, Any], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repairs, "LOT", 4)

    async with started_owner(node) as owner:
        made, client = await failed(owner)
        before = len(messages(client))
        assert before == 12
        found = await repaired(owner, made, retry=True, **where)
        assert found == {"repaired": expected, "moving": 0}
        assert len(again(client, before)) == expected
        assert {each["attempt"] for each in messages(client)[before:]} <= {1}
        state = await owner.ask(Describe(made.subscription_id))
        assert (state["blocked_keys"], state["skipped"]) == (12 - expected, 0)


async def test_blocked_messages_that_are_skipped_are_finished_and_counted_apart(node: Node) -> None:
    async with started_owner(node) as owner:
        made, client = await failed(owner)
        found = await repaired(owner, made, retry=False, reason="*503")
        assert found == {"repaired": 6, "moving": 0}
        assert again(client, 12) == ["a-00", "a-01", "a-02", "b-00", "b-01"], "what follows"
        state = await owner.ask(Describe(made.subscription_id))
        assert (state["skipped"], state["dropped"], state["lag"]) == (6, 0, 22 - 6)


async def test_what_rests_is_repaired_only_if_that_is_asked_for(node: Node) -> None:
    async with started_owner(node) as owner:
        made, client = await failed(owner, redeliveries_max=3)
        assert (await repaired(owner, made, retry=False))["repaired"] == 0
        assert (await repaired(owner, made, retry=True, resting=True))["repaired"] == 12
        assert len(messages(client)) == 24


async def test_what_is_blocked_again_during_a_repair_is_not_touched_twice(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repairs, "LOT", 1)

    async with started_owner(node) as owner:
        made, client = await failed(owner)
        asked = asyncio.ensure_future(repaired(owner, made, retry=True))
        while not asked.done():
            await owner.nack(made, "c", *messages(client)[12:])
        assert (await asked)["repaired"] == 12
        assert len(messages(client)) == 24


async def test_what_somebody_else_has_dealt_with_meanwhile_does_not_count(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repairs, "LOT", 6)

    async with started_owner(node) as owner:
        made, client = await failed(owner)
        running = owner.subscriptions._running[made.subscription_id]
        repair = repairs._Repair(running, RepairBlocked(made.subscription_id, True, BlockedWhere()))
        lots = repair.lots()
        repair.settle(next(lots))
        await owner.ask(SkipKey(made.subscription_id, "b-11"))
        await owner.ask(RetryKey(made.subscription_id, "b-10"))
        await owner.rest()
        (retried,) = [each for each in messages(client)[12:] if each["data"] == "b-10"]
        await owner.nack(made, "c", retried)
        repair.settle(next(lots))
        assert repair.result == RepairedMessages(10, 0), "one is blocked for another reason now"


async def test_a_repair_ends_with_a_seek(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repairs, "LOT", 1)

    async with started_owner(node) as owner:
        made, client = await failed(owner)
        running = owner.subscriptions._running[made.subscription_id]
        asked = RepairBlocked(made.subscription_id, False, BlockedWhere())
        lots = repairs._Repair(running, asked).lots()
        assert len(list(next(lots))) == 1
        await owner.ask(Seek(made.subscription_id, {0: 0, 1: 0}))
        await owner.rest()
        await owner.nack(made, "c", *messages(client)[12:])
        assert (await owner.ask(Describe(made.subscription_id)))["blocked_keys"] == 12
        assert list(lots) == [], "those of the new generation were not meant"


async def test_dead_letters_on_their_way_are_left_alone(node: Node) -> None:
    node.ledger.write(topics.create, "dead", TopicConfig(), 1)

    async with started_owner(node) as owner:
        made, _ = await failed(owner, poison="dead_letter", dead_letter_topic="dead")
        found = await repaired(owner, made, retry=True)
        assert found["moving"] == owner.outbox.appended > 0
        assert found["repaired"] + found["moving"] == 12
