"""Renews read leases while the process that planned lives.

A *keeper* is one thread in the driver's Python worker. The worker of a stream lives as long as the
query. It ends the lease of each batch itself, except the last one, which expires because Spark
kills the worker. The worker of a batch read may be ended by Spark at any time and does not learn
when the query is over, so it keeps leases for a limited time. Tasks renew them too (``reader.py``),
and plan again what is missing nevertheless.
"""

from __future__ import annotations

import logging
import threading

from compaction.source.errors import SourceError
from compaction.source.plan import LEASE_MS
from compaction.source.planner import Planner
from shards.clock import monotonic_ns

log = logging.getLogger("headgate.spark")

RENEW_S = LEASE_MS / 3000
BATCH_KEPT_S = 900.0  # until the first task runs, on a busy cluster
NO_LIMIT_S = float("inf")


class LeaseKeeper:
    """Renews leases until they are dropped, expire, or their time is over."""

    def __init__(self, planner: Planner, *, renew_s: float = RENEW_S) -> None:
        self._planner = planner
        self._renew_s = renew_s
        self._until_ns: dict[str, float] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def hold(self, plan: str, for_s: float = NO_LIMIT_S) -> None:
        """Begins to renew a lease."""
        with self._lock:
            self._until_ns[plan] = monotonic_ns() + for_s * 1e9
            if self._thread is None and not self._ended.is_set():
                self._thread = threading.Thread(
                    target=self._run, name="headgate-leases", daemon=True
                )
                self._thread.start()

    def drop(self, plan: str) -> None:
        """Ends a lease."""
        with self._lock:
            self._until_ns.pop(plan, None)
        try:
            self._planner.end(plan)
        except SourceError as error:
            log.info("the read lease %s could not be ended and will expire: %s", plan, error)

    def close(self) -> None:
        """Ends all leases and the thread."""
        self._ended.set()
        for plan in list(self._until_ns):
            self.drop(plan)
        thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._renew_s):
            with self._lock:
                now_ns = monotonic_ns()
                for plan in [p for p, until in self._until_ns.items() if until <= now_ns]:
                    del self._until_ns[plan]
                held = list(self._until_ns)
                if not held:
                    self._thread = None
                    return
            for plan in held:
                self._renew(plan)

    def _renew(self, plan: str) -> None:
        try:
            held = self._planner.renew(plan)
        except SourceError as error:
            log.warning("the read lease %s could not be renewed: %s", plan, error)
            return
        if not held:
            with self._lock:
                self._until_ns.pop(plan, None)


_keepers: dict[Planner, LeaseKeeper] = {}
_keepers_lock = threading.Lock()


def keep_for_a_batch(planner: Planner, plan: str) -> None:
    """Renews the lease of a batch read in this process, for at most BATCH_KEPT_S."""
    with _keepers_lock:
        keeper = _keepers.setdefault(planner, LeaseKeeper(planner))
    keeper.hold(plan, BATCH_KEPT_S)


def end_batches() -> None:
    """Ends the leases of all batch reads that this process has planned, and the threads."""
    with _keepers_lock:
        keepers = list(_keepers.values())
        _keepers.clear()
    for keeper in keepers:
        keeper.close()
