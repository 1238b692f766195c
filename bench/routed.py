"""What a router copies: while producers saturate its source, and when it starts in the past.

Both are of one partition and without a filter, with bodies of 64 KiB and 320 records. The shard has
one CPU, so a router that follows shares it with the producers. The back-fill begins when they have
ended: a second router copies all records of the source into another topic.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from bench.delivery_results import RoutedResult
from bench.processes import Daemon, ServerError
from shards.clock import monotonic_ns

SOURCE = "source"
FOLLOWED = "followed"
BACKFILLED = "backfilled"
LOAD_S = 6
WARM_UP_S = 1.0
MEASURED_S = 4.0
BACKFILL_S_MAX = 60
POLL_S = 0.02

Load = Callable[[str], AbstractContextManager[Callable[[], float]]]


def measure(daemon: Daemon, load: Load) -> RoutedResult:
    """``load`` saturates a topic while it is entered."""
    for topic in (SOURCE, FOLLOWED, BACKFILLED):
        daemon.ask("PUT", f"/v0/topics/{topic}", b"{}")
    _create(daemon, FOLLOWED)
    pause = threading.Event()  # only its timeouts are used
    with load(SOURCE) as finish:
        pause.wait(WARM_UP_S)
        before, began_ns = [_head(daemon, topic) for topic in (SOURCE, FOLLOWED)], monotonic_ns()
        pause.wait(MEASURED_S)
        after, seconds = (
            [_head(daemon, topic) for topic in (SOURCE, FOLLOWED)],
            ((monotonic_ns() - began_ns) / 1e9),
        )
        finish()
    acked_per_s, followed_per_s = (
        (head - had) / seconds for head, had in zip(after, before, strict=True)
    )
    daemon.wait_until_quiet()
    records = _head(daemon, SOURCE)
    _wait_for(daemon, FOLLOWED, records)
    cpu_before_s, began_ns = daemon.cpu_s(), monotonic_ns()
    _create(daemon, BACKFILLED)
    _wait_for(daemon, BACKFILLED, records)
    seconds = (monotonic_ns() - began_ns) / 1e9
    cpu_s = daemon.cpu_s() - cpu_before_s
    return RoutedResult(acked_per_s, followed_per_s, records, records / seconds, records / cpu_s)


def _create(daemon: Daemon, dest: str) -> None:
    settings = {"source": SOURCE, "dest": dest, "from": "earliest"}
    daemon.ask("PUT", f"/v0/routers/{dest}", json.dumps(settings).encode())


def _head(daemon: Daemon, topic: str) -> int:
    state = daemon.ask("GET", f"/v0/topics/{topic}")
    return int(state["partitions"][0]["head_seq"])


def _wait_for(daemon: Daemon, topic: str, records: int) -> None:
    pause = threading.Event()  # only its timeouts are used
    deadline_ns = monotonic_ns() + BACKFILL_S_MAX * 1_000_000_000
    while (head := _head(daemon, topic)) < records:
        if monotonic_ns() > deadline_ns:
            raise ServerError(f"{topic} has {head} of {records} copies after {BACKFILL_S_MAX} s")
        pause.wait(POLL_S)
