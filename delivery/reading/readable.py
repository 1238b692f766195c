"""Which offsets of a partition can be read, which cannot, and why.

Vocabulary: a partition's *readable range* is its earliest offset, the end of what was evicted
involuntarily, and its *gaps*: offsets that no reader gets, because a recovery skipped them or
because their object is damaged (quarantined). A *cursor* is the last offset that a reader has seen.

A *tombstone* tells a reader once what it misses:

- If the cursor is before the end of an involuntary eviction (a cap, a time to live): the offsets
  from the cursor to that end, with the reason.
- If only a trim has passed the cursor: no tombstone, since the trim was a request. The reader
  continues after it.
- If the cursor is before a gap or in it: the whole gap.

A range is kept until a shared word changes that every eviction and trim of the topic changes (and
of topics with the same hash). So reading the tail takes no question to the ledger. The word may be
late, and a quarantine does not change it: a reader that finds records missing asks the ledger
again. A reader that has waited at the head does not ask at all: what it reads is new.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from delivery.ledger_thread import LedgerReads
from delivery.reading.followed import FOLLOWED_MAX, Key
from delivery.schemas import Tombstone
from ledger import reads
from ledger.types import Gap, PartitionState
from uploader.lru import LruCache

KEPT_MAX = FOLLOWED_MAX  # about 300 bytes each if there are few gaps


class ReadableRange(Struct, frozen=True):
    """What readers may know of a partition. ``lost_seq`` is the last offset that was evicted
    involuntarily. ``gaps`` are in order and end at or after ``earliest_seq``."""

    earliest_seq: int = 1
    lost_seq: int = 0
    lost_reason: str = ""
    gaps: tuple[Gap, ...] = ()

    def enter(self, cursor: int) -> tuple[int, Tombstone | None]:
        """Where a reader with this cursor continues, and the tombstone for what it misses."""
        if cursor + 1 < self.earliest_seq:
            is_loss = cursor < self.lost_seq
            before, cursor = cursor, self.earliest_seq - 1
            if is_loss:
                return cursor, Tombstone(before + 1, cursor, self.lost_reason)
        gap = self.gap_at(cursor + 1)
        if gap is None:
            return cursor, None
        return gap.gap_to, Tombstone(gap.gap_from, gap.gap_to, gap.reason)

    def gap_at(self, offset: int) -> Gap | None:
        """The gap that contains an offset."""
        return next((gap for gap in self.gaps if gap.gap_from <= offset <= gap.gap_to), None)

    def can_be_read(self, offset: int) -> bool:
        """Whether there may be a record at this offset."""
        return offset >= self.earliest_seq and self.gap_at(offset) is None


def readable_of(view: tuple[PartitionState, list[Gap]] | None) -> ReadableRange:
    """The readable range from the ledger's view of a partition."""
    if view is None:
        return ReadableRange()
    state, gaps = view
    return ReadableRange(state.earliest_seq, state.lost_seq, state.lost_reason, tuple(gaps))


class ReadableRanges:
    """The ranges of the partitions that were read last, as of the last eviction."""

    def __init__(self, ledger: LedgerReads, version: Callable[[int], int]) -> None:
        self._ledger = ledger
        self._version = version
        self._kept: LruCache[Key, tuple[int, ReadableRange]] = LruCache(KEPT_MAX)

    def known(self, key: Key) -> ReadableRange | None:
        """The range as it is kept, or None if it may have changed since."""
        kept = self._kept.get(key)
        return kept[1] if kept is not None and kept[0] == self._version(key[0]) else None

    async def of(self, key: Key) -> ReadableRange:
        """A partition's range; asks the ledger if it is not known."""
        return self.known(key) or await self.again(key)

    async def before(self, key: Key) -> ReadableRange:
        """A partition's range as it is kept, even if it may have changed since: for a reader whose
        records are newer than the changes."""
        kept = self._kept.get(key)
        return kept[1] if kept is not None else await self.again(key)

    async def again(self, key: Key) -> ReadableRange:
        """The range as the ledger has it now."""
        # Read before the question: what changes meanwhile is asked again.
        topic_id, partition = key
        version = self._version(topic_id)
        view = await self._ledger.read(reads.partition_view, topic_id, partition)
        readable = readable_of(view)
        self._kept.keep(key, (version, readable))
        return readable
