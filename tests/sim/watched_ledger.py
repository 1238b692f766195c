"""The ledger of a simulated machine: it reports to the oracle, and its calls may fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Concatenate, cast

from ledger import commits, cursors
from ledger.errors import LedgerFault
from ledger.ledger import Ledger
from ledger.tx import P, ReadTx, T, WriteTx
from ledger.types import Commit, CommitDraft
from tests.sim.schedule import STORE_WEIGHT

if TYPE_CHECKING:
    from tests.sim.machine import Machine

ALWAYS = 1 << 30  # a point at which another task is always chosen


class Injected(LedgerFault):
    """An error of the ledger that persists."""


class WatchedLedger(Ledger):
    """A ledger that reports each transaction to the oracle, and whose calls may fail."""

    machine: Machine

    def commit(
        self, draft: CommitDraft, now_ms: int, published: Callable[[Commit], None]
    ) -> Commit:
        machine = self.machine

        def told(commit: Commit) -> None:
            machine.schedule.point(ALWAYS)  # committed, and nobody knows
            machine.fail("the transaction stands, and its caller hears of an error")
            published(commit)
            machine.schedule.point(STORE_WEIGHT)

        machine.fail("before the transaction")
        machine.oracle.before_commit(draft)
        poison = machine.faults and machine.poison_every
        if poison and not draft.lease_id.counter % poison:
            raise Injected(self.path, 1, f"lease {draft.lease_id} is poisonous")
        commit = super().commit(draft, now_ms, told)
        machine.fail("after all of it")
        return commit

    def read(
        self, function: Callable[Concatenate[ReadTx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        if function is commits.by_lease:
            self.machine.fail("the look for a lease")
        elif function is commits.by_number:
            self.machine.fail("the look for a commit")
        return super().read(function, *args, **kwargs)

    def write(
        self, function: Callable[Concatenate[WriteTx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        if function in (cursors.flush, cursors.set_positions):
            told = self.machine.oracle.cursors.noted
            return cast(T, super().write(told, function, args))
        return super().write(function, *args, **kwargs)

    def name_of(self, topic_id: int) -> str:
        """A topic's name."""
        self.machine.fail("the look for a topic")
        return f"t{topic_id}"
