"""How much each sender of a subscription may send: its rate, divided into shares.

Two parts. *Targets* are what is negotiated, every 30 s, from how much each sender used of its
maximum; joins, leaves and a change of the rate move them immediately:

- A sender is *busy* if it used more than 0.9, and *hungry* if it used all.
- If one is hungry, each that is not gives some: its new maximum is ``max * 2u / (u + 1)``, which
  halves what it does not use, and not below the minimum. What is freed goes to the hungry.
- If one is busy and none hungry, it gets the same from those that used less than 0.8.
- A hungry sender below the mean of the busy ones rises towards it: 4 % in the first round, 16 in
  the next, then 64 and so on, and at most half of the way; what is not freed for that comes from
  the busy ones above the mean. So shares become even without overshooting, and one that needs a
  little more gets a little more.
- A change below 1 % is ignored, but not the other side of one that is not: what a rise needs may be
  little from each of many, and what one gives little for another.
- A newcomer has its fair share immediately, ``rate / senders``; the others keep their proportions,
  as they do when one leaves or the rate changes.

*Grants* follow the targets (``step``, every 100 ms). They are what keeps the sum of all maxima in
force within the rate at every instant, although senders take notice of a grant when they can. For
each sender the caller knows the last grant, and what it may be using: the highest grant since the
one that it is known to obey (``shards/boards/pushgrants.py``). A grant is lowered immediately.
Grants rise by at most ``rate - sum of max(granted, in use)``, as these were before the step: what
was lowered is given away after its sender obeys. So a rate that was lowered is in force as soon as
all do.

Pure: rows and ``now_ns`` in, grants out. It does not know shared memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec import Struct

FULL = 0.1  # of the tolerance for the busy may be unused of a hungry one's maximum: lateness
RISE = 0.04  # of a hungry sender's maximum, in the first round
RISE_GROWTH = 4  # from round to round; a sixtieth becomes its share of 100 in ten rounds
_RISES_MAX = 20  # counted; by then it is half of the way
GRAIN = 2e-6  # attempts a second: a grant is stored in millionths, rounded down
_ALIKE = 1e-9  # relative: below it, two rates are the same


class BalancerSettings(Struct, frozen=True):
    """Constants of the balancer; in brackets the name of the source of the algorithm. It keeps the
    last use only (RATE_HISTORY_SIZE 1)."""

    balance_interval_s: float = 30.0  # BALANCE_INTERVAL
    busy_tolerance: float = 0.1  # BUSY_TOLERANCE
    min_max_rate: float = 1 / 60  # MIN_MAX_RATE
    min_change: float = 0.01  # MIN_CHANGE_PERCENT

    def __post_init__(self) -> None:
        if not 0 < self.balance_interval_s < math.inf:
            raise ValueError(f"balance_interval_s must be above 0, got {self.balance_interval_s}")
        if not 0 < self.busy_tolerance < 1:
            raise ValueError(f"busy_tolerance must be in (0, 1), got {self.busy_tolerance}")
        if not 0 < self.min_max_rate < math.inf:
            raise ValueError(f"min_max_rate must be above 0, got {self.min_max_rate}")
        if not 0 <= self.min_change < 1:
            raise ValueError(f"min_change must be in [0, 1), got {self.min_change}")


class ShareRow(Struct):
    """What the words of a sender say."""

    granted: float
    in_use: float  # at most; the highest grant that it may obey
    use: float = -1.0  # below 0: not known yet
    is_present: bool = True  # False: it leaves, and may still be using something


class Shares:
    """The shares of one subscription. Senders are numbers of the caller's choice."""

    def __init__(self, settings: BalancerSettings, now_ns: int) -> None:
        self._settings = settings
        self._interval_ns = round(settings.balance_interval_s * 1e9)
        self._busy = 1 - settings.busy_tolerance
        self._full = 1 - FULL * settings.busy_tolerance
        self._rate = 0.0
        self.due_ns = now_ns  # of the next negotiation
        self.targets: dict[int, float] = {}
        self._rises: dict[int, int] = {}  # rounds in succession in which a sender was hungry

    def step(self, rate: float, rows: Mapping[int, ShareRow], now_ns: int) -> dict[int, float]:
        """The grants that change. If nothing in the rows has changed since the last step, and
        ``due_ns`` has not come, there are none."""
        present = {sender for sender, row in rows.items() if row.is_present}
        if rate != self._rate or present != self.targets.keys():
            self._adapt(rate, present)
            self.due_ns = now_ns + self._interval_ns  # uses of other maxima say nothing
        elif now_ns >= self.due_ns:
            if len(present) > 1:
                self._negotiate({sender: rows[sender].use for sender in present})
            self.due_ns = now_ns + self._interval_ns
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
        busy = [sender for sender, use in uses.items() if use > self._busy]
        hungry = [sender for sender in busy if uses[sender] >= self._full]
        self._rises = {
            sender: min(_RISES_MAX, self._rises.get(sender, 0) + 1) if sender in hungry else 0
            for sender in uses
        }
        takers = hungry or busy
        if not takers:
            return
        minimum = self._minimum(len(targets))
        # Without a need a change is not worth the next one back.
        gives_below = self._full if hungry else 1 - 2 * self._settings.busy_tolerance
        gave = False
        for sender, use in uses.items():
            if 0 <= use < gives_below:
                less = max(minimum, targets[sender] * 2 * use / (use + 1))
                if less < targets[sender] and self._is_much(targets[sender] - less, sender):
                    targets[sender] = less
                    gave = True
        free = max(0.0, self._rate - sum(targets.values()))
        mean = self._mean(takers, uses)
        rises = {
            sender: min(
                (mean - targets[sender]) / 2,
                targets[sender] * RISE * RISE_GROWTH ** (self._rises[sender] - 1),
            )
            for sender in hungry
            if targets[sender] < mean
        }
        rises = {sender: rise for sender, rise in rises.items() if self._is_much(rise, sender)}
        missing = sum(rises.values()) - free
        if missing > 0:
            self._take(missing, mean, uses)
        for sender, rise in rises.items():
            targets[sender] += rise
        if missing < 0:  # what is left is for all of them, in proportion
            part = -missing / sum(targets[sender] for sender in takers)
            if gave or part >= self._settings.min_change:
                for sender in takers:
                    targets[sender] *= 1 + part

    def _mean(self, takers: list[int], uses: Mapping[int, float]) -> float:
        """The mean of those that take, and of the busy that have more than these."""
        taking = [self.targets[sender] for sender in takers]
        mean = sum(taking) / len(taking)
        more = [
            self.targets[sender]
            for sender, use in uses.items()
            if self._busy < use < self._full and self.targets[sender] > mean
        ]
        return (sum(taking) + sum(more)) / (len(taking) + len(more))

    def _take(self, wanted: float, mean: float, uses: Mapping[int, float]) -> None:
        """Takes from the busy above the mean, in proportion to what they have more; that is at
        least twice what is wanted."""
        above = {
            sender: self.targets[sender] - mean
            for sender, use in uses.items()
            if use > self._busy and self.targets[sender] > mean
        }
        part = wanted / sum(above.values())
        for sender, more in above.items():
            self.targets[sender] -= more * part

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
            elif target - granted > GRAIN:
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
