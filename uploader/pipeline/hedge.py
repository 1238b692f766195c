"""Hedged PUTs: a second, equal request when the first is slower than almost all recent ones.

Jeffrey Dean and Luiz Andre Barroso, "The Tail at Scale", CACM 56(2), 2013: a second request after
the 95th percentile costs 5 % more requests and cuts the tail; after the 99th it costs 1 %. Here it
is the 99th, since a bucket is billed by requests. Key and bytes are a function of the lease, so the
later of two PUTs is answered 412, finds its own checksum, and does no harm.

``Hedging`` decides and is pure. ``HedgedPut`` carries out: once there are enough latencies to
decide by, each attempt runs in its own thread. The loser of two attempts runs until the store
answers or its timeout ends; ``losers_max`` bounds the number of second requests and their bodies.
Threads are daemons, so a loser does not delay the end of the process.
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

SAMPLES_MAX = 512  # about two minutes of a busy shard: steady, but still follows the store
SAMPLES_MIN = 100  # with fewer, the 99th percentile is only the largest
PERCENTILE = 0.99
# When the whole store becomes slow, every PUT is slower than usual, and doubling the load would not
# help. On average 1 PUT in 50 is hedged, and after a quiet time 2 in succession.
HEDGES_PER_PUT = 0.02
HEDGES_SAVED_MAX = 2.0

Put = Callable[[str, bytes, int], str]


class Hedging:
    """Recent latencies of successful PUTs, and how many hedges may be made."""

    def __init__(self) -> None:
        self._recent_ns: deque[int] = deque(maxlen=SAMPLES_MAX)
        self._saved = 1.0

    def succeeded(self, latency_ns: int) -> None:
        """Notes the latency of an attempt. Losers count too, or the tail would vanish."""
        self._recent_ns.append(latency_ns)

    def begins(self) -> int | None:
        """A PUT begins: after how many ns it should be hedged, None for never."""
        self._saved = min(HEDGES_SAVED_MAX, self._saved + HEDGES_PER_PUT)
        if len(self._recent_ns) < SAMPLES_MIN:
            return None
        in_order = sorted(self._recent_ns)
        return in_order[math.ceil(PERCENTILE * len(in_order)) - 1]

    def spend(self) -> bool:
        """Whether another hedge may be made now; counts it."""
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        return True


class _Race:
    """The attempts of one PUT; ``ended`` is called when the last one ends."""

    def __init__(self, ended: Callable[[], None]) -> None:
        # Not a SimpleQueue: CPython's waits without limit if the limit passes just before it waits.
        self.outcomes: queue.Queue[str | BaseException] = queue.Queue()
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
    """A hedged ``put``. Used from any thread; at most ``losers_max`` second requests."""

    def __init__(self, put: Put, losers_max: int, now_ns: Callable[[], int]) -> None:
        self.hedges = 0
        self._put = put
        self._now_ns = now_ns
        self._hedging = Hedging()
        self._mutex = threading.Lock()  # the decisions and the count
        self._losers = threading.BoundedSemaphore(losers_max)

    def put(self, key: str, body: bytes, crc32c: int) -> str:
        """As the store's put: the first success, or an error when both attempts failed."""
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
                log.info("PUT %s takes over %d ms: sending a second one", key, after_ns // 10**6)
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
                race.outcomes.put(error)  # a bug: the caller must not wait forever
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
