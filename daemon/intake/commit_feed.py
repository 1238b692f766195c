"""All commits, in order: from the commit log, and from the ledger where the log has none.

A commit that is larger than an entry of the log may be, or that the log has overwritten, is read
from the ledger, in the ledger thread. Nothing after it is taken until then, since producers are
answered in commit order. So the read follows the rule of a lease's steps
(``uploader/stores/retry.py``): an error that may pass is retried, any other ends the process.

The last commits stay decoded here, for the tail of a partition that gets its first reader.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from delivery.dispatch import SLICE_NS
from delivery.ledger_thread import LedgerThread
from ledger import commits
from ledger.types import Commit, LeaseId
from shards import layout as at
from shards.alarms import AlarmBoard, AlarmKind
from shards.clock import monotonic_ns
from shards.commitlog import CommitLog
from shards.layout import Layout
from shards.leases import LIVE, ORPHAN, LeaseTable
from uploader.stores.retry import COMMIT, delay_s, may_pass

log = logging.getLogger("headgate.shard")

CANNOT_FOLLOW = "this process ends: it cannot follow the commits after"
RECENT_COMMITS = 64
RECENT_RUNS = 8_192  # one larger commit is kept alone
RECENT_BYTES_MAX = 400 * RECENT_RUNS


class CommitFeed:
    """One shard's way through all commits; belongs to its loop.

    ``take`` gets each commit once; ``caught_up`` is called when commits were taken later than in a
    call of ``follow``, and ``ended`` if the process must end.
    """

    def __init__(
        self,
        commit_log: CommitLog,
        ledger: LedgerThread,
        alarms: AlarmBoard,
        rng: random.Random,
        take: Callable[[Commit], None],
        caught_up: Callable[[], None],
        ended: Callable[[], None],
    ) -> None:
        self._log = commit_log
        self._ledger = ledger
        self._alarms = alarms
        self._rng = rng
        self._take = take
        self._caught_up = caught_up
        self._ended = ended
        self._reading: asyncio.Task[None] | None = None
        self._goes_on = False
        self._recent: deque[Commit] = deque()
        self._recent_runs = 0
        self.seen = commit_log.end  # the number of the last commit that was taken
        for commit in commit_log.recent(self.seen, RECENT_COMMITS):
            self._keep(commit)

    def recent(self) -> Sequence[Commit]:
        """The last commits up to ``seen``, in order and without a gap."""
        return self._recent

    def follow(self) -> None:
        """Takes the new commits of the log, in order; what exceeds a slice, in later ones."""
        if self._reading is not None:
            return
        end = self._log.end
        until_ns = monotonic_ns() + SLICE_NS
        while self.seen < end:
            commit = self._log.read(self.seen + 1)
            if commit is None:
                self._reading = asyncio.get_running_loop().create_task(self._catch_up())
                return
            self._took(commit)
            if self.seen < end and monotonic_ns() >= until_ns:
                if not self._goes_on:
                    self._goes_on = True
                    asyncio.get_running_loop().call_soon(self._go_on)
                return

    async def reach(self) -> None:
        """Returns when the commits that are in the log now have been taken: among them is whatever
        any shard has acknowledged until now."""
        end = self._log.end
        while self.seen < end:
            self.follow()
            if self._reading is not None:
                await asyncio.wait({self._reading})
                if self._reading is not None:
                    return  # the read has failed, and the process ends
            elif self.seen < end:
                await asyncio.sleep(0)

    def _go_on(self) -> None:
        self._goes_on = False
        try:
            self.follow()
            self._caught_up()
        except Exception as error:
            log.critical("%s %d", CANNOT_FOLLOW, self.seen, exc_info=error)
            self._ended()

    async def _catch_up(self) -> None:
        try:
            self._took(await self._read(self.seen + 1))
            self._reading = None
            self.follow()
            self._caught_up()
        except Exception as error:
            log.critical("%s %d", CANNOT_FOLLOW, self.seen, exc_info=error)
            self._ended()

    async def _read(self, number: int) -> Commit:
        attempt = 0
        while True:
            try:
                commit = await self._ledger.read(commits.by_number, number)
            except Exception as error:
                if not may_pass(error):
                    raise
                attempt += 1
                log.debug("commit %d cannot be read (attempt %d): %s", number, attempt, error)
                self._alarms.raise_(AlarmKind.LEDGER_FAILING, str(error), monotonic_ns())
                await asyncio.sleep(delay_s(attempt, self._rng, COMMIT))
            else:
                self._alarms.clear(AlarmKind.LEDGER_FAILING)
                published_ns = self._log.published_ns(number)
                return msgspec.structs.replace(commit, published_ns=published_ns)

    def _took(self, commit: Commit) -> None:
        self.seen = commit.number
        self._keep(commit)
        self._take(commit)

    def _keep(self, commit: Commit) -> None:
        recent = self._recent
        recent.append(commit)
        self._recent_runs += len(commit.runs)
        while len(recent) > 1 and (len(recent) > RECENT_COMMITS or self._recent_runs > RECENT_RUNS):
            self._recent_runs -= len(recent.popleft().runs)


def followed(words: memoryview, layout: Layout, commits: int) -> int:
    """Up to which of ``commits`` every shard has followed the log."""
    seen = (int(words[layout.shard(shard) + at.S_SEEN]) for shard in range(layout.shards))
    return min(commits, *seen)


def followed_and_live(
    words: memoryview, layout: Layout, leases: LeaseTable
) -> tuple[int, list[LeaseId]]:
    """Up to which commit all shards have followed, and the leases that are not over.

    No process asks for a commit any more that all shards have followed and whose lease is over:
    ``commits.before_leases`` says up to which one that is, asked afterwards. The order matters: a
    lease that is filled after the look at leases commits with a higher number than these.
    """
    to = followed(words, layout, int(words[at.G_COMMITS]))
    return to, [lease.lease_id for lease in leases.in_state(LIVE, ORPHAN)]
