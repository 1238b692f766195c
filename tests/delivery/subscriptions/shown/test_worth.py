"""Drainable lag at a subscription's owner: what no consumer can drain does not ask for one."""

from __future__ import annotations

import threading

from delivery.subscriptions.requests import Describe, Resend, RetryKey
from ledger.delivery import subscriptions
from ledger.delivery.subscriptions import Subscription
from tests.delivery.node import Node
from tests.delivery.subscriptions.owning import Owner, S, messages, record, started_owner
from uploader.stores.base import StoreError


async def lags(owner: Owner, made: Subscription) -> tuple[int, int]:
    """Lag and drainable lag."""
    await owner.ask(Describe(made.subscription_id))
    await owner.rest()  # a new owner sends nothing before its first flush
    state = await owner.ask(Describe(made.subscription_id))
    return state["lag"], state["drainable_lag"]


async def test_each_key_counts_once_and_what_a_consumer_has_counts(node: Node) -> None:
    async with started_owner(node) as owner:
        made = owner.create()
        client = await owner.consume(made, "c")
        owner.produce(*(record(n, f"k{n % 3}") for n in range(30)))
        await owner.rest()
        assert len(messages(client)) == 3
        assert await lags(owner, made) == (30, 3)
        await owner.ack(made, "c", *messages(client)[:3])
        assert await lags(owner, made) == (27, 3)


async def test_a_hot_key_asks_for_one_consumer_however_long_its_backlog_is(node: Node) -> None:
    async with started_owner(node) as owner:
        made = owner.create()
        await owner.consume(made, "c")
        for _ in range(5):
            owner.produce(*(record(n, "hot") for n in range(100)))
        await owner.rest()
        assert await lags(owner, made) == (500, 1)


async def test_messages_without_a_key_count_each(node: Node) -> None:
    async with started_owner(node) as owner:
        made = owner.create()
        await owner.consume(made, "c")
        owner.produce(*(record(n) for n in range(30)))
        await owner.rest()
        assert await lags(owner, made) == (30, 30)


async def test_a_blocked_key_asks_for_nobody_until_it_goes_on(node: Node) -> None:
    async with started_owner(node) as owner:
        made = owner.create(redeliveries_max=0)
        client = await owner.consume(made, "c")
        owner.produce(*(record(n, "poison") for n in range(10)))
        await owner.rest()
        await owner.nack(made, "c", messages(client)[0])
        assert await lags(owner, made) == (10, 0)
        await owner.ask(RetryKey(made.subscription_id, "poison"))
        assert await lags(owner, made) == (10, 1)


async def test_a_key_that_rests_after_a_failure_asks_for_nobody_meanwhile(node: Node) -> None:
    async with started_owner(node) as owner:
        made = owner.create(backoff_ms=(1_000, 1_000))
        client = await owner.consume(made, "c")
        owner.produce(*(record(n, "k") for n in range(10)), record(10))
        await owner.rest()
        await owner.nack(made, "c", *messages(client))
        assert await lags(owner, made) == (11, 0)
        await owner.later(1)
        assert await lags(owner, made) == (11, 2)


async def test_what_no_filter_matches_asks_for_nobody_but_without_consumers_it_does(
    node: Node,
) -> None:
    async with started_owner(node) as owner:
        made = owner.create()
        client = await owner.consume(made, "c", "a*")
        owner.produce(*(record(n, f"b{n}") for n in range(10)), record(10, "a"), record(11))
        await owner.rest()
        assert await lags(owner, made) == (12, 1)
        await owner.ack(made, "c", *messages(client))
        assert await lags(owner, made) == (11, 0)
        client.go()
        await owner.later(3)
        assert await lags(owner, made) == (11, 11)


async def test_without_a_consumer_that_has_looked_a_backlog_asks_for_one(node: Node) -> None:
    async with started_owner(node) as owner:
        made = owner.create()
        assert await lags(owner, made) == (0, 0)
        owner.produce(*(record(n, f"k{n}") for n in range(50)))
        assert await lags(owner, made) == (50, 1)
        await owner.consume(made, "c")
        assert await lags(owner, made) == (50, 50)


async def test_while_consumers_have_enough_the_rest_counts_at_most_as_much(node: Node) -> None:
    async with started_owner(node) as owner:
        made = owner.create(consumer_max=10)
        await owner.consume(made, "c")
        for first in range(0, 1_000, 100):
            owner.produce(*(record(n, f"k{n}") for n in range(first, first + 100)))
            await owner.rest()
        lag, drainable = await lags(owner, made)
        assert lag == 1_000 and 20 <= drainable <= 600


async def test_exclusive_asks_for_one_consumer_and_for_none_while_a_message_is_blocked(
    node: Node,
) -> None:
    async with started_owner(node) as owner:
        made = owner.create(mode="exclusive", redeliveries_max=0, consumer_max=2)
        for first in range(0, 1_000, 100):
            owner.produce(*(record(n) for n in range(first, first + 100)))
        assert await lags(owner, made) == (1_000, 1)
        client = await owner.consume(made, "c")
        assert await lags(owner, made) == (1_000, 1)
        await owner.nack(made, "c", messages(client)[1])
        assert await lags(owner, made) == (1_000, 1), "the first one is still to be acknowledged"
        await owner.ack(made, "c", messages(client)[0])
        assert await lags(owner, made) == (999, 0)


async def test_what_is_not_tracked_asks_for_nobody(node: Node) -> None:
    async with started_owner(node) as owner:
        made = owner.create(reliable=False)
        owner.produce(*(record(n) for n in range(10)))
        await owner.rest()
        assert (await lags(owner, made))[1] == 0


async def test_while_the_store_cannot_be_read_nobody_is_asked_for_also_between_the_attempts(
    node: Node,
) -> None:
    for first in range(0, 900, 300):  # more than the rings keep
        node.produce(0, {0: [record(n) for n in range(first, first + 300)]})
        node.commit(0)
    answer = threading.Event()
    answer.set()

    def refuse() -> None:
        assert answer.wait(60)
        raise StoreError("the store does not answer", retryable=True)

    async with started_owner(node) as owner:
        made = owner.create()
        node.store.before = refuse
        client = await owner.consume(made, "c")
        assert await lags(owner, made) == (900, 0)
        node.store.asked.clear()
        answer.clear()
        owner.now_ns += S
        owner.subscriptions.look()
        await owner.until(node.store.asked.is_set)
        state = await owner.ask(Describe(made.subscription_id))
        assert state["drainable_lag"] == 0, "the next attempt is under way"
        assert "does not answer" in state["held"]
        node.store.before = lambda: None
        answer.set()
        await owner.rest()
        await owner.later(1)
        assert messages(client)
        assert (await lags(owner, made))[1] > 0
        assert (await owner.ask(Describe(made.subscription_id)))["held"] == ""


async def test_while_it_is_paused_nothing_is_sent_and_nobody_is_asked_for(node: Node) -> None:
    async with started_owner(node) as owner:
        made = owner.create(paused=True)
        client = await owner.consume(made, "c")
        owner.produce(*(record(n) for n in range(10)))
        await owner.rest()
        assert messages(client) == []
        assert await lags(owner, made) == (10, 0)
        owner.node.ledger.write(subscriptions.alter, owner.node.topic.name, "s", {"paused": False})
        owner.changes += 1
        owner.subscriptions.look()
        await owner.rest()
        assert len(messages(client)) == 10
        assert await lags(owner, made) == (10, 10)


async def test_shared_counts_each_message_and_not_those_that_failed(node: Node) -> None:
    async with started_owner(node) as owner:
        made = owner.create(mode="shared", redeliveries_max=0)
        client = await owner.consume(made, "c")
        owner.produce(*(record(n, "hot") for n in range(10)))
        await owner.rest()
        assert await lags(owner, made) == (10, 10)
        await owner.nack(made, "c", *messages(client)[:3])
        assert await lags(owner, made) == (10, 7)


async def test_a_resent_message_counts_while_records_wait_for_a_consumer(node: Node) -> None:
    async with started_owner(node) as owner:
        made = owner.create()
        client = await owner.consume(made, "c")
        owner.produce(record(7, "a"))
        await owner.rest()
        await owner.ack(made, "c", *messages(client))
        client.go()
        await owner.later(30)
        owner.produce(record(8, "b"))
        await owner.rest()
        await owner.ask(Resend(made.subscription_id, (0, 1)))
        assert await lags(owner, made) == (1, 2)
