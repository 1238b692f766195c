"""Answering ``diff``: the records of one partition behind an offset, from rings or objects.

Pull reading, with a long poll. The tail comes from the rings while they hold it, the rest by
range reads; a reader cannot tell which (the same records, the same offsets).

Offsets: ``from_seq`` is exclusive, ``next_from_seq`` is what to ask with next, ``head_seq`` is
the last committed. Void records have no offset and are never seen here. Offsets that no record
has (a *gap*, made by recovery) are told once: an answer ends in front of a gap, the next one
names it as its tombstone and goes on behind it.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterable

import msgspec
from msgspec import UNSET, Struct, UnsetType

from delivery.cold import ColdReader
from delivery.follow import Follower, Key
from delivery.tail import TailReader
from ledger.types import Commit, Gap
from uploader.l0 import records_of
from uploader.records import Record

LIMIT_MAX = 1_000
BYTES_MAX = 8 << 20  # an answer's records; one of them may exceed it alone
WAIT_MS_MAX = 30_000
SCANNED_MAX = 20_000  # records that a filter may pass over in one answer


class DiffRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a diff. At most one of ``from_seq``, ``from_ts`` and ``tail``."""

    from_seq: int | UnsetType = UNSET
    from_ts: int | UnsetType = UNSET
    tail: bool = False
    partition: int = 0
    limit: int = 256
    max_bytes: int = BYTES_MAX
    tag: str | None = None
    node: str | None = None
    wait_ms: int = 0


class DiffRecord(Struct, frozen=True):
    """A record as readers see it. ``data`` is JSON; bytes come as ``data_b64`` instead."""

    seq: int
    ts: int
    data: msgspec.Raw | UnsetType = UNSET
    data_b64: str | UnsetType = UNSET
    key: str | UnsetType = UNSET
    tag: str | UnsetType = UNSET
    node: str | UnsetType = UNSET
    meta: msgspec.Raw | UnsetType = UNSET


class Tombstone(Struct, frozen=True):
    """Offsets [gap_from, gap_to] that have no records, and why."""

    gap_from: int
    gap_to: int
    reason: str


class DiffAnswer(Struct, frozen=True):
    """The answer to a diff."""

    records: list[DiffRecord]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    lag: int
    tombstone: Tombstone | None = None


def diff_record(offset: int, ts_ms: int, record: Record) -> DiffRecord:
    """A stored record for a reader."""
    is_bytes = isinstance(record.data, bytes)
    return DiffRecord(
        seq=offset,
        ts=ts_ms,
        data=UNSET if is_bytes else msgspec.Raw(record.data.encode()),
        data_b64=b64encode(record.data).decode() if is_bytes else UNSET,
        key=UNSET if record.key is None else record.key,
        tag=UNSET if record.tag is None else record.tag,
        node=UNSET if record.node is None else record.node,
        meta=UNSET if record.meta is None else msgspec.Raw(record.meta.encode()),
    )


class Waiters:
    """Long polls: who waits for which partition to move."""

    def __init__(self) -> None:
        self._waiting: dict[Key, set[asyncio.Event]] = {}
        self._ended = False

    async def wait(self, key: Key, timeout_s: float) -> None:
        """Returns when the partition moved or the time is over."""
        if self._ended:
            return
        event = asyncio.Event()
        self._waiting.setdefault(key, set()).add(event)
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            return  # the answer then says that there was nothing new
        finally:
            waiting = self._waiting[key]
            waiting.discard(event)
            if not waiting:
                del self._waiting[key]

    def wake(self, keys: Iterable[Key]) -> None:
        """Wakes whoever waits for one of these partitions."""
        for key in keys:
            for event in self._waiting.get(key, ()):
                event.set()

    def wake_all(self) -> None:
        """Wakes everybody: commits were missed."""
        self.wake(list(self._waiting))

    def end(self) -> None:
        """Nobody waits from now on: the process ends, and with it everything that asks."""
        self._ended = True
        self.wake_all()


class DiffReader:
    """Reads of one shard: follows commits, answers from rings and objects."""

    def __init__(
        self,
        follower: Follower,
        tail: TailReader,
        cold: ColdReader,
        recent: Callable[[], Iterable[Commit]],
    ) -> None:
        self.follower = follower
        self._recent = recent
        self.waiters = Waiters()
        self._tail = tail
        self._cold = cold
        # All gaps; no daemon makes one, so they are read once. A recovery makes at most one for
        # each partition that had unlisted records.
        self._gaps: dict[Key, list[Gap]] | None = None

    def committed(self, commit: Commit) -> None:
        """Takes a commit from the log, in order."""
        self.waiters.wake(self.follower.apply(commit))

    def missed(self) -> None:
        """The log was too far ahead: everything is asked of the ledger again."""
        self.follower.missed()
        self.waiters.wake_all()

    async def head(self, key: Key) -> int:
        """The last committed offset of a partition."""
        head = self.follower.head(key)
        if head is None:
            self.follower.follow(key, self._recent)
            topic_id, partition = key
            states = await self._cold.ask(lambda ledger: ledger.partition_states(topic_id))
            loaded = next((s.head_seq for s in states if s.partition == partition), 0)
            self.follower.head_loaded(key, loaded)
            head = self.follower.head(key)
        return head or 0

    async def answer(self, topic_id: int, asked: DiffRequest) -> DiffAnswer:
        """The answer to a checked request; waits up to ``wait_ms`` when there is nothing."""
        key = (topic_id, asked.partition)
        self.follower.follow(key, self._recent)
        head = await self.head(key)
        from_ts = None if asked.from_ts is UNSET else asked.from_ts
        if asked.tail:
            from_seq = head
        elif from_ts is not None:
            first = await self._cold.ask(
                lambda ledger: ledger.offset_at_time(topic_id, asked.partition, from_ts)
            )
            from_seq = first - 1
            # Commits came while the ledger was asked, which knows them earlier than the log.
            head = max(await self.head(key), from_seq)
        else:
            from_seq = 0 if asked.from_seq is UNSET else asked.from_seq
        if from_seq >= head and asked.wait_ms:
            await self.waiters.wait(key, asked.wait_ms / 1000)
            head = await self.head(key)
        found: list[DiffRecord] = []
        reached = from_seq
        gaps = await self._gaps_of(key)
        tombstone = None
        if gaps:
            tombstone = next((g for g in gaps if g.gap_from <= from_seq + 1 <= g.gap_to), None)
            if tombstone is not None:
                reached = from_seq = tombstone.gap_to
        if from_seq < head:
            stop = next((g.gap_from for g in gaps if g.gap_from > from_seq), None)
            reached = await self._gather(key, from_seq, from_ts, asked, found, stop)
            head = max(head, reached)
        return DiffAnswer(
            records=found,
            next_from_seq=reached,
            head_seq=head,
            earliest_seq=1,
            caught_up=reached >= head,
            lag=max(0, head - reached),
            tombstone=None
            if tombstone is None
            else Tombstone(tombstone.gap_from, tombstone.gap_to, tombstone.reason),
        )

    async def _gaps_of(self, key: Key) -> list[Gap]:
        if self._gaps is None:
            gaps: dict[Key, list[Gap]] = {}
            for gap in await self._cold.ask(lambda ledger: ledger.gaps()):
                gaps.setdefault((gap.topic_id, gap.partition), []).append(gap)
            self._gaps = gaps
        return self._gaps.get(key, [])

    async def _gather(
        self,
        key: Key,
        from_seq: int,
        from_ts: int | None,
        asked: DiffRequest,
        found: list[DiffRecord],
        stop: int | None,
    ) -> int:
        """Fills ``found``; returns the last offset that was looked at.

        Goes up to the gap that begins at ``stop``: whoever reads on is told of it.
        """
        reached = from_seq
        left_bytes = asked.max_bytes
        scanned = 0
        searching = from_ts is not None
        async for offset, ts_ms, record in self._records(key, from_seq + 1):
            if stop is not None and offset >= stop and (found or not searching):
                return stop - 1
            scanned += 1
            if searching:
                # Not to be broken off, for the next diff has no from_ts. Seldom over one extent:
                # only where the late timestamp that the ledger saw was a void record's.
                if from_ts is not None and ts_ms < from_ts:
                    reached = offset
                    if scanned % SCANNED_MAX == 0:
                        await asyncio.sleep(0)
                    continue
                searching = False
                scanned = 1
            if _passes(record, asked):
                size = _bytes_of(record)
                if found and size > left_bytes:
                    return reached
                found.append(diff_record(offset, ts_ms, record))
                left_bytes -= size
            reached = offset
            if len(found) >= asked.limit or scanned >= SCANNED_MAX:
                return reached
        return reached

    async def _records(self, key: Key, offset: int) -> AsyncIterator[tuple[int, int, Record]]:
        """The live records of a partition from ``offset`` on, as far as they are committed."""
        while True:
            extents = self.follower.tail(key, offset)
            if not extents:
                break
            for extent in extents:
                for batch in self._tail.batches(key, extent, offset):
                    if batch is None:
                        self.follower.forget_tail(key)
                        break
                    first, arrival_ms, decoded = batch
                    for record in decoded:
                        if first >= offset:
                            yield first, arrival_ms if record.ts is None else record.ts, record
                            offset = first + 1
                        first += 1
                else:
                    continue
                break
            else:
                return
        while True:
            topic_id, partition = key
            rows = await self._cold.extents(topic_id, partition, offset)
            if not rows:
                return
            for row in rows:
                data = await self._cold.bytes_of(row)
                name = row.locator
                for item in records_of(data, row.first_offset, row.voids, offset, key=name):
                    yield item
                offset = row.last_offset + 1


def _bytes_of(record: Record) -> int:
    """What a record adds to an answer, names and escapes aside."""
    size = 0
    for text in (record.data, record.key, record.tag, record.node, record.meta):
        if text is not None:
            plain = isinstance(text, bytes) or text.isascii()
            size += len(text) if plain else len(text.encode())
    return size


def _passes(record: Record, asked: DiffRequest) -> bool:
    return (asked.tag is None or record.tag == asked.tag) and (
        asked.node is None or record.node == asked.node
    )
