"""Owners that die at any point, clients that stall and go, requests that are given up: clients get
whole writes in their order, requests are answered or broken, and nothing is left over."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import hypothesis
import pytest
import uvloop
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from delivery.pipes import client as clients
from delivery.pipes.credit import WINDOW_BYTES
from delivery.pipes.errors import PipeBroken
from delivery.pipes.server import PipeServer
from tests.delivery.pipes.ends import OWNER, Ends, Owner, SlowClient
from tests.long import examples

TURNS = 6  # of the loop after each step: less than a request needs, so that steps come in between
LARGE = 3 * WINDOW_BYTES


class Written(NamedTuple):
    """A write: by which process of the owner, the how-manieth, how long."""

    process: int
    number: int
    size: int

    @property
    def data(self) -> bytes:
        head = b"<%d %d>" % (self.process, self.number)
        return head + b"." * max(0, self.size - len(head))


class PipeMachine(RuleBasedStateMachine):
    """One owner and its successors; a shard with a few clients."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = uvloop.new_event_loop()
        self.ends = Ends()
        self.server: PipeServer | None = None
        self.owner = Owner()
        self.process = 0
        self.streams: dict[bytes, SlowClient] = {}
        self.written: dict[bytes, list[Written]] = {}
        self.asked: list[asyncio.Task[bytes]] = []
        self.names = 0

    def turn(self, turns: int = TURNS) -> None:
        async def pass_by() -> None:
            for _ in range(turns):
                await asyncio.sleep(0)

        self.loop.run_until_complete(pass_by())

    @precondition(lambda self: self.server is None)
    @rule()
    def owner_starts(self) -> None:
        self.process += 1
        self.owner = Owner()
        self.server = self.loop.run_until_complete(self.ends.start(self.owner))
        self.turn()

    @initialize()
    def first_start(self) -> None:
        self.owner_starts()

    @precondition(lambda self: self.server is not None)
    @rule()
    def owner_dies(self) -> None:
        assert self.server is not None
        self.loop.run_until_complete(self.ends.stop(self.server))
        self.server = None
        self.turn()

    @precondition(lambda self: len(self.streams) < 4)
    @rule(takes=st.booleans())
    def open(self, takes: bool) -> None:
        self.names += 1
        name = b"s%d" % self.names
        client = self.streams[name] = SlowClient(takes=takes)
        self.written[name] = []
        self.loop.call_soon(self.ends.pipes.open, OWNER, name, client)
        self.turn()

    @precondition(lambda self: self.server is not None)
    @rule(size=st.sampled_from([20, 5_000, WINDOW_BYTES // 2, LARGE]), data=st.data())
    def write(self, size: int, data: st.DataObject) -> None:
        open_ = [(name, outlet) for name, outlet in self.owner.opened if outlet.writable]
        if not open_:
            return
        name, outlet = data.draw(st.sampled_from(open_))
        write = Written(self.process, len(self.written[name]), size)
        self.written[name].append(write)
        outlet.write(write.data)
        self.turn()

    @precondition(lambda self: self.streams)
    @rule(data=st.data())
    def client_takes(self, data: st.DataObject) -> None:
        client = self.streams[data.draw(st.sampled_from(list(self.streams)))]
        client.takes = True
        if not client.writable:
            client.take()
        self.turn()

    @precondition(lambda self: self.streams)
    @rule(data=st.data())
    def client_stalls(self, data: st.DataObject) -> None:
        self.streams[data.draw(st.sampled_from(list(self.streams)))].takes = False

    @precondition(lambda self: self.streams)
    @rule(data=st.data())
    def client_goes(self, data: st.DataObject) -> None:
        client = self.streams.pop(data.draw(st.sampled_from(list(self.streams))))
        client.go()
        self.turn()

    @rule(payload=st.sampled_from([b"x", b"large 300000", b"wait"]))
    def ask(self, payload: bytes) -> None:
        self.asked.append(self.loop.create_task(self.ends.pipes.ask(OWNER, payload)))
        self.turn()

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.asked)).cancel()
        self.turn()

    @invariant()
    def everything_is_in_order(self) -> None:
        self.ends.check()
        for name, client in self.streams.items():
            got = client.writes
            sent = {write.data: write for write in self.written[name]}
            found = [sent[data] for data in got]  # whole writes
            assert found == sorted(found)
            for process in {write.process for write in found}:
                numbers = [write.number for write in found if write.process == process]
                first = numbers[0]
                assert numbers == list(range(first, first + len(numbers)))
                assert all(
                    write.number >= first
                    for write in self.written[name]
                    if write.process == process
                )

    def teardown(self) -> None:
        async def settle() -> None:
            if self.server is None:
                self.server = await self.ends.start(self.owner)
            for client in self.streams.values():
                client.takes = True
                if not client.writable:
                    client.take()
            while True:  # what is not answered is broken; what waited in the backlog, a bit later
                await self.ends.stop(self.server)
                self.server = await self.ends.start(self.owner)
                if not self.asked or not (await asyncio.wait(self.asked, timeout=0.01))[1]:
                    break
            for done in await asyncio.gather(*self.asked, return_exceptions=True):
                assert isinstance(done, bytes | PipeBroken | asyncio.CancelledError), done
            server = self.server
            await self.ends.until(lambda: server.outlets == len(self.streams))
            last = [outlet for _, outlet in self.owner.opened if not outlet.closed]
            assert len(last) == len(self.streams)
            await self.ends.until(lambda: all(outlet.writable for outlet in last))
            for outlet in last:
                outlet.end(b"bye")
            await self.ends.until(lambda: all(each.closed for each in self.streams.values()))
            assert all(each.writes[-1] == b"bye" for each in self.streams.values())
            assert not server.outlets and not server.answering
            await self.ends.close()

        self.loop.run_until_complete(asyncio.wait_for(settle(), 60))
        self.loop.close()


def test_nothing_is_torn_or_left_over_whatever_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "RECONNECT_S", 0)
    settings = hypothesis.settings(max_examples=examples(100), stateful_step_count=30)
    run_state_machine_as_test(PipeMachine, settings=settings)
