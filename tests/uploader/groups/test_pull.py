"""What a pull takes and how it is cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.types import LeasedRange
from shards.ring import RecordBatchAt, RequestAt
from uploader.groups.pull import EXTENTS_MAX, LeaseRequests, Pending, bounded, cut, object_count

MIB = 1 << 20
KIB = 1 << 10


def pending(
    shard: int, sizes: Sequence[int], keys: Sequence[Sequence[int]] = (), start: int = 0
) -> Pending:
    """A member's consecutive requests; ``keys`` are the topic ids of each."""
    requests = []
    position = start
    for index, size in enumerate(sizes):
        topics = keys[index] if keys else [1]
        batches = tuple(RecordBatchAt(topic, 0, 1, 0, 0, 1, 1) for topic in topics)
        requests.append(RequestAt(position, position + size, position, b"", batches))
        position += size
    return Pending(shard, start, requests)


def size_of(lease: LeaseRequests) -> int:
    return sum(request.end - request.position for _, request in lease.requests)


def sizes_of(leases: Sequence[LeaseRequests]) -> list[int]:
    return [size_of(lease) for lease in leases]


@pytest.mark.parametrize(
    ("pulled", "objects"),
    [
        (1, 1),
        (4 * MIB, 1),
        (6 * MIB - 1, 1),
        (6 * MIB, 2),
        (10 * MIB - 1, 2),
        (10 * MIB, 3),
        (14 * MIB, 4),
        (16 * MIB, 4),
        (100 * MIB, 4),
    ],
)
def test_objects_are_as_near_to_the_target_as_possible(pulled: int, objects: int) -> None:
    assert object_count(pulled, 4 * MIB, 4) == objects


def test_six_mib_but_a_byte_are_one_object_and_six_mib_two_of_three() -> None:
    request = 64 * KIB
    almost = pending(0, [request] * 95 + [request - 1])
    assert sizes_of(cut([almost], 4, 4 * MIB)) == [6 * MIB - 1]
    whole = pending(0, [request] * 96)
    assert sizes_of(cut([whole], 4, 4 * MIB)) == [3 * MIB, 3 * MIB]


def test_the_first_request_is_taken_even_if_it_alone_exceeds_the_bound() -> None:
    leases = cut([pending(0, [9 * MIB, KIB])], 1, 4 * MIB)
    assert sizes_of(leases) == [9 * MIB]
    # Members without anything pending do not count as the first.
    leases = cut([pending(1, []), pending(2, [11 * MIB]), pending(3, [KIB])], 2, 4 * MIB)
    assert leases == [LeaseRequests((LeasedRange(2, 0, 11 * MIB),), leases[0].requests)]


def test_one_free_slot_takes_what_is_below_one_and_a_half_objects() -> None:
    assert sizes_of(cut([pending(0, [1095 * KIB] * 9)], 1, 4 * MIB)) == [5 * 1095 * KIB]
    assert sizes_of(cut([pending(0, [2100 * KIB] * 9)], 1, 4 * MIB)) == [2 * 2100 * KIB]
    assert sizes_of(cut([pending(0, [6 * MIB - 8, 8])], 1, 4 * MIB)) == [6 * MIB - 8]


def test_small_requests_of_others_do_not_hold_back_a_large_one() -> None:
    small = pending(1, [64 * KIB] * 400)
    large = pending(0, [15 * MIB])
    assert cut([large, small], 4, 4 * MIB)[0].requests[0] == (0, *large.requests)
    # On another member's turn it waits for its own.
    leases = cut([small, large], 4, 4 * MIB)
    assert {shard for lease in leases for shard, _ in lease.requests} == {1}


def test_a_flood_at_one_member_leaves_the_others_their_share() -> None:
    flood = pending(0, [16 * KIB] * 2000)
    others = [pending(shard, [16 * KIB] * 64) for shard in (1, 2, 3)]
    taken = {p.shard: len(p.requests) for p in bounded([flood, *others], 8 * MIB)}
    assert taken == {0: 512 - 3 * 64, 1: 64, 2: 64, 3: 64}


@given(
    sizes=st.lists(st.lists(st.integers(1, 40), max_size=60), max_size=20),
    slots=st.integers(1, 3),
    target=st.integers(1, 120),
)
def test_a_pull_walks_what_it_takes_and_one_request_more_of_each_member(
    sizes: list[list[int]], slots: int, target: int
) -> None:
    walked = [0] * len(sizes)

    def watched(member: Pending) -> Iterator[RequestAt]:
        for request in member.requests:
            walked[member.shard] += 1
            yield request

    members = [pending(shard, each) for shard, each in enumerate(sizes)]
    offered = [member._replace(requests=watched(member)) for member in members]
    leases = cut(offered, slots, target)
    taken = [shard for lease in leases for shard, _ in lease.requests]
    for shard, count in enumerate(walked):
        assert taken.count(shard) <= count <= taken.count(shard) + 1


def test_without_requests_or_slots_no_lease_has_sources() -> None:
    assert cut([pending(0, [KIB])], 0, MIB) == []
    assert all(not lease.ranges for lease in cut([pending(0, [])], 4, MIB))
    assert bounded([], MIB) == []


def test_a_lease_holds_at_most_a_thousand_extents_and_the_rest_follows_in_others() -> None:
    assert EXTENTS_MAX == 1_000
    keys = [[topic] for topic in range(2_500)]
    leases = cut([pending(0, [1000] * 2_500, keys)], 4, 64 * MIB)
    assert [len(lease.requests) for lease in leases] == [1000, 1000, 500]
    leases = cut([pending(0, [1000] * 2_500, keys)], 2, 64 * MIB)
    assert [len(lease.requests) for lease in leases] == [1000, 1000]


def test_a_request_over_the_bound_of_extents_gets_its_own_lease() -> None:
    keys = [[1], list(range(10, 20)), [2]]
    leases = cut([pending(0, [8, 8, 8], keys)], 4, KIB, extents_max=3)
    assert [[r.position for _, r in lease.requests] for lease in leases] == [[0], [8], [16]]


def test_leases_after_one_full_of_extents_are_still_of_equal_size() -> None:
    keys = [[topic] for topic in range(8)] + [[1]] * 56
    leases = cut([pending(0, [MIB // 4] * 64, keys)], 4, 4 * MIB, extents_max=4)
    assert sizes_of(leases) == [MIB, MIB, 4 * MIB, 4 * MIB]
    # With slots enough nothing stays pending.
    leases = cut([pending(0, [MIB // 4] * 56, keys)], 6, 4 * MIB, extents_max=4)
    assert sizes_of(leases) == [MIB, MIB, 4 * MIB, 4 * MIB, 4 * MIB]


members_strategy = st.lists(
    st.tuples(
        st.lists(st.integers(1, 40), max_size=30),
        st.integers(0, 1000),
        st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3, unique=True), min_size=30,
                 max_size=30),
    ),
    max_size=5,
)  # fmt: skip


@given(
    members=members_strategy,
    slots=st.integers(1, 5),
    target=st.integers(1, 120),
    extents_max=st.sampled_from([2, 5, 1000]),
)
def test_a_pull_is_bounded_whole_in_order_and_contiguous(
    members: list[tuple[list[int], int, list[list[int]]]],
    slots: int,
    target: int,
    extents_max: int,
) -> None:
    offered = [
        pending(shard, sizes, keys, start=8 * start)
        for shard, (sizes, start, keys) in enumerate(members)
    ]
    offered = [each for each in offered if each.requests]
    leases = cut(offered, slots, target, extents_max)
    if not offered:
        assert all(not lease.requests for lease in leases)
        return
    # At least one request, at most the bound, unless one request alone is over it.
    total = sum(sizes_of(leases))
    taken = [taken for lease in leases for taken in lease.requests]
    assert taken[0] == (offered[0].shard, next(iter(offered[0].requests)))
    assert 2 * total < (2 * slots + 1) * target or len(taken) == 1
    largest = max(request.end - request.position for _, request in taken)
    assert max(sizes_of(leases)) <= 1.5 * target + largest
    assert 1 <= len(leases) <= slots
    assert all(lease.requests for lease in leases)
    for lease in leases:
        extents = {(b.topic_id, b.partition) for _, r in lease.requests for b in r.batches}
        assert len(extents) <= extents_max or len(lease.requests) == 1
        # A lease's ranges are just its requests.
        for leased in lease.ranges:
            ours = [r for shard, r in lease.requests if shard == leased.shard]
            assert (ours[0].position, ours[-1].end) == (leased.start, leased.end)
        assert len({leased.shard for leased in lease.ranges}) == len(lease.ranges)
    # Each member's requests are taken whole, in order, from its oldest on, range after range.
    for member in offered:
        ours = [request for shard, request in taken if shard == member.shard]
        assert ours == list(member.requests)[: len(ours)]
        position = member.start
        for lease in leases:
            for leased in lease.ranges:
                if leased.shard == member.shard:
                    assert leased.start == position
                    position = leased.end
        assert position == (ours[-1].end if ours else member.start)


@given(
    sizes=st.lists(st.integers(1, 300), min_size=1, max_size=200),
    slots=st.integers(1, 6),
    target=st.integers(400, 4000),
)
def test_leases_of_a_pull_are_equal_except_for_one_request_and_without_a_small_remainder(
    sizes: list[int], slots: int, target: int
) -> None:
    leases = cut([pending(0, sizes)], slots, target)
    total = sum(sizes_of(leases))
    assert len(leases) == object_count(total, target, slots)
    share = total / len(leases)
    largest = max(r.end - r.position for lease in leases for _, r in lease.requests)
    for size in sizes_of(leases):
        assert size == share or abs(size - share) < largest
