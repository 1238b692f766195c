"""Credit as a game of an owner, a client and the two directions between them: nothing is ever
stuck, and what a client has not taken is bounded."""

from __future__ import annotations

from collections import deque

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from delivery.pipes.credit import WINDOW_BYTES, OwedCredit, OwnersCredit

WRITE_BYTES_MAX = WINDOW_BYTES + 5_000
# Small ones after one that leaves little credit are what may stay owed.
SIZES = st.integers(1, 20_000) | st.integers(WINDOW_BYTES - 20_000, WRITE_BYTES_MAX)


class CreditMachine(RuleBasedStateMachine):
    """A stream, its owner deaths included."""

    def __init__(self) -> None:
        super().__init__()
        self.untaken = 0  # by the client, of what was passed on
        self.owed = OwedCredit()
        self.open()

    def open(self) -> None:
        """At the first owner, or at a successor: what was on its way is lost."""
        self.forth: deque[int] = deque()
        self.back: deque[int] = deque()
        self.credit = OwnersCredit(self.owed.begin(writable=not self.untaken))
        self.last_write = 0

    @rule()
    def owner_dies(self) -> None:
        self.open()

    @precondition(lambda self: self.credit.may_write)
    @rule(size=SIZES)
    def write(self, size: int) -> None:
        self.credit.spend(size)
        self.forth.append(size)
        self.last_write = size

    @precondition(lambda self: self.forth)
    @rule(takes=st.booleans())
    def arrive(self, takes: bool) -> None:
        size = self.forth.popleft()
        self.owed.passed(size)
        if self.untaken or not takes:
            self.untaken += size
        else:
            self.give()

    @precondition(lambda self: self.untaken)
    @rule()
    def take(self) -> None:
        self.untaken = 0
        self.give()

    def give(self) -> None:
        due = self.owed.due()
        if due:
            self.back.append(due)

    @precondition(lambda self: self.back)
    @rule()
    def come_back(self) -> None:
        could = self.credit.may_write
        told = self.credit.give(self.back.popleft())
        assert told == (self.credit.may_write and not could)

    @invariant()
    def the_window_is_kept(self) -> None:
        self.credit.check_invariants()
        held = sum(self.forth) + self.owed.bytes + sum(self.back)
        assert self.credit.bytes + held == WINDOW_BYTES
        # What the client has not taken: a window, and what one write overdrew it by.
        assert sum(self.forth) + self.untaken < 2 * (WINDOW_BYTES + WRITE_BYTES_MAX)

    @invariant()
    def nothing_is_stuck(self) -> None:
        if not (self.forth or self.back or self.untaken):
            assert self.credit.may_write


TestCredit = CreditMachine.TestCase
