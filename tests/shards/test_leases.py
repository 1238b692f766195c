"""The life of a lease, against a model; and what a reader sees while slots change hands."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ledger.types import LeasedRange, LeaseId
from shards import layout as at
from shards.layout import Layout
from shards.leases import DONE, FREE, LIVE, ORPHAN, Lease, LeaseTable
from tests.shards.conftest import MakeSegment

SHARDS, SLOTS = 3, 2
LAYOUT = Layout(SHARDS, 4096, lease_slots=SLOTS)

shards = st.integers(0, SHARDS - 1)
slots = st.integers(0, SLOTS - 1)


def new_table() -> LeaseTable:
    return LeaseTable([0] * LAYOUT.words, LAYOUT)


class LeaseMachine(RuleBasedStateMachine):
    """The table against a dict of slots."""

    def __init__(self) -> None:
        super().__init__()
        self.table = new_table()
        self.model: dict[tuple[int, int], tuple[int, Lease]] = {}
        self.committed = [0] * SHARDS
        self.pulled = [0] * SHARDS
        self.counter = 0

    def next_id(self, shard: int) -> LeaseId:
        self.counter += 1
        return LeaseId(4, 5, shard, self.counter)

    @rule(shard=shards, slot=slots, sizes=st.lists(st.integers(0, 3), min_size=3, max_size=3))
    def fill(self, shard: int, slot: int, sizes: list[int]) -> None:
        ranges = tuple(
            LeasedRange(leased, self.pulled[leased], self.pulled[leased] + 8 * size)
            for leased, size in enumerate(sizes)
            if size
        )
        lease_id = self.next_id(shard)
        if (shard, slot) in self.model:
            with pytest.raises(ValueError, match=f"slot {slot} of shard {shard} is not free"):
                self.table.fill(shard, slot, lease_id, 1, ranges)
        elif ranges:
            lease = self.table.fill(shard, slot, lease_id, 1000 + self.counter, ranges)
            assert lease == Lease(shard, slot, lease_id, 1000 + self.counter, shard, ranges)
            self.model[shard, slot] = (LIVE, lease)
            for leased in ranges:
                self.pulled[leased.shard] = leased.end

    @rule(shard=shards, slot=slots)
    def commit_and_finish(self, shard: int, slot: int) -> None:
        state, lease = self.model.get((shard, slot), (FREE, None))
        if lease is None or state != LIVE:
            return
        if any(self.committed[leased.shard] != leased.start for leased in lease.ranges):
            return  # its predecessors come first
        for leased in lease.ranges:
            self.committed[leased.shard] = leased.end
        self.table.finish(lease)
        self.model[shard, slot] = (DONE, lease)

    @rule(shard=shards)
    def free_done(self, shard: int) -> None:
        done = [key for key, (state, _) in self.model.items() if key[0] == shard and state == DONE]
        assert self.table.free_done(shard) == len(done)
        for key in done:
            del self.model[key]

    @rule(dead=shards)
    def die(self, dead: int) -> None:
        """Only what the dead shard holds becomes orphans, in whose slots it may be."""
        mine = {
            key: lease._replace(deaths=lease.deaths + 1)
            for key, (state, lease) in self.model.items()
            if state == LIVE and lease.holder == dead
        }
        assert self.table.orphan(dead) == [mine[key] for key in sorted(mine)]
        for key, lease in mine.items():
            self.model[key] = (ORPHAN, lease)

    @rule(shard=shards, slot=slots, adopter=shards, stale=st.booleans())
    def adopt(self, shard: int, slot: int, adopter: int, stale: bool) -> None:
        state, lease = self.model.get((shard, slot), (FREE, None))
        if lease is None:
            return
        seen = lease._replace(lease_id=LeaseId(4, 5, shard, 10**6)) if stale else lease
        adopted = self.table.adopt(seen, adopter)
        if stale or state != ORPHAN:
            assert adopted is None
        else:
            taken = lease._replace(holder=adopter)
            assert adopted == taken
            self.model[shard, slot] = (LIVE, taken)

    @invariant()
    def slots_are_what_the_model_says(self) -> None:
        for state in (LIVE, ORPHAN, DONE):
            wanted = [lease for _, (s, lease) in sorted(self.model.items()) if s == state]
            assert list(self.table.in_state(state)) == wanted
        for shard in range(SHARDS):
            free = [slot for slot in range(SLOTS) if (shard, slot) not in self.model]
            assert self.table.free_slots(shard) == free
            assert all(self.table.state(shard, slot) == FREE for slot in free)
        live = {lease.holder for state, lease in self.model.values() if state == LIVE}
        assert self.table.holders() == live

    @invariant()
    def the_leases_tell_how_far_each_shard_is_pulled(self) -> None:
        self.table.check_invariants(self.committed)
        ends = zip(self.table.leased_ends(), self.committed, strict=True)
        assert [max(each) for each in ends] == self.pulled


TestLeases = LeaseMachine.TestCase


class WatchedWords(list[int]):
    """Words that let another process act right before a word is loaded."""

    def __init__(self, count: int) -> None:
        super().__init__([0] * count)
        self.before: dict[int, Callable[[], None]] = {}

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        act = self.before.pop(index, None)
        if act is not None:
            act()
        return super().__getitem__(index)


def test_a_lease_is_live_only_when_all_its_words_are_stored() -> None:
    seen: list[int] = []

    class Words(list[int]):
        def __setitem__(self, index, value):  # type: ignore[no-untyped-def]
            seen.append(index)
            super().__setitem__(index, value)

    table = LeaseTable(Words([0] * LAYOUT.words), LAYOUT)
    table.fill(1, 0, LeaseId(1, 1, 1, 1), 5, [LeasedRange(0, 0, 8), LeasedRange(1, 0, 8)])
    assert seen.index(LAYOUT.lease(1, 0)) == len(seen) - 1


def test_two_words_of_each_slot_tell_who_holds_leases() -> None:
    layout = Layout(shards=64, ring_bytes=4096)
    loaded = 0

    class Words(list[int]):
        def __getitem__(self, index):  # type: ignore[no-untyped-def]
            nonlocal loaded
            found = super().__getitem__(index)
            loaded += len(found) if isinstance(index, slice) else 1
            return found

    table = LeaseTable(Words([0] * layout.words), layout)
    ranges = [LeasedRange(shard, 0, 8) for shard in range(64)]
    for shard in range(0, 64, 3):
        for slot in range(layout.lease_slots):
            table.fill(shard, slot, LeaseId(1, 1, shard, slot), 5, ranges)
    loaded = 0
    assert table.holders() == set(range(0, 64, 3))
    assert loaded == 2 * 64 * layout.lease_slots


@pytest.mark.parametrize("word", [at.L_INCARNATION, at.L_RANGES, at.L_RANGES + 2, at.L_CREATED_MS])
def test_a_lease_that_is_replaced_while_it_is_read_is_read_again(word: int) -> None:
    words = WatchedWords(LAYOUT.words)
    table = LeaseTable(words, LAYOUT)
    old = table.fill(0, 0, LeaseId(1, 1, 0, 1), 5, [LeasedRange(1, 0, 800)])
    new: list[Lease] = []

    def replace() -> None:
        table.finish(old)
        table.free_done(0)
        new.append(table.fill(0, 0, LeaseId(1, 1, 0, 2), 6, [LeasedRange(2, 0, 8)]))

    words.before[LAYOUT.lease(0, 0) + word] = replace
    assert list(table.in_state(LIVE)) == new
    assert len(new) == 1


def test_a_lease_filled_during_a_read_is_never_half_of_the_former_one() -> None:
    words = WatchedWords(LAYOUT.words)
    table = LeaseTable(words, LAYOUT)
    base = LAYOUT.lease(0, 0)
    old = table.fill(0, 0, LeaseId(1, 1, 0, 1), 5, [LeasedRange(1, 0, 800)])
    new: list[Lease] = []

    def begin() -> None:
        table.finish(old)
        table.free_done(0)
        words[base + at.L_COUNTER] = 2

    def end() -> None:
        new.append(table.fill(0, 0, LeaseId(1, 1, 0, 2), 6, [LeasedRange(2, 0, 8)]))

    words.before[base + at.L_SHARD] = begin  # the counter is new, the sources are not yet
    words.before[base + at.L_COMMITS_SEEN] = end
    assert list(table.in_state(LIVE)) == new
    assert len(new) == 1


# Epochs


def test_the_oldest_epoch_is_that_of_a_live_lease_or_of_the_shard_that_knows_the_oldest(
    make_segment: MakeSegment,
) -> None:
    segment = make_segment(LAYOUT)
    table, words = LeaseTable(segment.words, LAYOUT), segment.words
    for epoch in (1, 2):
        words[at.G_EPOCH] = epoch
        for shard in range(SHARDS):
            segment.follow_epoch(shard)
        assert table.oldest_epoch() == epoch
    lease = table.fill(1, 0, segment.next_lease_id(1), 5, [LeasedRange(1, 0, 8)])
    words[at.G_EPOCH] = 3
    segment.follow_epoch(0)
    segment.follow_epoch(2)
    assert table.oldest_epoch() == 2, "shard 1 may be about to make another lease"
    segment.follow_epoch(1)
    assert table.oldest_epoch() == 2, "its lease lives"
    for holder in (1, 0):
        table.orphan(holder)
        assert table.oldest_epoch() == 2, "and may be adopted"
        table.adopt(lease, 0)
    table.finish(lease)
    assert table.oldest_epoch() == 3


def test_a_lease_that_is_made_while_the_oldest_epoch_is_looked_for_is_not_older(
    make_segment: MakeSegment,
) -> None:
    """The shard reads the epoch, is interrupted, and fills its slot after everything else."""
    segment = make_segment(LAYOUT)
    words = segment.words
    words[at.G_EPOCH] = 1
    for shard in range(SHARDS):
        segment.follow_epoch(shard)
    lease_id = segment.next_lease_id(1)
    words[at.G_EPOCH] = 2
    segment.follow_epoch(0)
    segment.follow_epoch(2)
    table = LeaseTable(words, LAYOUT)
    oldest = table.oldest_epoch()
    table.fill(1, 0, lease_id, 5, [LeasedRange(1, 0, 8)])
    assert oldest <= lease_id.epoch
