"""Leases: the record of what was pulled, by whom, until its commit.

Each shard has a few slots, which only it fills and frees. Lifecycle of a slot's state word::

    FREE --fill--> LIVE --committed--> DONE --(own shard)--> FREE
                    |  ^
     holder died,   v  | adopted: holder word, then state
     by supervisor ORPHAN

The pull *is* the store of LIVE, which comes last. While a slot is not free, its id, ranges,
creation time and ``commits_seen`` do not change, so key and bytes of the object are a function of
them. The ``pulled`` word of a shard caches its highest leased end, or ``committed`` without one.

Only the present holder writes the state; for a dead one the supervisor does, after ``waitpid``.

A lease counts the holders that died. A lease that kills its holders would kill shard after shard,
so the supervisor sets with each ORPHAN the earliest time of its adoption.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableSequence, Sequence
from typing import NamedTuple

from ledger.types import LeasedRange, LeaseId
from shards import layout as at
from shards.barrier import keep_order
from shards.layout import Layout

FREE = 0
LIVE = 1
ORPHAN = 2
DONE = 3


class Lease(NamedTuple):
    """The content of a slot: ``shard`` and ``slot`` say which, ``holder`` commits it.

    ``commits_seen`` is the end of the commit log when the lease was made: its own commit has a
    higher number, and no commit that the producers of its requests can know of has.
    """

    shard: int
    slot: int
    lease_id: LeaseId
    created_ms: int
    holder: int
    ranges: tuple[LeasedRange, ...]
    commits_seen: int = 0
    deaths: int = 0  # of its holders


class LeaseTable:
    """All lease slots of a segment, over its words (anything that indexes to ints)."""

    def __init__(self, words: MutableSequence[int] | memoryview, layout: Layout) -> None:
        self._words = words
        self._layout = layout
        self._bases = [
            [layout.lease(shard, slot) for slot in range(layout.lease_slots)]
            for shard in range(layout.shards)
        ]

    def state(self, shard: int, slot: int) -> int:
        """The state word of a slot."""
        return int(self._words[self._bases[shard][slot]])

    def free_slots(self, shard: int) -> list[int]:
        """The slots of a shard that it may fill."""
        words = self._words
        return [slot for slot, base in enumerate(self._bases[shard]) if words[base] == FREE]

    def fill(
        self,
        shard: int,
        slot: int,
        lease_id: LeaseId,
        created_ms: int,
        ranges: Sequence[LeasedRange],
        commits_seen: int = 0,
    ) -> Lease:
        """Writes a lease into a free slot of the caller; the state is stored last."""
        words = self._words
        base = self._bases[shard][slot]
        if words[base] != FREE:
            raise ValueError(
                f"slot {slot} of shard {shard} is not free: its state is {words[base]}"
            )
        words[base + at.L_COUNTER] = lease_id.counter  # first: see in_state
        keep_order()
        words[base + at.L_INCARNATION] = lease_id.incarnation
        words[base + at.L_EPOCH] = lease_id.epoch
        words[base + at.L_SHARD] = lease_id.shard
        words[base + at.L_CREATED_MS] = created_ms
        words[base + at.L_COMMITS_SEEN] = commits_seen
        words[base + at.L_HOLDER] = shard
        words[base + at.L_RANGE_COUNT] = len(ranges)
        words[base + at.L_DEATHS] = 0
        index = base + at.L_RANGES
        for leased in ranges:
            words[index] = leased.shard
            words[index + 1] = leased.start
            words[index + 2] = leased.end
            index += at.RANGE_WORDS
        keep_order()
        words[base] = LIVE
        return Lease(shard, slot, lease_id, created_ms, shard, tuple(ranges), commits_seen)

    def read(self, shard: int, slot: int) -> Lease:
        """The lease in a slot; valid while its state is not FREE."""
        words = self._words
        base = self._bases[shard][slot]
        lease_id = LeaseId(
            words[base + at.L_INCARNATION],
            words[base + at.L_EPOCH],
            words[base + at.L_SHARD],
            words[base + at.L_COUNTER],
        )
        first = base + at.L_RANGES
        ranges = tuple(
            LeasedRange(words[index], words[index + 1], words[index + 2])
            for index in range(
                first,
                first + at.RANGE_WORDS * words[base + at.L_RANGE_COUNT],
                at.RANGE_WORDS,
            )
        )
        created_ms, holder = words[base + at.L_CREATED_MS], words[base + at.L_HOLDER]
        commits_seen = words[base + at.L_COMMITS_SEEN]
        deaths = words[base + at.L_DEATHS]
        return Lease(shard, slot, lease_id, created_ms, holder, ranges, commits_seen, deaths)

    def in_state(self, *states: int) -> Iterator[Lease]:
        """All leases whose slot is in one of ``states``."""
        words = self._words
        for shard in range(self._layout.shards):
            for slot, base in enumerate(self._bases[shard]):
                while words[base] in states:
                    # Read while the slot was freed and filled anew, it would be half of each. A
                    # fill writes the counter first and the state last: where the state is right
                    # after a counter and the counter is the same in the end, everything between
                    # is one lease's.
                    counter = words[base + at.L_COUNTER]
                    keep_order()
                    if words[base] not in states:
                        break
                    keep_order()
                    lease = self.read(shard, slot)
                    keep_order()
                    if words[base + at.L_COUNTER] == counter:
                        yield lease
                        break

    def finish(self, lease: Lease) -> None:
        """LIVE to DONE, by the holder, after the commit, the log and the committed words."""
        keep_order()
        self._words[self._bases[lease.shard][lease.slot]] = DONE

    def free_done(self, shard: int) -> int:
        """DONE to FREE, by a shard for its own slots; returns how many."""
        freed = 0
        for base in self._bases[shard]:
            if self._words[base] == DONE:
                self._words[base] = FREE
                freed += 1
        return freed

    def orphan(self, dead: int, due_ns: Callable[[Lease], int] = lambda _: 0) -> list[Lease]:
        """Makes the leases of a dead shard orphans; for the supervisor, after waitpid.

        No orphan is adopted before its ``due_ns``.
        """
        found: list[Lease] = []
        for held in self.in_state(LIVE):
            if held.holder == dead:
                lease = held._replace(deaths=held.deaths + 1)
                base = self._bases[lease.shard][lease.slot]
                self._words[base + at.L_DEATHS] = lease.deaths
                self._words[base + at.L_DUE_NS] = due_ns(lease)
                self._words[base] = ORPHAN
                found.append(lease)
        return found

    def orphans(self, now_ns: int) -> list[Lease]:
        """The orphans that may be adopted now."""
        words, bases = self._words, self._bases
        return [
            lease
            for lease in self.in_state(ORPHAN)
            if words[bases[lease.shard][lease.slot] + at.L_DUE_NS] <= now_ns
        ]

    def adopt(self, seen: Lease, adopter: int) -> Lease | None:
        """Makes ``adopter`` the holder of an orphan; the caller holds the adoption lock.

        None if the slot no longer has the orphan that was seen.
        """
        base = self._bases[seen.shard][seen.slot]
        if self._words[base] != ORPHAN:
            return None
        lease = self.read(seen.shard, seen.slot)
        if lease.lease_id != seen.lease_id:
            return None
        self._words[base + at.L_HOLDER] = adopter
        keep_order()
        self._words[base] = LIVE
        return lease._replace(holder=adopter)

    def leased_ends(self) -> list[int]:
        """The highest leased end of each shard, 0 without one.

        That or ``committed`` is what a shard's ``pulled`` word caches.
        """
        ends = [0] * self._layout.shards
        for lease in self.in_state(LIVE, ORPHAN):
            for leased in lease.ranges:
                ends[leased.shard] = max(ends[leased.shard], leased.end)
        keep_order()  # ``committed`` is read next: a lease that is done has moved it
        return ends

    def oldest_epoch(self) -> int:
        """No lease of a lower epoch lives, and none ever will.

        What each shard gives its next leases is read before the leases: those that it made with
        a lower epoch are in their slots by then.
        """
        layout = self._layout
        epochs = [
            int(self._words[layout.shard(shard) + at.S_EPOCH]) for shard in range(layout.shards)
        ]
        keep_order()
        epochs += [lease.lease_id.epoch for lease in self.in_state(LIVE, ORPHAN)]
        return min(epochs)

    def check_invariants(self, committed: Sequence[int]) -> None:
        """Raises AssertionError unless the leased ranges of each shard follow its ``committed``.

        ``committed`` has that word of every shard; no process may write meanwhile.
        """
        leases = list(self.in_state(LIVE, ORPHAN, DONE))
        ids = [lease.lease_id for lease in leases]
        assert len(set(ids)) == len(ids), f"an id is in two slots: {ids}"
        ends = list(committed)
        held = [leased for lease in self.in_state(LIVE, ORPHAN) for leased in lease.ranges]
        for leased in sorted(held, key=lambda each: (each.shard, each.start)):
            assert leased.start < leased.end, f"{leased} is empty"
            if leased.end > committed[leased.shard]:
                assert leased.start == ends[leased.shard], f"{leased} leaves a gap or overlaps"
                ends[leased.shard] = leased.end

    def holders(self) -> set[int]:
        """The shards that hold a live lease. Reads two words per slot, for every tick."""
        first, step = self._bases[0][0], self._layout.lease_words
        stop = first + self._layout.shards * self._layout.lease_slots * step
        states = self._words[first:stop:step]
        holders = self._words[first + at.L_HOLDER : stop : step]
        pairs = zip(states, holders, strict=True)
        return {holder for state, holder in pairs if state == LIVE}
