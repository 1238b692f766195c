"""A subscription over any steps and deaths of its owner. A test says what else happens, and judges
each delivery."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import strategies as st

from delivery.subscriptions.window.messages import Place
from tests.delivery.node import Node, node_in
from tests.delivery.subscriptions.owning import Owner, messages, owning

Step = tuple[Any, ...]


def steps_of(names: str, *others: st.SearchStrategy[Step]) -> st.SearchStrategy[list[Step]]:
    """Steps of consumers with these names, deaths, and others."""
    each = st.one_of(
        *others,
        st.tuples(st.sampled_from(["join", "leave"]), st.sampled_from(names)),
        st.tuples(st.just("ack"), st.integers(0, 9)),
        st.tuples(st.just("nack"), st.integers(0, 9)),
        st.just(("dies",)),
    )
    return st.lists(each, min_size=8, max_size=25)


class Lives:
    """Carries steps out. Consumers have what is in ``out``, and acknowledged what is in
    ``finished``."""

    first: ClassVar[str]  # the consumer that is there when no other is
    settings: ClassVar[dict[str, Any]] = {"redeliveries_max": 1_000, "ack_timeout_ms": 86_400_000}

    def __init__(self, node: Node) -> None:
        self.node = node
        self.finished: set[Place] = set()
        self.out: dict[Place, tuple[str, dict[str, Any]]] = {}  # with whom it is
        self.made: Any = None
        self.owner: Owner
        self.clients: dict[str, Any] = {}
        self.seen: dict[str, int] = {}

    def judge(self, place: Place, event: dict[str, Any]) -> None:
        """A message has come."""
        raise NotImplementedError

    def produced(self) -> set[Place]:
        """All that must have been finished in the end."""
        raise NotImplementedError

    async def change(self, kind: str, *values: Any) -> None:
        """A step that only this test has."""
        raise NotImplementedError

    def look(self) -> None:
        """Judges what has come since the last look."""
        for name, client in self.clients.items():
            new = messages(client)[self.seen[name] :]
            self.seen[name] += len(new)
            for each in new:
                place = each["partition"], each["seq"]
                self.judge(place, each)
                self.out[place] = name, each

    def forget(self, name: str) -> None:
        self.clients.pop(name)
        self.out = {place: each for place, each in self.out.items() if each[0] != name}

    async def join(self, name: str) -> None:
        self.seen[name] = 0
        self.clients[name] = await self.owner.consume(self.made, name)

    async def carry_out(self, kind: str, *values: Any) -> None:
        owner = self.owner
        if kind == "join" and values[0] not in self.clients:
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
        elif kind not in ("join", "leave", "ack", "nack"):
            await self.change(kind, *values)
        await owner.rest()
        self.look()

    async def _live(self, todo: list[Step]) -> None:
        lives: list[list[Step]] = [[]]
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
                    self.made = self.owner.create(**self.settings)
                self.owner.subscriptions.look()
                await self.owner.rest()
                names, self.clients = [*self.clients] or [self.first], {}
                self.out.clear()
                for name in names:
                    await self.join(name)
                self.look()
                for step in life:
                    await self.carry_out(*step)
                if number < len(lives) - 1:
                    self.owner.dies()
                else:
                    await self._end()
                await self.owner.stop()

    async def _end(self) -> None:
        """All that is left comes, too."""
        if not self.clients:
            await self.join(self.first)
        await self.owner.later(61)
        self.look()
        while self.out:
            await self.carry_out("ack", 0)
        assert self.finished == self.produced()

    @classmethod
    def run(cls, todo: list[Step]) -> None:
        """Carries all steps out, on a node of its own."""
        with tempfile.TemporaryDirectory() as folder, node_in(Path(folder)) as node:
            asyncio.run(cls(node)._live(todo))
