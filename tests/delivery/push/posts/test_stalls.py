"""Time in which a shard stood still is not the receiver's."""

from __future__ import annotations

import asyncio
import socket
import threading
import time

import uvloop

from delivery.push.posts.addresses import AllowList
from delivery.push.posts.answers import PushAnswer
from delivery.push.posts.client import PushClient
from delivery.push.posts.posting import BEAT_NS, Stalls
from shards.clock import monotonic_ns

HANG_S = 60.0
TIMEOUT_MS = 1_000  # far more than a thread waits for a CPU


def test_a_gap_between_beats_counts_as_far_as_it_is_longer_than_one() -> None:
    stalls = Stalls()
    stalls.begin(0)
    stalls.beat(BEAT_NS)
    stalls.beat(BEAT_NS * 5 // 2)  # late, as timers are
    assert stalls.lost_ns(BEAT_NS * 4) == 0
    assert stalls.lost_ns(BEAT_NS * 13 // 2) == 3 * BEAT_NS  # of a stall that is not over
    stalls.beat(BEAT_NS * 13 // 2)
    assert stalls.lost_ns(BEAT_NS * 7) == 3 * BEAT_NS
    stalls.begin(BEAT_NS * 100)  # nobody was there to beat
    assert stalls.lost_ns(BEAT_NS * 101) == 3 * BEAT_NS


class _Receiver:
    """Answers in a thread, and says when an answer is on its way."""

    def __init__(self) -> None:
        self.answered = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            while data := connection.recv(65_536):
                if data.endswith(b"{}"):
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                    self.answered.set()

    def close(self) -> None:
        self._thread.join(HANG_S)
        self._listener.close()


async def _post_and_stand_still(receiver: _Receiver) -> PushAnswer:
    client = PushClient(AllowList(["127.0.0.1"]))
    try:
        first = await client.post(receiver.url, {}, b"{}", int(HANG_S * 1e3))
        assert first.status == 200
        receiver.answered.clear()
        began_ns = monotonic_ns()
        post = asyncio.create_task(client.post(receiver.url, {}, b"{}", TIMEOUT_MS))
        while not receiver.answered.wait(0.03):  # noqa: ASYNC110 - it is to block
            await asyncio.sleep(0)  # a turn, until the request is sent
        left_s = 2 * TIMEOUT_MS / 1e3 - (monotonic_ns() - began_ns) / 1e9
        time.sleep(max(0.0, left_s))  # noqa: ASYNC251 - so it stands still
        return await post
    finally:
        await client.close()


def test_an_answer_that_came_while_the_loop_stood_still_is_in_time() -> None:
    """A loop that wakes late looks at its timers before it reads."""
    receiver = _Receiver()
    try:
        answer = uvloop.run(_post_and_stand_still(receiver))
    finally:
        receiver.close()
    assert (answer.failure, answer.status) == (None, 200)
