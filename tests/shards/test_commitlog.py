"""The commit log: readers that keep up get every commit, and those that fall behind learn it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.types import Commit, ExtentRun
from shards import layout as at
from shards.clock import monotonic_ns
from shards.commitlog import CommitLog
from shards.layout import Layout
from shards.segment import Segment
from tests.shards.conftest import MakeSegment
from tests.shards.peer import commit_of, shape, started

LAYOUT = Layout(1, 4096, commit_slots=8, commit_log_bytes=1024, commit_bytes_max=400)


def entry_bytes(commit: Commit) -> int:
    return len(msgspec.msgpack.encode(commit))


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
    assert [log.read(number) for number in range(1, 24)] == [None] * 23
    assert log.read(30) == commit_of(30)


def test_a_reader_gets_no_commit_whose_bytes_are_reserved_again(make_segment: MakeSegment) -> None:
    segment = make_segment(LAYOUT)
    log = CommitLog(segment)
    for number in range(1, 31):
        log.publish(commit_of(number))
    held = [number for number in range(24, 31) if log.read(number)]
    assert held == list(range(held[0], 31)), "the newest ones"
    sizes = {number: entry_bytes(commit_of(number)) for number in range(20, 31)}
    assert sum(sizes[n] for n in held) <= LAYOUT.commit_log_bytes
    # A writer reserves before it writes: then the oldest is not read, whatever stands there.
    oldest = segment.words[LAYOUT.commit_slot(held[0]) + at.C_POSITION]
    segment.words[at.G_COMMITS_RESERVED] = oldest + LAYOUT.commit_log_bytes
    assert log.read(held[0]) == commit_of(held[0])
    segment.words[at.G_COMMITS_RESERVED] = oldest + LAYOUT.commit_log_bytes + 1
    assert log.read(held[0]) is None
    assert log.read(held[1]) == commit_of(held[1])


@given(sizes=st.lists(st.integers(0, 40), max_size=40), died=st.integers(0, 300))
def test_entries_of_any_sizes_are_read_while_their_bytes_last(sizes: list[int], died: int) -> None:
    """A model: the commits whose bytes the next ones have not reserved."""
    segment = Segment.create(LAYOUT)
    log = CommitLog(segment)
    kept: list[tuple[int, int, Commit]] = []  # first position, last position
    at_byte = 0
    for number, runs in enumerate(sizes, 1):
        commit = msgspec.structs.replace(
            commit_of(number), runs=tuple(ExtentRun(1, 2, 3, 4, 5) for _ in range(runs))
        )
        if number == 5:  # a writer dies after it has reserved
            at_byte += died
            segment.words[at.G_COMMITS_RESERVED] = at_byte
        log.publish(commit, number)
        length = entry_bytes(commit)
        if length <= LAYOUT.commit_bytes_max:
            if at_byte % 1024 + length > 1024:
                at_byte += 1024 - at_byte % 1024
            kept.append((at_byte, number, commit))
            at_byte += length
        held = {
            n: each
            for start, n, each in kept
            if at_byte - start <= 1024 and n > number + 1 - LAYOUT.commit_slots
        }
        for earlier in range(1, number + 1):
            wanted = held.get(earlier)
            if wanted is not None:
                wanted = msgspec.structs.replace(wanted, published_ns=earlier)
            assert log.read(earlier) == wanted
    del log
    segment.close()


def test_the_time_of_publication_is_known_even_of_a_commit_that_the_log_does_not_hold(
    make_segment: MakeSegment,
) -> None:
    log = CommitLog(make_segment(LAYOUT))
    runs = tuple(ExtentRun(1, 2, 3, 4, 5) for _ in range(100))
    log.publish(msgspec.structs.replace(commit_of(1), runs=runs), 77)
    log.publish(commit_of(2), 88)
    assert log.read(1) is None
    assert (log.published_ns(1), log.published_ns(2)) == (77, 88)
    found = log.read(2)
    assert found is not None and found.published_ns == 88
    for number in range(3, 12):
        log.publish(commit_of(number), 99)
    assert log.published_ns(1) == 0


def test_an_entry_larger_than_the_limit_is_left_out_and_the_log_continues(
    make_segment: MakeSegment,
) -> None:
    log = CommitLog(make_segment(LAYOUT))
    log.publish(commit_of(1))
    runs = tuple(ExtentRun(1, 2, 3, 4, 5) for _ in range(100))
    log.publish(msgspec.structs.replace(commit_of(2), runs=runs))
    log.publish(commit_of(3))
    assert log.end == 3
    assert [log.read(number) for number in (1, 2, 3)] == [commit_of(1), None, commit_of(3)]


@given(runs=st.integers(0, 60))
def test_an_entry_is_read_whole_or_not_at_all(runs: int) -> None:
    segment = Segment.create(LAYOUT)
    log = CommitLog(segment)
    commit = msgspec.structs.replace(
        commit_of(1), runs=tuple(ExtentRun(1, 2, 3, 4, 5) for _ in range(runs))
    )
    log.publish(commit)
    fits = entry_bytes(commit) <= LAYOUT.commit_bytes_max
    assert log.read(1) == (commit if fits else None)
    del log
    segment.close()


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
    gives_up_ns = monotonic_ns() + 600 * 10**9  # ends a hang
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
