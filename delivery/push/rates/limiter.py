"""How fast a sender may send: a rate that follows the failures of its receiver.

The mode machine is that of Hermes' consumers ("adaptive rate limiting"). A *period* is the time
between two decisions, 30 s. In each, attempts that succeeded and that failed are counted:

    normal     at most 1 % failed: climb, 20 % of the gap to the maximum
               at most 5 %: stay
               more: decrease, 20 % of the rate, down to the slow rate
    slow       an attempt a minute
    heartbeat  an attempt a minute

MODES has the changes from one to another.

What is added to it, because with a receiver far below the maximum 20 % of the gap always
oversteps: a decrease, or a fall to slow, measures how much the receiver takes (rate x what
succeeded of it), the *ceiling*. Climbing covers 20 % of the gap to the ceiling. Near it, clean
periods probe: 1 % above it, then 2, 4, 8 and 16 % above the last, until something fails or the
maximum is reached. As long as nothing failed there is no ceiling (docs/decisions/0020).

What is left open there is decided so:

- A period without an answer changes nothing.
- Exactly half is not more than half: a decrease, in slow mode no change.
- One attempt alone cannot lead from normal to slow; it decreases.
- A sender that leaves slow mode climbs in the same step; the next period might have no attempt.
- A period without a success, or half of whose failures came in succession, says nothing about the
  ceiling: the receiver was down, and the next period may be a part of the same *outage*. Unless it
  was so a few clean periods before: some take a number in a minute and then nothing, a *quota*.
  Then the ceiling is what they took in this period and the one before. If there is an outage at
  less than that, there is no quota, and the ceiling before it is back.
- A probe that fails has no lower ceiling than the rate before it, which was proved: a receiver that
  has no patience for bursts refuses every second attempt just above what it takes.
- Probing takes a sender that used what it had; one with little to send has proved nothing.
- A share that shrinks and grows again keeps what was learned (``set_maximum``).
- An operator who has seen an answer 2xx ends slow mode without waiting for a period (``resume``).
- Another receiver is learned anew (``restart``); answers of the former one count no more.

The rate is never above the maximum, and 0 is a maximum. Attempts count, retries too. Pure:
``now_ns`` is an argument; who sends asks ``next_ns``, reports what happens, and calls ``tick`` by
``tick_due_ns``. What survives a kill is ``state``, which ``LearnedRates`` takes to the ledger.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum, auto

from msgspec import Struct

from delivery.push.rates.pacer import NEVER_NS, Pacer
from ledger.delivery.push_rates import LearnedRate, SenderId
from shards.boards.pushboard import LimiterMode


class Failed(Enum):
    """How much of a period failed."""

    NONE = auto()
    SOME = auto()
    MOST = auto()  # more than half


# The mode after a period, by the mode in it and by what failed; in all other cases it stays.
MODES = {
    (LimiterMode.NORMAL, Failed.MOST): LimiterMode.SLOW,
    (LimiterMode.SLOW, Failed.NONE): LimiterMode.NORMAL,
    (LimiterMode.SLOW, Failed.MOST): LimiterMode.HEARTBEAT,
    (LimiterMode.HEARTBEAT, Failed.NONE): LimiterMode.SLOW,
}

USE_UNKNOWN = -1.0
NEAR = 0.98  # of the ceiling: climbing on would take periods for less than a probe
BUSY = 0.9  # of the permits that came were taken
HUNGRY = 0.99  # of the maximum was used; this beginning and ending is always told
# Above the ceiling, one after the other. A receiver that takes twice as much is found by the
# eighth, and overstepped by 16 % at most, which is a decrease and not a fall. After ten the ceiling
# was plainly wrong, and steps grow.
PROBES = (0.01, 0.02, 0.04, 0.08, 0.16, 0.16, 0.16, 0.16, 0.16, 0.16, 0.32, 0.64, 1.0)


# A period of few attempts proves little: one failure of three is 33 %. So the small steps wait for
# this many successes, but not for longer than this many periods.
PROVED = 10
PROVED_PERIODS = 3
SMALL_STEPS = 5
# Failures in succession that are half of all of a period, if most of its answers are failures, and
# if not: at a receiver that takes half of what comes, few in succession fail.
OUTAGE = 10
SHORT_OUTAGE = 3
FORGIVEN_PERIODS = 3  # clean ones after an outage; within these, another one may be a quota
# What is known of a quota is exact if the periods that it was measured in had such rates; an outage
# at this part of it shows that it is none.
QUOTA_ALIKE = 0.75
QUOTA_REFUTED = 0.95


class LimiterSettings(Struct, frozen=True):
    """Constants of the limiter; in brackets the name of the source of the algorithm."""

    period_s: float = 30.0  # LIMITER_PERIOD
    speedup_tolerance: float = 0.01  # SPEEDUP_TOLERANCE
    tolerance: float = 0.05  # TOLERANCE
    convergence_factor: float = 0.2  # CONVERGENCE_FACTOR
    slow_delay_s: float = 60.0  # SLOW_DELAY, and HEARTBEAT_DELAY, which is the same there
    update_interval_s: float = 15.0  # UPDATE_INTERVAL
    significant_change: float = 0.09  # MIN_SIGNIFICANT_CHANGE_PERCENT

    def __post_init__(self) -> None:
        for name in ("period_s", "slow_delay_s", "update_interval_s"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ValueError(f"{name} must be above 0, got {value}")
        if not 0 <= self.speedup_tolerance <= self.tolerance <= 0.5:
            raise ValueError(
                f"tolerances must be 0 <= {self.speedup_tolerance} <= {self.tolerance} <= 0.5"
            )
        if not 0 < self.convergence_factor < 1:
            raise ValueError(f"convergence_factor must be in (0, 1), got {self.convergence_factor}")

    @property
    def slow_rate(self) -> float:
        """Attempts a second in slow and heartbeat mode; no decrease goes below it."""
        return 1 / self.slow_delay_s


class Limiter:
    """The limiter of one sender."""

    def __init__(
        self,
        settings: LimiterSettings,
        maximum: float,
        now_ns: int,
        learned: LearnedRate | None = None,
        first_part: float | None = None,
    ) -> None:
        """``maximum`` is attempts a second, 0 for none. If nothing is ``learned``, the rate begins
        with ``first_part`` of it: what other senders to this receiver have learned, or what the
        settings say, else as if it had climbed from nothing once."""
        self._settings = settings
        self._maximum = 0.0
        self._is_new = learned is None
        self._set_first_part(first_part)
        self._held_others_ns = 0
        self._restarted_ns = 0
        self._run = self._longest_run = 0
        self._ceiling: float | None
        self._quota: float | None  # what the ceiling was lowered to by outages
        self._before_quota: float | None  # the ceiling before that
        # The last period, in normal mode: attempts that the receiver would have taken; seconds.
        self._last_period: tuple[float, float] | None
        self._forget(now_ns)
        if learned is not None:
            self._mode = LimiterMode(learned.mode)
            self._learned = max(learned.rate, settings.slow_rate)
            self._ceiling = learned.ceiling
        self._pacer = Pacer(0.0, now_ns)
        self._at_ns = now_ns  # up to where _allowed counts
        self._use = USE_UNKNOWN
        self._use_maximum = -1.0  # in force when it was recorded
        self._begin_period(now_ns)
        self._begin_update(now_ns)
        self.set_maximum(maximum, now_ns)

    def _set_first_part(self, part: float | None) -> None:
        part = self._settings.convergence_factor if part is None else part
        self._first_part = min(1.0, max(0.0, part))

    def _forget(self, now_ns: int) -> None:
        """Nothing is known of the receiver."""
        self._mode = LimiterMode.NORMAL
        self._learned = self._settings.slow_rate
        self._ceiling = None
        self._held_ns = 0
        self._forgiven = 0  # clean periods until an outage is one again
        self._is_out = False  # the last period had an outage
        self._is_exact = False
        self._quota = self._before_quota = self._last_period = None
        self._fell_ns = now_ns  # to slow mode
        self._reset_probes()

    # --- what is in force ---------------------------------------------------------------------

    @property
    def mode(self) -> LimiterMode:
        """Normal, slow or heartbeat."""
        return self._mode

    @property
    def maximum(self) -> float:
        """The share of the subscription's rate that this sender has."""
        return self._maximum

    @property
    def ceiling(self) -> float | None:
        """What the receiver is thought to take."""
        return self._ceiling

    @property
    def rate(self) -> float:
        """Attempts a second in force."""
        return self._pacer.rate

    @property
    def held_until_ns(self) -> int:
        """Until when the receiver wants nothing from this sender or from the others."""
        return max(self._held_ns, self._held_others_ns)

    @property
    def use(self) -> float:
        """Attempts over the maximum, for the balancer: in the last update interval that differed
        much, had another maximum, or was the first or last to be used up. USE_UNKNOWN before it."""
        return self._use

    @property
    def state(self) -> LearnedRate:
        """What is to survive. The rate is that of normal mode, if the maximum allows it."""
        return LearnedRate(self._mode, self._learned, self._ceiling)

    def set_maximum(self, maximum: float, now_ns: int) -> None:
        """Another share, or the same; a caller that waits for ``next_ns`` asks again."""
        if not 0 <= maximum < math.inf:
            raise ValueError(f"the maximum must be 0 or more, got {maximum}")
        if maximum == self._maximum:
            return
        self._count_allowed(now_ns)
        self._maximum = maximum
        if self._is_new:
            self._learned = max(self._learned, self._first_part * maximum)
        self._put_in_force(now_ns)

    # --- sending ------------------------------------------------------------------------------

    def next_ns(self, now_ns: int) -> int:
        """When the next attempt may begin: not after ``now_ns`` if it may now, NEVER_NS if the
        maximum is 0."""
        return max(self._pacer.next_ns(now_ns), self.held_until_ns)

    def test_ns(self, now_ns: int) -> int:
        """When an attempt may begin that does not wait for the mode: an interval of the maximum
        after the last one, so that the maximum holds. NEVER_NS if it is 0."""
        if self._maximum <= 0:
            return NEVER_NS
        apart_ns = self._pacer.last_ns + math.ceil(1e9 / self._maximum)
        return max(min(apart_ns, self._pacer.next_ns(now_ns)), self.held_until_ns)

    def wait(self, now_ns: int) -> None:
        """There is something to send, and only a permit is missing. So it is known what a sender
        needs whose permits are further apart than update intervals: it would get no more before
        the next one, which may be a minute away."""
        if now_ns >= self.held_until_ns:
            self._is_waiting = True

    def attempted(self, now_ns: int) -> None:
        """An attempt begins."""
        self._pacer.take(now_ns)
        self._attempts += 1

    def succeeded(self, now_ns: int, began_ns: int | None = None) -> None:
        """The receiver took an attempt, or refused the record."""
        if self._is_of_this_mode(began_ns):
            self._succeeded += 1
            self._run = 0

    def failed(self, now_ns: int, began_ns: int | None = None) -> None:
        """The receiver failed an attempt, which began then."""
        if self._is_of_this_mode(began_ns):
            self._failed += 1
            self._run += 1
            self._longest_run = max(self._longest_run, self._run)

    def _is_of_this_mode(self, began_ns: int | None) -> bool:
        """An attempt that was under way at the fall to slow mode and times out later says nothing
        new."""
        if began_ns is None:
            return True
        is_new = self._mode is LimiterMode.NORMAL or began_ns >= self._fell_ns
        return is_new and self.is_of_this_receiver(began_ns)

    def is_of_this_receiver(self, began_ns: int) -> bool:
        """Whether an attempt that began then went to the receiver of now."""
        return began_ns >= self._restarted_ns

    def hold(self, until_ns: int) -> None:
        """No attempt before then; of several such times the last counts."""
        self._held_ns = max(self._held_ns, until_ns)

    def hold_with_others(self, until_ns: int) -> None:
        """Until when all senders to this receiver are held, 0 for none; the last call counts."""
        self._held_others_ns = until_ns

    def release(self) -> None:
        """Forgets what ``hold`` said."""
        self._held_ns = 0

    def resume(self, now_ns: int) -> None:
        """An operator says that the receiver takes something again: ends a pause, and slow mode as
        a period without failures does."""
        self.release()
        if self._mode is not LimiterMode.NORMAL:
            self._mode = LimiterMode.NORMAL
            self._climb(is_busy=False)
            self._put_in_force(now_ns)
            self._begin_period(now_ns)

    def restart(self, now_ns: int, first_part: float | None = None) -> None:
        """The receiver is another one: what the former one taught, and what it still answers,
        counts no more. The rate begins as that of a new sender; the maximum holds throughout."""
        self._forget(now_ns)
        self._is_new = True
        self._restarted_ns = now_ns
        self._set_first_part(first_part)
        self._learned = max(self._learned, self._first_part * self._maximum)
        self._put_in_force(now_ns)
        self._begin_period(now_ns)

    # --- deciding -----------------------------------------------------------------------------

    @property
    def tick_due_ns(self) -> int:
        """When ``tick`` has something to do."""
        return min(self._period_due_ns, self._update_due_ns)

    def tick(self, now_ns: int) -> bool:
        """Ends a period and an update interval if they are over. Whether mode or rate changed."""
        if now_ns >= self._update_due_ns:
            self._update_use(now_ns)
        if now_ns < self._period_due_ns:
            return False
        before = (self._mode, self.rate)
        self._pacer.catch_up(now_ns)
        if self._succeeded + self._failed:
            was_normal = self._mode is LimiterMode.NORMAL
            self._judge(now_ns)
            self._last_period = self._taken(now_ns) if was_normal else None
            self._is_new = False
            self._put_in_force(now_ns)
        self._begin_period(now_ns)
        return before != (self._mode, self.rate)

    def _begin_period(self, now_ns: int) -> None:
        self._period_ns = now_ns
        self._period_due_ns = now_ns + round(self._settings.period_s * 1e9)
        self._succeeded = self._failed = 0
        self._run = 0  # failures in succession
        self._longest_run = 0
        self._came, self._lost = self._pacer.came, self._pacer.lost

    def _judge(self, now_ns: int) -> None:
        settings = self._settings
        answers = self._succeeded + self._failed
        failures = self._failed / answers
        before, failed = self._mode, _failed(failures)
        if before is not LimiterMode.NORMAL or answers > 1:
            self._mode = MODES.get((before, failed), before)
        if before is not LimiterMode.NORMAL:
            if self._mode is LimiterMode.NORMAL:
                self._climb(is_busy=False)
        elif self._mode is LimiterMode.SLOW:
            self._learn_ceiling(failures, now_ns)
            self._fell_ns = now_ns
            self._learned = settings.slow_rate
        elif failures > settings.tolerance:
            self._learn_ceiling(failures, now_ns)
            decreased = self.rate * (1 - settings.convergence_factor)
            self._learned = max(settings.slow_rate, decreased)
        elif failures > settings.speedup_tolerance:
            self._is_out = False
            self._reset_probes()
            if self._ceiling is not None and self._learned > self._ceiling * NEAR:
                self._ceiling = self._learned
        else:
            came = self._pacer.came - self._came
            self._forgiven = max(0, self._forgiven - 1)
            self._climb(is_busy=self._pacer.lost - self._lost <= (1 - BUSY) * came)

    def _reset_probes(self) -> None:
        self._probes = 0  # steps in succession
        self._clean = self._clean_periods = 0  # successes and periods since the last one
        self._proved = 0.0  # the rate before it; 0 if the last period was not one of a probe

    def _climb(self, *, is_busy: bool) -> None:
        self._is_out = False
        factor = self._settings.convergence_factor
        ceiling = self._ceiling
        if ceiling is None or self._maximum <= ceiling:
            if self._learned < self._maximum:
                self._learned += factor * (self._maximum - self._learned)
        elif self._learned < ceiling * NEAR:
            self._learned += factor * (ceiling - self._learned)
        elif is_busy:
            self._probe(max(ceiling, self._learned))
            return
        self._proved = 0.0

    def _probe(self, proved: float) -> None:
        self._clean += self._succeeded
        self._clean_periods += 1
        is_small = self._probes < SMALL_STEPS
        if is_small and self._clean < PROVED and self._clean_periods < PROVED_PERIODS:
            return
        step = PROBES[min(self._probes, len(PROBES) - 1)]
        self._probes += 1
        self._clean = self._clean_periods = 0
        self._proved = proved
        self._ceiling = proved * (1 + step)
        self._learned = min(self._ceiling, self._maximum)

    def _learn_ceiling(self, failures: float, now_ns: int) -> None:
        was_out, self._is_out = self._is_out, self._is_outage(failures)
        taken, period_s = self._taken(now_ns)
        if not self._is_out:
            self._set_ceiling(taken / period_s)
            self._quota = None
        elif not was_out:
            self._learn_of_outage(taken, period_s)
        elif self._quota is not None:  # it is the same one, and now known in full
            self._set_quota(taken, period_s)
        self._reset_probes()

    def _is_outage(self, failures: float) -> bool:
        least = OUTAGE if failures > 0.5 else SHORT_OUTAGE
        run = self._longest_run
        return not self._succeeded or (run >= least and run * 2 >= self._failed)

    def _taken(self, now_ns: int) -> tuple[float, float]:
        """The part of the permits of a period that succeeded, whether they were used or not, and
        how many seconds it took."""
        answers = self._succeeded + self._failed
        came = self._pacer.came - self._came
        return came * self._succeeded / answers, max(1, now_ns - self._period_ns) / 1e9

    def _learn_of_outage(self, taken: float, period_s: float) -> None:
        """One that comes soon after another may be a quota: then as much succeeds in a time as is
        taken in it. One that comes although no more than that was sent does not count."""
        mean = (self._pacer.came - self._came) / period_s
        if self._quota is not None and self._is_exact and mean <= self._quota * QUOTA_REFUTED:
            self._ceiling, self._quota = self._before_quota, None
        elif self._forgiven or (self._quota is not None and not self._is_exact):
            if self._quota is None:
                self._before_quota = self._ceiling
            self._set_quota(taken, period_s)
        self._forgiven = FORGIVEN_PERIODS

    def _set_quota(self, taken: float, period_s: float) -> None:
        self._is_exact = False
        mean = (self._pacer.came - self._came) / period_s
        if self._last_period is not None:
            before, before_s = self._last_period
            measured = (before + taken) / (before_s + period_s)
            self._is_exact = (
                before / before_s >= QUOTA_ALIKE * mean and taken / period_s >= mean / 2
            )
        elif self._succeeded:
            measured = taken / period_s
        else:
            measured = mean / 2
        self._set_ceiling(measured)
        self._quota = self._ceiling

    def _set_ceiling(self, measured: float) -> None:
        self._ceiling = max(measured, self._proved, self._settings.slow_rate)

    def _put_in_force(self, now_ns: int) -> None:
        rate = self._learned if self._mode is LimiterMode.NORMAL else self._settings.slow_rate
        self._pacer.set_rate(min(rate, self._maximum), now_ns)

    # --- what the balancer asks ---------------------------------------------------------------

    def _count_allowed(self, now_ns: int) -> None:
        self._allowed += max(0, now_ns - self._at_ns) * self._maximum / 1e9
        self._at_ns = max(self._at_ns, now_ns)

    def _begin_update(self, now_ns: int) -> None:
        self._update_due_ns = now_ns + round(self._settings.update_interval_s * 1e9)
        self._attempts = 0
        self._is_waiting = False
        self._allowed = 0.0  # attempts, by the maxima
        self._use_came, self._use_lost = self._pacer.came, self._pacer.lost

    def _update_use(self, now_ns: int) -> None:
        """The share of what was allowed that was taken. A sender that waits for its next permit
        has taken all that came, so permits are counted rather than attempts: at low rates an
        interval has few attempts. While nothing holds it back but its own climbing, the maximum is
        as good as used: it will be."""
        self._count_allowed(now_ns)
        pacer = self._pacer
        pacer.catch_up(now_ns)
        came, lost = pacer.came - self._use_came, pacer.lost - self._use_lost
        wants = self._attempts > 0 or self._is_waiting
        if not wants and lost < 1:
            self._update_due_ns = now_ns + round(self._settings.update_interval_s * 1e9)
            return  # there was hardly a permit to take; the interval goes on
        taken = came - lost if wants else 0.0
        is_climbing = self._mode is LimiterMode.NORMAL and (
            self._ceiling is None or self._ceiling >= self._maximum
        )
        could = came if is_climbing else self._allowed
        use = min(1.0, taken / could) if could > 0 else 0.0
        is_of_another = self._use_maximum != self._maximum
        begins_or_ends = (use >= HUNGRY) != (self._use >= HUNGRY)
        much = abs(use - self._use) > self._settings.significant_change
        if is_of_another or begins_or_ends or much:
            self._use = use
            self._use_maximum = self._maximum
        self._begin_update(now_ns)

    def check_invariants(self) -> None:
        """Raises AssertionError if a rule of the head is broken; for tests."""
        self._pacer.check_invariants()
        assert 0 <= self.rate <= self._maximum
        assert self._learned >= self._settings.slow_rate
        assert self._ceiling is None or self._ceiling >= self._settings.slow_rate
        assert self._use == USE_UNKNOWN or 0 <= self._use <= 1
        if self._mode is not LimiterMode.NORMAL:
            assert self.rate <= self._settings.slow_rate


def _failed(failures: float) -> Failed:
    if not failures:
        return Failed.NONE
    return Failed.MOST if failures > 0.5 else Failed.SOME


class LearnedRates:
    """What the limiters of a shard have learned, on its way to the ledger; called in the loop.

        note -> the next flush takes it -> kept, or offered again if the flush failed

    Of each sender only the last counts, so there are as many as senders at most. It rides on the
    flush of cursors: a second after a change, in the same transaction as all else that changes in a
    shard."""

    def __init__(self) -> None:
        self._noted: dict[SenderId, LearnedRate] = {}
        self._taken: dict[SenderId, LearnedRate] = {}

    def note(self, subscription_id: int, sender: int, rate: LearnedRate) -> None:
        """What a sender has learned has changed."""
        self._noted[subscription_id, sender] = rate

    def learned(self) -> Mapping[SenderId, LearnedRate]:
        """What to write now. ``kept`` follows, before the next call."""
        self._taken, self._noted = self._noted, {}
        return self._taken

    def kept(self, *, written: bool) -> None:
        """Whether it was."""
        if not written:
            self._noted = self._taken | self._noted
        self._taken = {}
