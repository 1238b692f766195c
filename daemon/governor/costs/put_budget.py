"""The PUT budget: how long the commit window must be, and how large an object, so that the
daemon spends what it may.

The state is one number, the *debt*: what was spent above the budget so far, in PUTs.

    debt    += PUTs (and, as PUTs, what LISTs and bytes put cost) - budget x time
               within 0 and a bound
    window   = min x e^((debt - slack) / fold), up to its maximum
    target   = min x e^(what debt is left / fold), up to its maximum
    exceeded = the debt is at its bound, until it is a fold lower: no lever is left

The debt is itself the integral of the error, so no other integral is kept: while the window moves
the rate at all, the debt comes to rest only where exactly the budget is spent. What is overspent on
the way there is at most the bound of the debt, a few hundred PUTs, ever. An idle hour earns
nothing: the debt stops at 0, so no burst after it may spend more than the budget and one bound. Nor
does an hour in which no lever sufficed leave a debt that the hours after it would have to pay.

A *fold* is the debt by which a lever changes by the factor e. It keeps the loop from oscillating:
PUTs answer to a window about a window late, and while G groups upload once per window, a window
passes for G PUTs. An integrator with a delay does not overshoot if the delay is at most 1/e of its
time constant; the time constant is fold / G windows, hence PUTS_PER_FOLD. More groups than upload
within the budget at the longest window exceed it anyway and are not counted; so the time constant
is never above PUTS_PER_FOLD of the longest windows. Where windows are shorter than the tick that
steps this, the tick is the delay, hence FOLD_S. Objects that are full before their window answer in
the same way to the target. The *slack* is what all groups upload if they do so in the same moment,
which is not a reason to change anything.

Pure: what was spent and ``now`` in, a decision out. ``headgate simulate`` runs the same code.
"""

from __future__ import annotations

import math

from msgspec import Struct

from uploader.stores.prices import SECONDS_PER_MONTH, Prices

PUTS_PER_FOLD = 8.0  # for each group; e is the least that has no overshoot
FOLD_S = 0.6  # e x (a tick of 100 ms, and as much until the next one takes effect)
# What bytes cost comes in lots of an object, and no lever changes it; the levers see its average.
BYTES_SMOOTHED_S = 10.0
# A request waits for a window, for a second one if the member whose turn it is died, and for its
# PUT, which then has half of the time that is left to fail and be repeated.
WINDOWS_PER_ACK_TIMEOUT = 4
RINGS_PER_TARGET = 8
TARGET_BYTES_MAX = 1 << 30  # the limit of object_bytes_target


class BudgetTerms(Struct, frozen=True):
    """What a budget allows. ``groups`` is how many groups there may be, the number of shards."""

    puts_per_s: float
    put_usd: float  # the price of one
    window_min_ms: float
    window_max_ms: float
    target_min_bytes: int
    target_max_bytes: int
    groups: int

    def __post_init__(self) -> None:
        if not (self.puts_per_s > 0 and self.put_usd > 0):
            raise ValueError("a budget and the price of a PUT must be above 0")
        if not 0 < self.window_min_ms <= self.window_max_ms:
            raise ValueError(f"windows from {self.window_min_ms} to {self.window_max_ms} ms")
        if not 0 < self.target_min_bytes <= self.target_max_bytes:
            raise ValueError(f"targets from {self.target_min_bytes} to {self.target_max_bytes}")
        if self.groups < 1:
            raise ValueError(f"groups must be at least 1, got {self.groups}")

    @property
    def held_groups(self) -> float:
        """How many groups the budget can hold: each uploads once in the longest window at least."""
        return max(1.0, min(self.groups, self.puts_per_s * self.window_max_ms / 1e3))

    @property
    def fold_puts(self) -> float:
        """The debt by which a lever changes by the factor e."""
        return max(PUTS_PER_FOLD * self.held_groups, FOLD_S * self.puts_per_s)

    @property
    def slack_puts(self) -> float:
        """The debt up to which nothing changes."""
        return self.held_groups

    @property
    def window_debt_puts(self) -> float:
        """The debt from which on the window is at its maximum."""
        return self.slack_puts + self.fold_puts * math.log(self.window_max_ms / self.window_min_ms)

    @property
    def levers_debt_puts(self) -> float:
        """The debt from which on the target is at its maximum too."""
        targets = self.target_max_bytes / self.target_min_bytes
        return self.window_debt_puts + self.fold_puts * math.log(targets)

    @property
    def debt_max_puts(self) -> float:
        """The bound of the debt, and of what any burst may spend in addition to the budget."""
        return self.levers_debt_puts + self.fold_puts


def target_max_bytes(target_min_bytes: int, ring_bytes: int) -> int:
    """The largest object that a budget may ask for: several must fit into a ring."""
    return max(target_min_bytes, min(ring_bytes // RINGS_PER_TARGET, TARGET_BYTES_MAX))


def terms(
    budget_usd_per_month: float, prices: Prices, *, window_min_ms: float, ack_timeout_ms: float,
    target_bytes: int, ring_bytes: int, shards: int,
) -> BudgetTerms:  # fmt: skip
    """The terms of a configuration."""
    put_usd = prices.put_usd_per_1000 / 1_000
    return BudgetTerms(
        puts_per_s=budget_usd_per_month / SECONDS_PER_MONTH / put_usd,
        put_usd=put_usd,
        window_min_ms=window_min_ms,
        window_max_ms=max(window_min_ms, ack_timeout_ms / WINDOWS_PER_ACK_TIMEOUT),
        target_min_bytes=target_bytes,
        target_max_bytes=target_max_bytes(target_bytes, ring_bytes),
        groups=shards,
    )


class BudgetDecision(Struct, frozen=True):
    """The least window and the object target; ``holds`` is False once no lever is left."""

    window_ms: float
    target_bytes: int
    holds: bool


class PutBudget:
    """One budget. Call ``step`` at a steady pace, about ten times a second."""

    def __init__(self, terms: BudgetTerms, now_ns: int) -> None:
        self.terms = terms
        self.debt_puts = 0.0
        self._bytes_usd = 0.0  # not yet among the debt
        self._exceeded = False
        self._now_ns = now_ns

    def change(self, terms: BudgetTerms) -> None:
        """Goes on with other terms; what is owed stays owed, up to their bound."""
        self.terms = terms
        self.debt_puts = min(self.debt_puts, terms.debt_max_puts)

    def step(self, puts: float, bytes_usd: float, now_ns: int) -> BudgetDecision:
        """``puts`` were made since the last step, and the bytes put cost ``bytes_usd``."""
        terms = self.terms
        passed_s = max(0, now_ns - self._now_ns) / 1e9
        self._now_ns = now_ns
        self._bytes_usd += bytes_usd
        due_usd = self._bytes_usd * -math.expm1(-passed_s / BYTES_SMOOTHED_S)
        self._bytes_usd -= due_usd
        owed = self.debt_puts + puts + due_usd / terms.put_usd - terms.puts_per_s * passed_s
        self.debt_puts = max(0.0, min(owed, terms.debt_max_puts))
        if self.debt_puts >= terms.debt_max_puts:
            self._exceeded = True
        elif self.debt_puts <= terms.levers_debt_puts:
            self._exceeded = False
        return self.decision()

    def decision(self) -> BudgetDecision:
        """What follows from the debt."""
        terms = self.terms
        owed = max(0.0, self.debt_puts - terms.slack_puts)
        window_ms = terms.window_min_ms * math.exp(owed / terms.fold_puts)
        left = max(0.0, self.debt_puts - terms.window_debt_puts)
        target = terms.target_min_bytes * math.exp(left / terms.fold_puts)
        return BudgetDecision(
            min(window_ms, terms.window_max_ms),
            min(int(target), terms.target_max_bytes),
            not self._exceeded,
        )

    def check_invariants(self) -> None:
        """Raises AssertionError when the state contradicts itself."""
        terms, found = self.terms, self.decision()
        assert 0 <= self.debt_puts <= terms.debt_max_puts
        assert terms.window_min_ms <= found.window_ms <= terms.window_max_ms
        assert terms.target_min_bytes <= found.target_bytes <= terms.target_max_bytes
        first = found.target_bytes == terms.target_min_bytes
        assert first or found.window_ms == terms.window_max_ms, "the target is the second lever"
        assert found.holds or self.debt_puts > terms.levers_debt_puts
