"""A store that fails on purpose: one vocabulary of faults, for tests and ``serve --chaos``.

A *spec* is a text of faults separated by commas; each may appear once::

    latency=20ms..2s@0.1   one call in ten takes 20 ms to 2 s longer, mostly little (heavy tail)
    busy=30s/120s          503 SlowDown during the last 30 s of each 120 s
    reset_before=0.01      the connection ends before the body: nothing is kept
    reset_after=0.01       the object is kept, then the connection ends: outcome unknown
    timeout_after=0.01     the object is kept, but there is no answer within 2 s
    torn=0.001             file:// only: half a frame reaches a segment, as in a loss of power
    full=5s/60s            puts fail: no space left
    read_only=5s/60s       puts fail: forbidden

``busy``, ``full`` and ``read_only`` hold during ``=LENGTH/PERIOD``, with ``=PROBABILITY`` for each
call, or always if there is no value. Periods follow the given clock, so they begin in all processes
of a machine together. Writes meet all faults; other calls meet latency, busy and reset_before.

The plan is pure: from time and chance it makes a decision. ``FaultyStore`` carries decisions out
on a store, and the tests' proxy on the way to one. Faults never change bytes that were kept.
"""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import TypeVar

from msgspec import Struct

from uploader.stores.base import ObjectHead, ObjectStore, StoreBusy, StoreError, StoreRefused
from uploader.stores.file import FileStore

Result = TypeVar("Result")

TIMEOUT_S = 2.0  # how long a caller waits for an answer that never comes
DURATION_S_MAX = 86_400.0
# Bounded Pareto with this exponent: between 20 ms and 2 s the median is 34 ms, the mean is 65 ms,
# and 1 in 260 is over 1 s.
TAIL = 1.3


class ChaosSpecError(ValueError):
    """A spec that cannot be parsed; the message names the part and what is accepted."""


class Fault(Enum):
    """What happens to a call; the values are the names in a spec."""

    NONE = "none"
    BUSY = "busy"
    RESET_BEFORE = "reset_before"
    RESET_AFTER = "reset_after"
    TIMEOUT_AFTER = "timeout_after"
    TORN = "torn"
    FULL = "full"
    READ_ONLY = "read_only"


WRITES_ONLY = (
    Fault.READ_ONLY, Fault.FULL, Fault.TORN, Fault.RESET_AFTER, Fault.TIMEOUT_AFTER,
)  # fmt: skip
_WINDOWED = (Fault.BUSY, Fault.FULL, Fault.READ_ONLY)


class When(Struct, frozen=True):
    """When a fault holds: during the last ``length_s`` of each ``period_s``, or by chance."""

    probability: float = 0.0
    length_s: float = 0.0
    period_s: float = 0.0

    def holds(self, now_s: float, rng: random.Random) -> bool:
        """Whether a call that is made now meets the fault."""
        if self.period_s:
            return now_s % self.period_s >= self.period_s - self.length_s
        return rng.random() < self.probability


class Latency(Struct, frozen=True):
    """A delay of ``low_s`` to ``high_s`` for some of the calls."""

    low_s: float
    high_s: float
    probability: float = 1.0

    def delay_s(self, rng: random.Random) -> float:
        """A sample, by the inverse of the distribution function of the bounded Pareto."""
        if rng.random() >= self.probability:
            return 0.0
        ratio: float = (self.low_s / self.high_s) ** TAIL
        return float(self.low_s * (1 - rng.random() * (1 - ratio)) ** (-1 / TAIL))


class FaultDecision(Struct, frozen=True):
    """What happens to one call: a delay, then a fault."""

    delay_s: float
    fault: Fault


class FaultPlan(Struct, frozen=True):
    """The faults of a spec, in the order in which they are tried."""

    latency: Latency | None = None
    faults: tuple[tuple[Fault, When], ...] = ()

    def decide(self, now_s: float, rng: random.Random, *, writes: bool) -> FaultDecision:
        """What happens to a call at ``now_s``; ``writes``: it puts an object."""
        delay_s = self.latency.delay_s(rng) if self.latency is not None else 0.0
        for fault, when in self.faults:
            if (writes or fault not in WRITES_ONLY) and when.holds(now_s, rng):
                return FaultDecision(delay_s, fault)
        return FaultDecision(delay_s, Fault.NONE)

    @property
    def tears(self) -> bool:
        """Whether the plan has torn writes."""
        return any(fault is Fault.TORN for fault, _ in self.faults)


def parse(spec: str) -> FaultPlan:
    """The plan of a spec. Raises ChaosSpecError."""
    latency: Latency | None = None
    faults: dict[Fault, When] = {}
    for part in (text.strip() for text in spec.split(",")):
        name, equals, value = part.partition("=")
        if name == "latency":
            if latency is not None:
                raise _refused(part, "is given twice")
            latency = _latency(part, value)
            continue
        try:
            fault = Fault(name)
        except ValueError:
            fault = Fault.NONE
        if fault is Fault.NONE:
            names = ", ".join(["latency", *(each.value for each in Fault if each.value != "none")])
            raise _refused(part, f"is not a fault; the faults are {names}")
        if fault in faults:
            raise _refused(part, "is given twice")
        if equals:
            faults[fault] = _when(part, fault, value)
        elif fault in _WINDOWED:
            faults[fault] = When(probability=1.0)
        else:
            raise _refused(part, f"needs a probability, such as {name}=0.01")
    return FaultPlan(latency, tuple((fault, faults[fault]) for fault in Fault if fault in faults))


def _refused(part: str, why: str) -> ChaosSpecError:
    return ChaosSpecError(f"{part!r} in the chaos spec {why}")


def _seconds(part: str, text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s)", text)
    if found is None:
        raise _refused(part, f"has {text!r} instead of a duration such as 20ms or 1.5s")
    seconds = float(found[1]) / (1000 if found[2] == "ms" else 1)
    if not 0 < seconds <= DURATION_S_MAX:
        raise _refused(part, f"has the duration {text}; it must be over 0 and at most a day")
    return seconds


def _probability(part: str, text: str) -> float:
    if re.fullmatch(r"\d+(\.\d+)?", text) is None or not 0 < float(text) <= 1:
        raise _refused(part, f"has {text!r} instead of a probability over 0 and up to 1")
    return float(text)


def _latency(part: str, value: str) -> Latency:
    span, at, probability = value.partition("@")
    low, dots, high = span.partition("..")
    if not dots:
        raise _refused(part, "needs a range, such as latency=20ms..2s@0.1")
    low_s, high_s = _seconds(part, low), _seconds(part, high)
    if low_s > high_s:
        raise _refused(part, f"begins at {low}, after its end {high}")
    return Latency(low_s, high_s, _probability(part, probability) if at else 1.0)


def _when(part: str, fault: Fault, value: str) -> When:
    length, slash, period = value.partition("/")
    if not slash:
        return When(probability=_probability(part, value))
    if fault not in _WINDOWED:
        raise _refused(part, f"needs a probability, such as {fault.value}=0.01")
    length_s, period_s = _seconds(part, length), _seconds(part, period)
    if length_s > period_s:
        raise _refused(part, f"lasts {length}, longer than its period {period}")
    return When(length_s=length_s, period_s=period_s)


def require_possible(plan: FaultPlan, store: ObjectStore) -> None:
    """Raises ChaosSpecError if the plan tears writes of a store that has no files."""
    if plan.tears and not isinstance(store, FileStore):
        raise ChaosSpecError(
            f"'torn' in the chaos spec is for file:// stores; {store.url} keeps objects whole or"
            " not at all"
        )


class FaultyStore:
    """An ObjectStore whose calls meet the faults of a plan. Used from any thread.

    ``sleep`` takes seconds; ``now_s`` is a monotonic clock. Raises ChaosSpecError if the plan
    tears writes of a store that has no files.
    """

    def __init__(
        self,
        inner: ObjectStore,
        plan: FaultPlan,
        rng: random.Random,
        sleep: Callable[[float], object],
        now_s: Callable[[], float],
    ) -> None:
        require_possible(plan, inner)
        self.url = inner.url
        self.met: dict[Fault, int] = dict.fromkeys(Fault, 0)
        self._inner = inner
        self._plan = plan
        self._rng = rng
        self._sleep = sleep
        self._now_s = now_s
        self._mutex = threading.Lock()  # the generator and the counts

    def put(self, key: str, body: bytes, crc32c: int) -> str:
        """A put that may meet any fault."""

        def tear() -> None:
            if isinstance(self._inner, FileStore):
                self._inner.tear(key, body, crc32c)

        return self._write(key, lambda: self._inner.put(key, body, crc32c), tear)

    def put_if_absent(self, key: str, body: bytes) -> bool:
        """A put that may meet any fault. link(2) is atomic, so a torn one leaves nothing."""
        return self._write(key, lambda: self._inner.put_if_absent(key, body), lambda: None)

    def get(self, locator: str, start: int = 0, length: int | None = None) -> bytes:
        """A read that may be late or refused."""
        self._before(f"GET of {locator}", writes=False)
        return self._inner.get(locator, start, length)

    def reconnect(self) -> None:
        """As ObjectStore.reconnect."""
        self._inner.reconnect()

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectHead]:
        """A listing that may be late or refused before its first object."""
        self._before(f"LIST of {prefix}", writes=False)
        return self._inner.list(prefix, start_after)

    def delete(self, locators: Sequence[str]) -> None:
        """A deletion that may be late or refused."""
        self._before(f"DELETE of {len(locators)} objects", writes=False)
        self._inner.delete(locators)

    def check(self) -> None:
        """As ObjectStore.check, without faults: a start must not fail for those made on purpose."""
        self._inner.check()

    def close(self) -> None:
        """Closes the inner store."""
        self._inner.close()

    def _before(self, what: str, *, writes: bool) -> Fault:
        with self._mutex:
            decision = self._plan.decide(self._now_s(), self._rng, writes=writes)
            self.met[decision.fault] += 1
        if decision.delay_s:
            self._sleep(decision.delay_s)
        fault = decision.fault
        where = f"{what} at {self.url}"
        if fault is Fault.BUSY:
            raise StoreBusy(f"chaos: {where}: 503 SlowDown")
        if fault is Fault.RESET_BEFORE:
            raise StoreError(
                f"chaos: {where}: connection reset before the body", retryable=True,
                outcome_unknown=True,
            )  # fmt: skip
        if fault is Fault.FULL:
            raise StoreError(f"chaos: {where}: no space left", retryable=True)
        if fault is Fault.READ_ONLY:
            raise StoreRefused(f"chaos: {where}: read-only")
        return fault

    def _write(self, key: str, real: Callable[[], Result], tear: Callable[[], None]) -> Result:
        fault = self._before(f"PUT of {key}", writes=True)
        if fault is Fault.TORN:
            tear()
            raise StoreError(
                f"chaos: PUT of {key} at {self.url}: torn", retryable=True, outcome_unknown=True
            )
        result = real()
        if fault is Fault.TIMEOUT_AFTER:
            self._sleep(TIMEOUT_S)
        if fault in (Fault.RESET_AFTER, Fault.TIMEOUT_AFTER):
            raise StoreError(
                f"chaos: PUT of {key} at {self.url}: {fault.value.replace('_', ' ')} it was kept",
                retryable=True, outcome_unknown=True,
            )  # fmt: skip
        return result
