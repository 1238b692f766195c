"""The producer's batches: in order, each record in one of them, within its limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.batching import RECORD_BYTES, Batching, Limits
from headgate.errors import ProducerFailed, Unreachable


def test_a_first_record_waits_for_others_only_as_long_as_it_may() -> None:
    batching = Batching(Limits(linger_s=0.5))
    assert batching.wait_s(0.0) is None
    batching.add(b"1", 10.0)
    assert batching.due(10.4) is None and batching.wait_s(10.4) == pytest.approx(0.1)
    batch = batching.due(10.5)
    assert batch is not None and batch.lines == [b"1"]


def test_a_flush_or_a_full_batch_waits_for_nothing() -> None:
    batching = Batching(Limits(linger_s=60, batch_records=2))
    batching.add(b"1", 0.0)
    batching.flush()
    assert batching.wait_s(0.0) == 0
    assert batching.due(0.0)
    batching.done()
    batching.add(b"2", 0.0)
    assert batching.due(0.0) is None
    batching.add(b"3", 0.0)
    assert batching.due(0.0)


def test_nothing_is_due_while_a_request_is_under_way() -> None:
    batching = Batching(Limits(linger_s=0))
    batching.add(b"1", 0.0)
    assert batching.due(0.0)
    batching.add(b"2", 0.0)
    assert batching.due(99.0) is None and batching.wait_s(99.0) is None
    batching.done()
    assert batching.due(99.0)


def test_what_is_under_way_counts_against_the_buffer() -> None:
    batching = Batching(Limits(buffer_bytes=2 * (RECORD_BYTES + 1), linger_s=0))
    batching.add(b"1", 0.0)
    assert batching.due(0.0)
    batching.add(b"2", 0.0)
    assert not batching.has_room(b"3")
    batching.done()
    assert batching.has_room(b"3")


def test_a_record_larger_than_the_buffer_goes_alone() -> None:
    batching = Batching(Limits(buffer_bytes=10, batch_bytes=10))
    large = b"x" * 1000
    assert batching.has_room(large)
    batching.add(large, 0.0)
    assert not batching.has_room(b"1")
    batch = batching.due(0.0)
    assert batch is not None and batch.lines == [large]


def test_a_failure_is_for_good_and_counts_what_is_not_known_to_be_stored() -> None:
    batching = Batching(Limits(batch_records=2))
    for _ in range(3):
        batching.add(b"1", 0.0)
    count = batching.flush()
    assert batching.due(0.0)
    batching.fail(Unreachable("unreachable", "no answer"))
    assert batching.due(99.0) is None
    with pytest.raises(ProducerFailed, match="3 records") as raised:
        batching.is_stored(count)
    assert raised.value.code == "unreachable" and raised.value.count == 3
    with pytest.raises(ProducerFailed):
        batching.has_room(b"1")


@pytest.mark.parametrize(
    "wrong", [{"batch_records": 0}, {"batch_bytes": 0}, {"buffer_bytes": 0}, {"linger_s": -1.0}]
)
def test_a_limit_out_of_range_is_named(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Limits(**wrong)  # type: ignore[arg-type]


@given(
    steps=st.lists(st.sampled_from(["add", "due", "done", "flush"]), max_size=60),
    records=st.integers(1, 4),
    size=st.integers(1, 300),
)
def test_whatever_happens_records_are_sent_in_order_and_once(
    steps: list[str], records: int, size: int
) -> None:
    batching = Batching(Limits(records, size, 500, 0.01))
    added: list[bytes] = []
    sent: list[bytes] = []
    under_way = False
    for now, step in enumerate(steps):
        line = b"%d" % len(added)
        if step == "add" and batching.has_room(line):
            batching.add(line, float(now))
            added.append(line)
        elif step == "due" and (batch := batching.due(float(now))) is not None:
            assert not under_way and 0 < len(batch.lines) <= records
            assert batch.before == len(sent)
            sent += batch.lines
            under_way = True
        elif step == "done" and under_way:
            batching.done()
            under_way = False
            assert batching.is_stored(len(sent)) and batching.stored == len(sent)
        elif step == "flush":
            assert batching.flush() == len(added)
        assert sent == added[: len(sent)]
    if not under_way and len(sent) < len(added):
        assert batching.wait_s(float(len(steps))) is not None
