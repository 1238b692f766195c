"""A topic gets more partitions while it is consumed: keys move to them, and their order stays."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st

from delivery.subscriptions.window.batches import Place
from ledger import topics
from tests.delivery.node import Node, node_in
from tests.delivery.subscriptions.owning import Owner, messages, owning
from tests.long import examples
from uploader.l0.records import Record

PARTITIONS_MAX = 7

steps = st.lists(
    st.one_of(
        st.tuples(st.just("produce"), st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4)),
        st.tuples(st.just("grow"), st.integers(1, 2)),
        st.tuples(st.just("join"), st.sampled_from("xy")),
        st.tuples(st.just("leave"), st.sampled_from("xy")),
        st.tuples(st.just("ack"), st.integers(0, 9)),
        st.tuples(st.just("nack"), st.integers(0, 9)),
        st.just(("dies",)),
    ),
    min_size=8,
    max_size=25,
)


class Machine:
    """Carries steps out, and looks at each delivery."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.config = node.topic.config
        self.of_key: dict[str, list[Place]] = {}  # in the order in which they were produced
        self.heads: dict[int, int] = {}
        self.finished: set[Place] = set()
        self.out: dict[Place, tuple[str, dict[str, Any]]] = {}  # with whom it is
        self.made: Any = None
        self.owner: Owner
        self.clients: dict[str, Any] = {}
        self.seen: dict[str, int] = {}

    def look(self) -> None:
        """What has come since the last look: of each key the first that is not finished, if any."""
        for name, client in self.clients.items():
            new = messages(client)[self.seen[name] :]
            self.seen[name] += len(new)
            for each in new:
                place = each["partition"], each["seq"]
                left = [at for at in self.of_key[each["key"]] if at not in self.finished]
                assert left[0] == place, f"{place} of {each['key']!r} came before {left[0]}"
                assert place not in self.out
                self.out[place] = name, each

    def forget(self, name: str) -> None:
        self.clients.pop(name)
        self.out = {place: each for place, each in self.out.items() if each[0] != name}

    async def join(self, name: str) -> None:
        self.seen[name] = 0
        self.clients[name] = await self.owner.consume(self.made, name)

    def produce(self, keys: list[str]) -> None:
        for key in keys:
            partition = ord(key) % self.config.partitions
            seq = self.heads[partition] = self.heads.get(partition, 0) + 1
            self.of_key.setdefault(key, []).append((partition, seq))
            self.owner.produce(Record("1", key=key), partition=partition)

    async def grow(self, more: int) -> None:
        count = min(PARTITIONS_MAX, self.config.partitions + more)
        self.config = msgspec.structs.replace(self.config, partitions=count)
        topic = self.node.ledger.write(topics.alter, self.node.topic.name, self.config)
        self.owner.subscriptions.topic_changed(topic)
        await self.owner.later(0.1)  # the owner hears of it

    async def carry_out(self, kind: str, *values: Any) -> None:
        owner = self.owner
        if kind == "produce":
            self.produce(values[0])
        elif kind == "grow":
            await self.grow(values[0])
        elif kind == "join" and values[0] not in self.clients:
            await self.join(values[0])
        elif kind == "leave" and values[0] in self.clients:
            client = self.clients[values[0]]
            self.forget(values[0])
            client.go()
            await owner.later(10)  # its presence ends
        elif kind in ("ack", "nack") and self.out:
            place = sorted(self.out)[values[0] % len(self.out)]
            name, event = self.out.pop(place)
            if kind == "ack":
                self.finished.add(place)
                assert (await owner.ack(self.made, name, event))["accepted"] == 1
            else:
                assert (await owner.nack(self.made, name, event))["accepted"] == 1
                await owner.later(61)
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
                    self.made = self.owner.create(redeliveries_max=1_000, ack_timeout_ms=86_400_000)
                self.owner.subscriptions.look()
                await self.owner.rest()
                names, self.clients = [*self.clients] or ["x"], {}
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
            await self.join("x")
        await self.owner.later(61)
        self.look()
        while self.out:
            await self.carry_out("ack", 0)
        assert self.finished == {place for places in self.of_key.values() for place in places}


# The key d moves from partition 1 to 0, c from 4 to 1: both are older ones.
MOVED = [("grow", 1), ("produce", ["f", "d", "b"]), ("dies",), ("produce", ["d"])]
MOVED_BACK = [("grow", 2), ("produce", ["c"]), ("grow", 2), ("produce", ["c"])]


@settings(max_examples=examples(60), deadline=None)
@given(steps)
@example([("leave", "x"), ("produce", ["d"]), *MOVED, ("join", "y")])
@example([("leave", "x"), *MOVED_BACK, ("dies",)])
def test_keys_that_move_to_new_partitions_stay_in_order_and_nothing_is_lost(
    todo: list[tuple[Any, ...]],
) -> None:
    with tempfile.TemporaryDirectory() as folder, node_in(Path(folder)) as node:
        asyncio.run(Machine(node).run(todo))
