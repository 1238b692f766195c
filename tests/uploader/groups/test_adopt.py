"""Taking over orphans: one shard only, under the adoption lock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger.types import LeasedRange, LeaseId
from shards import locks
from shards.leases import LIVE, ORPHAN, Lease
from tests.shards.peer import started
from tests.uploader.crew import Crew, crew
from uploader.groups.adopt import adopt_orphans, adoption_delay_ns

NOW_NS = 1_000_000_000_000


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Crew]:
    with crew(3, tmp_path) as made:
        yield made


def leased(made: Crew, shard: int, slot: int) -> Lease:
    lease_id = made.segment.next_lease_id(shard)
    return made.leases.fill(shard, slot, lease_id, 1, [LeasedRange(shard, 0, 8)])


def test_the_first_adopter_takes_all_orphans_and_the_next_finds_none(three: Crew) -> None:
    dead = [leased(three, 0, 0), leased(three, 0, 2)]
    alive = leased(three, 2, 0)
    three.leases.orphan(0)
    adopted = adopt_orphans(three.leases, three.locks, 1, NOW_NS)
    assert adopted == [lease._replace(holder=1, deaths=1) for lease in dead]
    assert adopt_orphans(three.leases, three.locks, 2, NOW_NS) == []
    assert list(three.leases.in_state(LIVE)) == [*adopted, alive]


def test_leases_of_live_shards_are_not_adopted(three: Crew) -> None:
    leased(three, 0, 0)
    assert adopt_orphans(three.leases, three.locks, 1, NOW_NS) == []


def test_what_an_adopter_held_is_orphaned_by_its_own_death_and_adopted_again(
    three: Crew,
) -> None:
    lease = leased(three, 0, 0)
    three.leases.orphan(0)
    adopt_orphans(three.leases, three.locks, 1, NOW_NS)
    assert three.leases.orphan(0) == []
    three.leases.orphan(1)
    assert adopt_orphans(three.leases, three.locks, 2, NOW_NS) == [
        lease._replace(holder=2, deaths=2)
    ]


def test_while_another_process_adopts_nothing_is_taken_and_afterwards_all_is(
    three: Crew,
) -> None:
    lease = leased(three, 0, 0)
    three.leases.orphan(0)
    with started("hold", three.locks.path, locks.ADOPTION, "alone") as peer:
        assert peer.line() == "held"
        assert adopt_orphans(three.leases, three.locks, 1, NOW_NS) == []
        peer.kill()
    assert adopt_orphans(three.leases, three.locks, 1, NOW_NS) == [
        lease._replace(holder=1, deaths=1)
    ]
    with started("hold", three.locks.path, locks.ADOPTION, "alone") as peer:
        assert peer.line() == "held"  # the lock was given back


def test_an_orphan_whose_id_has_changed_is_not_adopted(
    three: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = leased(three, 0, 0)
    three.leases.orphan(0)
    try_lock = three.locks.try_lock

    def late(byte: int) -> bool:
        # Adopted, committed, freed, filled anew and orphaned again between the look and the lock.
        taken = three.leases.adopt(lease, 2)
        assert taken is not None
        three.leases.finish(taken)
        three.leases.free_done(0)
        three.leases.fill(0, lease.slot, LeaseId(1, 1, 0, 77), 5, lease.ranges)
        three.leases.orphan(0)
        return try_lock(byte)

    monkeypatch.setattr(three.locks, "try_lock", late)
    assert adopt_orphans(three.leases, three.locks, 1, NOW_NS) == []
    assert [each.lease_id.counter for each in three.leases.in_state(ORPHAN)] == [77]


def test_an_orphan_is_not_adopted_before_it_is_due(three: Crew) -> None:
    leased(three, 0, 0)
    three.leases.orphan(0, lambda _: NOW_NS)
    assert adopt_orphans(three.leases, three.locks, 1, NOW_NS - 1) == []
    (adopted,) = adopt_orphans(three.leases, three.locks, 1, NOW_NS)
    assert adopted.deaths == 1


def test_each_dead_holder_is_counted_and_a_new_lease_begins_at_zero(three: Crew) -> None:
    lease = leased(three, 0, 0)
    for holder in (1, 2, 1):
        three.leases.orphan(lease.holder)
        (lease,) = adopt_orphans(three.leases, three.locks, holder, NOW_NS)
    assert lease.deaths == three.leases.read(0, 0).deaths == 3
    three.leases.finish(lease)
    three.leases.free_done(0)
    assert leased(three, 0, 0).deaths == three.leases.read(0, 0).deaths == 0


def test_the_first_adoption_is_immediate_and_later_ones_wait_longer() -> None:
    seconds = [adoption_delay_ns(count) / 1e9 for count in (1, 2, 3, 4, 7, 8, 1_000_000)]
    assert seconds == [0, 1, 2, 4, 32, 60, 60]
