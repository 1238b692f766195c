"""The ledger's lock, which any task of a simulated machine may take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shards import locks
from tests.sim.schedule import MS, Locks, log_uniform

if TYPE_CHECKING:
    from tests.sim.machine import Machine


class LedgerLock:
    """The ledger's lock, for any task."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def __enter__(self) -> None:
        task = self._machine.schedule.current
        if task is not None:
            Locks(self._machine.locks, task.process).lock(locks.LEDGER)
            # The transaction's time on disk: others come to wait for the lock.
            schedule = self._machine.schedule
            schedule.sleep(int(log_uniform(schedule.rng, 0.05, 10) * MS))

    def __exit__(self, *_: object) -> None:
        task = self._machine.schedule.current
        if task is not None:
            Locks(self._machine.locks, task.process).unlock(locks.LEDGER)
