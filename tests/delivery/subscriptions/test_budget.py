"""What subscriptions of a shard take together is limited, and none stops another."""

from __future__ import annotations

import msgspec
import pytest

from delivery.subscriptions.budget import (
    BESIDES_BYTES_MAX,
    LITTLE_BYTES,
    LITTLE_QUEUED_BYTES,
    LITTLE_SENT,
    LITTLE_SENT_BYTES,
    LookAheadBudget,
    MembersBudget,
    QueuedBudget,
)
from delivery.subscriptions.requests import (
    Describe,
    ListKeys,
    MessageRef,
    Nack,
    OwnerRefused,
    SkipKey,
)
from delivery.subscriptions.window.failures import BLOCKED_BYTES
from delivery.subscriptions.window.members import MEMBER_BYTES
from ledger.delivery import subscriptions
from tests.delivery.node import Node
from tests.delivery.subscriptions.owning import data, messages, record, started_owner
from tests.delivery.watch.watching import Client


def test_above_the_limit_nobody_queues_but_a_little() -> None:
    budget = QueuedBudget(1 << 20)
    budget.note(1, 1 << 19)
    assert budget.allows(1) and budget.allows(2)
    budget.note(1, 1 << 20)
    assert not budget.allows(1)
    assert budget.allows(2), "it has nothing yet"
    budget.note(2, LITTLE_QUEUED_BYTES)
    assert not budget.allows(2)
    budget.note(1, 1 << 19)
    assert budget.allows(1) and budget.allows(2)
    assert budget.taken == (1 << 19) + LITTLE_QUEUED_BYTES


def test_consumers_have_room_up_to_the_limit() -> None:
    budget = MembersBudget(100)
    budget.note(1, 60)
    assert budget.allows(40) and not budget.allows(41)


def test_a_subscription_that_ends_gives_back_what_it_took() -> None:
    budget = LookAheadBudget(100)
    budget.note(1, 100)
    assert budget.is_full
    budget.forget(1)
    budget.forget(2)
    assert budget.taken == 0 and not budget.is_full


async def test_a_hot_key_that_fills_the_memory_is_named_and_others_go_on(node: Node) -> None:
    async with started_owner(node) as owner:
        made, other = owner.create(), owner.create("other")
        owner.subscriptions.budgets.look_ahead.bytes_max = 0
        for _ in range(30):
            owner.produce(*(record(n, f"k{n}" if n < 16 else "hot") for n in range(64)))
        await owner.consume(made, "c")
        state = await owner.ask(Describe(made.subscription_id))
        assert "nothing more is read ahead" in state["held"] and "'hot'" in state["held"]
        assert state["lag"] > state["in_flight"] + state["waiting"]
        assert data(await owner.consume(other, "c")), "another one has its part"
        owner.subscriptions.budgets.look_ahead.bytes_max = 1 << 20
        await owner.later(1)
        state = await owner.ask(Describe(made.subscription_id))
        assert (state["held"], state["lag"]) == ("", state["in_flight"] + state["waiting"])


OTHERS = 1 << 20  # an id that no subscription has


@pytest.mark.parametrize(("length", "turns", "each"), [(8, 8, 60), (1_024, 12, 6)])
@pytest.mark.parametrize("fails", [False, True], ids=["waits", "fails"])
async def test_what_each_has_whatever_others_take_is_what_is_printed(
    node: Node, length: int, turns: int, each: int, fails: bool
) -> None:
    """Keys of four bytes a character; each message of another one."""

    async with started_owner(node) as owner:
        budgets = owner.subscriptions.budgets
        budgets.look_ahead.note(OTHERS, 1 << 40)
        budgets.sent.note(OTHERS, 1 << 40)
        made = owner.create(redeliveries_max=0)
        clients = [await owner.consume(made, f"c{number}") for number in range(3)]
        for turn in range(turns):
            keys = [f"{turn}-{n}-".ljust(length, "\U0001f600") for n in range(each)]
            owner.produce(*(record(n, key) for n, key in enumerate(keys)))
            await owner.rest()
            for number, client in enumerate(clients):
                if fails and messages(client):
                    await owner.nack(made, f"c{number}", *messages(client))
                    client.data, client.writes = b"", []
        own = budgets.look_ahead.taken - (1 << 40)
        assert LITTLE_BYTES / 8 < own <= LITTLE_BYTES
        sent = budgets.sent.taken - (1 << 40)
        assert LITTLE_SENT_BYTES / 8 < sent <= LITTLE_SENT_BYTES
        assert fails or all(messages(client) for client in clients)
        assert (await owner.ask(Describe(made.subscription_id)))["held"]


async def test_long_keys_of_blocked_messages_take_no_more_than_is_there(node: Node) -> None:
    async with started_owner(node) as owner:
        owner.subscriptions.budgets.look_ahead.bytes_max = 300_000 - BESIDES_BYTES_MAX
        made = owner.create(redeliveries_max=0)
        client = await owner.consume(made, "c")
        for turn in range(30):
            owner.produce(*(record(n, f"{turn}-{n}" + "x" * 1_000) for n in range(20)))
            await owner.rest()
            await owner.nack(made, "c", *messages(client))
            client.data, client.writes = b"", []
        assert 300_000 < owner.subscriptions.budgets.look_ahead.taken < 330_000
        state = await owner.ask(Describe(made.subscription_id))
        assert "nothing more is read ahead" in state["held"]
        assert 200 < state["blocked_keys"] < 300, "besides them it had a little"


async def test_what_is_sent_and_blocked_is_limited_and_others_go_on(node: Node) -> None:
    async with started_owner(node) as owner:
        budgets = owner.subscriptions.budgets
        budgets.sent.bytes_max = 200 * BLOCKED_BYTES
        made, other = owner.create(redeliveries_max=0), owner.create("other")
        for _ in range(30):
            owner.produce(*(record(n) for n in range(20)))
        client = await owner.consume(made, "c")
        await owner.nack(made, "c", *messages(client))
        state = await owner.ask(Describe(made.subscription_id))
        assert "nothing more is sent" in state["held"]
        assert budgets.sent.taken < 500 * BLOCKED_BYTES
        assert len(messages(await owner.consume(other, "c"))) == LITTLE_SENT
        budgets.sent.bytes_max = 1_000 * BLOCKED_BYTES
        await owner.later(1)
        assert (await owner.ask(Describe(made.subscription_id)))["held"] == ""


async def test_a_long_reason_is_cut_when_memory_is_used_up(node: Node) -> None:
    async with started_owner(node) as owner:
        made = owner.create(redeliveries_max=0)
        owner.produce(record(1, "a"), record(2, "b"))
        client = await owner.consume(made, "c")
        reason = "\U0001f600" * 255
        for each in messages(client):
            asked = [MessageRef(0, each["seq"], each["epoch"])]
            await owner.ask(Nack(made.subscription_id, "c", asked, [], 0, reason))
            owner.subscriptions.budgets.sent.bytes_max = 0
        state = await owner.ask(Describe(made.subscription_id))
        assert [len(each["reason"]) for each in state["blocked"]] == [255, 40]


async def test_what_waits_for_consumers_of_an_unreliable_subscription_is_limited(
    node: Node,
) -> None:
    async with started_owner(node) as owner:
        owner.subscriptions.budgets.look_ahead.bytes_max = 0
        made = owner.create(reliable=False, consumer_max=1_000_000, start="latest")
        await owner.consume(made, "slow", client=Client(stuck=True))
        for _ in range(10):
            owner.produce(*(record(n, f"k{n}") for n in range(60)))
            await owner.rest()
        await owner.later(1)
        assert owner.subscriptions.budgets.look_ahead.taken <= LITTLE_BYTES
        state = await owner.ask(Describe(made.subscription_id))
        assert state["dropped"] > 200


async def test_consumers_and_their_filters_take_nothing_from_what_others_read_ahead(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started_owner(node) as owner:
        owner.subscriptions.budgets.look_ahead.bytes_max = 1 << 20
        filtered, other = owner.create(), owner.create("other")
        for number in range(4):  # 4 x 4 MB
            filters = [f"{number}{n}" * 200 for n in range(10, 34)]
            await owner.consume(filtered, f"c{number}", *filters)
        for _ in range(10):
            owner.produce(*(record(n, f"{n}") for n in range(60)))
        client = await owner.consume(other, "c")
        assert len(messages(client)) == 60, "one of each key"
        state = await owner.ask(Describe(other.subscription_id))
        assert (state["held"], state["in_flight"] + state["waiting"]) == ("", 600)


async def test_a_little_for_each_is_enough_for_many_consumers(node: Node) -> None:
    async with started_owner(node) as owner:
        owner.subscriptions.budgets.look_ahead.bytes_max = 0  # others take it all
        made = owner.create()
        clients = [await owner.consume(made, f"c{number}") for number in range(6)]
        owner.produce(*(record(n, f"k{n}") for n in range(200)))
        await owner.rest()
        assert sorted(n for client in clients for n in map(int, map(str, data(client)))) == list(
            range(200)
        )
        owner.subscriptions.budgets.sent.bytes_max = 0
        for number, client in enumerate(clients):
            await owner.ack(made, f"c{number}", *messages(client))
            client.data, client.writes = b"", []
        owner.produce(*(record(n, f"k{n}") for n in range(200)))
        await owner.rest()
        sent = [len(messages(client)) for client in clients]
        assert sent == [LITTLE_SENT // 6] * 6


async def test_who_stands_by_takes_no_part_of_the_little_that_may_be_sent(node: Node) -> None:
    async with started_owner(node) as owner:
        owner.subscriptions.budgets.sent.bytes_max = 0
        made = owner.create(mode="exclusive")
        clients = [await owner.consume(made, f"c{number}") for number in range(3)]
        for _ in range(4):
            owner.produce(*(record(n) for n in range(60)))
            await owner.rest()
        assert [len(messages(client)) for client in clients] == [LITTLE_SENT, 0, 0]
        assert "nothing more is sent" in (await owner.ask(Describe(made.subscription_id)))["held"]


async def test_consumers_of_all_subscriptions_together_are_limited(node: Node) -> None:
    async with started_owner(node) as owner:
        made, other = owner.create(), owner.create("other")
        owner.subscriptions.budgets.members.bytes_max = 2 * MEMBER_BYTES
        await owner.consume(made, "a")
        second = await owner.consume(other, "b")
        with pytest.raises(OwnerRefused, match="consumers of all subscriptions") as refused:
            await owner.consume(made, "c")
        assert (refused.value.status, refused.value.code) == (429, "too_many_consumers")
        await owner.consume(made, "a")  # it comes again
        second.go()
        await owner.later(4)
        await owner.consume(made, "c")
        node.ledger.write(subscriptions.delete, node.topic.name, made.name, 2)
        owner.changes += 1
        await owner.later(0.1)
        assert owner.subscriptions.budgets.members.taken == 0


@pytest.mark.parametrize("name", ["\u00e9", "\u044f", "\U0001f600"])
async def test_a_text_that_was_encoded_meanwhile_gives_back_what_it_took(
    node: Node, name: str
) -> None:
    """A key or a reason that is not of ASCII keeps its UTF-8 when it is encoded."""

    async with started_owner(node) as owner:
        budgets, made = owner.subscriptions.budgets, owner.create(redeliveries_max=0)
        client = await owner.consume(made, "c")
        for turn in range(3):
            owner.produce(*(record(n, f"{turn}-{n}-{name * 200}") for n in range(4)))
            await owner.rest()
            refs = [MessageRef(0, each["seq"], each["epoch"]) for each in messages(client)]
            await owner.ask(Nack(made.subscription_id, "c", refs, [], 0, name * 255))
            client.data, client.writes = b"", []
            blocked = (await owner.ask(ListKeys(made.subscription_id, 10)))["keys"]
            assert len(msgspec.json.encode(blocked)) > 4 * 255
            for each in blocked:
                await owner.ask(SkipKey(made.subscription_id, each["key"]))
        await owner.later(1)
        assert (budgets.look_ahead.taken, budgets.sent.taken) == (0, 0)
