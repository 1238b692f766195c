"""When to try a call again: pure, no clock, no sleep.

Full jitter: the delay is uniform in [0, ceiling), and the ceiling doubles with each attempt up to
a cap (Marc Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015): of the
schemes compared there it takes the least calls in total, and callers that failed together do not
come back together. Attempts count from 1: attempt 1 is the first call, which has just failed.
"""

from __future__ import annotations

import random

from msgspec import Struct

from ledger.errors import LedgerError
from uploader.stores.base import StoreError


class RetryLimits(Struct, frozen=True):
    """``attempts_max`` None: for ever, the caller bounds its queue instead.

    100 ms is a few times a PUT's usual latency. The cap is two usual windows and more: behind a
    storm the first of the leases, for which all others wait, must not sleep for much longer than
    that (with 5 s it was 6.6 s until answers were as quick as before). A store that is down meets
    one call per upload slot every 0.5 s on average; a bucket takes 3,500 PUTs a second.
    """

    base_s: float = 0.1
    cap_s: float = 1.0
    attempts_max: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.base_s <= self.cap_s:
            raise ValueError(f"base_s {self.base_s} must be over 0 and at most cap_s {self.cap_s}")
        if self.attempts_max is not None and self.attempts_max < 1:
            raise ValueError(f"attempts_max {self.attempts_max} must be at least 1")


DEFAULT_LIMITS = RetryLimits()


def ceiling_s(attempt: int, limits: RetryLimits = DEFAULT_LIMITS) -> float:
    """The longest delay behind a failed ``attempt``: base, 2 base, 4 base ... cap."""
    if attempt < 1:
        raise ValueError(f"attempts count from 1, not {attempt}")
    # 2**64 times any base is over any cap; an exponent without a bound would overflow a float.
    return min(limits.cap_s, limits.base_s * 2.0 ** min(attempt - 1, 64))


def delay_s(attempt: int, rng: random.Random, limits: RetryLimits = DEFAULT_LIMITS) -> float:
    """Seconds to wait behind a failed ``attempt``, in [0, ceiling_s(attempt))."""
    return rng.random() * ceiling_s(attempt, limits)


def retry_delay_s(
    error: StoreError,
    attempt: int,
    rng: random.Random,
    limits: RetryLimits = DEFAULT_LIMITS,
) -> float | None:
    """Seconds until the next attempt, or None when the error stands: trying again cannot help,
    or ``attempts_max`` calls were made."""
    if not error.retryable:
        return None
    if limits.attempts_max is not None and attempt >= limits.attempts_max:
        return None
    return delay_s(attempt, rng, limits)


def may_be_better_later(error: Exception) -> bool:
    """The rule for every step of a lease: whether it is tried again in the same process.

    Whatever a store says: its operator may give a permission back or remove a foreign object, and
    another process would hear the same. Of a ledger what its error says. Anything else is a fault
    of this process or of the lease: the process ends, and its successor starts from nothing.
    """
    if isinstance(error, LedgerError):
        return error.retryable
    return isinstance(error, StoreError)
