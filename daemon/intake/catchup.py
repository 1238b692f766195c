"""Following the commit log, and the ledger where the log does not hold a commit.

A commit that is larger than a slot, and commits that the log has overwritten, are read from the
ledger, in the ledger thread. Until then nothing after them is followed: answers come in commit
order. So the read follows the rule of a lease's steps (``uploader/stores/retry.py``): what may be
better later is tried again, anything else ends the process.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from concurrent.futures import Executor

from ledger.ledger import Ledger
from ledger.types import Commit
from shards.alarms import AlarmBoard, AlarmKind
from shards.clock import monotonic_ns
from shards.commitlog import CommitLog
from uploader.stores.retry import COMMIT, delay_s, may_pass

log = logging.getLogger("headgate.shard")


class CommitFollower:
    """One shard's way through all commits, in order; of its loop.

    ``take`` gets each commit once, ``caught_up`` is called after a read of the ledger,
    ``ended`` is called when the process must end.
    """

    def __init__(
        self,
        commit_log: CommitLog,
        ledger: Ledger,
        ledger_thread: Executor,
        alarms: AlarmBoard,
        rng: random.Random,
        take: Callable[[Commit], None],
        caught_up: Callable[[], None],
        ended: Callable[[], None],
    ) -> None:
        self._log = commit_log
        self._ledger = ledger
        self._thread = ledger_thread
        self._alarms = alarms
        self._rng = rng
        self._take = take
        self._caught_up = caught_up
        self._ended = ended
        self._reading: asyncio.Task[None] | None = None
        self.seen = commit_log.end  # the number of the last commit that was taken

    def follow(self) -> None:
        """Takes the new commits of the log, in order."""
        if self._reading is not None:
            return
        end = self._log.end
        while self.seen < end:
            commit = self._log.read(self.seen + 1)
            if commit is None:
                self._reading = asyncio.get_running_loop().create_task(self._catch_up())
                return
            self._took(commit)

    async def _catch_up(self) -> None:
        try:
            self._took(await self._read(self.seen + 1))
            self._reading = None
            self.follow()
            self._caught_up()
        except Exception as error:
            log.critical(
                "this process cannot follow the commits after %d and ends", self.seen,
                exc_info=error,
            )  # fmt: skip
            self._ended()

    async def _read(self, number: int) -> Commit:
        loop = asyncio.get_running_loop()
        attempt = 0
        while True:
            try:
                commit = await loop.run_in_executor(
                    self._thread, self._ledger.commit_by_number, number
                )
            except Exception as error:
                if not may_pass(error):
                    raise
                attempt += 1
                log.debug("commit %d is not read (attempt %d): %s", number, attempt, error)
                self._alarms.raise_(AlarmKind.LEDGER_FAILING, str(error), monotonic_ns())
                await asyncio.sleep(delay_s(attempt, self._rng, COMMIT))
            else:
                self._alarms.clear(AlarmKind.LEDGER_FAILING)
                return commit

    def _took(self, commit: Commit) -> None:
        self.seen = commit.number
        self._take(commit)
