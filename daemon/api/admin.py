"""``/v0/admin``: what compaction, collection and checks ask of the owner of the ledger.

Served on every listener. The Unix socket in the data directory is this user's only; on TCP the API
has no authentication, as the rest of it has none (SECURITY.md).

Each call on the ledger runs in the shard's ledger thread and is short, so that readers and commits
are not held up. What is told of leases and of followed commits is read from shared memory.
"""

from __future__ import annotations

import asyncio
import os
from urllib.parse import urlsplit

from compaction.access.settings import LakeSettings
from daemon.api.errors import ApiError
from daemon.api.schemas import BackedUp
from daemon.config import Config
from daemon.upkeep.upkeep import followed_and_live
from delivery.ledger_thread import LedgerThread
from ledger import commits
from ledger.types import LeaseId
from shards import layout as at
from shards.clock import boottime_ns
from shards.doorbell import Doorbells
from shards.leases import LIVE, ORPHAN, LeaseTable
from shards.segment import Segment

BACKUP_WAIT_S = 120.0  # a store that takes no entry for so long is down


class AdminRoutes:
    """What the owner of the ledger answers."""

    def __init__(
        self, segment: Segment, shard: int, bells: Doorbells, leases: LeaseTable,
        ledger: LedgerThread, config: Config,
    ) -> None:  # fmt: skip
        self._words = segment.words
        self._layout = segment.layout
        self._wanted_at = segment.layout.shard(shard) + at.S_BACKUP_WANTED_NS
        self._bells = bells
        self._leases = leases
        self._ledger = ledger
        self._config = config
        self._waiting: set[asyncio.Future[None]] = set()

    def rung(self) -> None:
        """Somebody rang: an entry may have been accepted, or the prefix lost."""
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
        """Up to which commit nobody asks for one."""
        seen = followed_and_live(self._words, self._layout, self._leases)
        return await self._ledger.read(commits.before_leases, *seen)

    async def lake(self) -> LakeSettings:
        """What a compaction must know."""
        return lake_settings(self._config, os.getppid())


def lake_settings(config: Config, pid: int | None = None) -> LakeSettings:
    """The settings that a compaction works by; a catalog's password is left out."""
    return LakeSettings(
        data_dir=config.data_dir,
        store_url=config.store_url,
        s3_endpoint_url=config.s3_endpoint_url,
        s3_region=config.s3_region,
        lake_url=config.lake_url,
        catalog_uri=_without_password(config.catalog_uri),
        catalog_name=config.catalog_name,
        run_bytes_max=config.compact_run_bytes,
        pid=pid,
    )


def _without_password(uri: str) -> str:
    parts = urlsplit(uri)
    if parts.password is None:
        return uri
    return uri.replace(f":{parts.password}@", "@", 1)
