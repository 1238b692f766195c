"""Operations go to the process that has the ledger: the daemon, or this one while no daemon runs.

While a daemon runs, only its processes open the ledger for writing. Compaction, collection and
checks reach it through a ``LedgerAccess``, of which there are two: ``ViaDaemon`` asks over HTTP,
``Exclusive`` (``daemon/upkeep/exclusive.py``) holds the directory's lock and works in this process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, Protocol

from ledger.lake.catalog import CatalogTx
from ledger.tx import P, T, Transactions
from ledger.types import LeaseId


class NotBackedUp(RuntimeError):
    """No accepted entry covers what was written, so nothing that needs one may be done."""


class LedgerAccess(Transactions, Protocol):
    """The owner of a ledger; ``read`` and ``write`` run a function of ``ledger/`` there.

    Methods raise LedgerError, DaemonUnreachable, DaemonRefused. Where ``run`` is set, writes and
    the catalog are fenced: they raise RunLost unless that compaction lives.
    """

    run: str | None

    @property
    def daemon_pid(self) -> int | None:
        """The daemon's; None where this process has the directory."""
        ...

    def catalog(
        self, function: Callable[Concatenate[CatalogTx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """What a function of ``ledger/lake/catalog.py`` returns of the default catalog."""
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
        """The last commit that no process asks for any more: all shards have followed it, and its
        lease is over."""
        ...
