"""When a shard may end: nothing that any of them accepted may be left behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from daemon.intake.drained import is_drained
from ledger.types import LeasedRange, LeaseId
from shards import layout as at
from shards.frame import Part
from shards.layout import Layout
from shards.leases import LeaseTable
from shards.ring import RingWriter
from shards.segment import Segment


@pytest.fixture
def segment() -> Iterator[Segment]:
    made = Segment.create(Layout(2, 4096))
    yield made
    made.close()


@pytest.fixture
def leases(segment: Segment) -> LeaseTable:
    return LeaseTable(segment.words, segment.layout)


def test_a_shard_with_nothing_left_anywhere_may_end(segment: Segment, leases: LeaseTable) -> None:
    assert is_drained(segment, leases, 0, unanswered=0)


def test_a_shard_whose_requests_are_committed_and_not_answered_yet_goes_on(
    segment: Segment, leases: LeaseTable
) -> None:
    assert not is_drained(segment, leases, 0, unanswered=1)


def test_a_shard_goes_on_while_any_ring_holds_what_is_not_committed(
    segment: Segment, leases: LeaseTable
) -> None:
    segment.words[segment.layout.shard(1) + at.S_HEAD] = 8
    assert not is_drained(segment, leases, 0, unanswered=0)
    segment.words[segment.layout.shard(1) + at.S_COMMITTED] = 8
    assert is_drained(segment, leases, 0, unanswered=0)


def test_what_a_dead_shard_took_back_and_did_not_pass_over_keeps_nobody(
    segment: Segment, leases: LeaseTable
) -> None:
    ring = RingWriter(segment, 1)
    position = ring.append(1, 1, b"", [Part(1, 0, 1, b"x" * 30, 1, 1)])
    assert not is_drained(segment, leases, 0, unanswered=0)
    ring.make_void(position, ring.head)
    assert is_drained(segment, leases, 0, unanswered=0)
    ring.append(1, 1, b"", [Part(1, 0, 1, b"y", 1, 1)])
    assert not is_drained(segment, leases, 0, unanswered=0)


def test_the_holder_of_a_lease_goes_on_and_the_others_may_end(
    segment: Segment, leases: LeaseTable
) -> None:
    # Committed, and its holder has not come to finishing it.
    leases.fill(0, 0, LeaseId(1, 1, 0, 1), 1, [LeasedRange(0, 0, 8)])
    assert not is_drained(segment, leases, 0, unanswered=0)
    assert is_drained(segment, leases, 1, unanswered=0)
