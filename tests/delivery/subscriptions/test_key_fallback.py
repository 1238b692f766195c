"""With ``key_fallback`` = ``node``, a message without a key is in order with those of its node."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delivery.subscriptions.requests import Describe, DescribeKey, Resend, SkipKey
from delivery.subscriptions.window.messages import Place
from ledger import topics
from ledger.delivery import subscriptions
from ledger.delivery.subscription_rules import SubscriptionRules
from ledger.types import TopicConfig
from tests.delivery.node import Node
from tests.delivery.subscriptions.lives import Lives, Step, steps_of
from tests.delivery.subscriptions.owning import Owner, data, messages, started_owner
from tests.delivery.subscriptions.test_dead_letters import committed, failed
from tests.delivery.watch.watching import Client
from tests.long import examples
from uploader.l0.records import Record

NODE: dict[str, Any] = {"key_fallback": "node"}


def numbers(client: Client) -> list[int]:
    """The data of the messages that a client got."""
    return [each["data"] for each in messages(client)]


def of(number: int, node: str | None = None, key: str | None = None) -> Record:
    return Record(str(number), key=key, node=node)


def alter(owner: Owner, **wanted: Any) -> None:
    owner.node.ledger.write(subscriptions.alter, owner.node.topic.name, "s", wanted)
    owner.changes += 1


async def test_messages_of_a_node_come_one_at_a_time_and_in_order_and_nodes_in_parallel(
    node: Node,
) -> None:
    async with started_owner(node) as owner:
        made = owner.create(**NODE)
        client = await owner.consume(made, "c")
        owner.produce(of(1, "n"), of(2, "n"), of(3, "m"), of(4, None), of(5, None), of(6, "n", "k"))
        await owner.rest()
        assert data(client) == [1, 3, 6, 4, 5], "loose messages come after keys"
        described = await owner.ask(DescribeKey(made.subscription_id, "n"))
        assert (described["state"], described["owner"], described["seq"]) == ("sent", "c", 1)
        await owner.ack(made, "c", messages(client)[0])
        assert data(client)[5:] == [2]


async def test_by_default_messages_without_a_key_wait_for_no_other_one(node: Node) -> None:
    async with started_owner(node) as owner:
        made = owner.create()
        client = await owner.consume(made, "c")
        owner.produce(of(1, "n"), of(2, "n"))
        await owner.rest()
        assert data(client) == [1, 2]


async def test_a_key_and_a_node_of_the_same_name_are_one_key(node: Node) -> None:
    async with started_owner(node) as owner:
        made = owner.create(**NODE)
        client = await owner.consume(made, "c")
        owner.produce(of(1, "a"), of(2, None, "a"))
        await owner.rest()
        assert data(client) == [1]


async def test_filters_match_nodes_of_messages_without_a_key(node: Node) -> None:
    async with started_owner(node) as owner:
        made = owner.create(**NODE)
        client = await owner.consume(made, "c", "n*")
        owner.produce(of(1, "other"), of(2, "n1"), of(3, "n2", "key"), of(4))
        await owner.rest()
        assert data(client) == [2]


async def test_a_node_is_with_the_consumer_that_owns_a_key_of_its_name(node: Node) -> None:
    async with started_owner(node) as owner:
        keyed, made = owner.create("keyed"), owner.create(**NODE)
        of_keys = {name: await owner.consume(keyed, name) for name in "cd"}
        of_nodes = {name: await owner.consume(made, name) for name in "cd"}
        owner.produce(*(of(n, "other", f"k{n}") for n in range(30)))
        owner.produce(*(of(n, f"k{n}") for n in range(30, 60)))
        owner.produce(*(of(n, f"k{n - 60}") for n in range(60, 90)))
        await owner.rest()
        shares = {name: {n for n in numbers(client) if n < 30} for name, client in of_keys.items()}
        assert all(len(share) > 5 for share in shares.values())
        for name, client in of_nodes.items():
            await owner.ack(made, name, *messages(client))
            assert {n - 60 for n in numbers(client) if n >= 60} == shares[name]


async def test_without_tracking_a_node_stays_at_one_consumer(node: Node) -> None:
    async with started_owner(node) as owner:
        made = owner.create(reliable=False, **NODE)
        clients = [await owner.consume(made, name) for name in "cd"]
        for number in range(44):
            owner.produce(of(number, f"n{number % 11}"))
            await owner.rest()
        nodes = [{n % 11 for n in numbers(client)} for client in clients]
        assert all(nodes) and not nodes[0] & nodes[1]
        assert sorted(numbers(clients[0]) + numbers(clients[1])) == list(range(44))


async def test_a_blocked_node_is_what_a_subscription_stands_still_at(node: Node) -> None:
    async with started_owner(node) as owner:
        made = owner.create(redeliveries_max=0, **NODE)
        client = await owner.consume(made, "c")
        owner.produce(of(1, "n"), of(2, "n"))
        await owner.rest()
        await owner.nack(made, "c", *messages(client))
        for _ in range(5):
            await owner.later(1)
        row = owner.board.read(made.slot, made.subscription_id)
        assert row is not None
        assert row.stands == "message 0:1 of the key 'n' is blocked after 1 failed deliveries: no"


async def test_dead_letters_of_a_node_have_no_key_and_their_messages_are_resent_in_order(
    node: Node,
) -> None:
    dest = node.ledger.write(topics.create, "dead", TopicConfig(partitions=4), 1)[0]

    async with started_owner(node) as owner:
        made, client = await failed(owner, of(1, "n"), of(2, "n"), of(3, "m"), **NODE)
        await committed(owner)
        await owner.nack(made, "c", messages(client)[-1])
        await committed(owner)
        (letters,) = [
            found for partition in range(4) if (found := node.records[dest.topic_id, partition])
        ]
        assert [(each.key, each.node) for _, each in letters] == [
            (None, "n"), (None, "m"), (None, "n")
        ]  # fmt: skip
        assert data(client) == [1, 3, 2] == [int(each.data) for _, each in letters]
        for seq in (1, 2):
            assert (await owner.ask(Resend(made.subscription_id, (0, seq))))["key"] == "n"
        await owner.rest()
        assert data(client)[3:] == [1]
        await owner.ack(made, "c", messages(client)[-1])
        assert data(client)[3:] == [1, 2]


async def test_a_message_that_failed_holds_its_node_and_is_named_by_it(node: Node) -> None:
    async with started_owner(node) as owner:
        made = owner.create(redeliveries_max=0, **NODE)
        client = await owner.consume(made, "c")
        owner.produce(of(1, "n"), of(2, "n"), of(3, "m"))
        await owner.rest()
        await owner.nack(made, "c", messages(client)[0])
        await owner.ack(made, "c", messages(client)[1])
        await owner.later(60)
        state = await owner.ask(Describe(made.subscription_id))
        assert (state["blocked_keys"], state["lag"], state["drainable_lag"]) == (1, 2, 0)
        assert data(client) == [1, 3]
        await owner.ask(SkipKey(made.subscription_id, "n", None))
        await owner.rest()
        assert data(client) == [1, 3, 2]
        await owner.ack(made, "c", messages(client)[-1])
        told = await owner.ask(Resend(made.subscription_id, (0, 2)))
        assert told["key"] == "n"


@pytest.mark.parametrize("to", ["node", "none"])
async def test_a_change_applies_to_what_runs_and_finishes_nothing(node: Node, to: str) -> None:
    async with started_owner(node) as owner:
        made = owner.create(key_fallback="none" if to == "node" else "node")
        client = await owner.consume(made, "c")
        owner.produce(*(of(number, "n") for number in range(1, 5)))
        await owner.rest()
        await owner.ack(made, "c", messages(client)[0])
        had = len(messages(client))
        alter(owner, key_fallback=to)
        await owner.later(0.1)
        new = messages(client)[had:]
        assert [each["data"] for each in new] == ([2] if to == "node" else [2, 3, 4])
        refused = await owner.ack(made, "c", messages(client)[1])
        assert refused["refused"] == 1, "it was given before the change"
        await owner.take_all(made, client)
        assert set(data(client)) == {1, 2, 3, 4} and data(client).count(1) == 1
        assert (await owner.ask(Describe(made.subscription_id)))["lag"] == 0


async def test_in_another_mode_a_change_of_the_fallback_gives_nothing_back(node: Node) -> None:
    async with started_owner(node) as owner:
        made = owner.create(mode="shared")
        client = await owner.consume(made, "c")
        owner.produce(of(1, "n"), of(2, "n"))
        await owner.rest()
        alter(owner, key_fallback="node")
        await owner.later(0.1)
        accepted = await owner.ack(made, "c", *messages(client))
        assert (accepted["accepted"], data(client)) == (2, [1, 2])


async def test_a_successor_goes_on_with_the_order_of_each_node(node: Node) -> None:
    made: Any = None

    async with started_owner(node) as owner:
        made = owner.create(**NODE)
        client = await owner.consume(made, "c")
        owner.produce(*(of(number, "mn"[number % 2]) for number in range(1, 7)))
        await owner.rest()
        owner.dies()
        await owner.ack(made, "c", messages(client)[0])
        assert data(client) == [1, 2, 3]
    async with started_owner(node) as owner:
        client = await owner.consume(made, "c")
        assert data(client) == [2, 3]
        await owner.take_all(made, client)
        assert {*data(client)} == {2, 3, 4, 5, 6}


class FallbackLives(Lives):
    """A message keeps to the order of its key, and to one message of it at a time."""

    first = "c"
    settings: ClassVar[dict[str, Any]] = {**Lives.settings, "key_fallback": "node"}

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.rules = SubscriptionRules(key_fallback="node", redeliveries_max=1_000)
        self.records: list[Record] = []

    def key(self, seq: int) -> str | None:
        return self.rules.key_of(self.records[seq - 1])

    def judge(self, place: Place, event: dict[str, Any]) -> None:
        assert place not in self.finished
        _, seq = place
        key = self.key(seq)
        if key is not None:
            with_others = [at for _, at in self.out if self.key(at) == key and at != seq]
            assert not with_others, f"{with_others} of {key!r} are with consumers"
            before = {(0, at) for at in range(1, seq) if self.key(at) == key}
            assert before <= self.finished, "those before it are not finished"

    def produced(self) -> set[Place]:
        return {(0, seq) for seq in range(1, len(self.records) + 1)}

    async def change(self, kind: str, *values: Any) -> None:
        if kind == "produce":
            new = [Record("1", key=key, node=node) for key, node in values[0]]
            self.records += new
            self.owner.produce(*new)
        elif values[0] != self.rules.key_fallback:
            self.rules = msgspec.structs.replace(self.rules, key_fallback=values[0])
            self.out.clear()
            alter(self.owner, key_fallback=values[0])
            await self.owner.later(0.1)


names = st.sampled_from([None, "a", "b"])
steps = steps_of(
    "cd",
    st.tuples(st.just("produce"), st.lists(st.tuples(names, names), min_size=1, max_size=4)),
    st.tuples(st.just("alter"), st.sampled_from(["none", "node"])),
)


@settings(max_examples=examples(100), deadline=None)
@given(steps)
def test_whatever_happens_a_key_or_node_is_in_order_and_nothing_is_lost(todo: list[Step]) -> None:
    FallbackLives.run(todo)
