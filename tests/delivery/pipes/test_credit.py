"""Credit as a game of an owner, a client and the two directions between them: nothing is ever
stuck, and what a client has not taken is bounded."""

from __future__ import annotations

from collections import deque

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from delivery.pipes.credit import WINDOW_BYTES, OwedCredit, OwnersCredit

WRITE_BYTES_MAX = WINDOW_BYTES + 5_000
# A small one after one that leaves little credit may stay owed.
SIZES = st.sampled_from([1, 20_000, WINDOW_BYTES // 2, WINDOW_BYTES - 1, WRITE_BYTES_MAX])


class CreditMachine(RuleBasedStateMachine):
    """A stream, its owner deaths included."""

    def __init__(self) -> None:
        super().__init__()
        self.stalled = False
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

    @rule()
    def client_stalls(self) -> None:
        self.stalled = True

    @precondition(lambda self: self.forth)
    @rule()
    def arrive(self) -> None:
        size = self.forth.popleft()
        self.owed.passed(size)
        if self.stalled:
            self.untaken += size
        else:
            self.give()

    @precondition(lambda self: self.stalled)
    @rule()
    def take(self) -> None:
        self.stalled, self.untaken = False, 0
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


def test_what_stays_owed_does_not_keep_the_owner_waiting() -> None:
    credit, owed = OwnersCredit(WINDOW_BYTES), OwedCredit()
    given = []
    for size in (WINDOW_BYTES - 1, 1):
        assert credit.may_write
        credit.spend(size)
        owed.passed(size)
        given.append(owed.due())
    assert given == [WINDOW_BYTES - 1, 0]
    assert credit.bytes == 0
    assert credit.give(given[0])
    assert (credit.bytes, owed.bytes) == (WINDOW_BYTES - 1, 1)
