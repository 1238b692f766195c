"""Pieces of what was missed become few ranges, and what they say together stays the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from delivery.subscriptions.consumers.gaps import GAPS_KEPT, with_gap
from delivery.subscriptions.schemas import MissedOffsets


def missed(gaps: list[MissedOffsets]) -> set[tuple[int, int, str]]:
    return {
        (gap.partition, offset, gap.reason)
        for gap in gaps
        for offset in range(gap.gap_from, gap.gap_to + 1)
    }


def test_a_piece_that_continues_the_last_of_its_partition_is_joined_with_it() -> None:
    gaps: list[MissedOffsets] = []
    for gap in (
        MissedOffsets(0, 1, 1, "cap"), MissedOffsets(1, 1, 4, "cap"), MissedOffsets(0, 2, 7, "cap"),
        MissedOffsets(0, 8, 9, "ttl"), MissedOffsets(1, 6, 6, "cap"), MissedOffsets(1, 6, 6, "cap"),
    ):  # fmt: skip
        gaps = with_gap(gaps, gap)
    assert gaps == [
        MissedOffsets(0, 1, 7, "cap"), MissedOffsets(1, 1, 4, "cap"), MissedOffsets(0, 8, 9, "ttl"),
        MissedOffsets(1, 6, 6, "cap"),
    ]  # fmt: skip


def test_only_the_last_ones_are_kept() -> None:
    gaps: list[MissedOffsets] = []
    for start in range(0, 3 * GAPS_KEPT, 2):
        gaps = with_gap(gaps, MissedOffsets(0, start, start, "cap"))
    assert len(gaps) == GAPS_KEPT and gaps[-1].gap_from == 3 * GAPS_KEPT - 2


@given(
    st.lists(
        st.builds(
            lambda partition, first, length, reason: MissedOffsets(
                partition, first, first + length, reason
            ),
            st.integers(0, 1), st.integers(1, 20), st.integers(0, 4),
            st.sampled_from(["cap", "ttl"]),
        ),
        max_size=20,
    )
)  # fmt: skip
def test_joining_neither_adds_nor_loses_an_offset(pieces: list[MissedOffsets]) -> None:
    gaps: list[MissedOffsets] = []
    for gap in pieces:
        gaps = with_gap(gaps, gap)
    assert missed(gaps) == missed(pieces)
