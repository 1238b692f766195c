"""The ledger of a running daemon, over its admin API (``daemon/api/admin.py``)."""

from __future__ import annotations

import msgspec

from compaction.access.http_calls import DaemonRefused, call
from compaction.access.ledger_access import NotBackedUp
from compaction.access.settings import LakeSettings
from ledger.types import LeaseId

BACKUP_TIMEOUT_S = 150.0  # the daemon gives up after 120


class ViaDaemon:
    """Asks the daemon at an address. Any number of threads may use it: a call is a connection."""

    def __init__(self, address: str) -> None:
        """Raises DaemonUnreachable, DaemonRefused."""
        self.address = address
        self.settings = msgspec.json.decode(
            call(address, "GET", "/v0/admin/lake"), type=LakeSettings
        )

    @property
    def daemon_pid(self) -> int | None:
        return self.settings.pid

    def await_backup(self) -> None:
        try:
            call(self.address, "POST", "/v0/admin/await_backup", b"{}", timeout_s=BACKUP_TIMEOUT_S)
        except DaemonRefused as error:
            if error.code not in ("backup_late", "superseded"):
                raise
            raise NotBackedUp(error.message) from error

    def live_leases(self) -> list[LeaseId]:
        return msgspec.json.decode(
            call(self.address, "GET", "/v0/admin/live_leases"), type=list[LeaseId]
        )

    def settled_commits(self) -> int:
        return msgspec.json.decode(call(self.address, "GET", "/v0/admin/settled_commits"), type=int)
