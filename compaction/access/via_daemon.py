"""The ledger of a running daemon, over its admin API (``daemon/api/handlers/admin.py``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, cast
from urllib.parse import quote

import msgspec

from compaction.access.http_calls import FINAL_CODES, TIMEOUT_S, DaemonRefused, call
from compaction.access.ledger_access import NotBackedUp
from compaction.access.operations import Refusal, error_of, operation
from compaction.access.settings import LakeSettings
from ledger.lake.catalog import CatalogTx
from ledger.tx import P, ReadTx, T, WriteTx
from ledger.types import LeaseId

BACKUP_TIMEOUT_S = 150.0  # the daemon gives up after 120
CHECK_TIMEOUT_S = 3600.0  # reads the whole ledger
LEDGER_REFUSED = "ledger_refused"


class ViaDaemon:
    """Asks the daemon at an address. Any number of threads may use it: a call is a connection."""

    def __init__(self, address: str) -> None:
        """Raises DaemonUnreachable, DaemonRefused."""
        self.address = address
        self.run: str | None = None
        self.settings = msgspec.json.decode(
            call(address, "GET", "/v0/admin/lake"), type=LakeSettings
        )

    @property
    def daemon_pid(self) -> int | None:
        return self.settings.pid

    def read(
        self, function: Callable[Concatenate[ReadTx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return cast(T, self._operate("ledger", function, args, kwargs))

    def write(
        self, function: Callable[Concatenate[WriteTx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return cast(T, self._operate("ledger", function, args, kwargs))

    def catalog(
        self, function: Callable[Concatenate[CatalogTx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return cast(T, self._operate("catalog", function, args, kwargs))

    def _operate(
        self, kind: str, function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:
        """Calls an operation, perhaps more than once: each may be repeated."""
        asked = operation(function)
        fence = "" if self.run is None else f"?run={quote(self.run)}"
        try:
            body = call(
                self.address, "POST", f"/v0/admin/{kind}/{asked.name}{fence}",
                asked.encode(args, named),
                timeout_s=CHECK_TIMEOUT_S if asked.name.startswith("checks.") else TIMEOUT_S,
            )  # fmt: skip
        except DaemonRefused as error:
            if error.code != LEDGER_REFUSED:
                raise
            known = error_of(msgspec.convert(error.detail, Refusal), error.message)
            raise known or error from error
        return asked.result(body)

    def await_backup(self) -> None:
        try:
            call(self.address, "POST", "/v0/admin/await_backup", b"{}", timeout_s=BACKUP_TIMEOUT_S)
        except DaemonRefused as error:
            if error.code not in FINAL_CODES:
                raise
            raise NotBackedUp(error.message) from error

    def live_leases(self) -> list[LeaseId]:
        return msgspec.json.decode(
            call(self.address, "GET", "/v0/admin/live_leases"), type=list[LeaseId]
        )

    def settled_commits(self) -> int:
        return msgspec.json.decode(call(self.address, "GET", "/v0/admin/settled_commits"), type=int)
