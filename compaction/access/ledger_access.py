"""Who has the ledger is asked: the daemon, or this process while no daemon runs.

While a daemon runs, only its processes open the ledger for writing. Compaction, collection and
checks reach it through a ``LedgerAccess``, of which there are two: ``ViaDaemon`` asks over HTTP,
``Exclusive`` (``daemon/upkeep/exclusive.py``) holds the directory's lock and works in this process.
"""

from __future__ import annotations

from typing import Protocol

from ledger.types import LeaseId


class NotBackedUp(RuntimeError):
    """No accepted entry covers what was written, so nothing that needs one may be done."""


class LedgerAccess(Protocol):
    """The owner of a ledger. Methods raise LedgerError, DaemonUnreachable, DaemonRefused."""

    @property
    def daemon_pid(self) -> int | None:
        """The daemon's; None where this process has the directory."""
        ...

    def await_backup(self) -> None:
        """Returns when an accepted entry of the owner's log covers the ledger as it is now.

        Raises NotBackedUp, StoreError.
        """
        ...

    def live_leases(self) -> list[LeaseId]:
        """Leases whose objects may still be put or committed.

        Asked before the ledger is, this tells an orphan: an object that a LIST showed had a lease
        before it was put, so where no lease is live and no commit has it, none ever will.
        """
        ...

    def settled_commits(self) -> int:
        """Up to which commit nobody asks for one: all shards have followed it, and its lease is
        over."""
        ...
