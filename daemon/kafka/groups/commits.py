"""Offsets that groups commit: written together, and answered when they are in the ledger.

Commits that come while others are written wait for the next transaction. Of those of one partition
the last counts, and all are answered with it. As with the flush, a shard keeps the ledger lock for
a twentieth of the time; it may be BURST_NS ahead of that, so few commits do not wait.

A daemon that may have lost its prefix to another one acknowledges nothing: the other one would not
know of it. Whoever asks whether it owns it also asks for an entry of the owner's log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from delivery.cursors.flush import MOVES_MAX, SHARE
from delivery.ledger_thread import LedgerReads
from ledger.delivery import group_commits
from ledger.delivery.group_commits import GroupCommit, RefusedCommits
from ledger.errors import LedgerError

_Waiting = tuple[Sequence[GroupCommit], asyncio.Future[RefusedCommits]]


BURST_NS = 1_000_000_000  # transactions that take 50 ms together

OWNED_WAIT_NS = 5_000_000_000  # an entry takes two requests to the store
OWNED_LOOK_S = 0.02

# What its first argument, a function of a transaction, returns; in a thread. Raises LedgerError.
Write = Callable[..., Awaitable[Any]]


class NotOwned(LedgerError):
    """Another daemon may own the prefix."""

    def __init__(self) -> None:
        super().__init__(
            f"no entry of the owner's log was accepted within {OWNED_WAIT_NS // 10**9} s: the store"
            " does not answer, or another daemon has taken the prefix over; nothing was committed"
        )


class GroupCommits:
    """What the groups of one shard commit."""

    def __init__(
        self,
        write: Write,
        reads: LedgerReads,
        is_owned: Callable[[], bool],
        wall_ms: Callable[[], int],
        monotonic_ns: Callable[[], int],
        sleep_s: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._write_now = write
        self._reads = reads
        self._is_owned = is_owned
        self._wall_ms = wall_ms
        self._monotonic_ns = monotonic_ns
        self._sleep_s = sleep_s
        self._waiting: list[_Waiting] = []
        self._due_ns = 0  # when a twentieth of the time has been used
        self._task: asyncio.Task[None] | None = None

    def put(self, commits: Sequence[GroupCommit]) -> asyncio.Future[RefusedCommits]:
        """Commits offsets. They are durable when this is done, except for what it refuses; its
        exception is a LedgerError."""
        done: asyncio.Future[RefusedCommits] = asyncio.get_running_loop().create_future()
        self._waiting.append((commits, done))
        if self._task is None:
            self._task = asyncio.ensure_future(self._write())
        return done

    async def of_topics(
        self, group: str, topic_ids: Sequence[int]
    ) -> dict[tuple[int, int], tuple[int, str]]:
        """As in the ledger. Raises LedgerError."""
        return await self._reads.read(group_commits.of_topics, group, topic_ids)

    async def topics_of(self, group: str) -> list[tuple[str, int]]:
        """As in the ledger. Raises LedgerError."""
        return await self._reads.read(group_commits.topics_of, group)

    async def groups(self) -> set[str]:
        """As in the ledger. Raises LedgerError."""
        return await self._reads.read(group_commits.groups)

    async def delete(self, group: str) -> bool:
        """As in the ledger. Raises LedgerError."""
        return bool(await self._write_now(group_commits.delete, group, self._wall_ms()))

    async def _write(self) -> None:
        """Writes until nothing waits."""
        while self._waiting:
            taken, self._waiting = self._waiting, []
            try:
                await self._round([each for commits, _ in taken for each in commits], taken)
            except Exception as error:  # noqa: BLE001 - whoever waits is told
                for _, done in taken:
                    if not done.done():
                        done.set_exception(error)
        self._task = None

    async def _round(self, commits: Sequence[GroupCommit], taken: Sequence[_Waiting]) -> None:
        last = {(each.group, each.topic_id, each.partition): each for each in commits}
        rows = list(last.values())
        refused = RefusedCommits(set(), set())
        for at in range(0, len(rows), MOVES_MAX):
            began_ns = self._monotonic_ns()
            early_ns = self._due_ns - BURST_NS - began_ns
            if early_ns > 0:
                await self._sleep_s(early_ns / 1e9)
                began_ns += early_ns
            while not self._is_owned():
                if self._monotonic_ns() - began_ns > OWNED_WAIT_NS:
                    raise NotOwned
                await self._sleep_s(OWNED_LOOK_S)
            began_ns = self._monotonic_ns()
            some: RefusedCommits = await self._write_now(
                group_commits.put, rows[at : at + MOVES_MAX], self._wall_ms()
            )
            took_ns = self._monotonic_ns() - began_ns
            self._due_ns = max(self._due_ns, began_ns) + SHARE * took_ns
            refused.topics.update(some.topics)
            refused.full.update(some.full)
        for _, done in taken:
            if not done.done():
                done.set_result(refused)
