"""The limiters and the balancer of push under a virtual clock, with receivers of known capacity.

Only the receiver and the time are modeled; what decides is the code of the daemon. An answer comes
immediately. Senders obey a grant within the step in which it was made, 100 ms as in the daemon.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from delivery.push.rates.balancer import BalancerSettings, ShareRow, Shares
from delivery.push.rates.limiter import Limiter, LimiterSettings
from shards.boards.pushboard import LimiterMode

SECOND = 1_000_000_000
STEP_NS = SECOND // 10
SAMPLES_NS = 15 * SECOND
BURST_S = 0.1  # of its capacity, which a receiver takes in one moment; but always two requests


class Receiver:
    """Takes ``capacity(seconds)`` requests a second and refuses what exceeds it."""

    def __init__(self, capacity: Callable[[float], float], burst: float = 2.0) -> None:
        self._capacity = capacity
        self._burst = burst
        self._level = 1.0
        self._at_ns = 0

    def takes(self, now_ns: int) -> bool:
        """Whether a request that comes now is taken."""
        capacity = self._capacity(now_ns / 1e9)
        if capacity == math.inf:
            return True
        # Senders that share a receiver take turns, so this may be some time back.
        came = (now_ns - self._at_ns) / 1e9 * capacity
        self._level = min(max(self._burst, capacity * BURST_S), self._level + came)
        self._at_ns = now_ns
        if self._level < 1:
            return False
        self._level -= 1
        return True


@dataclass(slots=True)
class PushSample:
    """What happened in one period of one sender."""

    until_s: float
    maximum: float
    rate: float
    mode: LimiterMode
    attempts: int = 0
    failures: int = 0

    @property
    def taken(self) -> int:
        """Attempts that succeeded."""
        return self.attempts - self.failures


class ModelSender:
    """A limiter, and what waits to be sent: ``demand(seconds)`` a second."""

    def __init__(
        self,
        settings: LimiterSettings,
        maximum: float,
        demand: Callable[[float], float] | None = None,
        now_ns: int = 0,
        first_part: float | None = None,
    ) -> None:
        """Without a demand, there is always something to send."""
        self.limiter = Limiter(settings, maximum, now_ns, first_part=first_part)
        self.samples: list[PushSample] = []
        self._period_ns = round(settings.period_s * 1e9)
        self._demand = demand
        self.waiting = 0.0
        self._at_ns = now_ns
        self._ends_ns = now_ns + self._period_ns
        self._attempts = self._failures = 0

    def run(self, receiver: Receiver, until_ns: int) -> None:
        """Sends until then. The limiter's periods end at their times."""
        while self._at_ns < until_ns:
            end = min(until_ns, self.limiter.tick_due_ns, self._ends_ns)
            self._send(receiver, end)
            self.limiter.tick(end)
            if end >= self._ends_ns:
                limiter = self.limiter
                self.samples.append(
                    PushSample(
                        end / 1e9, limiter.maximum, limiter.rate, limiter.mode,
                        self._attempts, self._failures,
                    )
                )  # fmt: skip
                self._attempts = self._failures = 0
                self._ends_ns = end + self._period_ns

    def _send(self, receiver: Receiver, until_ns: int) -> None:
        limiter, now = self.limiter, self._at_ns
        if self._demand is not None:
            self.waiting += (until_ns - now) / 1e9 * self._demand(now / 1e9)
        while self._demand is None or self.waiting >= 1:
            due = limiter.next_ns(now)
            if due >= until_ns:
                limiter.wait(until_ns)
                break
            now = max(now, due)
            self.waiting -= 1
            limiter.attempted(now)
            self._attempts += 1
            if receiver.takes(now):
                limiter.succeeded(now)
            else:
                self._failures += 1
                limiter.failed(now)
        self._at_ns = until_ns


def follow(
    capacity: Callable[[float], float],
    maximum: float,
    periods: int,
    burst: float = 2.0,
) -> list[PushSample]:
    """One sender with enough to send, at a receiver."""
    settings = LimiterSettings()
    sender = ModelSender(settings, maximum)
    sender.run(Receiver(capacity, burst), round(periods * settings.period_s * 1e9))
    return sender.samples


class Sharing:
    """Senders of one subscription, by number. They join at the first step after ``join``."""

    def __init__(self, rate: float, step_ns: int = STEP_NS) -> None:
        self.rate = rate
        self._step_ns = step_ns
        self.settings = LimiterSettings()
        self.shares = Shares(BalancerSettings(), 0)
        self.senders: dict[int, ModelSender] = {}
        self.now_ns = 0
        self.sums: list[float] = []  # of the maxima in force, after each step
        self.samples: list[tuple[float, dict[int, float]]] = []  # maxima after each balancing

    def join(self, number: int, demand: Callable[[float], float] | None = None) -> ModelSender:
        """Another sender, without a share yet, that knows what part the others send."""
        limiters = [each.limiter for each in self.senders.values()]
        part = None
        if any(each.maximum for each in limiters):
            part = sum(each.rate for each in limiters) / sum(each.maximum for each in limiters)
        sender = ModelSender(self.settings, 0.0, demand, self.now_ns, part)
        self.senders[number] = sender
        return sender

    def run(self, receiver: Receiver, until_s: float) -> None:
        """Sends until then."""
        while self.now_ns < until_s * 1e9:
            limiters = {number: each.limiter for number, each in self.senders.items()}
            rows = {
                number: ShareRow(limiter.maximum, limiter.maximum, limiter.use)
                for number, limiter in limiters.items()
            }
            for number, grant in self.shares.step(self.rate, rows, self.now_ns).items():
                limiters[number].set_maximum(grant, self.now_ns)
            maxima = {number: limiter.maximum for number, limiter in limiters.items()}
            self.sums.append(sum(maxima.values()))
            if not self.samples or self.now_ns >= self.samples[-1][0] * 1e9 + SAMPLES_NS:
                self.samples.append((self.now_ns / 1e9, maxima))
            self.now_ns += self._step_ns
            for each in self.senders.values():
                each.run(receiver, self.now_ns)
