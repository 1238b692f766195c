"""Who of the senders of a subscription may send how much: its rate, divided into shares.

Two parts. *Targets* are what is negotiated, every 30 s, from how much each sender used of its
maximum; joins, leaves and a change of the rate move them immediately:

- A sender is *busy* if it used more than 0.9, and *hungry* if it used all.
- If one is hungry, each sender that is not gives some: its new maximum is ``max * 2u / (u + 1)``,
  which halves what it does not use, and not below the minimum.
- What is freed goes to the hungry. A hungry sender below the mean of the busy ones rises towards
  it, by 4, 8, 16, ... % from round to round, and at most half of the way; what is not freed for
  that comes from the busy ones above the mean. So shares become even without overshooting, and one
  that needs a little more gets a little more.
- A change below 1 % is ignored.
- A newcomer has its fair share immediately, ``rate / senders``; the others keep their proportions,
  as they do when one leaves or the rate changes.

*Grants* follow the targets (``step``, every 100 ms). They are what keeps the sum of all maxima in
force within the rate at every instant, although senders take notice of a grant when they can:

    granted   written by the balancer: the maximum that the sender may put in force
    in use    written by the sender: no maximum in force is above it (``take_share``);
              for a dead one, by the process that saw its end

A grant is lowered immediately. What was lowered is given away only in a later step, when ``in use``
was read again: grants rise by at most ``rate - sum of max(granted, in use)``, with the grants as
they were before this step. Senders do their part in ``take_share``. A rate that was lowered is in
force as soon as all have done it.

Pure: rows and ``now_ns`` in, grants out. It does not know shared memory (shards/pushboard.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Protocol

from msgspec import Struct

FULL = 0.97  # of the maximum was used: there is more to send; the rest is lateness
RISES = (0.04, 0.08, 0.16, 0.32, 0.64, 1.0)  # of a hungry sender's maximum, the last one repeated
_ALIKE = 1e-9  # relative: below it, two rates are the same


class BalancerSettings(Struct, frozen=True):
    """Constants of the balancer; in brackets the name of the source of the algorithm. Of uses it
    keeps the last one (RATE_HISTORY_SIZE 1)."""

    balance_interval_s: float = 30.0  # BALANCE_INTERVAL
    busy_tolerance: float = 0.1  # BUSY_TOLERANCE
    min_max_rate: float = 1.0  # MIN_MAX_RATE
    min_change: float = 0.01  # MIN_CHANGE_PERCENT

    def __post_init__(self) -> None:
        if not 0 < self.balance_interval_s < math.inf:
            raise ValueError(f"balance_interval_s must be above 0, got {self.balance_interval_s}")
        if not 1 - FULL < self.busy_tolerance < 1:
            raise ValueError(
                f"busy_tolerance must be above {1 - FULL:.2f} and below 1,"
                f" got {self.busy_tolerance}"
            )
        if not 0 <= self.min_max_rate < math.inf:
            raise ValueError(f"min_max_rate must be 0 or more, got {self.min_max_rate}")
        if not 0 <= self.min_change < 1:
            raise ValueError(f"min_change must be in [0, 1), got {self.min_change}")


class ShareRow(Struct):
    """What the words of a sender say."""

    granted: float
    in_use: float
    use: float = -1.0  # below 0: not known yet
    is_present: bool = True  # False: it left or died, and may still be using something


class Shares:
    """The shares of one subscription. Senders are numbers of the caller's choice."""

    def __init__(self, settings: BalancerSettings, now_ns: int) -> None:
        self._settings = settings
        self._interval_ns = round(settings.balance_interval_s * 1e9)
        self._rate = 0.0
        self._due_ns = now_ns
        self.targets: dict[int, float] = {}
        self._rises: dict[int, int] = {}  # rounds in succession in which a sender was hungry

    def step(self, rate: float, rows: Mapping[int, ShareRow], now_ns: int) -> dict[int, float]:
        """The grants that change. Two steps are at least a millisecond apart."""
        present = {sender for sender, row in rows.items() if row.is_present}
        if rate != self._rate or present != self.targets.keys():
            self._adapt(rate, present)
            self._due_ns = now_ns + self._interval_ns  # uses of other maxima say nothing
        elif now_ns >= self._due_ns:
            if len(present) > 1:
                self._negotiate({sender: rows[sender].use for sender in present})
            self._due_ns = now_ns + self._interval_ns
        return self._grants(rows)

    # --- targets ------------------------------------------------------------------------------

    def _adapt(self, rate: float, present: set[int]) -> None:
        self._rate = rate
        old = {sender: target for sender, target in self.targets.items() if sender in present}
        new = present - old.keys()
        self._rises = {sender: self._rises.get(sender, 0) for sender in old}
        if not present:
            self.targets = {}
            return
        fair = rate / len(present)
        left = rate - fair * len(new)
        total = sum(old.values())
        if total > 0:
            targets = {sender: left * target / total for sender, target in old.items()}
        else:
            targets = dict.fromkeys(old, fair)
        targets.update(dict.fromkeys(new, fair))
        self.targets = self._at_least(targets)

    def _minimum(self, senders: int) -> float:
        """Where the rate is too low for the minimum, it is divided evenly."""
        return min(self._settings.min_max_rate, self._rate / senders)

    def _at_least(self, targets: dict[int, float]) -> dict[int, float]:
        """Raises what is below the minimum, at the expense of what is above."""
        minimum = self._minimum(len(targets))
        missing = sum(max(0.0, minimum - target) for target in targets.values())
        above = sum(max(0.0, target - minimum) for target in targets.values())
        if missing <= 0:
            return targets
        part = min(1.0, missing / above) if above > 0 else 0.0
        return {
            sender: minimum + max(0.0, target - minimum) * (1 - part)
            for sender, target in targets.items()
        }

    def _negotiate(self, uses: Mapping[int, float]) -> None:
        targets = self.targets
        hungry = [sender for sender, use in uses.items() if use >= FULL]
        self._rises = {
            sender: self._rises.get(sender, 0) + 1 if use >= FULL else 0
            for sender, use in uses.items()
        }
        if not hungry:
            return
        minimum = self._minimum(len(targets))
        for sender, use in uses.items():
            if 0 <= use < FULL:
                less = max(minimum, targets[sender] * 2 * use / (use + 1))
                if less < targets[sender] and self._is_much(targets[sender] - less, sender):
                    targets[sender] = less
        free = max(0.0, self._rate - sum(targets.values()))
        mean = self._mean(hungry, uses)
        rises = {
            sender: min(
                (mean - targets[sender]) / 2,
                targets[sender] * RISES[min(self._rises[sender], len(RISES)) - 1],
            )
            for sender in hungry
            if targets[sender] < mean
        }
        rises = {sender: rise for sender, rise in rises.items() if self._is_much(rise, sender)}
        missing = sum(rises.values()) - free
        if missing > 0:
            taken = self._take(missing, mean, uses)
            part = (taken + free) / (missing + free)
            rises = {sender: rise * part for sender, rise in rises.items()}
        for sender, rise in rises.items():
            targets[sender] += rise
        if missing < 0:  # what is left is for all that are hungry
            each = -missing / len(hungry)
            for sender in hungry:
                if self._is_much(each, sender):
                    targets[sender] += each

    def _mean(self, hungry: Iterable[int], uses: Mapping[int, float]) -> float:
        """The mean of the hungry, and of the busy that have more than these."""
        of_hungry = [self.targets[sender] for sender in hungry]
        mean = sum(of_hungry) / len(of_hungry)
        more = [
            self.targets[sender]
            for sender, use in uses.items()
            if self._is_busy(use) and use < FULL and self.targets[sender] > mean
        ]
        return (sum(of_hungry) + sum(more)) / (len(of_hungry) + len(more))

    def _take(self, wanted: float, mean: float, uses: Mapping[int, float]) -> float:
        """Takes from the busy above the mean, in proportion to what they have more. A change
        that is to be ignored is not made."""
        above = {
            sender: self.targets[sender] - mean
            for sender, use in uses.items()
            if self._is_busy(use) and self.targets[sender] > mean
        }
        total = sum(above.values())
        taken = 0.0
        for sender, more in above.items():
            less = min(more, wanted * more / total)
            if self._is_much(less, sender):
                self.targets[sender] -= less
                taken += less
        return taken

    def _is_busy(self, use: float) -> bool:
        return use > 1 - self._settings.busy_tolerance

    def _is_much(self, change: float, sender: int) -> bool:
        return change >= self.targets[sender] * self._settings.min_change

    # --- grants -------------------------------------------------------------------------------

    def _grants(self, rows: Mapping[int, ShareRow]) -> dict[int, float]:
        targets = self.targets
        grants: dict[int, float] = {}
        wanted: dict[int, float] = {}
        committed = 0.0
        for sender, row in rows.items():
            granted = row.granted
            committed += max(row.in_use, granted)
            target = targets.get(sender, 0.0)
            if target < granted:
                grants[sender] = target
            elif target > granted:
                wanted[sender] = target - granted
        if not wanted:
            return grants
        room = self._rate - committed
        total = sum(wanted.values())
        if room <= self._rate * _ALIKE or total <= 0:
            return grants
        part = room / total
        for sender, rise in wanted.items():
            grants[sender] = targets[sender] if part >= 1 else rows[sender].granted + rise * part
        return grants

    def check_invariants(self) -> None:
        """Raises AssertionError if a rule of the head is broken; for tests."""
        if not self.targets:
            return
        total = sum(self.targets.values())
        assert total <= self._rate * (1 + _ALIKE), (total, self._rate)
        minimum = self._minimum(len(self.targets)) * (1 - _ALIKE)
        assert all(target >= minimum for target in self.targets.values()), self.targets


class SharedShare(Protocol):
    """The two words of a sender that ``take_share`` needs."""

    @property
    def granted(self) -> float:
        """What the balancer granted."""

    def set_in_use(self, rate: float) -> None:
        """Tells the balancer that no maximum in force is above this."""


class Limited(Protocol):
    """What a share limits."""

    @property
    def maximum(self) -> float:
        """In force."""

    def set_maximum(self, maximum: float, now_ns: int) -> None:
        """Puts another one in force."""


def take_share(limiter: Limited, words: SharedShare, now_ns: int) -> bool:
    """Puts what is granted in force; whether the maximum changed. More is told before it is in
    force, and taken only if it is still granted after that: a balancer that lowered the grant
    meanwhile may have seen what was in use before. Less is told after it is in force."""
    granted = words.granted
    before = limiter.maximum
    if granted == before:
        return False
    if granted > before:
        words.set_in_use(granted)
        if words.granted < granted:
            words.set_in_use(before)  # the next call takes what is granted now
            return False
        limiter.set_maximum(granted, now_ns)
    else:
        limiter.set_maximum(granted, now_ns)
        words.set_in_use(granted)
    return True
