"""Fairness of the bands: five topics that always have more to deliver than the shard can.

Each band has one lossy topic with the same number of watchers, and producers that write the same to
each. All watchers read as fast as they can, so what they get is what the scheduler gave. A watcher
that falls out of the tail gets a tombstone and goes on at the head.
"""

from __future__ import annotations

import contextlib
import json
import select
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from bench.delivery_results import FairnessResult
from bench.processes import Daemon
from bench.stream_clients import StreamClients
from shards.clock import monotonic_ns

PRIORITIES = (900, 600, 300, 100, -100)  # one in each band, from the top
WATCHERS = 40  # of each topic: five times the bytes of all producers are far beyond one core
WARM_UP_S = 1.5
MEASURED_S = 6.0

Load = Callable[[str], AbstractContextManager[object]]


def topic_of(priority: int) -> str:
    return f"priority.{priority}"


def measure(daemon: Daemon, load: Load) -> FairnessResult:
    """``load`` saturates a topic with producers while it is entered."""
    topics = [topic_of(priority) for priority in PRIORITIES]
    for topic, priority in zip(topics, PRIORITIES, strict=True):
        settings = json.dumps({"priority": priority, "lossy": True}).encode()
        daemon.ask("PUT", f"/v0/topics/{topic}", settings)
    with contextlib.ExitStack() as stack:
        groups = [
            stack.enter_context(
                StreamClients(daemon.port, f"/v0/topics/{topic}/watch?tail=true", WATCHERS)
            )
            for topic in topics
        ]
        for topic in topics:
            stack.enter_context(load(topic))
        began_ns = monotonic_ns()
        _discard(groups, began_ns + int(WARM_UP_S * 1e9))
        before = [group.read_bytes for group in groups]
        heads_before = _heads(daemon, topics)
        _discard(groups, monotonic_ns() + int(MEASURED_S * 1e9))
        delivered = [group.read_bytes - had for group, had in zip(groups, before, strict=True)]
        written = [
            head - had for head, had in zip(_heads(daemon, topics), heads_before, strict=True)
        ]
    return FairnessResult(delivered, written)


def _heads(daemon: Daemon, topics: Sequence[str]) -> list[int]:
    states = [daemon.ask("GET", f"/v0/topics/{topic}") for topic in topics]
    return [int(state["partitions"][0]["head_seq"]) for state in states]


def _discard(groups: Sequence[StreamClients], until_ns: int) -> None:
    """Throws away what all watchers get until then."""
    while monotonic_ns() < until_ns:
        if not sum(group.discard_ready() for group in groups):
            select.select([group.fileno() for group in groups], [], [], 0.01)
