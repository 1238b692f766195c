"""What becomes of a dead shard's leases: due times, and the alarm of one that ends its holders."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ledger.types import LeasedRange, LeaseId
from shards.alarms import AlarmKind, raised
from shards.layout import Layout
from shards.leases import DONE, LIVE, ORPHAN, Lease, LeaseTable
from shards.segment import Segment
from uploader.groups.adopt import ADOPTIONS_MAX, Orphans

S = 1_000_000_000
NOW_NS = 1_000 * S


class Daemon:
    """Two shards, one lease of shard 0, and the supervisor's part."""

    def __init__(self) -> None:
        self.segment = Segment.create(Layout(2, 4096))
        self.leases = LeaseTable(self.segment.words, self.segment.layout)
        self.orphans = Orphans(self.segment)
        lease_id = LeaseId(1, 1, 0, 7)
        self.lease = self.leases.fill(0, 2, lease_id, 1, [LeasedRange(0, 0, 8)])

    def state(self) -> int:
        return self.leases.state(0, 2)

    def adopt(self, now_ns: int) -> Lease | None:
        """What a shard of this daemon does with the orphan, if it is due."""
        for orphan in self.leases.orphans(now_ns):
            return self.leases.adopt(orphan, 1 - orphan.holder)
        return None

    def die_of_it(self, deaths: int) -> int:
        """So many holders die as soon as they hold the lease; when the last one did."""
        now_ns, holder = NOW_NS, 0
        for death in range(deaths):
            (orphan,) = self.orphans.died(holder, now_ns)
            assert orphan.deaths == death + 1
            if death + 1 < deaths:
                while (lease := self.adopt(now_ns)) is None:
                    now_ns += S
                holder = lease.holder
        return now_ns

    def alarms(self) -> list[tuple[AlarmKind, int, str]]:
        return [(alarm.kind, alarm.process, alarm.text) for alarm in raised(self.segment)]


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    made = Daemon()
    yield made
    made.segment.close()


def test_the_leases_of_a_shard_that_died_are_orphans_that_may_be_adopted_immediately(
    daemon: Daemon,
) -> None:
    assert daemon.orphans.died(1, NOW_NS) == []
    assert daemon.state() == LIVE
    (orphan,) = daemon.orphans.died(0, NOW_NS)
    assert (orphan.lease_id, daemon.state()) == (daemon.lease.lease_id, ORPHAN)
    assert not daemon.orphans.tick(NOW_NS)  # the death rings all shards
    adopted = daemon.adopt(NOW_NS)
    assert adopted is not None and adopted.holder == 1


def test_a_lease_whose_holders_die_is_adopted_ever_later_and_the_shards_are_rung_when_it_is_due(
    daemon: Daemon,
) -> None:
    waits: list[int] = []
    now_ns, holder = NOW_NS, 0
    for _ in range(8):
        daemon.orphans.died(holder, now_ns)
        died_ns = now_ns
        while daemon.adopt(now_ns) is None:
            now_ns += S
            assert daemon.orphans.tick(now_ns) == (daemon.leases.orphans(now_ns) != [])
        assert not daemon.orphans.tick(now_ns)
        waits.append((now_ns - died_ns) // S)
        holder = daemon.leases.read(0, 2).holder
    assert waits == [0, 1, 2, 4, 8, 16, 32, 60]


def test_a_lease_that_ended_its_adopters_raises_an_alarm_that_names_it_until_it_is_committed(
    daemon: Daemon,
) -> None:
    now_ns = daemon.die_of_it(ADOPTIONS_MAX)
    assert daemon.alarms() == []
    while (lease := daemon.adopt(now_ns)) is None:
        now_ns += S
    daemon.orphans.died(lease.holder, now_ns)
    ((kind, process, text),) = daemon.alarms()
    assert (kind, process) == (AlarmKind.LEASE_STUCK, 2)  # the supervisor's row
    assert text.startswith(f"lease {lease.lease_id} of shard 0 was taken over 3 times")
    while (lease := daemon.adopt(now_ns)) is None:
        now_ns += S
        daemon.orphans.tick(now_ns)
    assert len(daemon.alarms()) == 1  # its holder lives, but has not committed it
    daemon.leases.finish(lease)
    assert daemon.state() == DONE
    daemon.orphans.tick(now_ns)
    assert daemon.alarms() == []


def test_another_shards_death_does_not_end_the_alarm(daemon: Daemon) -> None:
    daemon.die_of_it(ADOPTIONS_MAX + 1)
    other = daemon.leases.fill(1, 0, LeaseId(1, 1, 1, 1), 1, [LeasedRange(1, 0, 8)])
    daemon.orphans.died(1, NOW_NS)
    assert f"{daemon.lease.lease_id}" in daemon.alarms()[0][2]
    assert daemon.leases.read(1, 0).deaths == other.deaths + 1
