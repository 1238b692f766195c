"""Offsets that groups commit: written together, and answered when they are in the ledger.

Commits that come while others are written wait for the next transaction. Of those of one partition
the last counts, and all are answered with it. Deletions wait in the same queue, so each ends what
came before it and nothing that came after it. As with the flush, a shard keeps the ledger lock for
a twentieth of the time; it may be BURST_NS ahead of that, so few commits do not wait.

A daemon that may have lost its prefix to another one acknowledges nothing: the other one would not
know of it. The question whether it owns the prefix also asks for an entry of the owner's log.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from delivery.flush import MOVES_MAX, SHARE
from delivery.ledger_thread import LedgerReads
from ledger.delivery import group_commits
from ledger.delivery.group_commits import GroupCommit, IdleCommits, RefusedCommits
from ledger.errors import LedgerError
from ledger.tx import WriteTx

_Deletion = Callable[[WriteTx], bool]
_Commits = list[tuple[Sequence[GroupCommit], asyncio.Future[Any]]]
_Waiting = tuple[Sequence[GroupCommit] | _Deletion, asyncio.Future[Any]]


BURST_NS = 1_000_000_000  # transactions that take 50 ms together

TOPICS_A_READ, BYTES_A_READ = 100, 1 << 20

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
        age_ms: Callable[[], int],
        monotonic_ns: Callable[[], int],
        sleep_s: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._write_now = write
        self._reads = reads
        self._is_owned = is_owned
        self._wall_ms = wall_ms
        self._age_ms = age_ms
        self._monotonic_ns = monotonic_ns
        self._sleep_s = sleep_s
        self._waiting: list[_Waiting] = []
        self._due_ns = 0  # when a twentieth of the time has been used
        self._task: asyncio.Task[None] | None = None

    def put(self, commits: Sequence[GroupCommit]) -> asyncio.Future[RefusedCommits]:
        """Commits offsets. They are durable when this is done, except for what it refuses; its
        exception is a LedgerError."""
        return self._queue(commits)

    def _queue(self, asked: Sequence[GroupCommit] | _Deletion) -> asyncio.Future[Any]:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((asked, done))
        if self._task is None:
            self._task = asyncio.ensure_future(self._write())
        return done

    async def of_topics(
        self, group: str, topic_ids: Sequence[int]
    ) -> AsyncIterator[dict[tuple[int, int], tuple[int, str]]]:
        """As in the ledger, a slice of it in each read. Raises LedgerError."""
        at = 0
        while at < len(topic_ids):
            some = topic_ids[at : at + TOPICS_A_READ]
            found, done = await self._reads.read(group_commits.of_topics, group, some, BYTES_A_READ)
            at += done
            yield found

    async def topics_of(self, group: str) -> list[tuple[str, int]]:
        """As in the ledger. Raises LedgerError."""
        return await self._reads.read(group_commits.topics_of, group)

    async def absent(self, group: str, topic_ids: Sequence[int]) -> list[int]:
        """As in the ledger. Raises LedgerError."""
        return await self._reads.read(group_commits.absent, group, topic_ids)

    async def groups(self) -> set[str]:
        """As in the ledger. Raises LedgerError."""
        return await self._reads.read(group_commits.groups)

    async def delete(self, group: str) -> bool:
        """As in the ledger, in its turn. Raises LedgerError."""
        return bool(await self._queue(lambda tx: group_commits.delete(tx, group, self._wall_ms())))

    async def delete_places(self, group: str, places: Mapping[int, Collection[int]]) -> bool:
        """As in the ledger, in its turn. Raises LedgerError."""
        return bool(
            await self._queue(
                lambda tx: group_commits.delete_places(
                    tx, group, places, self._wall_ms(), self._age_ms()
                )
            )
        )

    async def idle(self, after: str, before_ms: int, limit: int) -> list[IdleCommits]:
        """As in the ledger. Raises LedgerError."""
        return await self._reads.read(group_commits.idle, after, before_ms, limit)

    async def settle_idle(
        self, alive: Sequence[int], over: Sequence[int], before_ms: int, age_ms: int
    ) -> int:
        """As in the ledger. Raises LedgerError."""
        return int(
            await self._write_now(
                group_commits.settle_idle, alive, over, before_ms, age_ms, self._wall_ms()
            )
        )

    async def _write(self) -> None:
        """Writes until nothing waits."""
        while self._waiting:
            taken, self._waiting = self._waiting, []
            commits: _Commits = []
            for asked, done in taken:
                if not callable(asked):
                    commits.append((asked, done))
                    continue
                await self._told(self._round(commits), [each for _, each in commits])
                await self._told(self._paced(asked), [done])
                commits = []
            await self._told(self._round(commits), [each for _, each in commits])
        self._task = None

    async def _told(self, written: Awaitable[Any], waiting: Sequence[asyncio.Future[Any]]) -> None:
        """Passes what became of it on to whoever waits."""
        try:
            outcome = await written
        except Exception as error:  # noqa: BLE001 - whoever waits is told
            for done in waiting:
                if not done.done():
                    done.set_exception(error)
            return
        for done in waiting:
            if not done.done():
                done.set_result(outcome)

    async def _round(self, taken: _Commits) -> RefusedCommits:
        commits = [each for some, _ in taken for each in some]
        last = {(each.group, each.topic_id, each.partition): each for each in commits}
        rows = list(last.values())
        refused = RefusedCommits(set(), set())
        for at in range(0, len(rows), MOVES_MAX):
            some: RefusedCommits = await self._paced(
                group_commits.put, rows[at : at + MOVES_MAX], self._wall_ms(), self._age_ms()
            )
            refused.topics.update(some.topics)
            refused.full.update(some.full)
        return refused

    async def _paced(self, change: Callable[..., Any], *args: Any) -> Any:
        """A transaction, when its time has come and the prefix is owned. Raises LedgerError."""
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
        outcome = await self._write_now(change, *args)
        took_ns = self._monotonic_ns() - began_ns
        self._due_ns = max(self._due_ns, began_ns) + SHARE * took_ns
        return outcome
