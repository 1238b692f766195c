"""Offsets that a subscription missed, as few ranges as possible.

Retention evicts a little at a time, so what a subscription misses while nobody listens comes in
pieces; consumers are told of the whole.
"""

from __future__ import annotations

from collections.abc import Sequence

from delivery.subscriptions.schemas import MissedOffsets

GAPS_KEPT = 100  # the last ones; each is 60 bytes of an answer


def with_gap(gaps: Sequence[MissedOffsets], gap: MissedOffsets) -> list[MissedOffsets]:
    """These gaps and another one, joined with that which it continues."""
    for index in range(len(gaps) - 1, -1, -1):
        there = gaps[index]
        if (there.partition, there.reason) == (gap.partition, gap.reason):
            if there.gap_from <= gap.gap_from <= there.gap_to + 1:
                end = max(there.gap_to, gap.gap_to)
                joined = MissedOffsets(gap.partition, there.gap_from, end, gap.reason)
                return [*gaps[:index], joined, *gaps[index + 1 :]]
            break
    return [*gaps, gap][-GAPS_KEPT:]
