"""Pipes over real sockets: requests, streams with credit, owners that die and come back."""

from __future__ import annotations

import asyncio
import logging

import pytest

from delivery.pipes import client as clients
from delivery.pipes.credit import WINDOW_BYTES
from delivery.pipes.errors import FrameTooLarge, PipeBroken, PipeFailed, PipeRefused
from tests.delivery.pipes.ends import FRAME_BYTES_MAX, OWNER, Ends, Owner, SlowClient, run


def test_a_request_is_answered_and_many_share_one_connection() -> None:
    async def steps(ends: Ends) -> None:
        server = await ends.start(Owner())
        asked = [ends.pipes.ask(OWNER, b"%d" % n) for n in range(100)]
        assert await asyncio.gather(*asked) == [b"echo %d" % n for n in range(100)]
        assert len(server.lines) == 1 and server.answering == 0

    run(steps)


def test_a_refusal_and_a_failure_of_the_owner_reach_the_asker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def steps(ends: Ends) -> None:
        await ends.start(Owner())
        with pytest.raises(PipeRefused) as refused:
            await ends.pipes.ask(OWNER, b"refuse x")
        assert refused.value.payload == b"because of refuse x"
        with pytest.raises(PipeFailed):
            await ends.pipes.ask(OWNER, b"fail")
        assert await ends.pipes.ask(OWNER, b"next") == b"echo next"

    with caplog.at_level(logging.CRITICAL, "headgate.pipes"):
        run(steps)


def test_a_request_waits_in_the_backlog_until_the_owner_serves() -> None:
    async def steps(ends: Ends) -> None:
        asked = asyncio.ensure_future(ends.pipes.ask(OWNER, b"early"))
        await asyncio.sleep(0.02)
        assert not asked.done()
        await ends.start(Owner())
        assert await asked == b"echo early"

    run(steps)


def test_a_request_that_is_cancelled_is_cancelled_at_the_owner() -> None:
    async def steps(ends: Ends) -> None:
        owner = Owner()
        server = await ends.start(owner)
        asked = asyncio.ensure_future(ends.pipes.ask(OWNER, b"wait"))
        await ends.until(lambda: owner.asked)
        asked.cancel()
        await ends.until(lambda: owner.cancelled == [b"wait"] and not server.answering)

    run(steps)


def test_the_owner_learns_that_an_asker_has_gone_after_its_answer() -> None:
    async def steps(ends: Ends) -> None:
        owner = Owner()
        await ends.start(owner)
        pipe = ends.pipes.pipe_to(OWNER)
        for number in (1, 2, 3):
            assert await ends.pipes.ask(OWNER, b"x") == b"echo x"
            if number == 2:  # it is cancelled while the answer is on its way
                pipe.asks[number] = asyncio.get_running_loop().create_future()
                pipe.forget(number)
        await ends.until(lambda: owner.askers[1].is_gone)
        assert [asker.is_gone for asker in owner.askers] == [False, True, False]
        await ends.pipes.close()
        await ends.until(lambda: all(asker.is_gone for asker in owner.askers))

    run(steps)


def test_what_nobody_wants_to_know_of_askers_is_not_kept() -> None:
    async def steps(ends: Ends) -> None:
        owner = Owner()
        server = await ends.start(owner)
        assert await ends.pipes.ask(OWNER, b"x") == b"echo x"
        (line,) = server.lines
        assert len(line.askers) == 1
        owner.askers.clear()
        await ends.until(lambda: not line.askers)

    run(steps)


def test_a_request_whose_owner_dies_is_broken_and_the_next_one_finds_the_successor() -> None:
    async def steps(ends: Ends) -> None:
        owner = Owner()
        server = await ends.start(owner)
        asked = asyncio.ensure_future(ends.pipes.ask(OWNER, b"wait"))
        await ends.until(lambda: owner.asked)
        await ends.stop(server)
        with pytest.raises(PipeBroken):
            await asked
        again = asyncio.ensure_future(ends.pipes.ask(OWNER, b"again"))
        await ends.start(Owner())
        assert await again == b"echo again"

    run(steps)


def test_a_frame_that_is_too_long_is_refused_on_each_side(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def steps(ends: Ends) -> None:
        owner = Owner()
        await ends.start(owner)
        too_large = clients.ASK_PAYLOAD_BYTES_MAX + 1
        with pytest.raises(FrameTooLarge, match=f"{too_large} bytes; the limit is"):
            await ends.pipes.ask(OWNER, bytes(too_large))
        assert len(await ends.pipes.ask(OWNER, b"large %d" % FRAME_BYTES_MAX)) == FRAME_BYTES_MAX
        with pytest.raises(PipeFailed):
            await ends.pipes.ask(OWNER, b"large %d" % (FRAME_BYTES_MAX + 1))
        client = SlowClient()
        ends.pipes.open(OWNER, b"s", client)
        await ends.until(lambda: owner.opened)
        owner.opened[0][1].write(bytes(FRAME_BYTES_MAX + 1))
        await ends.until(lambda: client.closed)
        assert not client.writes

    with caplog.at_level(logging.CRITICAL, "headgate.pipes"):
        run(steps)


def test_a_stream_carries_whole_writes_in_their_order_until_the_owner_ends_it() -> None:
    async def steps(ends: Ends) -> None:
        owner, client = Owner(), SlowClient()
        server = await ends.start(owner)
        ends.pipes.open(OWNER, b"s", client)
        await ends.until(lambda: owner.opened)
        payload, outlet = owner.opened[0]
        assert payload == b"s" and outlet.writable and not outlet.closed
        for part in (b"one", b"two", b"three"):
            outlet.write(part)
        outlet.end(b"bye")
        outlet.write(b"late")
        await ends.until(lambda: client.closed)
        assert client.writes == [b"one", b"two", b"three", b"bye"]
        assert not owner.gone and not server.outlets

    run(steps)


def test_a_client_that_goes_closes_the_owners_outlet() -> None:
    async def steps(ends: Ends) -> None:
        owner, client = Owner(), SlowClient()
        server = await ends.start(owner)
        ends.pipes.open(OWNER, b"s", client)
        await ends.until(lambda: owner.opened)
        client.go()
        await ends.until(lambda: owner.gone == [b"s"])
        assert owner.opened[0][1].closed and not server.outlets

    run(steps)


def test_a_client_that_takes_nothing_costs_a_window_and_one_write() -> None:
    async def steps(ends: Ends) -> None:
        owner, client = Owner(), SlowClient(takes=False)
        client.writable = True
        await ends.start(owner)
        ends.pipes.open(OWNER, b"s", client)
        await ends.until(lambda: owner.opened)
        outlet = owner.opened[0][1]
        written = drained = 0

        def more() -> None:
            nonlocal written, drained
            drained += 1
            while outlet.writable:
                outlet.write(bytes(50_000))
                written += 50_000

        outlet.drained = more
        more()
        assert WINDOW_BYTES <= written < WINDOW_BYTES + 50_000
        await ends.until(lambda: client.taken_bytes == written)
        assert drained == 1
        client.take()
        await ends.until(lambda: drained == 2)
        assert WINDOW_BYTES < written <= 2 * WINDOW_BYTES + 100_000

    run(steps)


def test_a_slow_client_delays_no_other_one() -> None:
    async def steps(ends: Ends) -> None:
        owner, slow, fast = Owner(), SlowClient(takes=False), SlowClient()
        await ends.start(owner)
        ends.pipes.open(OWNER, b"slow", slow)
        ends.pipes.open(OWNER, b"fast", fast)
        await ends.until(lambda: len(owner.opened) == 2)
        for _, outlet in owner.opened:

            def more(outlet: object = outlet) -> None:
                while outlet.writable:  # type: ignore[attr-defined]
                    outlet.write(bytes(40_000))  # type: ignore[attr-defined]

            outlet.drained = more
            more()
        await ends.until(lambda: fast.taken_bytes > 64 * WINDOW_BYTES)
        assert slow.taken_bytes == 0

    run(steps)


def test_after_the_owners_death_streams_go_on_at_its_successor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clients, "RECONNECT_S", 0.001)

    async def steps(ends: Ends) -> None:
        first, second = Owner(), Owner()
        quick, slow = SlowClient(), SlowClient(takes=False)
        server = await ends.start(first)
        ends.pipes.open(OWNER, b"quick", quick)
        ends.pipes.open(OWNER, b"slow", slow)
        await ends.until(lambda: len(first.opened) == 2)
        for payload, outlet in first.opened:
            if payload == b"quick":
                outlet.write(b"before ")
        await ends.until(lambda: quick.writes)
        await ends.stop(server)
        assert not quick.closed and not slow.closed
        await ends.start(second)
        await ends.until(lambda: len(second.opened) == 2)
        outlets = dict(second.opened)
        outlets[b"quick"].write(b"after")
        await ends.until(lambda: quick.text == b"before after")
        assert not outlets[b"slow"].writable
        told: list[bool] = []
        outlets[b"slow"].drained = lambda: told.append(outlets[b"slow"].writable)
        slow.take()
        await ends.until(lambda: told)
        assert told == [True]

    run(steps)


def test_a_client_that_goes_while_the_owner_is_away_is_not_opened_again() -> None:
    async def steps(ends: Ends) -> None:
        first, second = Owner(), Owner()
        stays, goes = SlowClient(), SlowClient()
        server = await ends.start(first)
        ends.pipes.open(OWNER, b"stays", stays)
        ends.pipes.open(OWNER, b"goes", goes)
        await ends.until(lambda: len(first.opened) == 2)
        await ends.stop(server)
        goes.go()
        await ends.start(second)
        await ends.until(lambda: second.opened)
        assert await ends.pipes.ask(OWNER, b"x") == b"echo x"
        assert [payload for payload, _ in second.opened] == [b"stays"]

    run(steps)


def test_a_drain_makes_no_connection_and_ends_what_would_need_one() -> None:
    async def steps(ends: Ends) -> None:
        owner, client, other = Owner(), SlowClient(), SlowClient()
        server = await ends.start(owner)
        ends.pipes.open(OWNER, b"s", client)
        assert await ends.pipes.ask(OWNER, b"x") == b"echo x"
        ends.pipes.drain()
        assert not client.closed
        assert await ends.pipes.ask(OWNER, b"x") == b"echo x"
        await ends.stop(server)
        await ends.until(lambda: client.closed)
        with pytest.raises(PipeBroken):
            await ends.pipes.ask(OWNER, b"y")
        ends.pipes.open(OWNER, b"late", other)
        assert other.closed

    run(steps)


def test_a_drain_gives_up_what_waits_for_a_successor() -> None:
    """During a drain nobody starts it."""

    async def steps(ends: Ends) -> None:
        asked = asyncio.ensure_future(ends.pipes.ask(OWNER, b"x"))
        client = SlowClient()
        ends.pipes.open(OWNER, b"s", client)
        line = ends.pipes.pipe_to(OWNER)
        await ends.until(lambda: line.is_connected)
        ends.pipes.drain()
        with pytest.raises(PipeBroken):
            await asked
        assert client.closed

    run(steps)


def test_a_handler_that_fails_ends_its_stream_only(caplog: pytest.LogCaptureFixture) -> None:
    async def steps(ends: Ends) -> None:
        owner, bad, good = Owner(), SlowClient(), SlowClient()
        server = await ends.start(owner)
        ends.pipes.open(OWNER, b"fail", bad)
        ends.pipes.open(OWNER, b"good", good)
        await ends.until(lambda: bad.closed and owner.opened)
        owner.opened[0][1].write(b"on")
        await ends.until(lambda: good.writes)
        assert server.outlets == 1

    with caplog.at_level(logging.CRITICAL, "headgate.pipes"):
        run(steps)
