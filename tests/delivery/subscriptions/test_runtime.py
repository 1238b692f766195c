"""An owner serves consumers from rings and objects, and finishes only what they acknowledge."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from delivery.pipes.server import Asker
from delivery.reading.blocks import Blocks, Loaded
from delivery.subscriptions import running
from delivery.subscriptions.consumers import Session
from delivery.subscriptions.requests import (
    Consume,
    Describe,
    DescribeKey,
    Leave,
    MessageRef,
    Nack,
    OwnerRefused,
    Poll,
)
from delivery.subscriptions.window.failures import NEVER_NS
from delivery.subscriptions.window.windows import policy_of
from ledger.delivery import subscriptions
from ledger.delivery.push_settings import PushSettings
from ledger.delivery.subscriptions import SubscriptionConfig
from tests.delivery.node import Node
from tests.delivery.subscriptions.owning import Owner, data, messages, record, run, started_owner
from tests.delivery.watch.watching import Client
from uploader.l0.records import Record


@pytest.mark.parametrize("field", ["key", "tag", "node", "meta"])
async def test_a_batch_is_short_where_records_are_long_in_any_part(
    node: Node, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    monkeypatch.setattr(running, "WRITE_BYTES", 2_000)

    async with started_owner(node) as owner:
        made = owner.create()
        long = [f'"{n}{"x" * 1000}"' for n in range(6)]
        owner.produce(*(msgspec.structs.replace(Record("1"), **{field: text}) for text in long))
        client = await owner.consume(made, "c")
        epochs = [message["epoch"] for message in messages(client)]
        assert [epochs.count(epoch) for epoch in sorted(set(epochs))] == [2, 2, 2]


async def test_a_message_is_sent_once_and_finished_when_it_is_acknowledged(node: Node) -> None:
    async with started_owner(node) as owner:
        made = owner.create()
        owner.produce(record(1, "a"), record(2, "b"), record(3, "a"))
        client = await owner.consume(made, "c")
        first, second = messages(client)
        assert [first["data"], second["data"]] == [1, 2], "3 waits for 1, whose key it has"
        assert (first["attempt"], first["epoch"]) == (1, second["epoch"])
        assert (await owner.ask(Describe(made.subscription_id)))["lag"] == 3
        assert (await owner.ack(made, "c", first, second))["accepted"] == 2
        assert data(client) == [1, 2, 3]
        assert (await owner.ack_batch(made, "c", messages(client)[2]["epoch"]))["accepted"] == 1
        state = await owner.ask(Describe(made.subscription_id))
        assert (state["lag"], state["acknowledged"], state["delivered"]) == (0, 3, 3)
        assert state["partitions"][0]["floor"] == 3


async def test_what_is_written_later_comes_from_the_rings(node: Node) -> None:
    async with started_owner(node) as owner:
        made = owner.create(start="latest")
        client = await owner.consume(made, "c")
        gets = len(node.store.gets)
        owner.produce(*(record(n) for n in range(50)))
        await owner.rest()
        assert data(client) == list(range(50))
        assert len(node.store.gets) == gets


async def test_a_backlog_in_the_store_is_sent_in_order(node: Node) -> None:
    for first in range(0, 900, 300):
        node.produce(0, {0: [record(n, f"k{n % 70}") for n in range(first, first + 300)]})
        node.commit(0)

    async with started_owner(node) as owner:
        made = owner.create()
        client = await owner.consume(made, "c")
        acknowledged = 0
        while acknowledged < len(messages(client)):
            new = messages(client)[acknowledged:]
            acknowledged += len(new)
            await owner.ack(made, "c", *new)
        assert sorted(map(int, map(str, data(client)))) == list(range(900))
        for key in range(70):
            of_key = [n for n in data(client) if isinstance(n, int) and n % 70 == key]
            assert of_key == sorted(of_key)


def test_consumers_that_go_through_a_backlog_load_it_once(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.produce(0, {0: [record(n) for n in range(300)]})
    node.commit(0)
    node.produce(0, {0: [record(n) for n in range(300, 600)]})
    node.commit(0)
    began: list[object] = []
    load = Blocks.load

    async def counted(self: Blocks, *asked: Any) -> Loaded:
        began.append(asked)
        return await load(self, *asked)

    monkeypatch.setattr(Blocks, "load", counted)

    async def use(owner: Owner) -> None:
        made = owner.create(mode="shared", paused=True)
        clients = [await owner.consume(made, name) for name in "abcd"]
        topic = node.topic.name
        node.ledger.write(subscriptions.alter, topic, made.name, {"paused": False})
        owner.changes += 1
        owner.subscriptions.look()
        await owner.rest()
        assert {n for client in clients for n in data(client)} == set(range(600))
        assert all(len(data(client)) > 100 for client in clients)

    run(node, use)
    assert len(began) <= 2, "a load brings what follows, too"


async def test_a_stream_that_ends_gives_back_what_it_had(node: Node) -> None:
    async with started_owner(node) as owner:
        made = owner.create()
        first = await owner.consume(made, "a")
        owner.produce(record(1), record(2))
        await owner.rest()
        assert data(first) == [1, 2]
        second = await owner.consume(made, "b")
        first.go()
        await owner.later(1)
        assert data(second) == [], "it may come back"
        await owner.later(2.1)
        assert data(second) == [1, 2]
        assert [message["attempt"] for message in messages(second)] == [1, 1]
        late = await owner.ack(made, "a", *messages(first))
        assert (late["accepted"], late["refused"]) == (0, 2)


async def test_a_consumer_that_comes_back_gets_what_it_had_again(node: Node) -> None:
    async with started_owner(node) as owner:
        made = owner.create()
        first = await owner.consume(made, "a")
        owner.produce(record(1, "k"))
        await owner.rest()
        again = await owner.consume(made, "a")
        assert first.closed and first.events[-1]["code"] == "replaced"
        assert data(again) == [1]
        assert (await owner.ack(made, "a", *messages(first)))["accepted"] == 0
        assert (await owner.ack(made, "a", *messages(again)))["accepted"] == 1


async def test_a_stream_that_is_replaced_is_told_in_its_own_format(node: Node) -> None:
    async with started_owner(node) as owner:
        made = owner.create()
        first = await owner.consume(made, "a")
        other = Consume(made.subscription_id, "a", [], "text/event-stream")
        owner.subscriptions.open(other, Client())
        assert first.closed and first.events[-1]["code"] == "replaced"


async def test_a_client_that_takes_nothing_gets_nothing_more_and_harms_nobody(node: Node) -> None:
    async with started_owner(node) as owner:
        made = owner.create(mode="shared")
        stuck = await owner.consume(made, "stuck", client=Client(stuck=True))
        other = await owner.consume(made, "other")
        owner.produce(record(0), record(1))
        await owner.rest()
        for n in range(2, 20):
            owner.produce(record(n))
            await owner.rest()
        assert len(data(stuck)) == 1
        assert len(data(other)) == 19
        stuck.take()
        owner.produce(record(20), record(21))
        await owner.rest()
        assert len(data(stuck)) == 2


async def test_a_refused_message_comes_again_after_its_rest(node: Node) -> None:
    async with started_owner(node) as owner:
        made = owner.create(backoff_ms=(1_000, 60_000))
        client = await owner.consume(made, "c")
        owner.produce(record(1, "k"), record(2, "k"))
        await owner.rest()
        await owner.nack(made, "c", *messages(client))
        key = await owner.ask(DescribeKey(made.subscription_id, "k"))
        assert (key["state"], key["attempts"], key["reason"]) == ("resting", 1, "no")
        assert key["until_ms"] == key["since_ms"] + 1_000
        await owner.later(0.9)
        assert data(client) == [1]
        await owner.later(0.2)
        assert data(client) == [1, 1]
        assert messages(client)[-1]["attempt"] == 2


async def test_an_uncounted_nack_of_a_sender_changes_no_attempts_and_tells_the_last_batch(
    node: Node,
) -> None:
    async with started_owner(node) as owner:
        made = owner.create(mode="exclusive", redeliveries_max=0)
        client = await owner.consume(made, "c")
        owner.produce(record(1), record(2))
        await owner.rest()
        first, second = messages(client)
        ref = MessageRef(first["partition"], first["seq"], first["epoch"])
        asked = Nack(made.subscription_id, "c", [ref], [], 2_000, "503", is_counted=False)
        answer = await owner.ask(asked)
        assert (answer["accepted"], answer["epoch"]) == (1, second["epoch"])
        await owner.later(1.9)
        assert data(client) == [1, 2]
        await owner.later(0.2)
        assert data(client) == [1, 2, 1, 2]
        assert {each["attempt"] for each in messages(client)} == {1}
        assert messages(client)[-1]["epoch"] > answer["epoch"]


def test_the_window_of_a_push_subscription_knows_its_senders() -> None:
    push = PushSettings("http://receiver.example/", senders=3)
    config = SubscriptionConfig(consumer_max=10, window_max=100, push=push)
    assert policy_of(config).in_flight_max == 30, "as much as its senders may have, at rest too"
    assert policy_of(config).ack_timeout_ns == NEVER_NS
    assert policy_of(SubscriptionConfig(window_max=100)).in_flight_max == 100


async def test_a_poll_waits_for_a_message_and_gets_at_most_as_many_as_it_asks_for(
    node: Node,
) -> None:
    async with started_owner(node) as owner:
        made = owner.create()
        asked = asyncio.ensure_future(owner.ask(Poll(made.subscription_id, "p", [], 2, 5_000)))
        await owner.until(lambda: len(owner.subscriptions) == 1)
        owner.produce(record(1), record(2), record(3))
        await owner.rest()
        found = await asked
        assert [message["data"] for message in found["messages"]] == [1, 2]
        assert (await owner.ack_batch(made, "p", found["epoch"]))["accepted"] == 2
        asked = asyncio.ensure_future(owner.ask(Poll(made.subscription_id, "p", [], 10, 5_000)))
        assert [message["data"] for message in (await asked)["messages"]] == [3]
        asked = asyncio.ensure_future(owner.ask(Poll(made.subscription_id, "p", [], 10, 1_000)))
        await asyncio.sleep(0)
        await owner.later(1)
        assert await asked == {"epoch": None, "messages": [], "gaps": []}
        assert (await owner.ask(Leave(made.subscription_id, "p")))["returned"] == 1


@pytest.mark.parametrize("mode", ["exclusive", "key_shared", "shared"])
async def test_what_a_lost_answer_had_comes_again_before_what_follows(
    node: Node, mode: str
) -> None:
    async with started_owner(node) as owner:
        made = owner.create(mode=mode)
        poll = Poll(made.subscription_id, "p", [], 2, 0)
        dead, alive = Asker(), Asker()

        async def polled(asker: Asker) -> tuple[int, list[object]]:
            found = json.loads(await owner.subscriptions.poll(poll, asker))
            assert {each["attempt"] for each in found["messages"]} == {1}, "nothing has failed"
            return found["epoch"], [each["data"] for each in found["messages"]]

        owner.produce(*(record(number) for number in range(1, 9)))
        await owner.ask(Describe(made.subscription_id))
        await owner.rest()
        lost, data = await polled(dead)
        assert data == [1, 2]
        dead.is_gone = True
        again, data = await polled(alive)
        assert data == [1, 2] and again > lost
        assert (await owner.ack_batch(made, "p", lost))["accepted"] == 0
        assert (await polled(dead))[1] == [3, 4], "a poller may have several batches"
        assert (await owner.ack_batch(made, "p", again))["accepted"] == 2
        assert (await polled(dead))[1] == [3, 4], "of the last one nothing was said"


async def test_a_batch_of_which_anything_is_acknowledged_was_not_lost(node: Node) -> None:
    async with started_owner(node) as owner:
        made = owner.create(mode="exclusive")
        poll, dead = Poll(made.subscription_id, "p", [], 2, 0), Asker()
        owner.produce(record(1), record(2), record(3))
        await owner.ask(Describe(made.subscription_id))
        await owner.rest()
        found = json.loads(await owner.subscriptions.poll(poll, dead))
        dead.is_gone = True
        await owner.ack(made, "p", {**found["messages"][1], "epoch": found["epoch"]})
        found = json.loads(await owner.subscriptions.poll(poll, Asker()))
        assert [each["data"] for each in found["messages"]] == [3]


async def test_a_poll_that_is_cancelled_with_its_answer_loses_nothing(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started_owner(node) as owner:
        made = owner.create(mode="exclusive")
        asked = asyncio.ensure_future(owner.ask(Poll(made.subscription_id, "p", [], 2, 5_000)))
        await owner.until(lambda: len(owner.subscriptions) == 1)
        answer = Session.answer

        def cancelled(session: Session, body: bytes) -> None:
            answer(session, body)
            asked.cancel()  # before it has seen the answer

        with monkeypatch.context() as patched:
            patched.setattr(Session, "answer", cancelled)
            owner.produce(record(1), record(2), record(3))
            await owner.rest()
            await owner.until(asked.done)
        assert asked.cancelled()
        found = await owner.ask(Poll(made.subscription_id, "p", [], 2, 0))
        assert [each["data"] for each in found["messages"]] == [1, 2]


async def test_a_poller_that_says_nothing_for_the_timeout_is_gone(node: Node) -> None:
    async with started_owner(node) as owner:
        made = owner.create(ack_timeout_ms=10_000)
        owner.produce(record(1))
        await owner.ask(Describe(made.subscription_id))
        await owner.rest()
        found = await owner.ask(Poll(made.subscription_id, "p", [], 10, 0))
        assert len(found["messages"]) == 1
        await owner.later(9)
        assert len((await owner.ask(Describe(made.subscription_id)))["consumers"]) == 1
        await owner.later(2)
        assert (await owner.ask(Describe(made.subscription_id)))["consumers"] == []
        again = await owner.ask(Poll(made.subscription_id, "q", [], 10, 0))
        assert [message["attempt"] for message in again["messages"]] == [1]


async def test_a_poller_that_acknowledges_is_there_for_another_timeout(node: Node) -> None:
    async with started_owner(node) as owner:
        made = owner.create(ack_timeout_ms=10_000)
        owner.produce(record(1))
        await owner.ask(Describe(made.subscription_id))
        await owner.rest()
        found = await owner.ask(Poll(made.subscription_id, "p", [], 10, 0))
        await owner.later(8)
        await owner.ack(made, "p", *found["messages"])
        await owner.later(8)
        assert len((await owner.ask(Describe(made.subscription_id)))["consumers"]) == 1
        await owner.later(3)
        assert (await owner.ask(Describe(made.subscription_id)))["consumers"] == []


async def test_a_poll_that_waited_for_longer_than_the_timeout_keeps_what_it_is_answered_with(
    node: Node,
) -> None:
    async with started_owner(node) as owner:
        made = owner.create(ack_timeout_ms=10_000)
        await owner.ask(Describe(made.subscription_id))
        long = asyncio.ensure_future(owner.ask(Poll(made.subscription_id, "p", [], 10, 60_000)))
        await asyncio.sleep(0)
        await owner.later(25)
        owner.produce(record(1, "k"))
        await owner.rest()
        found = await long
        assert [each["data"] for each in found["messages"]] == [1]
        other = asyncio.ensure_future(owner.ask(Poll(made.subscription_id, "q", [], 10, 0)))
        await asyncio.sleep(0)
        await owner.later(9)
        assert (await other)["messages"] == [], "two consumers would have one key"
        assert (await owner.ack_batch(made, "p", found["epoch"]))["accepted"] == 1


async def test_a_client_that_goes_while_its_poll_waits_is_gone_after_the_timeout(
    node: Node,
) -> None:
    async with started_owner(node) as owner:
        made = owner.create(ack_timeout_ms=10_000)
        await owner.ask(Describe(made.subscription_id))
        asked = asyncio.ensure_future(owner.ask(Poll(made.subscription_id, "p", [], 10, 60_000)))
        await asyncio.sleep(0)
        await owner.later(5)
        asked.cancel()
        for after_s, present in ((0, 1), (9, 1), (2, 0)):
            await owner.later(after_s)
            assert len((await owner.ask(Describe(made.subscription_id)))["consumers"]) == present


async def test_a_deleted_subscription_ends_its_streams_and_refuses(node: Node) -> None:
    async with started_owner(node) as owner:
        made = owner.create()
        client = await owner.consume(made, "c")
        node.ledger.write(subscriptions.delete, node.topic.name, "s", 2)
        owner.changes += 1
        await owner.later(0.1)
        assert client.closed and client.events[-1]["code"] == "deleted"
        with pytest.raises(OwnerRefused, match="deleted"):
            await owner.ask(Describe(made.subscription_id))


async def test_an_unreliable_subscription_drops_what_a_slow_consumer_does_not_take(
    node: Node,
) -> None:
    async with started_owner(node) as owner:
        made = owner.create(reliable=False, consumer_max=5, start="latest")
        slow = await owner.consume(made, "slow", client=Client(stuck=True))
        quick = await owner.consume(made, "quick")
        keys = [f"k{n}" for n in range(40)]
        for key in keys:
            owner.produce(record(key, key))
            await owner.rest()
        slow.take()
        await owner.rest()
        state = await owner.ask(Describe(made.subscription_id))
        assert len(data(slow)) == 1 + 5, "one was written, others wait up to a limit"
        assert state["delivered"] == len(data(slow)) + len(data(quick)) < len(keys)
        assert (state["lag"], state["in_flight"]) == (0, 0)
        assert state["partitions"][0]["floor"] == len(keys)


async def test_what_is_not_tracked_is_passed_over_and_counted_while_there_is_no_consumer(
    node: Node,
) -> None:
    async with started_owner(node) as owner:
        made = owner.create(reliable=False)
        await owner.later(0)
        owner.produce(record("old", "a"), record("older", "b"))
        await owner.rest()
        state = await owner.ask(Describe(made.subscription_id))
        assert (state["lag"], state["unmatched"], state["dropped"]) == (0, 2, 0)
        client = await owner.consume(made, "c")
        owner.produce(record("new", "a"))
        await owner.rest()
        assert data(client) == ["new"]


async def test_the_filters_of_all_consumers_together_are_limited(node: Node) -> None:
    async with started_owner(node) as owner:
        made = owner.create()
        filters = [f"{n}" * 500 for n in range(10, 70)]
        await owner.consume(made, "c", *filters)
        with pytest.raises(OwnerRefused, match="use fewer or shorter ones") as refused:
            await owner.consume(made, "d", *filters)
        assert (refused.value.status, refused.value.code) == (429, "too_many_filters")
        await owner.consume(made, "c", *filters)  # it comes again
        await owner.consume(made, "d")
