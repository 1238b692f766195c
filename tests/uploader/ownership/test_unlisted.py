"""Which unlisted objects are taken, and in which order: pure decisions on keys and footers."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.decide import PartitionNow, decide
from ledger.log.recovery import TopicSeen
from ledger.types import Advance, Commit, Condition, ConditionPart, LeaseId, PartitionHead
from shards.frame import CODEC_RECORDS
from tests.uploader.l0_samples import batch
from uploader.l0 import ExtentParts, RingRun, build, object_key, read_footer
from uploader.l0.records import Record
from uploader.ownership.unlisted import (
    RingOrder,
    Unlisted,
    is_orphan,
    records_by_partition,
    records_without_key,
    topics_of,
    without_renamed,
)
from uploader.stores.base import ObjectHead


def item(
    lease: LeaseId, starts: dict[int, int], *, topic: tuple[str, int] = ("t", 1),
    partition: int = 0, conditions: tuple[Condition, ...] = (), created_ms: int = 5,
    seen: int = 0,
) -> Unlisted:  # fmt: skip
    """An object with one record of each source; ``starts``: ring position by shard."""
    runs = tuple(RingRun(s, start, i, 1) for i, (s, start) in enumerate(sorted(starts.items())))
    parts = ExtentParts(
        topic[0], topic[1], partition, CODEC_RECORDS,
        [batch([Record("1")] * len(runs), 1)], len(runs), 1, 1, runs,
    )  # fmt: skip
    body = build(lease, created_ms, [parts], conditions, seen).body
    key = object_key(lease)
    return Unlisted(ObjectHead(key, f"at:{key}", len(body), 1), read_footer(body, key))


@pytest.mark.parametrize(
    ("lease", "orphan"),
    [
        (LeaseId(2, 7, 0, 1), False),
        (LeaseId(2, 9, 0, 1), False),
        (LeaseId(2, 6, 0, 1), True),
        (LeaseId(1, 7, 0, 1), True),  # put late by a former owner
        (LeaseId(3, 7, 0, 1), False),
    ],
)
def test_an_orphan_is_below_the_floor_or_of_an_earlier_incarnation(
    lease: LeaseId, orphan: bool
) -> None:
    assert is_orphan(lease, epoch_floor=7, incarnation=2) is orphan


def test_of_a_lease_that_was_renamed_only_the_later_object_counts() -> None:
    old = item(LeaseId(1, 3, 0, 1), {0: 64, 1: 128})
    new = item(LeaseId(1, 4, 0, 9), {0: 64, 1: 128})
    other = item(LeaseId(1, 3, 0, 2), {0: 64})
    former = item(LeaseId(2, 3, 0, 1), {0: 64, 1: 128})
    kept, renamed = without_renamed([new, old, other, former])
    assert renamed == [old]
    assert {each.lease_id for each in kept} == {each.lease_id for each in (new, other, former)}


@given(st.data())
def test_leases_of_a_source_are_in_the_order_of_its_ring(data: st.DataObject) -> None:
    """A history of pulls by any shard, of any sources; then shuffled and ordered again."""
    ends = {0: 0, 1: 0, 2: 0}
    counters = {0: 0, 1: 0, 2: 0}
    pulls = []
    for _ in range(data.draw(st.integers(1, 8))):
        holder = data.draw(st.integers(0, 2))
        sources = data.draw(st.sets(st.integers(0, 2), min_size=1))
        counters[holder] += 1
        lease = LeaseId(1, data.draw(st.integers(3, 4)), holder, counters[holder])
        pulls.append(item(lease, {s: ends[s] for s in sources}))
        for source in sources:
            ends[source] += 64
    shuffled = list(pulls)
    random.Random(data.draw(st.integers())).shuffle(shuffled)
    ordered = list(RingOrder(shuffled))
    assert sorted(i.head.key for i in ordered) == sorted(i.head.key for i in pulls)
    for source in range(3):
        starts = [s for i in ordered for _, shard, s in i.starts() if shard == source]
        assert starts == sorted(starts)
    assert list(RingOrder(pulls)) == ordered


def test_an_object_with_several_extents_of_a_source_keeps_its_place_in_the_ring() -> None:
    """Pulled within a millisecond by two shards: neither time nor name tells which came first."""

    def of_two_partitions(lease: LeaseId, start: int) -> Unlisted:
        body = build(lease, 5, [
            ExtentParts(
                "t", 1, partition, CODEC_RECORDS, [batch([Record("1")], 1)], 1, 1, 1,
                (RingRun(0, start + 8 * partition, 0, 1),),
            )
            for partition in range(2)
        ]).body  # fmt: skip
        key = object_key(lease)
        return Unlisted(ObjectHead(key, f"at:{key}", len(body), 1), read_footer(body, key))

    pulls = [of_two_partitions(LeaseId(1, 3, 9 - n, n), 64 * n) for n in range(6)]
    assert list(RingOrder(pulls[::-1])) == pulls


def test_ranges_that_contradict_each_other_lose_no_object() -> None:
    one = item(LeaseId(1, 3, 0, 1), {0: 0, 1: 64})
    two = item(LeaseId(1, 3, 0, 2), {0: 64, 1: 0})
    assert list(RingOrder([two, one])) == [one, two]


def test_topics_have_as_many_partitions_as_are_seen() -> None:
    found = [
        item(LeaseId(1, 3, 0, 1), {0: 0}, partition=4, created_ms=9),
        item(LeaseId(1, 3, 0, 2), {0: 1}, partition=2, created_ms=7),
        item(LeaseId(1, 3, 0, 3), {0: 2}, topic=("u", 2)),
    ]
    assert topics_of(found) == [TopicSeen(1, "t", 5, 7), TopicSeen(2, "u", 1, 5)]
    assert records_by_partition(found) == {(1, 4): 1, (1, 2): 1, (2, 0): 1}


def expecting(shard: int, seq: int, key: str | None = None) -> tuple[Condition, ...]:
    """The condition of an object's first record."""
    return (Condition(shard, 0, 1, (ConditionPart(0, 0, 1),), key, seq),)


def taken(order: RingOrder, gap: int) -> list[tuple[int, bool]]:
    """(shard, stored) in the order of the taking, as the ledger decides it."""
    next_seq = 1 + gap
    found = []
    for number, each in enumerate(order, 1):
        draft = each.draft(order.conditions(each))
        now = {(1, 0): PartitionNow(next_seq, 0, 0, 0, 0)}
        verdicts = decide(draft, now, {}).verdicts
        next_seq += 0 if verdicts else 1
        heads = (PartitionHead(1, 0, next_seq - 1),)
        order.taken(Commit(number, each.lease_id, (), (), heads, verdicts), each)
        found.append((each.lease_id.shard, not verdicts))
    return found


def alone(
    shard: int, conditions: tuple[Condition, ...] = (), *, created_ms: int = 5, seen: int = 0,
    start: int = 0,
) -> Unlisted:  # fmt: skip
    """An object with one record of one shard."""
    return item(
        LeaseId(1, 3, shard, start + 1), {shard: start}, conditions=conditions,
        created_ms=created_ms, seen=seen,
    )  # fmt: skip


def order_of(found: list[Unlisted], *, head: int = 10, exact: bool = True) -> RingOrder:
    gap = len(found)
    return RingOrder(found, 0, {(1, 0): gap}, {(1, 0): head + gap}, exact=exact)


def test_of_two_objects_with_the_same_expectation_one_is_stored() -> None:
    found = [alone(0, expecting(0, 10)), alone(1, expecting(1, 10))]
    assert taken(order_of(found), 12) == [(0, True), (1, False)]


def test_an_expectation_is_judged_against_the_head_before_the_gap() -> None:
    found = [alone(0, expecting(0, 10)), alone(0, expecting(0, 11), start=64)]
    assert taken(order_of(found), 12) == [(0, True), (0, True)]
    assert taken(order_of([alone(0, expecting(0, 12))]), 11) == [(0, False)]


def test_commits_that_an_object_had_seen_come_before_it() -> None:
    """Its expectation held before; it was answered that it does not."""
    refused = alone(0, expecting(0, 10), created_ms=1, seen=1)
    assert taken(order_of([refused, alone(1, created_ms=9)]), 12) == [(1, True), (0, False)]


def test_an_object_whose_expectation_holds_goes_first() -> None:
    found = [alone(0, created_ms=1), alone(1, expecting(1, 10), created_ms=9)]
    assert taken(order_of(found), 12) == [(1, True), (0, True)]
    waits = [alone(0, expecting(0, 11), created_ms=1), alone(1, created_ms=9)]
    assert taken(order_of(waits), 12) == [(1, True), (0, True)]


def test_an_object_in_flight_does_not_come_between_a_ring_and_its_expectation() -> None:
    found = [
        alone(1, created_ms=1),
        alone(0, created_ms=2),
        alone(0, expecting(0, 11), created_ms=3, start=64),
    ]
    assert taken(order_of(found), 13) == [(0, True), (0, True), (1, True)]


def stepping(
    shard: int, *expected: int, setting: tuple[int, int] = (0, 0)
) -> tuple[Condition, ...]:
    """The conditions of an object's first records: steps of two of a client's cursor."""
    return tuple(
        Condition(
            shard, at, 1, (ConditionPart(0, 0, 1),),
            advance=Advance(7, 0, at, at + 2, False, "c", *setting),
        )
        for at in expected
    )  # fmt: skip


def test_of_objects_in_flight_the_one_whose_cursor_is_there_goes_first() -> None:
    steps = ((8,), (4, 6), (2,), (3,))
    found = [alone(s, stepping(s, *at), created_ms=s) for s, at in enumerate(steps)]
    order = RingOrder(found, cursors={(7, 0): (1, 2)})
    # 3 is not where the cursor ever is; it waits until the cursor has passed it.
    assert [each.lease_id.shard for each in ordered(order)] == [2, 1, 0, 3]


def test_a_setting_that_only_requests_tell_of_counts_from_the_first_that_does() -> None:
    found = [
        alone(s, stepping(s, at, setting=(5, 9)), created_ms=s) for s, at in enumerate((13, 11, 9))
    ]
    assert [each.lease_id.shard for each in ordered(RingOrder(found))] == [2, 1, 0]


def ordered(order: RingOrder) -> list[Unlisted]:
    """The order of the taking if all that holds is stored."""
    found = []
    for number, each in enumerate(order, 1):
        order.taken(Commit(number, each.lease_id, (), (), ()), each)
        found.append(each)
    return found


def test_next_to_an_unreadable_object_an_expectation_is_met_once() -> None:
    found = [alone(s, expecting(s, seq), created_ms=s) for s, seq in enumerate((70, 70, 71, 70))]
    order = order_of(found, exact=False)
    assert taken(order, 500) == [(0, True), (1, False), (2, True), (3, False)]


def test_missing_commits_do_not_hold_up_others() -> None:
    found = [alone(0, seen=7), alone(1, seen=5)]
    assert [each.lease_id.shard for each in order_of(found)] == [1, 0]


def test_records_with_a_key_or_an_expectation_are_not_doubled() -> None:
    keyed = Condition(0, 0, 1, (ConditionPart(0, 0, 1),), "k", 7)
    found = item(LeaseId(1, 3, 0, 1), {0: 0, 1: 0, 2: 0}, conditions=(
        keyed, Condition(1, 0, 1, (ConditionPart(0, 1, 1),), None, 8),
    ))  # fmt: skip
    assert records_without_key([found]) == 1
