"""The shipped dispatcher and scheduler under the governor, in virtual time.

Topics are written at random moments; each turn takes CPU. Heartbeat and governor come every 100 ms.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

from daemon.config.sensors import INDEX, SENSORS, Reading
from daemon.governor.governor import Governed, Governor
from delivery.dispatch import Dispatcher, Served
from delivery.ready import Kind, PriorityInputs, Turn
from delivery.scheduler.scheduler import BandedReadySet

US = 1_000
MS = 1_000_000
S = 1_000 * MS
START_NS = 1_000 * S


class _Timer:
    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class VirtualLoop:
    """An event loop whose clock moves when nothing is to be done, or a turn takes time."""

    def __init__(self) -> None:
        self.now_ns = START_NS
        self._due: list[tuple[int, int, _Timer]] = []
        self._number = 0

    def call_soon(self, callback: Callable[[], None], /) -> object:
        return self.call_at(self.now_ns, callback)

    def call_later(self, delay_s: float, callback: Callable[[], None], /) -> _Timer:
        return self.call_at(self.now_ns + round(delay_s * 1e9), callback)

    def call_at(self, at_ns: int, callback: Callable[[], None]) -> _Timer:
        self._number += 1
        timer = _Timer(callback)
        heapq.heappush(self._due, (at_ns, self._number, timer))
        return timer

    def run_until(self, end_ns: int) -> None:
        while self._due and self._due[0][0] <= end_ns:
            at_ns, _, timer = heapq.heappop(self._due)
            self.now_ns = max(self.now_ns, at_ns)
            if timer.call is not None:
                timer.call()
        self.now_ns = max(self.now_ns, end_ns)


class Delivering:
    """``topics`` whose priorities are ``priority_of``; a turn takes ``turn_us``."""

    def __init__(self, priority_of: Callable[[int], int], *, turn_us: int, seed: int = 7) -> None:
        self.loop = VirtualLoop()
        self.ready = BandedReadySet()
        self.dispatcher = Dispatcher(
            self.ready, lambda topic_id: PriorityInputs(priority_of(topic_id)),
            lambda: self.loop.now_ns,
        )  # fmt: skip
        self.dispatcher.start(self.loop, {Kind.WATCH: self._serve}, self._failed)
        self.governor = Governor({})
        self.seen: list[Governed] = []
        self.served: dict[int, int] = {}
        self.writes_per_s = 0.0
        self.topics = range(1)
        self._turn_ns = turn_us * US
        self._busy_ns = 0
        self._rng = random.Random(seed)
        self._write_ns = START_NS
        self._write()
        self._beat()

    def run(self, seconds: float, writes_per_s: float, topics: range) -> list[Governed]:
        """Lets time pass under a load; returns what the governor said."""
        self.writes_per_s, self.topics = writes_per_s, topics
        before = len(self.seen)
        self.loop.run_until(self.loop.now_ns + round(seconds * S))
        return self.seen[before:]

    def _write(self) -> None:
        """One write, and the next, which a busy loop does not delay."""
        gap_ns = MS
        if self.writes_per_s:
            self.dispatcher.dirty([(self._rng.choice(self.topics), Kind.WATCH)], self.loop.now_ns)
            gap_ns = round(self._rng.expovariate(self.writes_per_s) * S)
        self._write_ns += gap_ns
        self.loop.call_at(self._write_ns, self._write)

    def _serve(self, turn: Turn) -> Served:
        self.loop.now_ns += self._turn_ns
        self._busy_ns += self._turn_ns
        self.served[turn.key[0]] = self.served.get(turn.key[0], 0) + 1
        return Served(4096, False)

    def _beat(self) -> None:
        now_ns = self.loop.now_ns
        readings = [Reading(0.0)] * len(SENSORS)
        readings[INDEX["ready"]] = Reading(self.ready.oldest_wait_ns(now_ns) / 1e6)
        readings[INDEX["scheduling"]] = Reading(self.dispatcher.latency_ns() / 1e6)
        readings[INDEX["busy"]] = Reading(min(1.0, self._busy_ns / (100 * MS)))
        self._busy_ns = 0
        governed = self.governor.sample(readings, 0.5, 10, now_ns)
        self.dispatcher.set_pressure(governed.coalesce_ns, governed.deferring)
        self.seen.append(governed)
        self.loop.call_at(now_ns + 100 * MS, self._beat)

    def _failed(self, error: Exception) -> None:
        raise error
