"""Commits of groups that nobody uses any more end.

A group is used while it has members, and when it commits: so does a consumer that reads without
being a member. What it has committed in a topic ends when it has done neither for UNUSED_MS, or up
to a day later: times are noted once a day, so that commits cost nothing more. The clock is that of
ages (``ledger/ages.py``).

Each shard looks after its own groups, every hour. It begins an hour after its start, so that
consumers that were stopped with the daemon have come back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from daemon.kafka.groups.commits import GroupCommits
from daemon.kafka.groups.coordinator import Coordinator
from ledger.delivery.group_commits import USED_STEP_MS
from ledger.errors import LedgerError

UNUSED_MS = 30 * 86_400_000  # Kafka: 7 days. What is lost here is not found again
LOOK_S = 3_600.0
PAGE = 1_000
NAMED = 10
log = logging.getLogger("headgate.kafka")


class GroupExpiry:
    """The groups of one shard."""

    def __init__(
        self,
        groups: Coordinator,
        commits: GroupCommits,
        age_ms: Callable[[], int],
        sleep_s: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._groups = groups
        self._commits = commits
        self._age_ms = age_ms
        self._sleep_s = sleep_s

    async def run(self) -> None:
        """Looks again and again."""
        while True:
            await self._sleep_s(LOOK_S)
            try:
                await self.look()
            except LedgerError as error:
                log.warning("commits of unused groups stay for another hour: %s", error)
            except Exception as error:  # it must not end the looks to come
                log.error(
                    "commits of unused groups stay for another hour because of a bug",
                    exc_info=error,
                )

    async def look(self) -> int:
        """Looks at all groups once; returns for how many topics a group's commits ended. Raises
        LedgerError."""
        age_ms, after, ended = self._age_ms(), "", 0
        before_ms = age_ms - UNUSED_MS - USED_STEP_MS
        while True:
            page = await self._commits.idle(after, age_ms - USED_STEP_MS, PAGE)
            ours = [each for each in page if self._groups.is_ours(each.group)]
            # A ledger of a former version does not know: their time begins now.
            alive, over, names = [], [], set()
            for each in ours:
                if each.used_ms is None or self._groups.has_members(each.group):
                    alive.append(each.cursor_id)
                elif each.used_ms < before_ms:
                    over.append(each.cursor_id)
                    names.add(each.group)
            if alive or over:
                ended += await self._commits.settle_idle(alive, over, before_ms, age_ms)
            if names:
                log.info(
                    "what %d groups have committed and not used for %d days has ended: %s",
                    len(names), UNUSED_MS // 86_400_000, ", ".join(sorted(names)[:NAMED]),
                )  # fmt: skip
            if len(page) < PAGE:
                return ended
            after = page[-1].name
