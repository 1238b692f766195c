"""The size of a batch of a stream."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from compaction.source.bounds import limited
from compaction.source.schemas import Offsets

SIZES = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.dictionaries(st.integers(0, 4), st.tuples(st.integers(1, 50), st.integers(0, 10_000))),
)


@given(SIZES, st.integers(1, 5_000))
def test_a_batch_is_as_large_as_it_may_be_and_never_larger(
    sizes: dict[str, dict[int, tuple[int, int]]], records_max: int
) -> None:
    begins: Offsets = {t: {p: b for p, (b, _) in parts.items()} for t, parts in sizes.items()}
    ends: Offsets = {t: {p: b + n for p, (b, n) in parts.items()} for t, parts in sizes.items()}
    found = limited(begins, ends, records_max)
    assert {t: set(parts) for t, parts in found.items()} == {t: set(p) for t, p in ends.items()}
    parts = {
        (topic, partition): (end - begins[topic][partition], sizes[topic][partition][1])
        for topic, partitions in found.items()
        for partition, end in partitions.items()
    }
    assert all(0 <= part <= size for part, size in parts.values())
    total = sum(size for _, size in parts.values())
    assert sum(part for part, _ in parts.values()) == min(total, records_max)
    filled = [part for part, size in parts.values() if size]
    if len(filled) <= records_max:
        assert all(filled), "a partition with little is not starved by one with much"


def test_shares_are_in_proportion() -> None:
    begins: Offsets = {"t": {0: 1, 1: 1}}
    ends: Offsets = {"t": {0: 3001, 1: 1001}}
    assert limited(begins, ends, 400) == {"t": {0: 301, 1: 101}}


def test_a_partition_whose_begin_is_not_known_has_nothing() -> None:
    assert limited({}, {"t": {0: 7}}, 1) == {"t": {0: 7}}
