"""What readers are given."""

from __future__ import annotations

import tempfile
from contextlib import closing, nullcontext
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger import commits, reads, topics
from ledger.checks import invariants
from ledger.lake import lake_files
from ledger.ledger import Ledger
from ledger.space import deletions, marking, retention, unreferenced
from ledger.types import Topic, TopicConfig
from tests.ledger.lakes import compact
from tests.ledger.requests import Request, draft_of, key_of, lease
from tests.long import examples


def commit(ledger: Ledger, counter: int, *requests: Request) -> None:
    ledger.commit(draft_of(lease(counter), requests), 10, lambda _: None)


def test_extents_are_given_from_the_one_that_holds_the_offset(ledger: Ledger, topic: Topic) -> None:
    for counter in range(1, 6):
        commit(ledger, counter, Request(topic.topic_id, ((0, 10),)))

    def firsts(offset: int, limit: int = 99) -> list[int]:
        extents = ledger.read(reads.extents_from, topic.topic_id, 0, offset, limit)
        return [extent.first_offset for extent in extents]

    assert firsts(0) == [1, 11, 21, 31, 41]
    assert firsts(10) == [1, 11, 21, 31, 41]
    assert firsts(11, limit=2) == [11, 21]
    assert firsts(50) == [41]
    assert firsts(51) == []
    assert ledger.read(reads.extents_from, topic.topic_id, 1, 0, 9) == []


def test_an_extent_says_where_its_bytes_are(ledger: Ledger, topic: Topic) -> None:
    draft = draft_of(lease(1), [Request(topic.topic_id, ((0, 2), (1, 3)), timestamp_ms=77)])
    ledger.commit(draft, 10, lambda _: None)
    (extent,) = ledger.read(reads.extents_from, topic.topic_id, 1, 1, 9)
    written = draft.extents[1]
    assert extent.locator == draft.locator
    assert extent.object_size_bytes == draft.size_bytes
    for name in ("byte_start", "byte_length", "crc32c", "codec", "record_count"):
        assert getattr(extent, name) == getattr(written, name), name
    assert (extent.first_timestamp_ms, extent.last_timestamp_ms) == (77, 77)
    assert (extent.first_offset, extent.last_offset, extent.voids) == (1, 3, ())


def test_heads_come_with_the_number_of_the_commit_that_made_them(
    ledger: Ledger, topic: Topic
) -> None:
    other = ledger.write(topics.create, "other", TopicConfig(), 1)[0]
    commit(ledger, 1, Request(topic.topic_id, ((0, 2),)), Request(other.topic_id, ((0, 5),)))
    number, one = ledger.read(reads.heads, [topic.topic_id])
    assert number == 1
    assert set(one) == {(topic.topic_id, 0), (topic.topic_id, 1)}
    state = one[topic.topic_id, 0]
    assert (state.head_seq, state.next_seq, state.count, state.bytes) == (2, 3, 2, 20)
    _, both = ledger.read(reads.heads, [topic.topic_id, other.topic_id])
    assert both[other.topic_id, 0].head_seq == 5
    assert len(both) == 3


def test_objects_are_listed_in_commit_order_and_found_by_key(ledger: Ledger, topic: Topic) -> None:
    for counter in (5, 3, 9):
        commit(ledger, counter, Request(topic.topic_id, ((0, 2), (1, 1))))
    keys = [key_of(lease(counter)) for counter in (5, 3, 9)]
    assert [row.key for row in ledger.read(reads.objects)] == keys
    assert [row.key for row in ledger.read(reads.objects, 1, 1)] == keys[1:2]
    found = ledger.read(reads.object_by_key, keys[2])
    assert found == ledger.read(reads.objects, 2)[0]
    assert found is not None
    assert (found.commit_number, found.extents, found.records) == (3, 2, 3)
    assert ledger.read(reads.object_by_key, "l0/none") is None


def test_a_commit_that_is_not_there_is_said_by_number(ledger: Ledger) -> None:
    with pytest.raises(KeyError, match="no commit 4"):
        ledger.read(commits.by_number, 4)


def test_a_time_in_a_partition_without_records_is_its_next_offset(
    ledger: Ledger, topic: Topic
) -> None:
    assert ledger.read(reads.offset_at_time, topic.topic_id, 0, 0) == 1
    commit(ledger, 1, Request(topic.topic_id, ((0, 4),), timestamp_ms=50))
    assert ledger.read(reads.offset_at_time, topic.topic_id, 0, 51) == 5
    assert ledger.read(reads.offset_at_time, topic.topic_id, 7, 0) == 1


@settings(max_examples=examples(60), deadline=None)
@given(
    extents=st.lists(st.tuples(st.integers(1, 9), st.integers(-5, 30)), max_size=30),
    times=st.lists(st.integers(-8, 33), min_size=1, max_size=10),
)
def test_a_time_gives_the_first_extent_that_late_for_timestamps_in_any_order(
    extents: list[tuple[int, int]], times: list[int]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        ledger = Ledger(Path(directory) / "ledger.db", nullcontext())
        made, _ = ledger.write(topics.create, "a", TopicConfig(), 1)
        for counter, (count, timestamp_ms) in enumerate(extents):
            request = Request(made.topic_id, ((0, count),), timestamp_ms=timestamp_ms)
            commit(ledger, counter, request)
        for time_ms in times:
            expected = 1
            for count, timestamp_ms in extents:
                if timestamp_ms >= time_ms:
                    break
                expected += count
            assert ledger.read(reads.offset_at_time, made.topic_id, 0, time_ms) == expected
        ledger.close()


@settings(max_examples=examples(80), deadline=None)
@given(
    extents=st.lists(st.tuples(st.integers(1, 4), st.integers(-5, 30)), min_size=1, max_size=20),
    compacted=st.integers(0, 5),
    days=st.integers(1, 2),
    trimmed=st.integers(0, 30),
    collects=st.booleans(),
    times=st.lists(st.integers(-8, 33), min_size=1, max_size=10),
)
def test_a_time_is_found_in_what_is_compacted_trimmed_and_collected(
    extents: list[tuple[int, int]], compacted: int, days: int, trimmed: int, collects: bool,
    times: list[int],
) -> None:  # fmt: skip
    with (
        tempfile.TemporaryDirectory() as directory,
        closing(Ledger(Path(directory) / "ledger.db", nullcontext())) as ledger,
    ):
        made, _ = ledger.write(topics.create, "a", TopicConfig(), 1)
        key = (made.topic_id, 0)
        for counter, (count, timestamp_ms) in enumerate(extents):
            commit(ledger, counter, Request(key[0], ((0, count),), timestamp_ms=timestamp_ms))
        compact(ledger, "r", to_commit=min(compacted, len(extents)), days=days)
        (state,) = ledger.read(reads.partition_states, key[0])
        retention.trim(ledger, "a", 0, min(1 + trimmed, state.next_seq))
        while marking.mark_unreferenced(ledger, 1):
            pass
        if collects:
            keys = [key_of(lease(counter)) for counter in range(len(extents) - 1)]
            rule = ledger.read(deletions.policy, 1, 0, len(extents))
            free = [one.key for one in ledger.read(unreferenced.page, rule, (-1, 0))]
            assert set(free) <= {*keys, key_of(lease(len(extents) - 1))}
            ledger.write(unreferenced.forget, [one for one in free if one in keys], "m")
        ledger.read(invariants.check)
        (state,) = ledger.read(reads.partition_states, key[0])
        in_l0 = max(state.earliest_seq, state.compacted_seq + 1)
        ranges = [
            one.range for one in ledger.read(lake_files.ranges_from, *key, state.earliest_seq, 99)
        ]
        for time_ms in times:
            late = [one.first_offset for one in ranges if one.last_timestamp_ms >= time_ms]
            if late:
                expected = max(min(late), state.earliest_seq)
            else:
                end, expected = 1, state.next_seq
                for count, timestamp_ms in extents:
                    end += count
                    if end > in_l0 and timestamp_ms >= time_ms:
                        expected = max(end - count, in_l0)
                        break
            assert ledger.read(reads.offset_at_time, *key, time_ms) == expected


def test_a_late_record_that_was_evicted_does_not_hide_where_the_others_begin(
    ledger: Ledger, topic: Topic
) -> None:
    for counter, timestamp_ms in enumerate((9_000, 10, 20, 30, 40)):
        request = Request(topic.topic_id, ((0, 10),), timestamp_ms=timestamp_ms)
        commit(ledger, counter, request)
    assert ledger.read(reads.offset_at_time, topic.topic_id, 0, 30) == 1
    retention.trim(ledger, "orders", 0, 15)
    assert ledger.read(reads.offset_at_time, topic.topic_id, 0, 30) == 31
    assert ledger.read(reads.offset_at_time, topic.topic_id, 0, 5) == 15
    assert ledger.read(reads.offset_at_time, topic.topic_id, 0, 41) == 51
