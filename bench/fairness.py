"""Fairness of the bands: five topics that always have more to deliver than the shard can.

Each band has one topic with the same number of watchers, and one producer that writes to it at a
steady rate. All watchers read as fast as they can, so what they get is what the scheduler gave.
Producers are slow and watchers many: what a core cannot deliver is then a backlog of a few MiB per
topic, which stays in the rings, so that all is delivered by turns of the scheduler.
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
# Of each topic. A core delivers 1 to 4 GB/s, the more the larger the writes, and half of it to the
# top band; each producer writes 2 to 4 MB/s, so its watchers want 2 to 4 GB/s.
WATCHERS = 900
PAUSE_MS = 10.0  # of a producer between two bodies of 64 KiB
RING_BYTES = 256 << 20  # more than all producers write, so that no watcher falls out of the tail
WARM_UP_S = 2.0  # until each watcher lacks more than one write
MEASURED_S = 5.0

Load = Callable[[str], AbstractContextManager[object]]


def topic_of(priority: int) -> str:
    return f"priority.{priority}"


def measure(daemon: Daemon, load: Load) -> FairnessResult:
    """``load`` saturates a topic with producers while it is entered."""
    topics = [topic_of(priority) for priority in PRIORITIES]
    for topic, priority in zip(topics, PRIORITIES, strict=True):
        settings = json.dumps({"priority": priority}).encode()
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
    poll = select.poll()
    for group in groups:
        poll.register(group, select.POLLIN)
    while monotonic_ns() < until_ns:
        if not sum(group.discard_ready() for group in groups):
            poll.poll(10)
