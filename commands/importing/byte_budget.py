"""How many bytes of records may be in flight to a daemon: the control law, and nothing else.

Pure: sizes, latencies and ``now`` in, a number of bytes out. It reads no clock and sends nothing.

Vocabulary: bytes are *in flight* while they are leased (budget_leases.py); those of a refused
request stay so, since it is sent again. A *lap* is the time in which a budget's worth of bytes,
sent after the budget was set, is acknowledged. The *rate* of a lap is ``budget / mean latency``
(Little's law); unlike bytes over time it does not depend on where the bursts of acknowledgments
fall, which come once per commit. A lap counts only if the budget was *used*: a source that is
slower than the daemon says nothing about the budget.

    start      twice as much each lap, until two laps in a row brought less than 1.1 x the best
               rate so far; then the budget of the best
    hold       laps at the budget found so far; their mean rate is what a trial is compared with
    try more   one lap at 1.5 x: kept, and tried again, if the rate is 1.1 x or more
    try less   one lap at 0.8 x: kept if the rate is 0.97 x or more
    refused    0.8 x, not more than once per latency. Then it grows by a step per lap, and doubles
               while it is below what the daemon took before, until no refusal came for CALM_S

Why it does not collapse: latency itself never lowers the budget. A longer latency that is the same
for every budget (a wider commit window, a slow store) makes the rate proportional to the budget,
so more is kept and less is not. What is lowered is a budget whose last fifth brought less than 3 %
of the rate, or one that the daemon refused. docs/decisions/0013-imports.md has the
argument and what it was compared with.

Invariant: ``floor_bytes <= bytes <= ceiling_bytes``, and so is the budget that a failed trial
returns to.
"""

from __future__ import annotations

from enum import Enum

# The smallest budget is one request of the usual size: something is always under way.
FLOOR_BYTES = 1 << 20
# Sixteen objects of the usual size: more than a daemon with four uploads under way can work on.
CEILING_BYTES = 64 << 20
START_BYTES = 4 << 20  # an object of the usual size
START_MISSES = 2  # one lap may be unlucky
MORE, PAYS = 1.5, 1.1
LESS, KEEPS = 0.8, 0.97
CUT = 0.8
STEP_BYTES = 1 << 20  # the same for each client, so that their budgets converge (AIMD)
CALM_S = 30.0  # a daemon that was full for a moment is tried again after this
HOLD_LAPS = 4
LAP_ACKS = 4
ROUNDING_S = 1e-6  # of a time that is a difference
USED = 0.75  # of the budget was in flight, when a lap counts


class Phase(Enum):
    """What the current lap is for."""

    START = "start"
    HOLD = "hold"
    TRY_MORE = "try more"
    TRY_LESS = "try less"
    REFUSED = "refused"


class ByteBudget:
    """One sender's budget. Tell it what is in flight, and how each request ended."""

    def __init__(self, floor_bytes: int = FLOOR_BYTES, ceiling_bytes: int = CEILING_BYTES) -> None:
        if not 0 < floor_bytes <= ceiling_bytes:
            raise ValueError(
                "the budget needs 0 < floor_bytes <= ceiling_bytes, got"
                f" floor_bytes {floor_bytes} and ceiling_bytes {ceiling_bytes}"
            )
        self._floor = floor_bytes
        self._ceiling = ceiling_bytes
        self._bytes = float(min(ceiling_bytes, max(floor_bytes, START_BYTES)))
        self._in_flight = 0
        self.phase = Phase.START
        self._misses = 0
        self._found = self._bytes  # the budget that a failed trial returns to
        self._rates: list[float] = []  # of the laps at it; at most HOLD_LAPS
        self._laps_left = 0  # of this hold
        self._less_next = False
        self._largest = 0  # lease so far
        self._peak_before = 0  # the most that was in flight in the lap before
        self._latency_s = 0.0  # of the last lap
        self._regain = 0.0  # what the daemon took before it began to refuse
        self._refusing = False  # no acknowledgment since the last refusal
        self._refused_at = 0.0
        self._cut_after = 0.0
        self._peak = 0  # the most that was in flight in this lap
        self._begin_lap(0.0)

    @property
    def bytes(self) -> int:
        """What may be in flight now."""
        return int(self._bytes)

    def in_use(self, leased_bytes: int) -> None:
        """What is in flight now; to be called whenever that changes."""
        self._largest = max(self._largest, leased_bytes - self._in_flight)
        self._in_flight = leased_bytes
        self._peak = max(self._peak, leased_bytes)

    def acked(self, count: int, latency_s: float, now: float) -> None:
        """A request with ``count`` leased bytes was answered, ``latency_s`` after it was sent (the
        last time)."""
        self._refusing = False
        if now - latency_s < self._begun - ROUNDING_S:
            return  # sent under another budget
        self._acks += 1
        self._acked_bytes += count
        self._byte_s += count * max(latency_s, 1e-6)
        if self._acks >= LAP_ACKS and self._acked_bytes > self._bytes - self._largest:
            self._end_lap(now)

    def refused(self, retry_after_s: float, now: float) -> None:
        """A request was answered 429 or 503; it stays in flight, to be sent again."""
        self._refused_at = now
        if now < self._cut_after:
            return  # of the same burst as the refusal that lowered the budget
        used = min(self._bytes, max(self._peak, self._peak_before))
        if not self._refusing:
            self._regain = used * CUT
        self._refusing = True
        self.phase = Phase.REFUSED
        self._cut_after = now + max(retry_after_s, self._latency_s)
        self._set(used * CUT, now)

    def check_invariants(self) -> None:
        """Raises AssertionError if the budget left its bounds."""
        assert self._floor <= self.bytes <= self._ceiling, self._bytes
        assert self._floor <= self._found <= self._ceiling, self._found
        assert len(self._rates) <= HOLD_LAPS, self._rates

    def _begin_lap(self, now: float) -> None:
        self._begun = now
        self._acks = 0
        self._acked_bytes = 0
        self._byte_s = 0.0
        self._peak = self._in_flight

    def _set(self, budget: float, now: float) -> None:
        self._bytes = min(float(self._ceiling), max(float(self._floor), budget))
        if self.phase in (Phase.HOLD, Phase.REFUSED):
            self._found = self._bytes
        self._peak_before = self._peak
        self._begin_lap(now)

    def _end_lap(self, now: float) -> None:
        self._latency_s = self._byte_s / self._acked_bytes
        in_flight = min(self._bytes, self._peak)
        rate = in_flight / self._latency_s
        used = in_flight >= min(USED * self._bytes, self._bytes - self._largest + 1)
        match self.phase:
            case Phase.START:
                self._start(rate, used, now)
            case Phase.REFUSED:
                self._grow_again(used, now)
            case Phase.HOLD:
                if used:
                    self._rates.append(rate)
                    self._laps_left -= 1
                if self._laps_left > 0:
                    self._set(self._found, now)
                else:
                    self._try(now)
            case Phase.TRY_MORE:
                if used and rate >= PAYS * self._held_rate():
                    self._found, self._rates = self._bytes, [rate]
                    self._less_next = False
                    self._try(now)
                else:
                    self._hold(self._found, now)
            case Phase.TRY_LESS:
                kept = used and rate >= KEEPS * self._held_rate()
                self._hold(self._bytes if kept else self._found, now)

    def _start(self, rate: float, used: bool, now: float) -> None:
        if not used:
            self._set(self._bytes, now)
            return
        if not self._rates or rate >= PAYS * self._rates[0]:
            self._found, self._rates, self._misses = self._bytes, [rate], 0
        else:
            self._misses += 1
        if self._misses >= START_MISSES or self._bytes >= self._ceiling:
            self._hold(self._found, now)
        else:
            self._set(2 * self._bytes, now)

    def _held_rate(self) -> float:
        return sum(self._rates) / len(self._rates)

    def _hold(self, budget: float, now: float) -> None:
        self.phase = Phase.HOLD
        self._rates = []
        self._laps_left = HOLD_LAPS
        self._set(budget, now)

    def _try(self, now: float) -> None:
        less, self._less_next = self._less_next, not self._less_next
        self.phase = Phase.TRY_LESS if less else Phase.TRY_MORE
        more = max(MORE * self._found, self._found + self._largest)
        self._set(LESS * self._found if less else more, now)
        if self._bytes == self._found:  # at the floor, or at the ceiling
            self._hold(self._found, now)

    def _grow_again(self, used: bool, now: float) -> None:
        if now - self._refused_at > CALM_S:
            self._hold(self._bytes, now)
        elif not used:
            self._set(self._bytes, now)
        elif self._bytes < self._regain:
            self._set(min(self._regain, 2 * self._bytes), now)
        else:
            self._set(self._bytes + STEP_BYTES, now)
