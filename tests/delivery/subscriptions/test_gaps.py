"""Gaps of any width: in front of a subscription, in its middle, past what is in flight."""

from __future__ import annotations

from typing import Any

import pytest

from delivery.subscriptions.requests import Describe
from ledger.delivery import progress, subscriptions
from ledger.log import recovery
from ledger.log.backup import Mark
from ledger.space import retention
from tests.delivery.node import Node
from tests.delivery.subscriptions.owning import Owner, data, messages, record, run, started_owner

GAP = 1_000_000_000
MODES = ("key_shared", "shared", "exclusive")


def skip(node: Node, count: int = GAP) -> None:
    """As a recovery does when it cannot tell what was stored."""
    node.ledger.write(recovery.prepare, Mark(), [], {node.key(): count}, 0, 1)


def store(node: Node, *numbers: int) -> None:
    node.produce(0, {0: [record(n, f"k{n % 3}") for n in numbers]})
    node.commit(0)


def stored_rows(node: Node, made: Any) -> int:
    state = node.ledger.read(progress.state_of, made.subscription_id)
    assert state is not None
    return len(state.rows)


@pytest.mark.parametrize("mode", MODES)
async def test_a_gap_in_front_of_a_subscription_is_passed_over(node: Node, mode: str) -> None:
    skip(node)
    store(node, 1, 2, 3)

    async with started_owner(node) as owner:
        made = owner.create(mode=mode)
        client = await owner.consume(made, "c")
        await owner.take_all(made, client)
        assert data(client) == [1, 2, 3]
        state = await owner.ask(Describe(made.subscription_id))
        assert (state["lag"], state["waiting"], state["evicted"]) == (0, 0, GAP)
        (gap,) = state["gaps"]
        assert (gap["gap_from"], gap["gap_to"], gap["reason"]) == (1, GAP, "recovery")
        assert state["partitions"][0]["floor"] == GAP + 3


@pytest.mark.parametrize("mode", MODES)
def test_a_gap_after_messages_that_wait_is_passed_over_and_stays_so_at_the_next_owner(
    node: Node, mode: str
) -> None:
    store(node, 1, 2)
    skip(node)
    store(node, 3, 4)
    skip(node)
    store(node, 5)
    made: Any = None

    async def first(owner: Owner) -> None:
        nonlocal made
        made = owner.create(mode=mode)
        client = await owner.consume(made, "c")
        got = 0
        while got < len(messages(client)):  # all but the first one
            new = messages(client)[got:]
            got += len(new)
            await owner.ack(made, "c", *(each for each in new if each["data"] != 1))
        left = [1, 4] if mode == "key_shared" else [1]  # the fourth has the key of the first
        assert data(client) == [each for each in (1, 2, 3, 4, 5) if each not in left[1:]]
        state = await owner.ask(Describe(made.subscription_id))
        assert (state["partitions"][0]["floor"], state["lag"]) == (0, len(left))

    async def second(owner: Owner) -> None:
        client = await owner.consume(made, "c")
        await owner.take_all(made, client)
        assert data(client) == ([1, 4] if mode == "key_shared" else [1])
        state = await owner.ask(Describe(made.subscription_id))
        assert (state["lag"], state["partitions"][0]["floor"]) == (0, 2 * GAP + 5)
        assert stored_rows(node, made) <= 1

    run(node, first)
    assert stored_rows(node, made) <= 3, "no row for what was never there"
    run(node, second)


@pytest.mark.parametrize("mode", MODES)
async def test_a_trim_past_a_message_in_flight_takes_nothing_for_what_it_removes(
    node: Node, mode: str
) -> None:
    store(node, 1)

    async with started_owner(node) as owner:
        made = owner.create(mode=mode)
        client = await owner.consume(made, "c")
        skip(node)
        store(node, 2)
        retention.trim(node.ledger, node.topic.name, 0, GAP + 2)
        owner.evictions += 1
        owner.tell()
        await owner.later(0.1)
        assert data(client) == [1, 2]
        await owner.ack(made, "c", messages(client)[1])
        state = await owner.ask(Describe(made.subscription_id))
        assert (state["lag"], state["in_flight"], state["partitions"][0]["floor"]) == (1, 1, 0)
        await owner.ack(made, "c", messages(client)[0])
        state = await owner.ask(Describe(made.subscription_id))
        assert (state["lag"], state["partitions"][0]["floor"]) == (0, GAP + 2)


async def test_another_mode_passes_over_the_same_gap(node: Node) -> None:
    store(node, 1, 2)
    skip(node)
    store(node, 3)

    async with started_owner(node) as owner:
        made = owner.create(mode="shared")
        client = await owner.consume(made, "c")
        await owner.ack(made, "c", *messages(client)[1:])
        node.ledger.write(subscriptions.alter, node.topic.name, made.name, {"mode": "key_shared"})
        owner.changes += 1
        await owner.later(0.1)
        await owner.take_all(made, client)
        assert data(client)[3:] == [1]
        state = await owner.ask(Describe(made.subscription_id))
        assert (state["lag"], state["partitions"][0]["floor"]) == (0, GAP + 3)


async def test_what_a_former_owner_finished_after_a_blocked_message_is_not_read_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: Any = None
    for at in range(0, 10_000, 500):
        node.produce(0, {0: [record(n, f"k{n}") for n in range(at, at + 500)]})
        node.commit(0)

    async with started_owner(node) as owner:
        made = owner.create(window_max=100_000, consumer_max=100_000)
        client = await owner.consume(made, "c")
        got = 0
        while got < len(messages(client)):
            new = messages(client)[got:]
            got += len(new)
            await owner.ack(made, "c", *(each for each in new if each["data"] not in (0, 9_999)))
        assert got == 10_000
    async with started_owner(node) as owner:
        loaded: list[int] = []
        page = owner.partitions.page

        async def counted(*asked: Any, **how: Any) -> Any:
            found = await page(*asked, **how)
            loaded.append(len(found.items))
            return found

        monkeypatch.setattr(owner.partitions, "page", counted)
        client = await owner.consume(made, "c")
        await owner.take_all(made, client)
        assert data(client) == [0, 9_999]
        assert sum(loaded) < 5_000, "of 10,000"
