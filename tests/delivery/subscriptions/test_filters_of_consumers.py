"""Filters of consumers at the owner: they follow what the consumer last asked for, and the mode."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from delivery.subscriptions.requests import Describe, OwnerRefused, Poll
from delivery.subscriptions.running import RunningSubscription
from delivery.subscriptions.window.members import HashRing
from ledger.delivery import subscriptions
from ledger.delivery.subscriptions import Subscription
from tests.delivery.node import Node
from tests.delivery.subscriptions.owning import Owner, messages, record, started_owner


async def polled(owner: Owner, made: Subscription, *filters: str) -> list[Any]:
    """The keys that one poll of ``c`` gives."""
    asked = asyncio.ensure_future(
        owner.ask(Poll(made.subscription_id, "c", list(filters), 10, 1_000))
    )
    await owner.rest()
    if not asked.done():
        await owner.later(1)
    return [message.get("key") for message in (await asked)["messages"]]


async def change_mode(owner: Owner, mode: str) -> None:
    owner.node.ledger.write(subscriptions.alter, owner.node.topic.name, "s", {"mode": mode})
    owner.changes += 1
    owner.subscriptions.look()
    await owner.rest()


async def test_a_poll_with_other_filters_gets_other_keys(node: Node) -> None:
    async with started_owner(node) as owner:
        made = owner.create()
        owner.produce(record(1, "a"), record(2, "b"), record(3, "c"))
        assert await polled(owner, made, "a") == ["a"]
        assert await polled(owner, made, "b", "c") == ["b", "c"]
        (consumer,) = (await owner.ask(Describe(made.subscription_id)))["consumers"]
        assert consumer["filters"] == ["b", "c"]
        # What it had of other keys waits for a consumer that wants it.
        assert sorted(await polled(owner, made)) == ["a", "b", "c"]


@pytest.mark.parametrize("filters", [("*",), ("z", "**")])
async def test_the_filter_of_everything_takes_messages_without_a_key_too(
    node: Node, filters: tuple[str, ...]
) -> None:
    async with started_owner(node) as owner:
        made = owner.create()
        owner.produce(record(1, "a"), record(2))
        assert await polled(owner, made, *filters) == ["a", None]
        (consumer,) = (await owner.ask(Describe(made.subscription_id)))["consumers"]
        assert consumer["filters"] == list(filters)


@pytest.mark.parametrize("mode", ["shared", "exclusive"])
async def test_a_mode_without_filters_lets_consumers_with_filters_go(node: Node, mode: str) -> None:
    async with started_owner(node) as owner:
        made = owner.create()
        chooses = await owner.consume(made, "chooses", "a*")
        takes_all = await owner.consume(made, "all")
        await change_mode(owner, mode)
        assert chooses.closed and not takes_all.closed
        assert chooses.events[-1]["code"] == "invalid"
        assert f"its mode is {mode}; leave filter out" in chooses.events[-1]["message"]
        owner.produce(record(1, "a"))
        await owner.rest()
        assert [message["key"] for message in messages(takes_all)] == ["a"]
        with pytest.raises(OwnerRefused, match="filters choose keys"):
            await polled(owner, made, "a*")


async def test_a_poller_with_filters_is_refused_after_the_mode_has_changed(node: Node) -> None:
    async with started_owner(node) as owner:
        made = owner.create()
        owner.produce(record(1, "a"), record(2, "b"))
        assert await polled(owner, made, "a*") == ["a"]
        await change_mode(owner, "shared")
        with pytest.raises(OwnerRefused) as refused:
            await polled(owner, made, "a*")
        assert (refused.value.status, refused.value.code) == (400, "invalid")
        assert await polled(owner, made) == ["a", "b"]


@pytest.mark.parametrize("reliable", [True, False])
async def test_a_turn_compares_no_more_keys_with_many_patterns_than_it_may_take(
    node: Node, monkeypatch: pytest.MonkeyPatch, reliable: bool
) -> None:
    compared: set[str] = set()
    turns: list[int] = []
    accepts, serve = HashRing.accepts, RunningSubscription.serve

    def counted(ring: HashRing, consumer: str, key: str) -> bool:
        compared.add(key)
        return accepts(ring, consumer, key)

    def served(self: RunningSubscription, *given: Any) -> tuple[int, bool]:
        compared.clear()
        found = serve(self, *given)
        turns.append(len(compared))
        return found

    monkeypatch.setattr(HashRing, "accepts", counted)
    monkeypatch.setattr(RunningSubscription, "serve", served)

    async with started_owner(node) as owner:
        made = owner.create(reliable=reliable)
        client = await owner.consume(made, "c", "k*", *("?y" * 500 for _ in range(60)))
        owner.produce(*(record(n, f"k{n}" + "y" * 1_000) for n in range(12)))
        await owner.later(1)
        assert len(messages(client)) == 12
        assert sum(turns) == 12 and max(turns) == 1, "one key is as much as a turn may take"
