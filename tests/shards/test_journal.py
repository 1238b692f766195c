"""The journal of finished offsets: what was appended is found by a successor, until a flush."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from shards import layout as at
from shards.journal import (
    JOURNAL_BYTES,
    FinishedJournal,
    JournalDamaged,
    JournalEntry,
    JournalFull,
    entry_bytes,
)
from shards.layout import Layout
from shards.segment import Segment
from tests.long import examples
from tests.shards.conftest import MakeSegment
from tests.shards.peer import shape, started

LAYOUT = Layout(2, 4096, journal_bytes=4096)


def found(journal: FinishedJournal) -> list[JournalEntry]:
    return list(journal.entries())


def test_a_successor_finds_what_was_appended_and_its_neighbor_nothing(
    make_segment: MakeSegment,
) -> None:
    segment = make_segment(LAYOUT)
    journal = FinishedJournal(segment, 0)
    written = [
        JournalEntry(1, 0, 0, [7, 5, 6]),
        JournalEntry(2**52, 2**40, 999, [2**53, 2**53 + 2**32 - 1]),
        JournalEntry(1, 1, 0, [1]),
    ]
    for entry in written:
        journal.append(*entry)
    assert found(FinishedJournal(segment, 0)) == written
    assert found(FinishedJournal(segment, 1)) == []


def test_a_flush_frees_what_was_there_when_it_began(make_segment: MakeSegment) -> None:
    segment = make_segment(LAYOUT)
    journal = FinishedJournal(segment, 1)
    journal.append(1, 0, 0, [1, 2])
    mark = journal.head
    journal.append(1, 0, 0, [3])
    journal.empty_up_to(mark)
    assert found(FinishedJournal(segment, 1)) == [JournalEntry(1, 0, 0, [3])]
    for position in (mark - 1, journal.head + 1):
        with pytest.raises(ValueError, match=f"{position} is not between"):
            journal.empty_up_to(position)
    journal.clear()
    assert found(journal) == [] and journal.used_bytes == 0


def test_a_full_journal_refuses_an_entry_whole_and_tells_what_it_needs(
    make_segment: MakeSegment,
) -> None:
    journal = FinishedJournal(make_segment(LAYOUT), 0)
    first = list(range(1, 501))
    journal.append(1, 0, 0, first)
    half_full = [journal.is_half_full]
    free = journal.capacity - entry_bytes(500)
    journal.append(1, 0, 0, [501])
    half_full.append(journal.is_half_full)
    assert half_full == [False, True]
    free -= entry_bytes(1)
    rest = list(range(502, 502 + 501))
    with pytest.raises(JournalFull, match=f"{free} free bytes, {entry_bytes(501)} are needed"):
        journal.append(1, 0, 0, rest)
    assert [len(entry.offsets) for entry in found(journal)] == [500, 1]
    journal.empty_up_to(journal.head)
    journal.append(1, 0, 0, rest)
    assert found(journal) == [JournalEntry(1, 0, 0, rest)]


def test_one_acknowledgment_of_all_that_may_be_in_flight_fits_into_an_empty_journal() -> None:
    assert entry_bytes(1_000_000) <= JOURNAL_BYTES


def test_what_was_half_written_by_a_process_that_died_never_happened(
    make_segment: MakeSegment,
) -> None:
    segment = make_segment(LAYOUT)
    journal = FinishedJournal(segment, 0)
    journal.append(1, 0, 0, [1])
    head = journal.head
    segment.journal(0)[head : head + 60] = os.urandom(60)
    successor = FinishedJournal(segment, 0)
    assert found(successor) == [JournalEntry(1, 0, 0, [1])]
    successor.append(1, 0, 0, [2])
    assert [entry.offsets for entry in found(successor)] == [[1], [2]]


@pytest.mark.parametrize("byte", range(entry_bytes(2)))
def test_a_damaged_entry_and_those_after_it_are_not_believed(
    make_segment: MakeSegment, byte: int
) -> None:
    segment = make_segment(LAYOUT)
    journal = FinishedJournal(segment, 0)
    journal.append(1, 0, 0, [1])
    second = journal.head
    journal.append(1, 0, 0, [2, 3])
    journal.append(1, 0, 0, [4])
    segment.journal(0)[second + byte] ^= 0x10
    read: list[Sequence[int]] = []
    entries = (entry.offsets for entry in FinishedJournal(segment, 0).entries())
    with pytest.raises(JournalDamaged, match=f"the entry at {second} is damaged"):
        read.extend(entries)
    assert read == [[1]]


def test_an_entry_of_an_earlier_lap_is_not_taken_for_one_of_this_lap(
    make_segment: MakeSegment,
) -> None:
    segment = make_segment(LAYOUT)
    journal = FinishedJournal(segment, 0)
    size = journal.capacity // 4
    offsets = list(range((size - entry_bytes(0)) // 4))
    for _ in range(4):
        journal.append(1, 0, 0, offsets)
    before = bytes(segment.journal(0)[:size])
    journal.clear()
    journal.append(1, 0, 0, offsets)
    assert bytes(segment.journal(0)[:size]) != before, "the position is in the checksum"
    segment.journal(0)[:size] = before
    with pytest.raises(JournalDamaged):
        found(FinishedJournal(segment, 0))


def test_words_that_no_writer_stores_are_damage(make_segment: MakeSegment) -> None:
    segment = make_segment(LAYOUT)
    journal = FinishedJournal(segment, 0)
    segment.words[segment.layout.shard(0) + at.S_JOURNAL_HEAD] = journal.capacity + 1
    successor = FinishedJournal(segment, 0)
    with pytest.raises(JournalDamaged):
        found(successor)
    successor.clear()
    successor.check_invariants()


class Owners(RuleBasedStateMachine):
    """A journal whose owners append, flush and die; the model is a list of entries."""

    @initialize(laps=st.integers(0, 5_000))
    def begin(self, laps: int) -> None:
        self.segment = Segment.create(Layout(1, 4096, journal_bytes=4096))
        self.journal = FinishedJournal(self.segment, 0)
        self.model: list[JournalEntry] = []
        self.marks: list[tuple[int, int]] = []
        for _ in range(laps % 13):  # begins anywhere in the ring
            self.journal.append(9, 9, 9, [1] * (laps % 700 + 1))
            self.journal.clear()

    @rule(
        subscription_id=st.integers(1, 3), generation=st.integers(0, 2),
        partition=st.integers(0, 3), first=st.integers(1, 2**53),
        steps=st.lists(st.integers(0, 2**32 - 1), max_size=200),
    )  # fmt: skip
    def append(
        self, subscription_id: int, generation: int, partition: int, first: int, steps: list[int]
    ) -> None:
        entry = JournalEntry(
            subscription_id, generation, partition, [first, *(first + step for step in steps)]
        )
        free = self.journal.capacity - self.journal.used_bytes
        if entry_bytes(len(entry.offsets)) > free:
            with pytest.raises(JournalFull):
                self.journal.append(*entry)
        else:
            self.journal.append(*entry)
            self.model.append(entry)

    @rule()
    def a_flush_begins(self) -> None:
        self.marks.append((self.journal.head, len(self.model)))

    @rule()
    def a_flush_ends(self) -> None:
        if self.marks:
            position, count = self.marks.pop(0)
            self.journal.empty_up_to(position)
            del self.model[:count]
            self.marks = [(at, each - count) for at, each in self.marks]

    @rule(half_written=st.binary(max_size=100))
    def the_owner_dies(self, half_written: bytes) -> None:
        start = self.journal.head % self.journal.capacity
        room = self.journal.capacity - max(self.journal.used_bytes, start)
        end = start + min(len(half_written), room)
        if self.journal.tail % self.journal.capacity <= start:
            self.segment.journal(0)[start:end] = half_written[: end - start]
        self.journal = FinishedJournal(self.segment, 0)
        self.marks.clear()

    @invariant()
    def what_is_there_was_appended_and_is_not_flushed(self) -> None:
        if hasattr(self, "model"):
            assert found(self.journal) == self.model
            self.journal.check_invariants()

    def teardown(self) -> None:
        if hasattr(self, "segment"):
            self.segment.close()


TestOwners = Owners.TestCase
TestOwners.settings = settings(max_examples=examples(30), stateful_step_count=30, deadline=None)


def test_a_process_that_is_killed_anywhere_leaves_entries_from_the_first_to_the_last_one(
    make_segment: MakeSegment,
) -> None:
    """kill -9 while it appends: the successor finds 1, 2, ... without a hole or a torn one."""
    segment = make_segment(Layout(1, 4096, journal_bytes=1 << 20))
    with started("write_journal", segment.fd, shape(segment), fds=[segment.fd]) as peer:
        assert peer.line() == "after two laps"
        peer.kill()
    numbers = [entry.offsets[0] for entry in FinishedJournal(segment, 0).entries()]
    assert len(numbers) > 1_000
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
