"""The commit log: readers that keep up get every commit, and those that fall behind learn it."""

from __future__ import annotations

import os

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.types import OffsetRun
from shards import layout as at
from shards.clock import monotonic_ns
from shards.commitlog import CommitLog
from shards.layout import Layout
from shards.segment import Segment
from tests.shards.conftest import MakeSegment
from tests.shards.peer import commit_of, shape, started

LAYOUT = Layout(1, 4096, commit_slots=8, commit_slot_bytes=256)


def test_a_reader_that_keeps_up_gets_every_commit(make_segment: MakeSegment) -> None:
    segment = make_segment(LAYOUT)
    writer, reader = CommitLog(segment), CommitLog(segment)
    for number in range(1, 50):
        writer.publish(commit_of(number))
        assert reader.end == number
        assert reader.read(number) == commit_of(number)


def test_a_reader_that_fell_behind_gets_no_commit_that_may_be_overwritten(
    make_segment: MakeSegment,
) -> None:
    segment = make_segment(LAYOUT)
    log = CommitLog(segment)
    for number in range(1, 31):
        log.publish(commit_of(number))
    # The slot of 30 + 1 is that of 23: its writer may be at work, whatever stands there.
    assert [number for number in range(1, 31) if log.read(number) is None] == list(range(1, 24))
    assert [log.read(number) for number in range(24, 31)] == [commit_of(n) for n in range(24, 31)]


def test_an_entry_larger_than_its_slot_is_left_out_and_the_log_continues(
    make_segment: MakeSegment,
) -> None:
    log = CommitLog(make_segment(LAYOUT))
    log.publish(commit_of(1))
    runs = tuple(OffsetRun(1, 2, 3, 4, 5) for _ in range(100))
    log.publish(msgspec.structs.replace(commit_of(2), runs=runs))
    log.publish(commit_of(3))
    assert log.end == 3
    assert [log.read(number) for number in (1, 2, 3)] == [commit_of(1), None, commit_of(3)]


@given(runs=st.integers(0, 60))
def test_an_entry_is_read_whole_or_not_at_all(runs: int) -> None:
    segment = Segment.create(LAYOUT)
    log = CommitLog(segment)
    commit = msgspec.structs.replace(
        commit_of(1), runs=tuple(OffsetRun(1, 2, 3, 4, 5) for _ in range(runs))
    )
    log.publish(commit)
    fits = len(msgspec.msgpack.encode(commit)) <= LAYOUT.commit_slot_bytes - at.C_BYTES
    assert log.read(1) == (commit if fits else None)
    del log
    segment.close()
    os.close(segment.fd)


def test_a_commit_that_would_leave_a_gap_is_refused(make_segment: MakeSegment) -> None:
    log = CommitLog(make_segment(LAYOUT))
    log.publish(commit_of(1))
    with pytest.raises(ValueError, match="commit 3 cannot follow 1"):
        log.publish(commit_of(3))
    assert log.end == 1


def test_a_repeat_changes_nothing(make_segment: MakeSegment) -> None:
    segment = make_segment(LAYOUT)
    log = CommitLog(segment)
    for number in range(1, 20):
        log.publish(commit_of(number))
    before = bytes(segment.data)
    for number in (3, 19):
        log.publish(msgspec.structs.replace(commit_of(number), repeated=True))
    assert bytes(segment.data) == before


def test_a_log_that_begins_after_a_commit_has_no_earlier_one(
    make_segment: MakeSegment,
) -> None:
    log = CommitLog(make_segment(LAYOUT))
    log.start(41)
    assert log.end == 41
    assert log.read(41) is None
    log.publish(commit_of(42))
    assert log.read(42) == commit_of(42)


def test_the_end_is_stored_after_the_entry(make_segment: MakeSegment) -> None:
    segment = make_segment(LAYOUT)
    log = CommitLog(segment)
    # An entry that is written and not yet published, as another process may see it.
    log.publish(commit_of(1))
    segment.words[at.G_COMMITS] = 0
    assert log.end == 0
    log.publish(commit_of(1))
    assert (log.end, log.read(1)) == (1, commit_of(1))


def test_a_read_next_to_a_fast_writer_returns_the_requested_commit(
    make_segment: MakeSegment,
) -> None:
    segment = make_segment(LAYOUT)
    log = CommitLog(segment)
    found = lost = 0
    gives_up_ns = monotonic_ns() + 60 * 10**9
    with started("write_log", segment.fd, shape(segment), fds=[segment.fd]):
        while found < 5_000 or lost < 500:
            assert monotonic_ns() < gives_up_ns, f"{found} found, {lost} lost"
            end = log.end
            for number in range(max(1, end - LAYOUT.commit_slots), end + 1):
                commit = log.read(number)
                if commit is None:
                    lost += 1
                else:
                    assert commit == commit_of(number)
                    found += 1
