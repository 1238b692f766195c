"""With ``key_fallback`` = ``node``, a message without a key is in order with those of its node."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delivery.subscriptions.requests import Describe, DescribeKey, Resend, SkipKey
from ledger import topics
from ledger.delivery import subscriptions
from ledger.delivery.subscription_rules import SubscriptionRules
from ledger.types import TopicConfig
from tests.delivery.node import Node, node_in
from tests.delivery.subscriptions.owning import Owner, data, messages, owning, run
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


def test_messages_of_a_node_come_one_at_a_time_and_in_order_and_nodes_in_parallel(
    node: Node,
) -> None:
    async def use(owner: Owner) -> None:
        made = owner.create(**NODE)
        client = await owner.consume(made, "c")
        owner.produce(of(1, "n"), of(2, "n"), of(3, "m"), of(4, None), of(5, None), of(6, "n", "k"))
        await owner.rest()
        assert data(client) == [1, 3, 6, 4, 5], "loose messages come after keys"
        described = await owner.ask(DescribeKey(made.subscription_id, "n"))
        assert (described["state"], described["owner"], described["seq"]) == ("sent", "c", 1)
        await owner.ack(made, "c", messages(client)[0])
        assert data(client)[5:] == [2]

    run(node, use)


def test_by_default_messages_without_a_key_wait_for_no_other_one(node: Node) -> None:
    async def use(owner: Owner) -> None:
        made = owner.create()
        client = await owner.consume(made, "c")
        owner.produce(of(1, "n"), of(2, "n"))
        await owner.rest()
        assert data(client) == [1, 2]

    run(node, use)


def test_a_key_and_a_node_of_the_same_name_are_one_key(node: Node) -> None:
    async def use(owner: Owner) -> None:
        made = owner.create(**NODE)
        client = await owner.consume(made, "c")
        owner.produce(of(1, "a"), of(2, None, "a"))
        await owner.rest()
        assert data(client) == [1]

    run(node, use)


def test_filters_match_nodes_of_messages_without_a_key(node: Node) -> None:
    async def use(owner: Owner) -> None:
        made = owner.create(**NODE)
        client = await owner.consume(made, "c", "n*")
        owner.produce(of(1, "other"), of(2, "n1"), of(3, "n2", "key"), of(4))
        await owner.rest()
        assert data(client) == [2]

    run(node, use)


def test_a_node_is_with_the_consumer_that_owns_a_key_of_its_name(node: Node) -> None:
    async def use(owner: Owner) -> None:
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

    run(node, use)


def test_without_tracking_a_node_stays_at_one_consumer(node: Node) -> None:
    async def use(owner: Owner) -> None:
        made = owner.create(reliable=False, **NODE)
        clients = [await owner.consume(made, name) for name in "cd"]
        for number in range(44):
            owner.produce(of(number, f"n{number % 11}"))
            await owner.rest()
        nodes = [{n % 11 for n in numbers(client)} for client in clients]
        assert all(nodes) and not nodes[0] & nodes[1]
        assert sorted(numbers(clients[0]) + numbers(clients[1])) == list(range(44))

    run(node, use)


def test_a_blocked_node_is_what_a_subscription_stands_still_at(node: Node) -> None:
    async def use(owner: Owner) -> None:
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

    run(node, use)


def test_dead_letters_of_a_node_have_no_key_and_their_messages_are_resent_in_order(
    node: Node,
) -> None:
    dest = node.ledger.write(topics.create, "dead", TopicConfig(partitions=4), 1)[0]

    async def use(owner: Owner) -> None:
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

    run(node, use)


def test_a_message_that_failed_holds_its_node_and_is_named_by_it(node: Node) -> None:
    async def use(owner: Owner) -> None:
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

    run(node, use)


@pytest.mark.parametrize("to", ["node", "none"])
def test_a_change_applies_to_what_runs_and_finishes_nothing(node: Node, to: str) -> None:
    async def use(owner: Owner) -> None:
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

    run(node, use)


def test_in_another_mode_a_change_of_the_fallback_gives_nothing_back(node: Node) -> None:
    async def use(owner: Owner) -> None:
        made = owner.create(mode="shared")
        client = await owner.consume(made, "c")
        owner.produce(of(1, "n"), of(2, "n"))
        await owner.rest()
        alter(owner, key_fallback="node")
        await owner.later(0.1)
        accepted = await owner.ack(made, "c", *messages(client))
        assert (accepted["accepted"], data(client)) == (2, [1, 2])

    run(node, use)


def test_a_successor_goes_on_with_the_order_of_each_node(node: Node) -> None:
    made: Any = None

    async def first(owner: Owner) -> None:
        nonlocal made
        made = owner.create(**NODE)
        client = await owner.consume(made, "c")
        owner.produce(*(of(number, "mn"[number % 2]) for number in range(1, 7)))
        await owner.rest()
        owner.dies()
        await owner.ack(made, "c", messages(client)[0])
        assert data(client) == [1, 2, 3]

    async def second(owner: Owner) -> None:
        client = await owner.consume(made, "c")
        assert data(client) == [2, 3]
        await owner.take_all(made, client)
        assert {*data(client)} == {2, 3, 4, 5, 6}

    run(node, first, second)


names = st.sampled_from([None, "a", "b"])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("produce"), st.lists(st.tuples(names, names), min_size=1, max_size=4)),
        st.tuples(st.just("join"), st.sampled_from("cd")),
        st.tuples(st.just("leave"), st.sampled_from("cd")),
        st.tuples(st.just("ack"), st.integers(0, 9)),
        st.tuples(st.just("nack"), st.integers(0, 9)),
        st.tuples(st.just("alter"), st.sampled_from(["none", "node"])),
        st.just(("dies",)),
    ),
    min_size=8,
    max_size=25,
)


class Machine:
    """Carries steps out, and looks at each delivery of what is not finished."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.rules = SubscriptionRules(key_fallback="node", redeliveries_max=1_000)
        self.records: list[Record] = []
        self.finished: set[int] = set()
        self.out: dict[int, tuple[str, dict[str, Any]]] = {}  # by offset, with whom it is
        self.made: Any = None
        self.owner: Owner
        self.clients: dict[str, Any] = {}
        self.seen: dict[str, int] = {}

    def key(self, seq: int) -> str | None:
        return self.rules.key_of(self.records[seq - 1])

    def look(self) -> None:
        """What has come since the last look keeps to the order and to one message of a key."""
        for name, client in self.clients.items():
            new = messages(client)[self.seen[name] :]
            self.seen[name] += len(new)
            for each in new:
                seq = each["seq"]
                assert seq not in self.finished
                key = self.key(seq)
                if key is not None:
                    with_others = [at for at in self.out if self.key(at) == key and at != seq]
                    assert not with_others, f"{with_others} of {key!r} are with consumers"
                    before = {at for at in range(1, seq) if self.key(at) == key}
                    assert before <= self.finished, "those before it are not finished"
                self.out[seq] = name, each

    def forget(self, name: str) -> None:
        self.clients.pop(name)
        self.out = {seq: each for seq, each in self.out.items() if each[0] != name}

    async def join(self, name: str) -> None:
        self.seen[name] = 0
        self.clients[name] = await self.owner.consume(self.made, name)

    async def carry_out(self, kind: str, *values: Any) -> None:
        owner = self.owner
        if kind == "produce":
            new = [Record("1", key=key, node=node) for key, node in values[0]]
            self.records += new
            owner.produce(*new)
        elif kind == "join" and values[0] not in self.clients:
            await self.join(values[0])
        elif kind == "leave" and values[0] in self.clients:
            client = self.clients[values[0]]
            self.forget(values[0])
            client.go()
            await owner.later(10)  # its presence ends
        elif kind in ("ack", "nack") and self.out:
            seq = sorted(self.out)[values[0] % len(self.out)]
            name, event = self.out.pop(seq)
            if kind == "ack":
                self.finished.add(seq)
                assert (await owner.ack(self.made, name, event))["accepted"] == 1
            else:
                assert (await owner.nack(self.made, name, event))["accepted"] == 1
                await owner.later(61)
        elif kind == "alter" and values[0] != self.rules.key_fallback:
            self.rules = msgspec.structs.replace(self.rules, key_fallback=values[0])
            self.out.clear()
            alter(owner, key_fallback=values[0])
            await owner.later(0.1)
        await owner.rest()
        self.look()

    async def run(self, todo: list[tuple[Any, ...]]) -> None:
        lives: list[list[tuple[Any, ...]]] = [[]]
        for step in todo:
            if step[0] == "dies":
                lives.append([])
            else:
                lives[-1].append(step)
        for number, life in enumerate(lives):
            with owning(self.node) as self.owner:
                self.owner.start()
                self.owner.tell()
                if self.made is None:
                    self.made = self.owner.create(
                        key_fallback="node", redeliveries_max=1_000, ack_timeout_ms=86_400_000
                    )
                self.owner.subscriptions.look()
                await self.owner.rest()
                names, self.clients = [*self.clients] or ["c"], {}
                self.out.clear()
                for name in names:
                    await self.join(name)
                self.look()
                for step in life:
                    await self.carry_out(*step)
                if number < len(lives) - 1:
                    self.owner.dies()
                else:
                    await self.end()
                await self.owner.stop()

    async def end(self) -> None:
        """All that is left comes, too."""
        if not self.clients:
            await self.join("c")
        await self.owner.later(61)
        self.look()
        while self.out:
            await self.carry_out("ack", 0)
        assert self.finished == set(range(1, len(self.records) + 1))


@settings(max_examples=examples(100), deadline=None)
@given(steps)
def test_whatever_happens_a_key_or_node_is_in_order_and_nothing_is_lost(
    todo: list[tuple[Any, ...]],
) -> None:
    with tempfile.TemporaryDirectory() as folder, node_in(Path(folder)) as node:
        asyncio.run(Machine(node).run(todo))
