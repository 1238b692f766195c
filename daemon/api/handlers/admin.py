"""``/v0/admin``: what compaction, collection and checks ask of the owner of the ledger.

Served on the Unix socket in the data directory, which is this user's only; by TCP if
``admin_over_tcp`` is set, with the scopes of the routes (SECURITY.md).

Each call on the ledger runs in the shard's ledger thread and is short, so that readers and commits
are not held up. What is told of leases and of followed commits is read from shared memory.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from compaction.access.operations import Operation, operation, refusal_of
from compaction.access.settings import LakeSettings
from daemon.access.access import read_before
from daemon.access.rights import Rights
from daemon.access.token_changes import TokensAnswer, TokensRequest, apply
from daemon.access.token_file import TokenFile, TokenFileError
from daemon.api.handlers.ledger_check import CHECKS
from daemon.config import Config
from daemon.config.lake_settings import default_catalog, told_settings
from daemon.intake.commit_feed import followed_and_live
from daemon.schemas.api import BackedUp, HandedOver
from daemon.schemas.errors import ApiError, invalid
from delivery.ledger_thread import LedgerThread
from ledger import ages, commits, epochs, notes, reads, topics
from ledger.errors import LedgerError
from ledger.lake import catalog, lake_files, lake_tables, quarantine, readleases, runs
from ledger.log import backup
from ledger.space import deletions, marking, orphans, unreferenced
from ledger.tx import ReadTx
from ledger.types import LeaseId
from shards import layout as at
from shards.clock import boottime_ms, boottime_ns
from shards.doorbell import Doorbells
from shards.leases import LIVE, ORPHAN, LeaseTable
from shards.segment import Segment

BACKUP_WAIT_S = 120.0  # a store that takes no entry for so long is down
HANDOVER_WAIT_S = 45.0  # an entry per 5 s, a look of the standby per 2 s, and slow calls
ROWS_MAX = 10_000  # of a page; all callers ask for the usual 1,000
BODY_BYTES_MAX = 16 << 20  # a switch of a table to 50,000 files; `body_bytes_max` may be less

# What is served, and nothing else of the ledger. Each is short; what is long is asked in pages.
_READS: tuple[Callable[..., Any], ...] = (
    ages.now_ms,
    backup.history,
    backup.mark,
    commits.latest_number,
    commits.lease_of,
    deletions.named,
    deletions.page,
    deletions.policy,
    epochs.current,
    epochs.floor,
    epochs.incarnations,
    lake_files.known,
    lake_files.named,
    lake_files.of_topic,
    lake_files.of_topics,
    lake_files.ranges,
    lake_tables.every,
    lake_tables.holes,
    lake_tables.named,
    lake_tables.plan_objects,
    lake_tables.states,
    marking.markable,
    marking.markable_void,
    notes.get,
    orphans.named,
    quarantine.object_count,
    quarantine.rows,
    readleases.live,
    reads.committed_keys,
    reads.extents_from,
    reads.extents_of_commit,
    reads.gap_count,
    reads.object_by_key,
    reads.objects,
    reads.objects_by_key,
    runs.living,
    runs.unfinished,
    topics.by_id,
    topics.page,
    unreferenced.among,
    unreferenced.count,
    unreferenced.page,
    unreferenced.unmarked,
    unreferenced.without_rows,
)
_WRITES: tuple[Callable[..., Any], ...] = (
    lake_files.forget,
    lake_files.name,
    lake_tables.move,
    lake_tables.switch,
    marking.mark,
    notes.put,
    orphans.forget,
    orphans.name,
    quarantine.accept,
    quarantine.drop,
    readleases.end,
    runs.begin,
    runs.end,
    runs.renew,
    unreferenced.forget,
    unreferenced.name,
)
_POINTERS: tuple[Callable[..., Any], ...] = (
    catalog.add,
    catalog.make_namespace,
    catalog.pointers,
    catalog.pointers_of,
    catalog.rename,
    catalog.swap,
)
_LEDGER = {operation(each).name: operation(each) for each in (*_READS, *_WRITES)}
_CATALOG = {operation(each).name: operation(each) for each in _POINTERS}
_WRITING = frozenset(operation(each).name for each in _WRITES)
# What the audit log needs no line of. A run renews its lease every few seconds.
READING = (frozenset({*_LEDGER, *CHECKS}) - _WRITING) | {operation(runs.renew).name}
READING_POINTERS = frozenset(
    operation(each).name for each in (catalog.pointers, catalog.pointers_of)
)


class Fence(msgspec.Struct, frozen=True):
    """The query of an operation: it is refused unless this run lives."""

    run: str | None = None


class AdminRoutes:
    """The handlers of these routes."""

    def __init__(
        self, segment: Segment, shard: int, bells: Doorbells, leases: LeaseTable,
        ledger: LedgerThread, config: Config,
    ) -> None:  # fmt: skip
        self._words = segment.words
        self._layout = segment.layout
        self._wanted_at = segment.layout.shard(shard) + at.S_BACKUP_WANTED_NS
        self._handover_at = segment.layout.shard(shard) + at.S_HANDOVER_WANTED_NS
        self._bells = bells
        self._leases = leases
        self._ledger = ledger
        self._config = config
        self._waiting: set[asyncio.Future[None]] = set()
        self._checking = asyncio.Lock()

    def rung(self) -> None:
        """The doorbell rang: an entry may have been accepted, or the prefix lost."""
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def await_backup(self) -> BackedUp:
        """Answers when an accepted entry covers what the ledger held when the request came.

        Raises ApiError 503 ``superseded`` and ``backup_late``.
        """
        words = self._words
        asked_ns = words[self._wanted_at] = boottime_ns()
        self._bells.ring(self._bells.owner)
        try:
            async with asyncio.timeout(BACKUP_WAIT_S):
                while words[at.G_BACKED_UP_NS] < asked_ns:
                    if words[at.G_SUPERSEDED]:
                        raise ApiError(503, "superseded", "another daemon has taken the store over")
                    await self._next_ring()
        except TimeoutError:
            raise ApiError(
                503, "backup_late",
                f"no entry of the owner's log was accepted for {BACKUP_WAIT_S:.0f} s: the store"
                " takes none; see the daemon's log and `headgate status`, then run it again",
            ) from None  # fmt: skip
        return BackedUp(words[at.G_ENTRY_NUMBER])

    async def handover(self) -> HandedOver:
        """Answers when a standby waits for the last entry, and the drain begins.

        Raises ApiError 409 ``no_standby``, 503 ``superseded`` and ``standby_late``.
        """
        words = self._words
        if not words[at.G_STANDBYS]:
            raise ApiError(
                409, "no_standby",
                "no standby has asked for this daemon lately, so nobody would take over: start one"
                " with `headgate serve --standby`; one on the same store is seen within a minute",
            )  # fmt: skip
        words[self._handover_at] = boottime_ns()
        self._bells.ring(self._bells.owner)
        try:
            async with asyncio.timeout(HANDOVER_WAIT_S):
                while not words[at.G_HANDED_OVER_NS]:
                    if words[at.G_SUPERSEDED]:
                        raise ApiError(503, "superseded", "another daemon has taken the store over")
                    await self._next_ring()
        except TimeoutError:
            raise ApiError(
                503, "standby_late",
                f"no standby was ready within {HANDOVER_WAIT_S:.0f} s, so this daemon goes on: see"
                " the standby's `headgate status` and log",
            ) from None  # fmt: skip
        return HandedOver(int(words[at.G_STANDBY_COMMITS]))

    async def _next_ring(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await future
        finally:
            self._waiting.discard(future)

    async def live_leases(self) -> list[LeaseId]:
        """The leases that are not over."""
        return [lease.lease_id for lease in self._leases.in_state(LIVE, ORPHAN)]

    async def settled_commits(self) -> int:
        """The last commit that no process asks for any more."""
        seen = followed_and_live(self._words, self._layout, self._leases)
        return await self._ledger.read(commits.before_leases, *seen)

    async def ledger(self, name: str, fence: Fence, arguments: list[msgspec.Raw]) -> msgspec.Raw:
        """Runs an operation of the ledger. Raises ApiError 404, 400, 409."""
        if name in CHECKS:
            return await self._check(name, arguments)
        asked = _found(_LEDGER, name)

        def run(tx: ReadTx, named: dict[str, Any]) -> Any:
            asked.check_lake(named, default_catalog(self._config)[1])
            return asked.function(tx, **named)

        ask = self._ledger.write if name in _WRITING else self._ledger.read
        return await self._operate(ask, asked, run, fence, arguments)

    async def catalog(self, name: str, fence: Fence, arguments: list[msgspec.Raw]) -> msgspec.Raw:
        """Runs an operation of the default catalog. Raises ApiError 404, 400, 409."""
        asked = _found(_CATALOG, name)

        def run(_: ReadTx, named: dict[str, Any]) -> Any:
            with catalog.opened(*default_catalog(self._config)) as tx:
                return asked.function(tx, **named)

        return await self._operate(self._ledger.read, asked, run, fence, arguments)

    async def lake(self) -> LakeSettings:
        """What a compaction must know."""
        return told_settings(self._config, os.getppid())

    async def tokens(self, rights: Rights, asked: TokensRequest) -> TokensAnswer:
        """Changes or lists the tokens, for users who can open the Unix socket. Raises ApiError 403
        for anybody else, 400 for what the file refuses."""
        if rights.token is not None:
            raise ApiError(
                403, "forbidden",
                "tokens are made and revoked on the daemon's machine only: run `headgate tokens`"
                " with its --data directory",
            )  # fmt: skip
        path = self._config.auth_file
        if path is None:
            raise invalid(
                "this daemon has no auth_file, so it knows no tokens: set the key and start it"
                " again"
            )
        try:
            # Not in the ledger's thread: whoever holds the lock of the file would stop commits.
            before = read_before(self._config, writes=False)
            return await asyncio.to_thread(apply, TokenFile(Path(path)), asked, before)
        except TokenFileError as error:
            raise invalid(str(error)) from error

    async def _operate(
        self,
        ask: Callable[[Callable[[ReadTx], msgspec.Raw]], Awaitable[msgspec.Raw]],
        asked: Operation,
        run: Callable[[ReadTx, dict[str, Any]], Any],
        fence: Fence,
        arguments: list[msgspec.Raw],
    ) -> msgspec.Raw:
        """Raises ApiError 400 for arguments that are not of the operation's types, 409
        ``ledger_refused`` for what its caller handles."""

        def do(tx: ReadTx) -> msgspec.Raw:
            now_ms = boottime_ms() + int(self._words[at.G_AGE_OFFSET_MS])
            if fence.run is not None:
                runs.check(tx, fence.run, now_ms)
            named = asked.decode(arguments, now_ms)
            if not 1 <= named.get("limit", 1) <= ROWS_MAX:
                raise ValueError(f"limit must be 1 to {ROWS_MAX}, got {named['limit']}")
            result = run(tx, named)
            # Encoded here: a page of a plan takes longer than the loop may stand.
            return msgspec.Raw(msgspec.json.encode(result))

        try:
            return await ask(do)
        except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
            raise invalid(f"{asked.name} refuses its arguments: {error}") from error
        except LedgerError as error:
            refusal = refusal_of(error)
            if refusal is None:
                raise
            raise ApiError(
                409, "ledger_refused", str(error), msgspec.to_builtins(refusal)
            ) from error

    async def _check(self, name: str, arguments: list[msgspec.Raw]) -> msgspec.Raw:
        """One of the checks that read the whole ledger; one at a time."""
        async with self._checking:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "daemon.api.handlers.ledger_check",
                self._config.ledger_path, name,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
            try:
                found, _ = await process.communicate(msgspec.json.encode(arguments))
            finally:
                if process.returncode is None:
                    process.kill()  # the caller is gone
        if process.returncode:
            raise ApiError(
                503, "ledger_unavailable",
                f"{name} ended with {process.returncode}; see the daemon's log",
            )  # fmt: skip
        return msgspec.Raw(found)


def _found(served: dict[str, Operation], name: str) -> Operation:
    found = served.get(name)
    if found is None:
        raise ApiError(404, "not_found", f"there is no operation {name[:60]!r}")
    return found
