"""How late a shard's loop is while its uploader threads work: ``python -m bench.switching``.

``sys.setswitchinterval`` says how long a thread may keep the interpreter from another one that
wants it. Two threads build objects of 4 MiB from requests in a ring, as uploaders do; meanwhile the
loop wakes every 2 ms, as for a doorbell, and works a little. Each figure is over all turns, which
alternate between the intervals.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import threading
from typing import NamedTuple

import uvloop

from ledger.types import LeaseId
from shards.clock import monotonic_ns, process_cpu_ns
from shards.frame import Part
from shards.layout import Layout
from shards.ring import RingReader, RingWriter
from shards.segment import Segment
from uploader import l0
from uploader.pipeline.assemble import assemble

INTERVALS_S = (0.005, 0.001, 0.0005, 0.0001)
OBJECT_BYTES = 4 << 20
RECORD_BYTES = 1024
TOPICS = 100
THREADS = 2
WAKE_S = 0.002
WORK_NS = 200_000  # of the loop at each wake


class Turn(NamedTuple):
    """Lateness of the loop's wakes in ms, objects that were built, and the CPU per object in ms."""

    late_ms: list[float]
    objects: int
    cpu_ms: float


class Uploaders:
    """Threads that build the object of one lease again and again while they may."""

    def __init__(self) -> None:
        self._segment = Segment.create(Layout(1, 4 * OBJECT_BYTES))
        writer, self._ring = RingWriter(self._segment, 0), RingReader(self._segment, 0)
        payload = bytes(RECORD_BYTES)
        for number in range(OBJECT_BYTES // RECORD_BYTES):
            writer.append(1, 1, b"", [Part(1 + number % TOPICS, 0, 1, payload, 1, 1)])
        self._requests = [(0, request) for request in self._ring.requests(0, writer.head)]
        self._may = threading.Event()
        self._over = False
        self.objects = 0
        self._threads = [threading.Thread(target=self._run) for _ in range(THREADS)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        while self._may.wait() and not self._over:
            extents, _ = assemble(self._requests, [self._ring], str)
            l0.build(LeaseId(1, 1, 0, 1), 1, extents)
            self.objects += 1

    def work(self, *, may: bool) -> None:
        """Lets the threads work, or not."""
        if may:
            self._may.set()
        else:
            self._may.clear()

    def close(self) -> None:
        self._over = True
        self._may.set()
        for thread in self._threads:
            thread.join()


async def turn(uploaders: Uploaders, seconds: float) -> Turn:
    """Wakes and works while the threads build."""
    before, before_ns = uploaders.objects, process_cpu_ns()
    uploaders.work(may=True)
    late_ms = []
    end_ns = monotonic_ns() + int(seconds * 1e9)
    while (began_ns := monotonic_ns()) < end_ns:
        await asyncio.sleep(WAKE_S)
        now_ns = monotonic_ns()
        late_ms.append((now_ns - began_ns) / 1e6 - WAKE_S * 1e3)
        while monotonic_ns() < now_ns + WORK_NS:
            pass
    uploaders.work(may=False)
    objects = uploaders.objects - before
    return Turn(late_ms, objects, (process_cpu_ns() - before_ns) / 1e6 / max(1, objects))


async def measure(turns: int, seconds: float) -> dict[float, list[Turn]]:
    """The turns of each interval."""
    uploaders = Uploaders()
    default_s = sys.getswitchinterval()
    measured: dict[float, list[Turn]] = {interval_s: [] for interval_s in INTERVALS_S}
    try:
        for _ in range(turns):
            for interval_s, each in measured.items():
                sys.setswitchinterval(interval_s)
                each.append(await turn(uploaders, seconds))
    finally:
        sys.setswitchinterval(default_s)
        uploaders.close()
    return measured


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    given = parser.parse_args()
    print("interval ms | late p50 ms | late p99 ms | late max ms | objects/s | CPU ms an object")
    for interval_s, turns in uvloop.run(measure(given.turns, given.seconds)).items():
        late = sorted(ms for each in turns for ms in each.late_ms)
        rate = sum(each.objects for each in turns) / (len(turns) * given.seconds)
        cpu_ms = statistics.median(each.cpu_ms for each in turns)
        print(
            f"{interval_s * 1e3:>11} | {late[len(late) // 2]:>11.3f} |"
            f" {late[len(late) * 99 // 100]:>11.3f} | {late[-1]:>11.3f} | {rate:>9.1f} |"
            f" {cpu_ms:>16.2f}"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
