"""Watchers that behave badly: memory stays bounded, and no other watcher notices.

That nobody else gets slower is counted in events: a bystander gets each record before the next one
is written, by itself, and is never told that it has caught up again, as one that lagged would be.
"""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from daemon.http.body import ChunkedBody
from daemon.http.limits import HttpLimits
from daemon.memory import STREAM_BYTES
from daemon.process.open_files import fitted, needed
from tests.e2e.daemon import HANG_S, Daemon, running, wait_until
from tests.e2e.processes import shard_pids
from tests.e2e.streams import WatchLine

KIB, MIB = 1 << 10, 1 << 20
WATCH = "/v0/topics/t/watch"
SETTINGS = {"ring_bytes": 16 * MIB, "object_bytes_target": 1 * MIB, "body_bytes_max": 2 * MIB}
RECORD = "x" * (MIB // 2)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running(tmp_path_factory.mktemp("data"), shards=1, settings=SETTINGS) as daemon:
        daemon.produce("t", "first")
        yield daemon
        assert [shard["restarts"] for shard in daemon.status()["shards"]] == [0]
        assert "Traceback" not in daemon.text


class Bystander:
    """A watcher that reads everything, and what it sees of others: nothing."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._line = WatchLine(daemon, WATCH)
        self._line.read_until(lambda: self._line.told == ["caught-up"])

    def write(self, *data: object) -> None:
        """Each is a record, which must come before the next is written and before anything else."""
        for each in data:
            count = len(self._line.events)
            assert self._daemon.produce("t", each).status == 200
            self._line.read_until(lambda: len(self._line.events) > count)  # noqa: B023
            (event,) = self._line.events[count:]
            assert event["data"] == each

    def close(self) -> None:
        assert self._line.told == ["caught-up"]
        self._line.close()


@pytest.fixture
def bystander(daemon: Daemon) -> Iterator[Bystander]:
    made = Bystander(daemon)
    made.write("before")
    yield made
    made.write("after")
    made.close()


def own_memory(daemon: Daemon) -> int:
    """Bytes of the shard's process that it shares with no other."""
    (pid,) = shard_pids(daemon)
    return int(psutil.Process(pid).memory_full_info().uss)


def streams(daemon: Daemon) -> int:
    """As of the shard's last heartbeat."""
    return sum(shard["streams"] for shard in daemon.status()["shards"])


def lagged(daemon: Daemon) -> tuple[int, int]:
    """Watchers that have lagged, of all topics and of this one."""
    return (
        daemon.status()["delivery"]["lagged_watchers"],
        daemon.get("/v0/topics/t").json["lagged_watchers"],
    )


@contextlib.contextmanager
def asking(daemon: Daemon, path: str = WATCH, then: bytes = b"") -> Iterator[socket.socket]:
    """A client that has asked for a stream."""
    with socket.create_connection(("127.0.0.1", daemon.port), timeout=HANG_S) as client:
        head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: application/x-ndjson\r\n\r\n"
        client.sendall(head.encode() + then)
        yield client


def received(client: socket.socket, wanted: bytes, already: bytes = b"") -> bytes:
    """All that comes, up to ``wanted``."""
    read = bytearray(already)
    while wanted not in read[-64 * KIB :]:
        more = client.recv(64 * KIB)
        assert more, f"the stream ended after {bytes(read[-200:])!r}"
        read += more
    return bytes(read)


def data_in(raw: bytes) -> list[object]:
    """The data of the records in an answer, as far as it goes."""
    head, _, rest = raw.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    body = ChunkedBody(1 << 30)
    body.feed(rest, 0)
    events = map(json.loads, body.take().split(b"\n")[:-1])
    return [event["data"] for event in events if "data" in event]


def test_watchers_that_never_read_hold_little_and_get_everything_when_they_read_again(
    daemon: Daemon, bystander: Bystander
) -> None:
    start = daemon.diff("t", tail=True)["head_seq"]
    bystander.write(*(f"{number} {RECORD}" for number in range(24)))
    at_first = own_memory(daemon)
    with contextlib.ExitStack() as stack:
        lines = []
        for number in range(20):
            lines.append(stack.enter_context(WatchLine(daemon, f"{WATCH}?from_seq={start}")))
            bystander.write(f"{24 + number} {RECORD}")
        wait_until(lambda: lagged(daemon) == (20, 20), "all of them to have lagged")
        # 440 MiB were due to them; a page of each may be in memory.
        assert own_memory(daemon) - at_first < 60 * MIB
        for slow in lines[::10]:
            slow.read_until(lambda: len(slow.records) == 44)  # noqa: B023
            numbers = [record["data"].split()[0] for record in slow.records]
            assert numbers == [str(number) for number in range(44)]
        # Of the others some may be gone by now: who has taken nothing for a minute is closed.
        wait_until(lambda: max(lagged(daemon)) <= 18, "those that read to be at the end again")
    wait_until(lambda: lagged(daemon) == (0, 0), "the others to be gone")
    assert daemon.status()["delivery"]["lags"] >= 20


def test_a_daemon_that_may_open_few_files_says_so_and_refuses_streams_before_it_has_none_left(
    data: Path,
) -> None:
    few = ("sh", "-c", 'ulimit -n 700; exec "$@"', "sh", sys.executable, "-m", "cli", "serve")
    with running(data, shards=1, command=few) as daemon, contextlib.ExitStack() as stack:
        assert "a process may open 700 files" in daemon.text
        daemon.produce("t", "first")
        limit = fitted(HttpLimits(), 700, 1).streams_max
        for _ in range(limit):
            received(stack.enter_context(asking(daemon)), b"caught-up")
        refused = daemon.get(WATCH)
        assert (refused.status, refused.json["error"]["detail"]) == (503, {"limit": limit})
        assert daemon.produce("t", "still").status == 200


@contextlib.contextmanager
def many_open_files() -> Iterator[None]:
    """As many as this process and a daemon that it starts may need."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = needed(HttpLimits(), 1)
    assert before[1] >= wanted, f"this test needs {wanted} open files (ulimit -Hn), not {before[1]}"
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.slow
def test_ten_thousand_watchers_of_one_shard_get_everything_and_one_more_is_refused(
    data: Path,
) -> None:
    limit = HttpLimits().streams_max
    with many_open_files(), running(data, shards=1) as daemon, contextlib.ExitStack() as stack:
        daemon.produce("t", "first")
        bystander = Bystander(daemon)
        at_first = own_memory(daemon)
        clients: list[tuple[socket.socket, bytes]] = []
        while len(clients) < limit - 1:
            count = min(100, limit - 1 - len(clients))
            batch = [stack.enter_context(asking(daemon)) for _ in range(count)]
            clients += [(client, received(client, b"caught-up")) for client in batch]
        assert own_memory(daemon) - at_first < limit * STREAM_BYTES
        refused = daemon.get(WATCH)
        assert (refused.status, refused.code) == (503, "too_many_streams")
        assert refused.json["error"]["detail"] == {"limit": limit}
        bystander.write(*range(5), "last")
        for client, read in clients:
            assert data_in(received(client, b'"last"}\n', read)) == [*range(5), "last"]
        bystander.close()
        stack.pop_all().close()
        wait_until(lambda: streams(daemon) == 0, "the streams to be over")
        with contextlib.closing(Bystander(daemon)) as another:
            another.write("again")


@pytest.mark.slow
def test_a_thousand_watchers_that_never_read_keep_to_the_budget_and_the_longest_silent_go(
    data: Path,
) -> None:
    budget = HttpLimits().stream_unsent_bytes_max
    with running(data, shards=1, settings=SETTINGS) as daemon, contextlib.ExitStack() as stack:
        daemon.produce("t", "first")
        bystander = Bystander(daemon)
        bystander.write(*(f"{number} {RECORD}" for number in range(20)))
        at_first = own_memory(daemon)
        clients = []
        for number in range(1000):
            clients.append(stack.enter_context(asking(daemon, f"{WATCH}?from_seq=0")))
            clients[-1].recv(1, socket.MSG_PEEK)
            if number % 50 == 0:
                bystander.write(number)
                assert own_memory(daemon) - at_first < 1.5 * budget
        wait_until(lambda: "streams whose clients took nothing" in daemon.text, "the log")
        bystander.write("last")
        assert data_in(received(clients[-1], b'"last"}\n'))[-1] == "last"
        with pytest.raises((AssertionError, ConnectionError), match=r"ended|reset"):
            received(clients[0], b'"last"}\n')
        bystander.close()
