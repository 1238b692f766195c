"""Hedged PUTs: a second, equal request when the first is slower than almost all were lately.

Jeffrey Dean and Luiz Andre Barroso, "The Tail at Scale", CACM 56(2), 2013: a second request sent
after the 95th percentile costs 5 % more and cuts the tail; at the 99th it is 1 %. Here it is the
99th, for requests are what a bucket is billed by. Key and bytes are a function of the lease, so
the later of two PUTs meets 412 and its own checksum: the loser does no harm.

``Hedging`` decides and is pure. ``HedgedPut`` carries out: each attempt in a thread of its own
once there is something to decide by. A loser goes on until the store answers it or its time limit
ends it; ``losers_max`` bounds how many requests (and their bodies) there are beside the first
ones. Threads are daemons: a loser does not hold up the end of the process.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
from collections import deque
from collections.abc import Callable

from uploader.stores.base import ForeignObject, StoreError

log = logging.getLogger("headgate.uploader")

SAMPLES_MAX = 512  # about two minutes of a busy shard: steady, and still following the store
SAMPLES_MIN = 100  # below that the 99th percentile is the largest that was seen by accident
PERCENTILE = 0.99
# A store that turns slow as a whole makes every PUT slower than was usual; doubling its load would
# not help it. On average 1 PUT in 50 is hedged, and after a quiet time 2 at once.
HEDGES_PER_PUT = 0.02
HEDGES_SAVED_MAX = 2.0

Put = Callable[[str, bytes, int], str]


class Hedging:
    """Recent latencies of PUTs that succeeded, and what may be spent on hedges."""

    def __init__(self) -> None:
        self._recent_ns: deque[int] = deque(maxlen=SAMPLES_MAX)
        self._saved = 1.0

    def succeeded(self, latency_ns: int) -> None:
        """An attempt, first or second, took this long; losers too, or the tail would vanish."""
        self._recent_ns.append(latency_ns)

    def begins(self) -> int | None:
        """A PUT begins; after how many ns it should be hedged, None for never."""
        self._saved = min(HEDGES_SAVED_MAX, self._saved + HEDGES_PER_PUT)
        if len(self._recent_ns) < SAMPLES_MIN:
            return None
        in_order = sorted(self._recent_ns)
        return in_order[math.ceil(PERCENTILE * len(in_order)) - 1]

    def spend(self) -> bool:
        """Whether one more hedge may be made now."""
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        return True


class _Race:
    """The attempts of one PUT: each ends once, and the last one that ends is told so."""

    def __init__(self, ended: Callable[[], None]) -> None:
        self.outcomes: queue.SimpleQueue[str | BaseException] = queue.SimpleQueue()
        self._ended = ended
        self._mutex = threading.Lock()
        self._running = 0

    def enter(self) -> None:
        with self._mutex:
            self._running += 1

    def leave(self) -> None:
        with self._mutex:
            self._running -= 1
            is_last = not self._running
        if is_last:
            self._ended()


class HedgedPut:
    """``put`` of a store, hedged. Used from any thread; at most ``losers_max`` second requests."""

    def __init__(self, put: Put, losers_max: int, now_ns: Callable[[], int]) -> None:
        self.hedges = 0
        self._put = put
        self._now_ns = now_ns
        self._hedging = Hedging()
        self._mutex = threading.Lock()  # the decisions and the count
        self._losers = threading.BoundedSemaphore(losers_max)

    def put(self, key: str, body: bytes, crc32c: int) -> str:
        """As the store's put: the first success; an error only when no attempt is left."""
        with self._mutex:
            after_ns = self._hedging.begins()
        if after_ns is None:
            return self._timed(key, body, crc32c)
        hedged = False

        def ended() -> None:
            if hedged:
                self._losers.release()

        race = _Race(ended)
        race.enter()
        self._start(race, key, body, crc32c)
        try:
            outcome = race.outcomes.get(timeout=after_ns / 1e9)
        except queue.Empty:
            race.enter()  # before the permit is taken: the race must not end in between
            hedged = self._may_hedge()
            if hedged:
                log.info("PUT %s takes over %d ms: a second one is sent", key, after_ns // 10**6)
                self._start(race, key, body, crc32c)
            else:
                race.leave()
            outcome = race.outcomes.get()
        if isinstance(outcome, StoreError) and not isinstance(outcome, ForeignObject) and hedged:
            outcome = race.outcomes.get()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def _may_hedge(self) -> bool:
        if not self._losers.acquire(blocking=False):
            return False
        with self._mutex:
            granted = self._hedging.spend()
            self.hedges += granted
        if not granted:
            self._losers.release()
        return granted

    def _start(self, race: _Race, key: str, body: bytes, crc32c: int) -> None:
        def run() -> None:
            try:
                race.outcomes.put(self._timed(key, body, crc32c))
            except StoreError as error:
                race.outcomes.put(error)
            except BaseException as error:
                race.outcomes.put(error)  # a bug: who waits must not wait forever
                raise
            finally:
                race.leave()

        threading.Thread(target=run, name="put attempt", daemon=True).start()

    def _timed(self, key: str, body: bytes, crc32c: int) -> str:
        started_ns = self._now_ns()
        locator = self._put(key, body, crc32c)
        with self._mutex:
            self._hedging.succeeded(self._now_ns() - started_ns)
        return locator
