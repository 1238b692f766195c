"""How slow the store and the ledger are, as the uploads of one shard see them.

    begin -> (a call that runs counts by its age) -> end, or failed

A call of the store is measured in what is *usual* for an object of its size, one of the ledger in
milliseconds. What is usual is an average over ten minutes, so a store that stays slower is normal
some time later. Waiting before a retry is not part of any call.

Threads of uploads begin and end calls, the loop reads. This module neither logs nor decides:
``daemon/governor/`` says how much pressure it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from shards.smoothed import Smoothed

SMOOTH_S = 1.0
# A failed call is as bad as one that takes this many times as long as usual.
FAILED_UNITS = 10.0
FAILED_MS = 100.0
# The next attempt begins 1 s later at most (uploader/stores/retry.py); until it is made, a failure
# is the newest that is known.
HOLD_NS = 2_000_000_000

USUAL_OVER_NS = 600_000_000_000
# Until this many calls were measured, all of them count the same.
USUAL_AFTER = 20
# What one call may add to what is usual, in multiples of it: an outage is not the new normal.
USUAL_TIMES_MAX = 4
# A local disk takes 0.3 ms or, when it is doing something else, 5 ms: neither is a failing store.
USUAL_MIN_NS = 5_000_000
USUAL_UNKNOWN_NS = 100_000_000
# By powers of two of the size: no object is larger than 4 GiB.
SIZE_CLASSES = 33


class Usual:
    """How long a PUT of about a size takes, on average over the last ten minutes."""

    def __init__(self) -> None:
        self._calls = [0] * SIZE_CLASSES
        self._usual_ns = [0.0] * SIZE_CLASSES
        self._at_ns = [0] * SIZE_CLASSES

    def of(self, size_bytes: int) -> float:
        """Nanoseconds, at least USUAL_MIN_NS."""
        at = _class_of(size_bytes)
        return max(USUAL_MIN_NS, self._usual_ns[at] if self._calls[at] else USUAL_UNKNOWN_NS)

    def learn(self, size_bytes: int, took_ns: int, now_ns: int) -> None:
        """A PUT was accepted after ``took_ns``."""
        at = _class_of(size_bytes)
        self._calls[at] = calls = min(self._calls[at] + 1, USUAL_AFTER)
        passed = min(1.0, max(0, now_ns - self._at_ns[at]) / USUAL_OVER_NS)
        weight = 1 / calls if calls < USUAL_AFTER else passed
        usual = self._usual_ns[at]
        took = float(took_ns) if calls == 1 else min(took_ns, USUAL_TIMES_MAX * self.of(size_bytes))
        self._usual_ns[at] = usual + weight * (took - usual)
        self._at_ns[at] = now_ns


def _class_of(size_bytes: int) -> int:
    return min(size_bytes.bit_length(), SIZE_CLASSES - 1)


class Calls:
    """The calls of one kind: how long they take, in units, smoothed.

    Invariant: ``_running`` has the calls that have begun and not ended, at most one for each
    upload slot.
    """

    def __init__(self, failed_units: float) -> None:
        self._failed_units = failed_units
        self._mutex = threading.Lock()
        self._next = 0
        self._running: dict[int, tuple[int, float]] = {}  # when it began, and its unit
        self._sum = 0.0
        self._count = 0
        self._smoothed = Smoothed(SMOOTH_S)
        self._hold_until_ns = 0

    def begin(self, unit_ns: float, now_ns: int) -> int:
        """A call begins; returns its number, for ``end``."""
        with self._mutex:
            self._next += 1
            self._running[self._next] = (now_ns, unit_ns)
            return self._next

    def end(self, call: int, now_ns: int, *, failed: bool) -> int:
        """A call has its answer, or none; returns how many ns it took."""
        with self._mutex:
            began_ns, unit_ns = self._running.pop(call)
            took = (now_ns - began_ns) / unit_ns
            if failed:
                took = max(took, self._failed_units)
                self._hold_until_ns = now_ns + HOLD_NS
            self._sum += took
            self._count += 1
        return now_ns - began_ns

    def hanging_since_ns(self, now_ns: int) -> int | None:
        """When a call began that runs for as long as a failed one counts; None: there is none."""
        with self._mutex:
            hanging = [
                began_ns
                for began_ns, unit_ns in self._running.values()
                if now_ns - began_ns >= self._failed_units * unit_ns
            ]
        return min(hanging, default=None)

    def read(self, now_ns: int) -> float:
        """The smoothed duration of calls, or the age of one that runs if that is longer. It falls
        to 0 while there are no calls."""
        with self._mutex:
            running = max(
                ((now_ns - began_ns) / unit_ns for began_ns, unit_ns in self._running.values()),
                default=0.0,
            )
            # An average that had seen an hour would take minutes to forget it.
            smoothed, most = self._smoothed, 2 * self._failed_units
            if self._count:
                smoothed.add(min(most, self._sum / self._count), now_ns)
            elif running or now_ns < self._hold_until_ns:
                smoothed.add(min(most, max(smoothed.value, running)), now_ns)
            else:
                smoothed.add(0.0, now_ns)
            self._sum, self._count = 0.0, 0
            return max(smoothed.value, running)


class UploadHealth:
    """What one shard knows of its store and its ledger. ``hangs`` hears of a PUT that has run for
    FAILED_UNITS, where the sensor reads full: when it began, and ``now``."""

    def __init__(self, hangs: Callable[[int, int], None] = lambda began_ns, now_ns: None) -> None:
        self._hangs = hangs
        self._usual = Usual()
        self._usual_mutex = threading.Lock()
        self._puts = Calls(FAILED_UNITS)
        self._commits = Calls(FAILED_MS)

    def put_begins(self, size_bytes: int, now_ns: int) -> int:
        """A PUT begins; returns its number, for ``put_ends``. Two attempts that race are one."""
        with self._usual_mutex:
            unit_ns = self._usual.of(size_bytes)
        return self._puts.begin(unit_ns, now_ns)

    def put_ends(self, call: int, size_bytes: int, now_ns: int, *, failed: bool) -> None:
        """The store has answered, or the PUT ``failed`` and will be repeated."""
        took_ns = self._puts.end(call, now_ns, failed=failed)
        if not failed:
            with self._usual_mutex:
                self._usual.learn(size_bytes, took_ns, now_ns)

    @contextmanager
    def commit(self, clock_ns: Callable[[], int]) -> Iterator[None]:
        """A transaction of the ledger, from when it begins to wait for the lock."""
        call = self._commits.begin(1e6, clock_ns())
        failed = True
        try:
            yield
            failed = False
        finally:
            self._commits.end(call, clock_ns(), failed=failed)

    def store_slowdown(self, now_ns: int) -> float:
        """How many times longer than usual PUTs take; a failed one counts as FAILED_UNITS."""
        began_ns = self._puts.hanging_since_ns(now_ns)
        if began_ns is not None:
            self._hangs(began_ns, now_ns)
        return self._puts.read(now_ns)

    def commit_ms(self, now_ns: int) -> float:
        """How long commits take, with their wait for the lock."""
        return self._commits.read(now_ns)
