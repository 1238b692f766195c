"""What readers are given."""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.ledger import Ledger
from ledger.types import Topic, TopicConfig
from tests.ledger.requests import Request, draft_of, key_of, lease


def commit(ledger: Ledger, counter: int, *requests: Request) -> None:
    ledger.commit(draft_of(lease(counter), requests), 10, lambda _: None)


def test_extents_are_given_from_the_one_that_holds_the_offset(ledger: Ledger, topic: Topic) -> None:
    for counter in range(1, 6):
        commit(ledger, counter, Request(topic.topic_id, ((0, 10),)))

    def firsts(offset: int, limit: int = 99) -> list[int]:
        extents = ledger.extents_from(topic.topic_id, 0, offset, limit)
        return [extent.first_offset for extent in extents]

    assert firsts(0) == [1, 11, 21, 31, 41]
    assert firsts(10) == [1, 11, 21, 31, 41]
    assert firsts(11, limit=2) == [11, 21]
    assert firsts(50) == [41]
    assert firsts(51) == []
    assert ledger.extents_from(topic.topic_id, 1, 0, 9) == []


def test_an_extent_says_where_its_bytes_are(ledger: Ledger, topic: Topic) -> None:
    draft = draft_of(lease(1), [Request(topic.topic_id, ((0, 2), (1, 3)), timestamp_ms=77)])
    ledger.commit(draft, 10, lambda _: None)
    (extent,) = ledger.extents_from(topic.topic_id, 1, 1, 9)
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
    other = ledger.create_topic("other", TopicConfig(), 1)[0]
    commit(ledger, 1, Request(topic.topic_id, ((0, 2),)), Request(other.topic_id, ((0, 5),)))
    number, one = ledger.heads_snapshot(topic.topic_id)
    assert number == 1
    assert set(one) == {(topic.topic_id, 0), (topic.topic_id, 1)}
    state = one[topic.topic_id, 0]
    assert (state.head_seq, state.next_seq, state.count, state.bytes) == (2, 3, 2, 20)
    _, both = ledger.heads_snapshot([topic.topic_id, other.topic_id])
    assert both[other.topic_id, 0].head_seq == 5
    assert len(both) == 3


def test_objects_are_listed_in_commit_order_and_found_by_key(ledger: Ledger, topic: Topic) -> None:
    for counter in (5, 3, 9):
        commit(ledger, counter, Request(topic.topic_id, ((0, 2), (1, 1))))
    keys = [key_of(lease(counter)) for counter in (5, 3, 9)]
    assert [row.key for row in ledger.objects()] == keys
    assert [row.key for row in ledger.objects(1, 1)] == keys[1:2]
    found = ledger.object_by_key(keys[2])
    assert found == ledger.objects(2)[0]
    assert found is not None
    assert (found.commit_number, found.extents, found.records) == (3, 2, 3)
    assert ledger.object_by_key("l0/none") is None


def test_a_commit_that_is_not_there_is_said_by_number(ledger: Ledger) -> None:
    with pytest.raises(KeyError, match="no commit 4"):
        ledger.commit_by_number(4)


def test_a_time_in_a_partition_without_records_is_its_next_offset(
    ledger: Ledger, topic: Topic
) -> None:
    assert ledger.offset_at_time(topic.topic_id, 0, 0) == 1
    commit(ledger, 1, Request(topic.topic_id, ((0, 4),), timestamp_ms=50))
    assert ledger.offset_at_time(topic.topic_id, 0, 51) == 5
    assert ledger.offset_at_time(topic.topic_id, 7, 0) == 1


@settings(max_examples=60, deadline=None)
@given(
    extents=st.lists(st.tuples(st.integers(1, 9), st.integers(-5, 30)), max_size=30),
    times=st.lists(st.integers(-8, 33), min_size=1, max_size=10),
)
def test_a_time_gives_the_first_extent_that_late_for_timestamps_in_any_order(
    extents: list[tuple[int, int]], times: list[int]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        ledger = Ledger(Path(directory) / "ledger.db", nullcontext())
        made, _ = ledger.create_topic("a", TopicConfig(), 1)
        for counter, (count, timestamp_ms) in enumerate(extents):
            request = Request(made.topic_id, ((0, count),), timestamp_ms=timestamp_ms)
            commit(ledger, counter, request)
        for time_ms in times:
            expected = 1
            for count, timestamp_ms in extents:
                if timestamp_ms >= time_ms:
                    break
                expected += count
            assert ledger.offset_at_time(made.topic_id, 0, time_ms) == expected
        ledger.close()
