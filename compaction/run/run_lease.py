"""That a run's driver lives: its lease at the owner of the ledger, renewed by a thread.

A driver that died loses its run when the lease expires, by the owner's clock, and at the next run's
beginning if that runs on the same machine and sees that it is gone. A driver that was stopped for
longer than its lease finds out: everything it asks of the owner is fenced by its run's id.
"""

from __future__ import annotations

import logging
import os
import socket
import threading

from compaction.access.http_calls import DaemonRefused, DaemonUnreachable
from compaction.access.ledger_access import LedgerAccess
from compaction.access.operations import NOW
from ledger.errors import LedgerError, RunLost
from ledger.lake import readleases, runs
from shards.clock import boot_id

log = logging.getLogger("headgate.compact")

LEASE_MS = 60_000  # a driver that is starved, or a daemon that restarts, costs no run
RENEW_S = 10.0


class RunLease:
    """The lease of one run, from ``begin`` to ``end``."""

    def __init__(self, access: LedgerAccess, run: str) -> None:
        self._access = access
        self._run = run
        self._held = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="run-lease", daemon=True)

    def begin(self, purpose: str = "") -> None:
        """The run is the one under way from now on. Raises RunUnfinished, ReadLeasesFull."""
        former = self._access.read(runs.unfinished)
        dead = former[0] if former is not None and is_gone(former[1]) else None
        owner = this_driver() + (f", {purpose}" if purpose else "")
        self._access.write(runs.begin, self._run, owner, NOW, LEASE_MS, dead)
        self._access.run = self._run
        self._held = True
        self._thread.start()

    def renew(self) -> None:
        """The run lives for another while. Raises RunLost."""
        self._access.write(runs.renew, self._run, NOW, LEASE_MS)

    def end(self) -> None:
        """All that was begun is done. Raises RunLost."""
        self._stop()
        self._held = False
        self._access.write(runs.end, self._run, NOW)

    def stop(self) -> None:
        """Gives the lease up unless the run has ended: the next one may begin, and compares."""
        self._stop()
        if not self._held:
            return
        self._held = False
        try:
            self._access.write(readleases.end, self._run)
        except (LedgerError, DaemonRefused, DaemonUnreachable) as error:
            log.warning("the lease of the run ends by itself: %s", error)

    def _stop(self) -> None:
        self._access.run = None
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _keep(self) -> None:
        while not self._over.wait(RENEW_S):
            try:
                self.renew()
            except RunLost as error:
                log.error("%s", error)  # whatever the run does next is refused
                return
            except (LedgerError, DaemonRefused, DaemonUnreachable) as error:
                log.warning("the lease of the run is not renewed yet: %s", error)


def this_driver() -> str:
    """This process, as others can look for it: machine, pid, boot and PID namespace."""
    return f"{socket.gethostname()} pid {os.getpid()} ({_machine()})"


def is_gone(owner: str) -> bool:
    """Whether an owner's process was on this machine and has ended; False where that is unknown."""
    host, _, rest = owner.partition(" pid ")
    pid, _, machine = rest.partition(" (")
    if host != socket.gethostname() or machine.partition(")")[0] != _machine():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError, OverflowError):
        return False
    return False


def _machine() -> str:
    return f"{boot_id()[:8]}-{os.stat('/proc/self/ns/pid').st_ino}"
