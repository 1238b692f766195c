"""Keeps read leases from expiring while the process that planned lives.

A *keeper* is one thread of the driver's Python worker. A stream's worker lives as long as its
query and ends each batch's lease itself, but for the last one's: Spark ends the worker by a kill,
and the lease expires. A batch read's worker is Spark's to end when it likes,
and nobody tells it that the query is over, so its leases are kept for a bounded time only; the
tasks that read renew them too (``source_read.py``), and what is missed after all is planned again.
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
BATCH_KEPT_S = 900.0  # from planning to the first task: time to wait for a busy cluster
FOR_EVER_S = float("inf")


class LeaseKeeper:
    """Renews what it holds, until it is dropped, expires, or its time is over."""

    def __init__(self, planner: Planner, *, renew_s: float = RENEW_S) -> None:
        self._planner = planner
        self._renew_s = renew_s
        self._until_ns: dict[str, float] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        """Whether its thread lives: it does while something is held."""
        thread = self._thread
        return thread is not None and thread.is_alive()

    def hold(self, plan: str, for_s: float = FOR_EVER_S) -> None:
        """Renews this lease from now on."""
        with self._lock:
            self._until_ns[plan] = monotonic_ns() + for_s * 1e9
            if self._thread is None and not self._ended.is_set():
                self._thread = threading.Thread(
                    target=self._run, name="headgate-leases", daemon=True
                )
                self._thread.start()

    def drop(self, plan: str) -> None:
        """Ends this lease."""
        with self._lock:
            self._until_ns.pop(plan, None)
        try:
            self._planner.end(plan)
        except SourceError as error:
            log.info("the read lease %s ends by itself: %s", plan, error)

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
    """Holds a batch read's lease in this process, for BATCH_KEPT_S at most."""
    with _keepers_lock:
        keeper = _keepers.setdefault(planner, LeaseKeeper(planner))
    keeper.hold(plan, BATCH_KEPT_S)


def end_batches() -> None:
    """Ends the leases of all batch reads that this process planned, and their threads."""
    with _keepers_lock:
        keepers = list(_keepers.values())
        _keepers.clear()
    for keeper in keepers:
        keeper.close()
