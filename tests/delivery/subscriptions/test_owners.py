"""Who is asked: this shard's own subscriptions, or another shard's through a pipe; and what becomes
of a request that has no answer."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from msgspec import Struct

from delivery.pipes import client as clients
from delivery.pipes import server as servers
from delivery.pipes.server import Asker
from delivery.streams.outlet import Outlet
from delivery.subscriptions import owners
from delivery.subscriptions.owners import Owners, PipedRequests
from delivery.subscriptions.requests import (
    Acknowledge,
    BatchRef,
    BlockedWhere,
    Consume,
    Describe,
    DescribeKey,
    Leave,
    ListKeys,
    MessageRef,
    Nack,
    OwnerRefused,
    OwnerRequest,
    Poll,
    RepairBlocked,
    Resend,
    RetryKey,
    Seek,
    SkipKey,
)
from ledger.errors import LedgerUnusable
from tests.delivery.pipes.ends import Ends, SlowClient, run

SHARDS = 2
HERE, THERE = 10, 11  # subscriptions of shards 0 and 1

POLL = Poll(THERE, "c", [], 10, 500)
REQUESTS: list[OwnerRequest[Any]] = [
    Consume(THERE, "c", ["a*", "ü"], "text/event-stream"),
    Acknowledge(THERE, "c", [MessageRef(1, 2, 1 << 52)], [BatchRef(7, ((0, 3), (1, 4)))]),
    Nack(THERE, "c", [MessageRef(1, 2, 3)], [], 1000, "busy"),
    Leave(THERE, "c"),
    Describe(THERE),
    DescribeKey(THERE, "k"),
    ListKeys(THERE, 100),
    RetryKey(THERE, "k"),
    SkipKey(THERE, None, (1, 2)),
    RepairBlocked(THERE, True, BlockedWhere("k*", 1, "no*", True)),
    Resend(THERE, (1, 2)),
    Seek(THERE, {0: 5, 1: 0}),
]  # fmt: skip


def answer_to(request: OwnerRequest[Any], says: str) -> Any:
    """Some answer of the right type, with ``says`` in each text."""
    made: type = get_args(type(request).__orig_bases__[0])[0]  # type: ignore[attr-defined]
    if not issubclass(made, Struct):
        return None
    values = {"str": says, "bool": True, "int": 7, "float": 1.5}
    fields = {
        each.name: values.get(re.findall(r"str|bool|int|float|list", str(each.type))[0], [])
        for each in msgspec.structs.fields(made)
        if each.required
    }
    return msgspec.convert(fields, made)


class Subscribed:
    """The subscriptions of a shard, as far as they are asked here."""

    def __init__(self, says: str) -> None:
        self.says = says
        self.asked: list[OwnerRequest[Any]] = []
        self.askers: list[Asker] = []
        self.opened: list[tuple[Consume, Outlet]] = []
        self.refuses: OwnerRefused | None = None
        self.fails: Exception | None = None
        self.waits = False

    async def ask(self, request: OwnerRequest[Any]) -> Any:
        self.asked.append(request)
        if self.refuses is not None:
            raise self.refuses
        if self.fails is not None:
            raise self.fails
        if self.waits:
            await asyncio.get_running_loop().create_future()
        return answer_to(request, self.says)

    async def poll(self, request: Poll, asker: Asker) -> bytes:
        self.askers.append(asker)
        await self.ask(request)
        return self.says.encode()

    def open(self, request: Consume, outlet: Outlet) -> None:
        self.opened.append((request, outlet))


class TwoShards:
    """Shard 0 asks; shard 1 owns the subscription THERE."""

    def __init__(self, ends: Ends) -> None:
        self.ends = ends
        self.here, self.there = Subscribed("here"), Subscribed("there")
        self.owners = Owners(0, SHARDS, self.here, ends.pipes)
        self.piped: PipedRequests
        self.server: servers.PipeServer

    async def start(self) -> None:
        self.piped = PipedRequests(self.there)
        self.server = await self.ends.start(self.piped, 1)

    async def restart(self) -> None:
        """The owner dies, and has a successor."""
        await self.ends.stop(self.server)
        await self.start()

    async def refusal(self, request: OwnerRequest[Any]) -> OwnerRefused:
        with pytest.raises(OwnerRefused) as caught:
            await self.owners.ask(request)
        return caught.value


def on_two_shards(steps: Callable[[TwoShards], Awaitable[None]]) -> None:
    async def with_ends(ends: Ends) -> None:
        shards = TwoShards(ends)
        await shards.start()
        await steps(shards)

    run(with_ends, SHARDS)


def test_each_request_reaches_the_owner_as_it_was_made() -> None:
    async def steps(shards: TwoShards) -> None:
        for request in REQUESTS:
            assert await shards.owners.ask(request) == answer_to(request, "there")
        assert await shards.owners.poll(POLL, Asker()) == b"there"
        assert shards.there.asked == [*REQUESTS, POLL] and not shards.here.asked
        here = Describe(HERE)
        assert await shards.owners.ask(here) == answer_to(here, "here")
        assert await shards.owners.poll(Poll(HERE, "c", [], 1, 0), Asker()) == b"here"
        assert not shards.server.answering

    on_two_shards(steps)


def test_the_owner_of_a_poll_learns_that_the_shard_of_its_answer_has_died() -> None:
    async def steps(shards: TwoShards) -> None:
        assert await shards.owners.poll(Poll(THERE, "c", [], 10, 0), Asker()) == b"there"
        (asker,) = shards.there.askers
        assert not asker.is_gone
        await shards.ends.pipes.close()
        await shards.ends.until(lambda: asker.is_gone)

    on_two_shards(steps)


def test_a_stream_is_opened_where_its_subscription_is() -> None:
    async def steps(shards: TwoShards) -> None:
        near, far = SlowClient(), SlowClient()
        shards.owners.open(Consume(HERE, "c", [], "x"), near)
        assert shards.here.opened == [(Consume(HERE, "c", [], "x"), near)]
        shards.owners.open(Consume(THERE, "c", ["a"], "x"), far)
        await shards.ends.until(lambda: shards.there.opened)
        request, outlet = shards.there.opened[0]
        assert request == Consume(THERE, "c", ["a"], "x")
        outlet.end(b"bye")
        await shards.ends.until(lambda: far.closed)
        assert far.text == b"bye"

    on_two_shards(steps)


def test_a_refusal_of_the_owner_is_the_same_through_a_pipe() -> None:
    async def steps(shards: TwoShards) -> None:
        shards.there.refuses = OwnerRefused(429, "too_many", "too many, 3", {"limit": 3, "x": None})
        refused = await shards.refusal(Describe(THERE))
        assert (refused.status, refused.code, refused.message) == (429, "too_many", "too many, 3")
        assert refused.detail == {"limit": 3, "x": None}

    on_two_shards(steps)


def test_an_owner_that_dies_while_it_is_asked_is_told_as_restarted() -> None:
    async def steps(shards: TwoShards) -> None:
        shards.there.waits = True
        asked = asyncio.ensure_future(shards.refusal(Leave(THERE, "c")))
        await shards.ends.until(lambda: shards.there.asked)
        await shards.ends.stop(shards.server)
        refused = await asked
        assert (refused.status, refused.code) == (503, "owner_restarted")
        assert "may be asked again" in refused.message
        assert refused.detail == {"owner_shard": 1}

    on_two_shards(steps)


def test_what_a_dying_owner_was_to_show_is_shown_by_its_successor() -> None:
    async def steps(shards: TwoShards) -> None:
        shown: list[OwnerRequest[Any]] = [
            Describe(THERE),
            DescribeKey(THERE, "k"),
            ListKeys(THERE, 3),
        ]
        for request in shown:
            shards.there.waits = True
            shards.there.asked.clear()
            asked = asyncio.ensure_future(shards.owners.ask(request))
            await shards.ends.until(lambda: shards.there.asked)
            shards.there.waits = False
            await shards.restart()
            assert await asked == answer_to(request, "there")
            assert shards.there.asked == [request, request]

    on_two_shards(steps)


def test_what_kills_its_owner_kills_one_successor_at_most() -> None:
    async def steps(shards: TwoShards) -> None:
        shards.there.waits = True
        asked = asyncio.ensure_future(shards.refusal(Describe(THERE)))
        await shards.ends.until(lambda: len(shards.there.asked) == 1)
        await shards.restart()
        await shards.ends.until(lambda: len(shards.there.asked) == 2)
        await shards.restart()
        assert (await asked).code == "owner_restarted"

    on_two_shards(steps)


def test_a_daemon_that_stops_asks_no_successor() -> None:
    async def steps(shards: TwoShards) -> None:
        shards.there.waits = True
        asked = asyncio.ensure_future(shards.refusal(Describe(THERE)))
        await shards.ends.until(lambda: shards.there.asked)
        shards.ends.pipes.draining = True
        await shards.ends.stop(shards.server)
        assert (await asked).code == "owner_restarted"

    on_two_shards(steps)


def test_a_bug_of_the_owner_is_told_as_one(caplog: pytest.LogCaptureFixture) -> None:
    async def steps(shards: TwoShards) -> None:
        shards.there.fails = ValueError("a bug")
        refused = await shards.refusal(Describe(THERE))
        assert (refused.status, refused.code) == (500, "internal")

    on_two_shards(steps)
    assert "failed because of a bug" in caplog.text


def test_a_ledger_that_the_owner_cannot_use_is_told_as_at_the_owner_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def steps(shards: TwoShards) -> None:
        shards.there.fails = LedgerUnusable(Path("ledger.db"), "the disk is full")
        refused = await shards.refusal(Seek(THERE, {0: 5}))
        assert (refused.status, refused.code) == (503, "ledger_unavailable")
        assert "the disk is full" in refused.message
        with pytest.raises(OwnerRefused, match="the disk is full"):
            await shards.owners.poll(POLL, Asker())

    on_two_shards(steps)
    assert "bug" not in caplog.text


def test_what_finds_no_room_is_told_as_busy_or_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(shards: TwoShards) -> None:
        long = Leave(THERE, "c" * clients.ASK_PAYLOAD_BYTES_MAX)
        refused = await shards.refusal(long)
        assert (refused.status, refused.code) == (413, "too_large")
        monkeypatch.setattr(servers, "ANSWERING_MAX", 0)
        refused = await shards.refusal(Describe(THERE))
        assert (refused.status, refused.code) == (503, "owner_busy")
        monkeypatch.setattr(servers, "ANSWERING_MAX", 1)
        await shards.owners.ask(Describe(THERE))
        monkeypatch.setattr(clients, "OPENINGS_BYTES_MAX", 10)
        refused = await shards.refusal(Consume(THERE, "c" * 20, [], "x"))
        assert (refused.status, refused.code) == (503, "owner_busy")

    on_two_shards(steps)


def test_a_stream_of_a_former_owner_waits_until_its_successor_knows_the_subscription(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owners, "OPEN_AGAIN_S", 0.001)
    monkeypatch.setattr(clients, "RECONNECT_S", 0.001)

    async def steps(shards: TwoShards) -> None:
        client, gone = SlowClient(), SlowClient()
        consume = Consume(THERE, "c", [], "application/x-ndjson")
        shards.owners.open(consume, client)
        await shards.ends.until(lambda: shards.there.opened)
        await shards.ends.stop(shards.server)
        shards.there.opened.clear()
        shards.there.asked.clear()
        shards.there.refuses = OwnerRefused(503, "not_ready", "the ledger cannot be read")
        shards.owners.open(consume, gone)
        await shards.start()
        await shards.ends.until(lambda: len(shards.there.asked) > 5)
        gone.go()
        await shards.ends.until(lambda: shards.server.outlets == 1)
        assert not client.closed and not shards.there.opened
        shards.there.refuses = None
        await shards.ends.until(lambda: shards.there.opened)
        outlet = shards.there.opened[0][1]
        outlet.write(b"on")
        await shards.ends.until(lambda: client.text == b"on")
        assert len(shards.there.opened) == 1

    on_two_shards(steps)


@pytest.mark.parametrize("stops", [False, True], ids=["deleted", "drain"])
def test_a_stream_that_cannot_be_opened_again_ends_with_the_reason(stops: bool) -> None:
    async def steps(shards: TwoShards) -> None:
        client = SlowClient()
        refused = OwnerRefused(404, "unknown_subscription", "the subscription was deleted")
        if stops:
            refused = OwnerRefused(503, "not_ready", "the daemon stops")
            shards.piped.close()
        shards.there.refuses = refused
        shards.owners.open(Consume(THERE, "c", [], "application/x-ndjson"), client)
        await shards.ends.until(lambda: client.closed)
        assert refused.code.encode() in client.text and not shards.there.opened

    on_two_shards(steps)
