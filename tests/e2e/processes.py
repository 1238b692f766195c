"""A daemon's processes as the kernel sees them: which one has a connection, and which are alive.

A shard is ended in ``succession`` or by ``kill_shards``: what a test asks for afterwards, it asks
of a daemon whose shards all serve. In between, a status shows a shard without a pid, ``/readyz`` is
503, and the owner of a subscription may be on its way: only a test that is about this looks then.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from collections.abc import Iterator
from functools import partial
from typing import Any

import psutil

from compaction.access.http_calls import socket_address
from compaction.access.via_daemon import ViaDaemon
from shards import locks
from shards.locks import LockFile
from tests.e2e.daemon import HANG_S, Answer, Daemon, wait_until
from tests.e2e.load import read_answer


def serving(daemon: Daemon) -> list[Any]:
    """The status of the shards, once all of them serve: one that was stopped may have been killed
    for that, if the machine was slow to let it go on."""

    def all_serve() -> list[Any]:
        shards: list[Any] = daemon.status()["shards"]
        return shards if all(shard["ready"] for shard in shards) else []

    return wait_until(all_serve, "all shards to serve")


def shard_pids(daemon: Daemon) -> list[int]:
    """The shards' pids, by shard, once all of them serve."""
    return [shard["pid"] for shard in serving(daemon)]


def restarts(daemon: Daemon, shard: int) -> int:
    """How often a shard was started again."""
    return int(daemon.status()["shards"][shard]["restarts"])


@contextlib.contextmanager
def succession(daemon: Daemon, *shards: int) -> Iterator[list[int]]:
    """The pids of shards whose processes the block ends; after it their successors serve."""
    assert shards, "which shards?"
    before = serving(daemon)
    yield [before[shard]["pid"] for shard in shards]

    def are_back() -> bool:
        now = daemon.status()["shards"]
        return all(
            now[shard]["restarts"] > before[shard]["restarts"] and now[shard]["ready"]
            for shard in shards
        )

    wait_until(are_back, f"successors of the shards {shards}")
    wait_until(lambda: daemon.get("/readyz").status == 200, "the daemon to be ready")


def kill_shards(daemon: Daemon, *shards: int) -> None:
    """SIGKILL to shards; returns when their successors serve."""
    with succession(daemon, *shards) as pids:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)


def stop_until_killed(pid: int) -> None:
    """SIGSTOP to a shard, until the supervisor has killed it for that."""
    with stopped(pid):
        wait_until(lambda: not alive(pid), "the supervisor to kill the stopped shard")


def alive(pid: int) -> bool:
    """Whether the process runs (an orphan that has ended may stay a zombie for a while)."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """SIGSTOP to a process, which stands then; it goes on at the end unless it is gone by then."""
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, "it to stand")
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def unlisted(daemon: Daemon) -> Iterator[None]:
    """While the supervisor is stopped, so that no entry of the owner's log lists what is stored.
    One is sent before: without another, a daemon stores for 15 s only, and an idle one for less."""
    assert daemon.json("PUT", "/v0/cursors/of-an-entry").status in (200, 201)
    ViaDaemon(socket_address(str(daemon.data))).await_backup()
    with contextlib.ExitStack() as stack:
        with locked_ledger(daemon):  # in its own transaction it would hold up all others
            stack.enter_context(stopped(daemon.process.pid))
        yield


@contextlib.contextmanager
def locked_ledger(daemon: Daemon) -> Iterator[None]:
    """While no process of the daemon is in a transaction of the ledger, and none can begin one."""
    with contextlib.closing(LockFile(daemon.data / "lock")) as file:
        wait_until(lambda: file.try_lock(locks.LEDGER), "the ledger lock")
        yield


class Line:
    """A raw keep-alive connection to one shard."""

    def __init__(self, daemon: Daemon) -> None:
        self.socket = socket.create_connection(("127.0.0.1", daemon.port), timeout=HANG_S)
        self._stream = self.socket.makefile("rb")

    @property
    def local_port(self) -> int:
        return int(self.socket.getsockname()[1])

    def send(self, topic: str, *data: object, **more: object) -> None:
        """A produce request; does not wait for its answer."""
        body = json.dumps({"records": [{"data": d} for d in data], **more}).encode()
        head = (
            f"POST /v0/topics/{topic} HTTP/1.1\r\nHost: localhost\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self.socket.sendall(head.encode() + body)

    def answer(self) -> Answer | None:
        """The next answer; None when the connection ended instead."""
        try:
            return read_answer(self._stream)
        except ConnectionResetError:
            return None

    def produce(self, topic: str, *data: object, **more: object) -> Any:
        """A produce that must be acknowledged; returns its answer's document."""
        self.send(topic, *data, **more)
        answer = self.answer()
        assert answer is not None and answer.status == 200, answer
        return answer.json

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection."""
        self._stream.close()
        self.socket.close()


@contextlib.contextmanager
def held_commit(daemon: Daemon, topic: str) -> Iterator[None]:
    """While a record is not committed, because the ledger is locked; after it the record is."""
    with Line(daemon) as line:
        with locked_ledger(daemon):
            line.send(topic, "held", ack_timeout_ms=600_000)
            wait_until(
                lambda: any(shard["ring_used_bytes"] for shard in daemon.status()["shards"]),
                "it to be taken in",
            )
            yield
        answer = line.answer()
        assert answer is not None and answer.status == 200, answer


@contextlib.contextmanager
def connect_to(daemon: Daemon, shard: int) -> Iterator[Line]:
    """A connection that the kernel gave to this shard: others are opened until it does."""
    process = psutil.Process(shard_pids(daemon)[shard])
    others: list[Line] = []
    try:
        while True:
            line = Line(daemon)
            try:
                pid = wait_until(partial(_owner, daemon, line), "a shard to accept")
            except BaseException:
                line.close()
                raise
            if pid == process.pid:
                break
            others.append(line)
    finally:
        for other in others:
            other.close()
    try:
        yield line
    finally:
        line.close()


def _owner(daemon: Daemon, line: Line) -> int | None:
    for pid in shard_pids(daemon):
        for found in psutil.Process(pid).net_connections(kind="tcp4"):
            if found.raddr[1:] == (line.local_port,):
                return pid
    return None
