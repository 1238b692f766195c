"""Memory that runs out in a real cgroup: producers are refused, routers pause, readers read on.

It needs root and a memory controller (tools/cgroups.py).
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from daemon.config import Override, load
from daemon.config.sensors import BY_NAME
from daemon.governor.cgroup import MAX_SHARE
from daemon.memory import layout_of
from tests.e2e.daemon import Daemon, running, wait_until
from tests.e2e.routing import add_router, assert_copied, router, wait_routed
from tests.e2e.wire import Wire, request
from tools.cgroups import MemoryGroup, memory_group

MIB = 1 << 20
AMPLE_BYTES = 2048 * MIB
SEGMENT_BYTES = layout_of(load(None, {}, [Override("shards", "1")])).size_bytes


def memory(daemon: Daemon) -> float:
    """The pressure of memory."""
    return float(daemon.status()["pressure"]["inputs"]["memory"])


def limit_for(daemon: Daemon, pressure: float) -> int:
    """The limit at which what the daemon uses now is this pressure."""
    (raw,) = [
        each["raw"] for each in daemon.status()["pressure"]["sensors"] if each["sensor"] == "memory"
    ]
    used_bytes = raw * (AMPLE_BYTES * MAX_SHARE - SEGMENT_BYTES)
    sensor = BY_NAME["memory"]
    share = sensor.zero + pressure * (sensor.full - sensor.zero)
    return int((used_bytes / share + SEGMENT_BYTES) / MAX_SHARE)


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
    group.limit_to(limit_for(daemon, 0.95))
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
        group.limit_to(AMPLE_BYTES)
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
    assert daemon.text.count("routers of this shard pause") == 1
    assert daemon.text.count("routers of this shard go on") == 1
    assert daemon.text.count("new requests are refused for want of memory") == 1


@pytest.mark.slow
def test_short_memory_refuses_producers_and_pauses_routers_until_there_is_more(
    tmp_path: Path,
) -> None:
    with memory_group(AMPLE_BYTES) as group:
        command = group.command([sys.executable, "-m", "cli", "serve"])
        with running(tmp_path / "data", command=command) as daemon:
            wait_until(lambda: memory(daemon) < 0.1, "the sensor")
            squeezed(daemon, group)
        assert group.kills == 0
