"""When to try a failed call again, and how often: one policy and the table of budgets.

Pure: no clock, no sleep; uploader/stores/retrying.py makes the calls. The policy is full jitter:
the delay is uniform in [0, ceiling), and the ceiling doubles with each attempt up to a cap (Marc
Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015). It needs the fewest calls
of the schemes compared there, and callers that failed together do not return together.

Attempts count from 1: attempt 1 is the first call, which has just failed.
"""

from __future__ import annotations

import random

from msgspec import Struct

from ledger.errors import LedgerError
from uploader.stores.base import StoreError


class Budget(Struct, frozen=True):
    """How long one kind of caller tries. ``attempts_max`` None: until it succeeds or its process
    ends; then something else bounds how many calls wait."""

    name: str
    attempts_max: int | None
    base_s: float
    cap_s: float

    def __post_init__(self) -> None:
        if not 0 < self.base_s <= self.cap_s:
            raise ValueError(f"base_s must be over 0 and at most cap_s {self.cap_s}: {self.base_s}")
        if self.attempts_max is not None and self.attempts_max < 1:
            raise ValueError(f"attempts_max must be at least 1, got {self.attempts_max}")

    def is_spent(self, attempt: int) -> bool:
        """Whether ``attempt`` was the last one."""
        return self.attempts_max is not None and attempt >= self.attempts_max


# A lease's steps, and a shard's reading of commits that its log lacks: nothing is dropped, and the
# lease slots bound how many wait. 100 ms is a few times the usual latency of a PUT. The cap is a
# little over two usual windows: after an outage all other leases wait for the first one, which
# must not sleep much longer (with a cap of 5 s, answers took 6.6 s to become fast again). A store
# that is down gets one call per upload slot every 0.5 s on average; a bucket takes 3,500 a second.
COMMIT = Budget("commit", None, 0.1, 1.0)
# A reader waits for its answer: 1 s at most, then it gets a 503 and decides for itself.
READER = Budget("reader", 5, 0.05, 1.0)
# A reader found an object gone that the ledger had named: the second look usually has its
# successor, and the pauses are for what is not there yet.
OVERTAKEN = Budget("overtaken", 6, 0.02, 0.5)
# A start, a recovery and commands such as check and gc: about 5 s per call, then whoever started
# them hears of it.
COMMAND = Budget("command", 10, 0.05, 2.0)
# Work of minutes that a failed call would begin anew: a Spark task, an image of the ledger.
BULK = Budget("bulk", 8, 0.1, 5.0)
# Spark calls the daemon: about 20 s, which is longer than a restart of the daemon takes.
DAEMON = Budget("daemon", 12, 0.2, 5.0)
# An image of the ledger failed as a whole: the next attempt copies the ledger again.
IMAGE = Budget("image", None, 60.0, 3_600.0)
# A lease whose holders die: each adoption waits longer, so that the shards have time to serve.
ADOPTION = Budget("adoption", None, 1.0, 60.0)


def ceiling_s(attempt: int, budget: Budget) -> float:
    """The longest delay after a failed ``attempt``: base, 2 base, 4 base ... cap."""
    if attempt < 1:
        raise ValueError(f"attempts count from 1, got {attempt}")
    # 2**64 times any base is over any cap; an exponent without a bound would overflow a float.
    return min(budget.cap_s, budget.base_s * 2.0 ** min(attempt - 1, 64))


def delay_s(attempt: int, rng: random.Random, budget: Budget) -> float:
    """Seconds to wait after a failed ``attempt``, in [0, ceiling_s(attempt))."""
    return rng.random() * ceiling_s(attempt, budget)


def may_pass(error: Exception) -> bool:
    """Whether a step of a lease that failed is tried again in the same process.

    Every error of a store may pass: its operator may give a permission back or remove a foreign
    object, and another process would get the same answer. An error of the ledger says itself
    whether it may. Anything else is a fault of this process or of the lease: the process ends, and
    its successor starts with a clean state.
    """
    if isinstance(error, LedgerError):
        return error.retryable
    return isinstance(error, StoreError)
