"""What pipes hold is bounded: peers that take nothing, frames that are large, too many requests."""

from __future__ import annotations

import asyncio
import logging
import os
import socket

import pytest

from delivery.pipes import buffers
from delivery.pipes import client as clients
from delivery.pipes import server as servers
from delivery.pipes.addresses import connected
from delivery.pipes.connection import WRITE_BUFFER_HIGH_BYTES
from delivery.pipes.errors import PipeBroken, PipeBusy
from delivery.pipes.frames import FrameKind, credit_of, head_of
from delivery.pipes.server import PipeServer
from delivery.streams.outlet import Outlet
from tests.delivery.pipes.ends import FRAME_BYTES_MAX, OWNER, Ends, Owner, SlowClient, run

CREDIT = credit_of(1 << 30)
WRITE = bytes(100_000)


def opening(number: int, payload: bytes) -> bytes:
    """A stream with more credit than any shard gives."""
    body = CREDIT + payload
    return head_of(FrameKind.OPEN, number, len(body)) + body


def written_while_writable(outlet: Outlet) -> int:
    count = 0
    while outlet.writable:
        outlet.write(WRITE)
        count += 1
    return count


def held_bytes(server: PipeServer) -> int:
    return server.buffers.unsent.bytes


def test_a_shard_that_takes_nothing_holds_one_write_over_its_buffer_whatever_its_streams() -> None:
    async def steps(ends: Ends) -> None:
        owner = Owner()
        server = await ends.start(owner)
        stuck = connected(ends.names[OWNER])
        stuck.setblocking(True)
        stuck.sendall(b"".join(opening(number, b"%d" % number) for number in range(1, 51)))
        await ends.until(lambda: len(owner.opened) == 50)
        told: list[int] = []
        for number, (_, outlet) in enumerate(owner.opened):
            outlet.drained = lambda number=number: told.append(number)
            written_while_writable(outlet)
        # The kernel takes some.
        await ends.until(lambda: held_bytes(server) or told)
        for _, outlet in owner.opened:
            written_while_writable(outlet)
        assert 0 < held_bytes(server) <= WRITE_BUFFER_HIGH_BYTES + 2 * len(WRITE)
        assert not any(outlet.writable for _, outlet in owner.opened)
        # Another shard is served meanwhile.
        assert await ends.pipes.ask(OWNER, b"x") == b"echo x"
        told.clear()
        loop = asyncio.get_running_loop()
        stuck.setblocking(False)
        while len(told) < 50:
            await loop.sock_recv(stuck, 1 << 20)
            ends.check()
        assert told == list(range(50))  # in the order in which they were told to wait
        stuck.close()
        await ends.until(lambda: not server.outlets)
        assert held_bytes(server) == 0

    run(steps)


def test_streams_of_all_shards_wait_when_half_of_what_may_be_held_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def steps(ends: Ends) -> None:
        owner, client = Owner(), SlowClient()
        server = await ends.start(owner)
        server.buffers.unsent.limit_bytes = 2 * FRAME_BYTES_MAX
        stuck = connected(ends.names[OWNER])
        stuck.sendall(opening(1, b"stuck"))
        ends.pipes.open(OWNER, b"other", client)
        await ends.until(lambda: len(owner.opened) == 2)
        outlets = dict(owner.opened)
        outlets[b"stuck"].write(bytes(FRAME_BYTES_MAX))
        outlets[b"stuck"].write(bytes(1 << 20))
        other = outlets[b"other"]
        told: list[bool] = []
        other.drained = lambda: told.append(other.writable)
        assert server.buffers.unsent.is_half_full and not other.writable
        stuck.close()
        await ends.until(lambda: told == [True])

    run(steps)


def test_the_shard_that_holds_most_is_cut_off_when_answers_fill_the_rest(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def steps(ends: Ends) -> None:
        owner = Owner()
        server = await ends.start(owner)
        server.buffers.unsent.limit_bytes = 4 << 20
        stuck = connected(ends.names[OWNER])
        stuck.setblocking(True)
        asked = b"large %d" % (1 << 20)
        for number in range(6):
            stuck.sendall(head_of(FrameKind.ASK, number, len(asked)) + asked)
        await ends.until(lambda: len(owner.asked) == 6 and not server.lines)
        assert held_bytes(server) == 0
        assert await ends.pipes.ask(OWNER, b"x") == b"echo x"
        stuck.close()

    with caplog.at_level(logging.ERROR, "headgate.pipes"):
        run(steps)
    assert "over 4194304 bytes; the connection that holds the most of it is closed" in caplog.text


def test_large_frames_are_received_one_after_the_other_if_there_is_no_room_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = [5 << 20, 3 << 20, 7 << 20]

    async def steps(ends: Ends) -> None:
        owners = [Owner() for _ in sizes]
        for shard, owner in enumerate(owners):
            await ends.start(owner, shard)
        asked = [ends.pipes.ask(shard, b"large %d" % size) for shard, size in enumerate(sizes)]
        answers = asyncio.gather(*asked)
        most = 0

        def done() -> bool:
            nonlocal most
            most = max(most, ends.buffers.large_frames.granted_bytes)
            return answers.done()

        await ends.until(done)
        assert [len(answer) for answer in await answers] == sizes
        assert 0 < most <= buffers.LARGE_FRAMES_BYTES_MAX
        assert ends.buffers.large_frames.granted_bytes == 0

    run(steps, shards=3)


def test_a_shard_that_dies_in_the_middle_of_a_large_frame_frees_its_room() -> None:
    async def steps(ends: Ends) -> None:
        owner = Owner()
        server = await ends.start(owner)
        room = server.buffers.large_frames
        dying = connected(ends.names[OWNER])
        dying.sendall(head_of(FrameKind.ASK, 1, 6 << 20) + bytes(100_000))
        await ends.until(lambda: room.granted_bytes)
        waiting = connected(ends.names[OWNER])
        waiting.sendall(head_of(FrameKind.ASK, 1, 5 << 20) + bytes(100_000))
        await ends.until(lambda: len(server.lines) == 2)
        # Nothing more of it is read: the socket's own buffers fill.
        sent = blocked = 0
        while blocked < 10:
            await asyncio.sleep(0.001)
            try:
                sent += waiting.send(bytes(1 << 20))
                blocked = 0
            except BlockingIOError:
                blocked += 1
        assert sent < 2 << 20
        dying.close()
        await ends.until(lambda: 5 << 20 < room.granted_bytes < 6 << 20)
        waiting.close()
        await ends.until(lambda: not room.granted_bytes and not server.lines)

    run(steps)


def test_an_owner_with_too_many_requests_under_way_refuses_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(servers, "ANSWERING_MAX", 3)
    monkeypatch.setattr(servers, "PAYLOADS_BYTES_MAX", 1000)

    async def steps(ends: Ends) -> None:
        server = await ends.start(Owner())
        waiting = [asyncio.ensure_future(ends.pipes.ask(OWNER, b"wait")) for _ in range(3)]
        await ends.until(lambda: server.answering == 3)
        with pytest.raises(PipeBusy):
            await ends.pipes.ask(OWNER, b"x")
        waiting.pop().cancel()
        await ends.until(lambda: server.answering == 2)
        waiting.append(asyncio.ensure_future(ends.pipes.ask(OWNER, b"wait" + bytes(1000))))
        await ends.until(lambda: server.answering == 3)
        waiting.pop(0).cancel()
        await ends.until(lambda: server.answering == 2)
        with pytest.raises(PipeBusy):
            await ends.pipes.ask(OWNER, b"x")
        for each in waiting:
            each.cancel()
        await ends.until(lambda: not server.answering)
        assert await ends.pipes.ask(OWNER, b"x") == b"echo x"

    run(steps)


def test_a_shard_asks_a_limited_number_of_things_and_holds_a_limited_number_of_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clients, "ASKS_MAX", 2)

    async def steps(ends: Ends) -> None:
        ends.buffers.unsent.limit_bytes = 1000
        waiting = [asyncio.ensure_future(ends.pipes.ask(OWNER, b"x")) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(PipeBusy):
            await ends.pipes.ask(OWNER, b"x")
        ends.pipes.drain()
        for each in waiting:
            with pytest.raises(PipeBroken):
                await each
        ends.pipes.draining = False
        held = asyncio.ensure_future(ends.pipes.ask(OWNER, bytes(600)))
        await asyncio.sleep(0)
        with pytest.raises(PipeBusy):
            await ends.pipes.ask(OWNER, b"x")
        held.cancel()

    run(steps)


def test_streams_whose_requests_are_too_long_together_are_not_opened(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(clients, "OPENINGS_BYTES_MAX", 100)

    async def steps(ends: Ends) -> None:
        await ends.start(Owner())
        first, second, third = SlowClient(), SlowClient(), SlowClient()
        assert ends.pipes.has_room(60)
        ends.pipes.open(OWNER, bytes(60), first)
        assert ends.pipes.has_room(40) and not ends.pipes.has_room(41)
        ends.pipes.open(OWNER, bytes(60), second)
        assert second.closed and not first.closed
        first.go()
        ends.pipes.open(OWNER, bytes(60), third)
        assert not third.closed

    with caplog.at_level(logging.CRITICAL, "headgate.pipes"):
        run(steps)


def test_an_owner_has_a_limited_number_of_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "OUTLETS_MAX", 1)

    async def steps(ends: Ends) -> None:
        owner, first, second = Owner(), SlowClient(), SlowClient()
        await ends.start(owner)
        ends.pipes.open(OWNER, b"first", first)
        ends.pipes.open(OWNER, b"second", second)
        await ends.until(lambda: second.closed)
        assert [payload for payload, _ in owner.opened] == [b"first"]

    run(steps)


def test_a_process_of_another_user_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def steps(ends: Ends) -> None:
        owner = Owner()
        server = await ends.start(owner)
        stranger = connected(ends.names[OWNER])
        user = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: user + 1)
        stranger.sendall(head_of(FrameKind.ASK, 1, 1) + b"x")
        loop = asyncio.get_running_loop()
        assert await _end_of(loop, stranger)
        with pytest.raises(PipeBroken):  # nor does a shard ask one
            await ends.pipes.ask(OWNER, b"x")
        assert not owner.asked and not server.lines
        stranger.close()

    with caplog.at_level(logging.ERROR, "headgate.pipes"):
        run(steps)
    assert "refused 1 connections of processes of other users" in caplog.text


def test_bytes_that_are_not_frames_end_the_connection_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def steps(ends: Ends) -> None:
        server = await ends.start(Owner())
        loop = asyncio.get_running_loop()
        for data in (b"\xff" * 9, head_of(FrameKind.CREDIT, 1, 2) + b"ab"):
            with connected(ends.names[OWNER]) as broken:
                broken.sendall(opening(1, b"s") + data)
                assert await _end_of(loop, broken)
        await ends.until(lambda: not server.lines)
        assert await ends.pipes.ask(OWNER, b"x") == b"echo x"

    with caplog.at_level(logging.CRITICAL, "headgate.pipes"):
        run(steps)


async def _end_of(loop: asyncio.AbstractEventLoop, end: socket.socket) -> bool:
    try:
        return await loop.sock_recv(end, 100) == b""
    except ConnectionResetError:
        return True
