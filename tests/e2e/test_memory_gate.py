"""Memory that runs out in a real cgroup: producers are refused, routers pause, readers read on.

Another program in the group takes the memory, more than the daemon may have in all. So it stays
short until that program ends: what the daemon gives back does not open a gate, and neither does the
time, since what is above the limit is never granted (``daemon/governor/cgroup.py``).

It needs root and a memory controller (tools/cgroups.py).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from daemon.config import Override, load
from daemon.governor.cgroup import MAX_SHARE
from daemon.memory import layout_of
from tests.e2e.daemon import Daemon, running, wait_until
from tests.e2e.routing import add_router, assert_copied, router, wait_routed
from tests.e2e.wire import Wire, request
from tools.cgroups import MemoryGroup, memory_group

MIB = 1 << 20
LIMIT_BYTES = 1536 * MIB
SEGMENT_BYTES = layout_of(load(None, {}, [Override("shards", "1")])).size_bytes
# All that the daemon may have. With its own 100 MiB the kernel has as much left until it kills.
TAKEN_BYTES = int(LIMIT_BYTES * MAX_SHARE) - SEGMENT_BYTES
TAKES = "import sys; taken = bytearray(b'1') * int(sys.argv[1]); print(); sys.stdin.read()"


@contextmanager
def memory_taken(group: MemoryGroup) -> Iterator[None]:
    """Another program has taken the memory, until the end."""
    command = group.command([sys.executable, "-uc", TAKES, str(TAKEN_BYTES)])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"\n"
        yield


def refused(daemon: Daemon) -> bool:
    answer = daemon.produce("source", "refused?")
    if answer.status == 200:
        return False
    assert (answer.status, answer.code) == (503, "memory_short")
    assert int(answer.headers["retry-after"]) >= 1
    return True


def held(daemon: Daemon) -> bool:
    shown = router(daemon, "r")
    return bool(shown["state"] == "held") and "under pressure" in shown["reason"]


def squeezed(daemon: Daemon, group: MemoryGroup) -> None:
    daemon.json("PUT", "/v0/topics/source", {})
    daemon.json("PUT", "/v0/topics/copies", {})
    add_router(daemon, "r", "source", "copies")
    # What it has not copied when memory is short: a router without lag is not held by anything.
    daemon.json("PUT", "/v0/routers/r", {"paused": True})
    for n in range(20):
        assert daemon.produce("source", n).status == 200
    with ExitStack() as taken:
        taken.enter_context(memory_taken(group))
        wait_until(lambda: refused(daemon), "producers to be refused")
        wait_until(lambda: "routers of this shard pause" in daemon.text, "routers to pause")
        daemon.json("PUT", "/v0/routers/r", {"paused": False})
        wait_until(lambda: held(daemon), "the router to be held")
        status = daemon.status()
        assert "memory_short" in [alarm["alarm"] for alarm in status["alarms"]]
        for gate in status["gates"]:
            assert (gate["paused_shards"], gate["pauses"]) == (1, 1)
            assert "memory" in gate["reasons"] and gate["paused_ms"] >= 0
        assert not daemon.read_all("copies")
        stored = daemon.read_all("source")
        assert len(stored) >= 20  # readers read on
        with Wire(daemon.port) as waiting:
            body = b'{"records": [{"data": "waited"}]}'
            waiting.send(request("POST", "/v0/topics/source?disable_backpressure=true", body))
            wait_until(lambda: daemon.status()["shards"][0]["requests_queued"] == 1, "it to wait")
            assert daemon.read_all("source") == stored
            taken.close()
            answer = waiting.answer()
            assert answer is not None and answer.status == 200
    wait_until(lambda: daemon.produce("source", "after").status == 200, "producers to go on")
    wait_routed(daemon, "r")
    assert assert_copied(daemon, "source", "copies") >= 22
    assert router(daemon, "r")["state"] == "running"
    gates = daemon.status()["gates"]
    assert [(gate["gate"], gate["paused_shards"]) for gate in gates] == [
        ("producers", 0), ("routers", 0)
    ]  # fmt: skip
    # Each edge is one line.
    wait_until(lambda: "routers of this shard go on" in daemon.text, "the line")
    assert daemon.text.count("routers of this shard pause") == 1
    assert daemon.text.count("routers of this shard go on") == 1
    assert daemon.text.count("new requests are refused for want of memory") == 1


@pytest.mark.slow
def test_short_memory_refuses_producers_and_pauses_routers_until_there_is_more(
    tmp_path: Path,
) -> None:
    with memory_group(LIMIT_BYTES) as group:
        command = group.command([sys.executable, "-m", "cli", "serve"])
        # The request that waits may do so for as long as the test takes.
        settings: dict[str, object] = {"ack_timeout_ms": 600_000}
        with running(tmp_path / "data", command=command, settings=settings) as daemon:
            squeezed(daemon, group)
        assert group.kills == 0
