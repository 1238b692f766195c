"""How long consumers wait when the owner of their subscription is killed.

A message comes every few milliseconds, on whatever shard takes it. Each round kills the owner while
a consumer has a stream, and ends with the next message that it gets.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import threading
from collections.abc import Iterator, Sequence

import psutil

from bench.consumer_clients import ConsumerClients
from bench.delivery_results import Spread
from bench.processes import Daemon, ServerError, post
from bench.subscription_results import TakeoverResult
from shards.clock import monotonic_ns

ROUNDS = 6
BEFORE_S = 1.5
EACH_S = 0.005
KEYS = 1_000
PATIENCE_S = 60
POLL_S = 0.02


def measure(daemon: Daemon, topic: str, path: str) -> TakeoverResult:
    """With the connection at another shard, then at the owner."""
    with _producing(daemon, topic):
        elsewhere = [_killed(daemon, path, there=False) for _ in range(ROUNDS)]
        there = [_killed(daemon, path, there=True) for _ in range(ROUNDS)]
    return TakeoverResult(Spread.of_ns(elsewhere), Spread.of_ns(there))


def _killed(daemon: Daemon, path: str, *, there: bool) -> int:
    """The time from the kill to the next message."""
    pid = _wait_for_owner(daemon, path)
    with contextlib.ExitStack() as stack:
        clients = _consumer_at(stack, daemon, path, pid, there=there)
        _go_on(clients)
        if not clients.received:
            raise ServerError("a consumer got nothing before its owner was killed")
        os.kill(pid, signal.SIGKILL)
        killed_ns = monotonic_ns()
        received = clients.received
        with contextlib.suppress(ServerError, OSError):
            while clients.received == received:
                if any(each.socket_ns < killed_ns for each in clients.step(5.0)):
                    received = clients.received  # it was on its way
                if monotonic_ns() - killed_ns > PATIENCE_S * 1e9:
                    raise TimeoutError("the consumer got nothing any more")
        if clients.received == received:
            clients = stack.enter_context(_connected_again(daemon, path))
            while not clients.received:
                clients.step()
        return monotonic_ns() - killed_ns


def _wait_for_owner(daemon: Daemon, path: str) -> int:
    """The pid of the shard that owns the subscription, once all shards are there."""
    pause = threading.Event()  # only its timeouts are used
    deadline_ns = monotonic_ns() + PATIENCE_S * 1_000_000_000
    while monotonic_ns() < deadline_ns:
        with contextlib.suppress(ServerError):
            pids = _pids(daemon)
            owner: int = daemon.ask("GET", path)["owner_shard"]
            pid = pids[owner]
            if pid is not None and None not in pids:
                return pid
        pause.wait(POLL_S)
    raise ServerError(f"no owner within {PATIENCE_S} s; {daemon.log_end()}")


def _go_on(clients: ConsumerClients) -> None:
    end_ns = monotonic_ns() + int(BEFORE_S * 1e9)
    while (left_ns := end_ns - monotonic_ns()) > 0:
        clients.step(left_ns / 1e9)


@contextlib.contextmanager
def _producing(daemon: Daemon, topic: str) -> Iterator[None]:
    """A message every few milliseconds, on any shard, whatever happens to them."""
    over = threading.Event()

    def produce() -> None:
        number = 0
        while not over.is_set():
            with contextlib.suppress(OSError, http.client.HTTPException, ServerError):
                connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=5)
                with contextlib.closing(connection):
                    while not over.wait(EACH_S):
                        number += 1
                        record = {"key": f"key-{number % KEYS}", "data": number}
                        post(connection, topic, json.dumps({"records": [record]}).encode())

    thread = threading.Thread(target=produce, name="producer")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _consumer_at(
    stack: contextlib.ExitStack, daemon: Daemon, path: str, pid: int, *, there: bool
) -> ConsumerClients:
    """A consumer whose stream the kernel gave to this process, or all it has to another one."""
    for _ in range(100):
        clients = ConsumerClients(daemon.port, [path], 1)
        stream, acks = (_holder(daemon, port) == pid for port in clients.local_ports)
        if stream == there and (there or not acks):
            return stack.enter_context(clients)
        clients.close()
    raise ServerError("the kernel gave no stream to the shard that was wanted")


def _connected_again(daemon: Daemon, path: str) -> ConsumerClients:
    deadline_ns = monotonic_ns() + PATIENCE_S * 1_000_000_000
    while True:
        try:
            return ConsumerClients(daemon.port, [path], 1)
        except OSError:
            if monotonic_ns() > deadline_ns:
                raise


def _holder(daemon: Daemon, local_port: int) -> int | None:
    """The process that has accepted a connection of ours."""
    deadline_ns = monotonic_ns() + PATIENCE_S * 1_000_000_000
    while monotonic_ns() < deadline_ns:
        for pid in filter(None, _pids(daemon)):
            with contextlib.suppress(psutil.NoSuchProcess):
                for found in psutil.Process(pid).net_connections(kind="tcp4"):
                    if found.raddr[1:] == (local_port,):
                        return pid
    return None


def _pids(daemon: Daemon) -> Sequence[int | None]:
    return [shard["pid"] for shard in daemon.ask("GET", "/v0/status")["shards"]]
