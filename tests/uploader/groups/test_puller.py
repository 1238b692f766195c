"""Groups over shared memory: turns, marks, splits, merges, and the deaths in between."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from ledger.types import LeasedRange, LeaseId
from shards import layout as at
from shards import locks
from shards.clock import monotonic_ns
from shards.leases import LIVE, ORPHAN, Lease, LeaseTable
from shards.locks import LockFile
from shards.ring import RingReader
from tests.shards.peer import started
from tests.uploader.crew import MS, TARGET, WINDOW, Crew, crew
from tests.uploader.pulling_process import drained, is_next
from uploader.groups.adopt import adopt_orphans
from uploader.groups.buddy import Group
from uploader.groups.puller import LOCK_RETRY_NS, Look, Pulled
from uploader.groups.upload_turn import NEVER

ROOT = Path(__file__).parents[3]
NOW = 1_000_000 * MS

Ranges = dict[LeaseId, tuple[LeasedRange, ...]]


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Crew]:
    with crew(2, tmp_path) as made:
        yield made


@pytest.fixture
def four(tmp_path: Path) -> Iterator[Crew]:
    with crew(4, tmp_path) as made:
        yield made


def positions(pulled: list[Pulled]) -> list[tuple[int, int]]:
    return [(shard, request.position) for each in pulled for shard, request in each.requests]


# Turns


def test_members_take_turns_each_pulling_from_all(four: Crew) -> None:
    pullers = [four.puller(shard) for shard in range(4)]
    now = NOW
    four.groups.store(0, at.P_LAST_PULL_NS, now)
    for turn in (0, 1, 2, 3, 0, 1):
        wanted = {(shard, four.publish(shard, now)) for shard in range(4)}
        now += WINDOW
        for shard, puller in enumerate(pullers):
            if shard != turn:
                assert puller.look(now).pulled == []
        look = pullers[turn].look(now)
        assert set(positions(look.pulled)) == wanted
        assert [each.lease.holder for each in look.pulled] == [turn]
        four.check()
        four.commit_all()
        assert look.again_at_ns == NEVER


def test_a_request_in_an_idle_group_is_pulled_immediately_and_the_next_waits_its_window(
    two: Crew,
) -> None:
    pullers = [two.puller(0), two.puller(1)]
    two.publish(0, NOW)
    assert len(pullers[0].look(NOW).pulled) == 1
    two.publish(0, NOW + MS)
    assert pullers[1].look(NOW + MS) == Look([], NOW + MS + WINDOW, pullers_quiet(two))
    assert pullers[1].look(NOW + MS + WINDOW - 1).pulled == []
    assert len(pullers[1].look(NOW + MS + WINDOW).pulled) == 1


def pullers_quiet(made: Crew) -> int:
    """What each of two members may publish without making the group due by its size."""
    return (TARGET - sum(made.pending_bytes(shard) for shard in (0, 1))) // 2


def test_the_size_trigger_rings_the_turn_holder_immediately(two: Crew) -> None:
    two.publish(1, NOW)
    two.puller(0).look(NOW)
    two.rung()
    member, holder = two.puller(0), two.puller(1)
    two.fill(0, NOW + 2 * MS, TARGET - 1000)
    assert member.look(NOW + 3 * MS).pulled == []
    assert two.rung() == []
    two.fill(0, NOW + 4 * MS, TARGET)
    assert member.look(NOW + 5 * MS).pulled == []
    assert two.rung() == [1]
    assert len(holder.look(NOW + 5 * MS).pulled) == 1


def test_a_woken_shard_that_does_not_hold_the_turn_forwards_the_bell(four: Crew) -> None:
    four.publish(2, NOW)
    four.puller(3).look(NOW)
    assert four.rung() == [0]


def test_a_turn_holder_without_a_free_lease_passes_the_turn_to_one_that_has_one(
    tmp_path: Path,
) -> None:
    with crew(3, tmp_path, lease_slots=1) as made:
        pullers = [made.puller(shard) for shard in range(3)]
        for shard in (0, 1):
            made.publish(shard, NOW)
            assert len(pullers[shard].look(NOW + shard * WINDOW).pulled) == 1
        group = made.groups.map.group_of(0)
        made.groups.store(0, at.P_UPLOAD_TURN, 0)
        made.publish(1, NOW + WINDOW)
        made.rung()
        assert pullers[0].look(NOW + 3 * WINDOW).pulled == []
        assert made.groups.upload_turn(group) == 2
        assert made.rung() == [2]
        assert len(pullers[2].look(NOW + 3 * WINDOW).pulled) == 1
        # Nobody has a slot now: the next commit's bell is what wakes.
        made.publish(1, NOW + 3 * WINDOW)
        made.groups.store(0, at.P_UPLOAD_TURN, 0)
        assert pullers[0].look(NOW + 5 * WINDOW) == Look([], NEVER)
        made.commit_all()
        assert len(pullers[0].look(NOW + 5 * WINDOW).pulled) == 1
        made.check()


def test_any_member_takes_the_turn_of_a_holder_that_is_a_window_late(four: Crew) -> None:
    member = four.puller(3)
    four.publish(2, NOW)
    assert member.look(NOW).again_at_ns == NOW + WINDOW
    assert member.look(NOW + WINDOW - 1).pulled == []
    assert len(member.look(NOW + WINDOW).pulled) == 1
    assert four.groups.upload_turn(four.groups.map.group_of(0)) == 0
    four.check()


def test_the_old_holder_rings_the_new_one_if_requests_are_left_or_new(
    two: Crew,
) -> None:
    holder = two.puller(0)
    two.publish(0, NOW)
    holder.look(NOW)
    assert two.rung() == []  # nothing is left
    two.commit_all()
    two.groups.store(0, at.P_UPLOAD_TURN, 0)

    class Publishes(LockFile):
        """A request is published when the pull has been made, before the lock is free."""

        def unlock(self, byte: int) -> None:
            two.publish(1, NOW + WINDOW)
            super().unlock(byte)

    late = Publishes(two.locks.path)
    two.publish(0, NOW + WINDOW)
    assert len(two.puller(0, locks=late).look(NOW + WINDOW).pulled) == 1
    assert two.rung() == [1]
    late.close()


def test_a_pull_takes_no_more_than_its_free_slots_hold(two: Crew) -> None:
    two.fill(0, NOW, 8 * TARGET)
    two.fill(1, NOW, 8 * TARGET)
    pulled = two.puller(0).look(NOW).pulled
    assert len(pulled) == 4
    sizes = [sum(r.end - r.position for _, r in each.requests) for each in pulled]
    assert max(sizes) - min(sizes) <= 1000
    assert 4.5 * TARGET - 2000 < sum(sizes) < 4.5 * TARGET
    assert two.rung() == [1]
    two.check()


def test_a_repair_reads_the_leases_once_for_all_members(
    four: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    for shard in range(4):
        four.publish(shard, NOW)
    half_made_pull(four, dead=1)
    reads = 0
    in_state = LeaseTable.in_state

    def watched(table: LeaseTable, *states: int) -> Iterator[Lease]:
        nonlocal reads
        reads += 1
        return in_state(table, *states)

    new = four.publish(2, NOW + MS)
    monkeypatch.setattr(LeaseTable, "in_state", watched)
    assert positions(four.puller(0).look(NOW + 2 * WINDOW).pulled) == [(2, new)]
    assert reads == 1


# Locks


def test_a_lock_that_is_held_is_tried_again_within_five_milliseconds(two: Crew) -> None:
    two.publish(0, NOW)
    with started("hold", two.locks.path, locks.GROUP, "alone") as peer:
        assert peer.line() == "held"
        assert two.puller(0).look(NOW) == Look([], NOW + LOCK_RETRY_NS)
        assert LOCK_RETRY_NS == 5 * MS
        peer.kill()
    assert len(two.puller(0).look(NOW + 5 * MS).pulled) == 1


class Racing(LockFile):
    """Something changes right before a lock is taken."""

    def __init__(self, path: Path, act: Callable[[], object]) -> None:
        super().__init__(path)
        self.act: Callable[[], object] | None = act

    def try_lock(self, byte: int) -> bool:
        act, self.act = self.act, None
        if act is not None:
            act()
        return super().try_lock(byte)


def test_a_changed_turn_under_the_lock_starts_the_look_over_without_a_pull(two: Crew) -> None:
    two.publish(0, NOW)
    racing = Racing(two.locks.path, lambda: two.groups.store(0, at.P_UPLOAD_TURN, 1))
    assert two.puller(0, locks=racing).look(NOW).pulled == []
    assert two.rung() == [1]
    assert two.groups.word(0, at.P_MARK) == 0
    racing.close()


def test_a_changed_map_under_the_lock_starts_the_look_over_with_the_new_one(four: Crew) -> None:
    for shard in range(4):
        four.publish(shard, NOW)
    racing = Racing(four.locks.path, lambda: four.groups.map.split(Group(0, 4)))
    pulled = four.puller(0, locks=racing).look(NOW).pulled
    assert [shard for shard, _ in positions(pulled)] == [0, 1]
    four.check()
    racing.close()


# Split and merge


def overfull(made: Crew, shards: range, now_ns: int) -> None:
    for shard in shards:
        made.fill(shard, now_ns, 2 * TARGET + 1000)


def test_the_leader_halves_its_group_and_pulls_from_the_lower_half(four: Crew) -> None:
    overfull(four, range(4), NOW)
    look = four.puller(0).look(NOW)
    assert four.map() == [0, 0, 2, 2]
    assert {shard for shard, _ in positions(look.pulled)} == {0, 1}
    assert 2 in four.rung()
    groups = four.groups
    assert [groups.word(g, at.P_LAST_CHANGE_NS) for g in (0, 2)] == [NOW, NOW]
    assert [groups.word(g, at.P_MARK) for g in (0, 2)] == [0, 0]
    assert groups.word(0, at.P_SPLITS) == 1
    assert groups.upload_turn(groups.map.group_of(2)) == 2
    # The upper half is a group of its own immediately.
    look = four.puller(2).look(NOW)
    assert {shard for shard, _ in positions(look.pulled)} == {2, 3}
    four.check()


def test_only_the_leader_halves_a_group_and_not_within_the_hysteresis(four: Crew) -> None:
    overfull(four, range(4), NOW)
    four.groups.store(0, at.P_UPLOAD_TURN, 1)
    assert four.puller(1).look(NOW).pulled
    assert four.map() == [0, 0, 0, 0]
    overfull(four, range(4), NOW + MS)
    four.groups.store(0, at.P_UPLOAD_TURN, 0)
    four.groups.store(0, at.P_LAST_CHANGE_NS, NOW + MS)
    assert four.puller(0).look(NOW + MS + 2 * WINDOW - 1).pulled
    assert four.map() == [0, 0, 0, 0]
    four.commit_all()
    overfull(four, range(4), NOW + 2 * MS)
    four.groups.store(0, at.P_UPLOAD_TURN, 0)
    assert four.puller(0).look(NOW + MS + 2 * WINDOW).pulled
    assert four.map() == [0, 0, 2, 2]


def split_once(made: Crew, now_ns: int) -> None:
    made.groups.map.split(made.groups.map.group_of(0))
    for group in (0, 2):
        made.groups.store(group, at.P_LAST_CHANGE_NS, now_ns)


def test_the_lower_leader_absorbs_its_buddy_when_both_were_empty_for_the_hysteresis(
    four: Crew,
) -> None:
    split_once(four, NOW)
    four.groups.store(2, at.P_LAST_PULL_NS, NOW + 77)
    for shard in (1, 2, 3):
        four.puller(shard).look(NOW + 9 * WINDOW)
    assert four.map() == [0, 0, 2, 2]
    assert four.puller(0).look(NOW + MS).again_at_ns == NOW + 2 * WINDOW
    assert four.puller(0).look(NOW + 2 * WINDOW - 1).pulled == []
    assert four.map() == [0, 0, 2, 2]
    four.puller(0).look(NOW + 2 * WINDOW)
    assert four.map() == [0, 0, 0, 0]
    groups = four.groups
    assert groups.word(0, at.P_LAST_CHANGE_NS) == NOW + 2 * WINDOW
    assert groups.word(0, at.P_LAST_PULL_NS) == NOW + 77
    assert groups.word(0, at.P_MERGES) == 1
    assert [groups.word(g, at.P_MARK) for g in (0, 2)] == [0, 0]
    four.check()


def test_buddies_with_few_pending_bytes_merge_and_lose_nothing(four: Crew) -> None:
    split_once(four, NOW)
    now = NOW + 2 * WINDOW
    for group in (0, 2):
        four.groups.store(group, at.P_LAST_PULL_NS, now - MS)
    wanted = [(shard, four.publish(shard, now)) for shard in range(4)]
    assert four.puller(0).look(now).pulled == []
    assert four.map() == [0, 0, 0, 0]
    assert positions(four.puller(0).look(now + WINDOW).pulled) == wanted
    four.check()


def test_a_pull_of_a_whole_object_keeps_buddies_apart_for_the_hysteresis(
    four: Crew,
) -> None:
    split_once(four, NOW)
    four.fill(3, NOW, TARGET)
    full_at = NOW + WINDOW
    assert four.puller(2).look(full_at).pulled
    four.commit_all()
    leader = four.puller(0)
    assert leader.look(full_at + 2 * WINDOW - 1).pulled == []
    assert four.map() == [0, 0, 2, 2]
    leader.look(full_at + 2 * WINDOW)
    assert four.map() == [0, 0, 0, 0]


def test_a_merge_holds_both_locks(four: Crew) -> None:
    split_once(four, NOW)
    now = NOW + 2 * WINDOW
    for group in (0, 2):
        with started("hold", four.locks.path, locks.GROUP + group, "alone") as peer:
            assert peer.line() == "held"
            assert four.puller(0).look(now).again_at_ns == now + LOCK_RETRY_NS
            assert four.map() == [0, 0, 2, 2]
    four.puller(0).look(now)
    assert four.map() == [0, 0, 0, 0]
    for group in (0, 2):
        with started("hold", four.locks.path, locks.GROUP + group, "alone") as peer:
            assert peer.line() == "held"  # both are free again


def test_buddies_do_not_merge_if_a_whole_object_arrives_meanwhile(four: Crew) -> None:
    split_once(four, NOW)
    now = NOW + 2 * WINDOW
    racing = Racing(four.locks.path, lambda: four.fill(2, now, TARGET))
    four.puller(0, locks=racing).look(now)
    assert four.map() == [0, 0, 2, 2]
    racing.close()


# Deaths


def half_made_pull(made: Crew, dead: int) -> None:
    """The stores of a pull by ``dead``, up to and with the lease."""
    made.groups.store(0, at.P_MARK, dead + 1)
    ranges = [LeasedRange(s, 0, made.word(s, at.S_HEAD)) for s in range(made.layout.shards)]
    made.leases.fill(dead, 0, LeaseId(1, 1, dead, 99), 1, ranges)


def test_a_mark_makes_the_next_holder_repair_what_its_predecessor_did_not_store(
    two: Crew,
) -> None:
    for shard in (0, 1):
        two.publish(shard, NOW)
    half_made_pull(two, dead=1)
    assert two.word(0, at.S_PULLED) == 0
    new = two.publish(0, NOW + MS)
    pulled = two.puller(0).look(NOW + 2 * WINDOW).pulled
    assert positions(pulled) == [(0, new)]
    assert two.groups.word(0, at.P_MARK) == 0
    two.check()


def test_a_merge_repairs_what_a_holder_that_died_in_either_buddy_did_not_store(
    four: Crew,
) -> None:
    for dead in (0, 2):
        split_once(four, NOW)
        now = NOW + 2 * WINDOW  # nothing is due, so that nobody repairs before the merge
        four.groups.store(dead, at.P_LAST_PULL_NS, now - MS)
        wanted = four.publish(dead + 1, now - MS)
        # What a pull by ``dead`` stores, up to and with the lease.
        four.groups.store(dead, at.P_MARK, dead + 1)
        end = four.word(dead + 1, at.S_HEAD)
        (slot, *_) = four.leases.free_slots(dead)
        lease_id = four.segment.next_lease_id(dead)
        four.leases.fill(dead, slot, lease_id, 1, [LeasedRange(dead + 1, wanted, end)])
        four.puller(0).look(now)
        assert four.map() == [0, 0, 0, 0]
        four.check()  # the range would be leased again otherwise
        new = four.publish(0, now)
        assert positions(four.puller(0).look(now + WINDOW).pulled) == [(0, new)]
        four.commit_all()
        for shard in range(4):
            four.leases.free_done(shard)


def test_a_ring_that_wrapped_after_its_holder_died_is_still_pulled(two: Crew) -> None:
    # ``pulled`` is below ``committed``, and no request begins there any more.
    two.fill(0, NOW, two.segment.layout.ring_bytes * 3 // 4)
    half_made_pull(two, dead=1)
    two.leases.orphan(1)
    (lease,) = two.leases.in_state(ORPHAN)
    two.commit(two.leases.adopt(lease, 0) or lease)
    new = two.publish(0, NOW, payload_bytes=1000)
    two.fill(0, NOW, two.segment.layout.ring_bytes // 2)
    assert list(RingReader(two.segment, 0).arrivals(0, new)) == []
    pulled = two.puller(0).look(NOW + 2 * WINDOW).pulled
    assert positions(pulled)[0] == (0, new)
    two.check()


def test_without_a_mark_nothing_is_repaired(two: Crew) -> None:
    # The cost of a repair is a walk over all leases; only a death pays it.
    two.publish(0, NOW)
    half_made_pull(two, dead=1)
    two.groups.store(0, at.P_MARK, 0)
    assert positions(two.puller(0).look(NOW + 2 * WINDOW).pulled) == [(0, 0)]


class WatchedWords:
    """A segment's words; something happens right before one of them is loaded."""

    def __init__(self, words: memoryview) -> None:
        self.words = words
        self.before: dict[int, Callable[[], None]] = {}

    def __getitem__(self, index: int) -> int:
        act = self.before.pop(index, None)
        if act is not None:
            act()
        return int(self.words[index])

    def __setitem__(self, index: int, value: int) -> None:
        self.words[index] = value


def test_a_commit_in_the_middle_of_a_repair_does_not_make_its_range_pending_again(
    two: Crew,
) -> None:
    two.publish(0, NOW)
    half_made_pull(two, dead=1)
    (lease,) = two.leases.in_state(LIVE)
    new = two.publish(0, NOW + MS)
    watched = WatchedWords(two.words)
    watched.before[two.layout.lease(1, 0)] = lambda: two.commit(lease)
    leases = LeaseTable(watched, two.layout)  # type: ignore[arg-type]
    pulled = two.puller(0, leases=leases).look(NOW + 2 * WINDOW).pulled
    assert not watched.before
    assert positions(pulled) == [(0, new)]


def process(made: Crew, task: str, shard: int) -> subprocess.Popen[bytes]:
    fds = [made.segment.fd, *made.bells.fds]
    layout = msgspec.json.encode(made.layout).decode()
    bells = ",".join(map(str, made.bells.fds))
    # A pipe that nobody reads would stop it as soon as it is full.
    with said_by(made, shard).open("ab") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.uploader.pulling_process", task, str(shard),
             str(made.segment.fd), layout, bells, str(made.locks.path)],
            cwd=ROOT,
            pass_fds=fds,
            stdout=said,
        )  # fmt: skip


def said_by(made: Crew, shard: int) -> Path:
    """What the processes of a shard have said."""
    return made.locks.path.with_name(f"said-by-{shard}")


def test_a_process_that_dies_in_a_pull_leaves_a_free_lock_a_mark_and_an_orphan(two: Crew) -> None:
    now = monotonic_ns()
    first = [(shard, two.publish(shard, now - 2 * WINDOW)) for shard in (0, 1)]
    two.groups.store(0, at.P_UPLOAD_TURN, 1)
    dying = process(two, "die", 1)
    dying.wait()
    assert dying.returncode == -9
    assert two.groups.word(0, at.P_MARK) == 2
    assert two.groups.upload_turn(two.groups.map.group_of(0)) == 1
    assert [lease.shard for lease in two.leases.orphan(1)] == [1]
    second = [(shard, two.publish(shard, monotonic_ns())) for shard in (0, 1)]
    # Its turn is taken after a window; what it had leased is not pulled again.
    pulled = two.puller(0).look(monotonic_ns() + 2 * WINDOW).pulled
    assert positions(pulled) == second
    assert two.groups.word(0, at.P_MARK) == 0
    (adopted,) = adopt_orphans(two.leases, two.locks, 0, NOW)
    readers = [RingReader(two.segment, shard) for shard in (0, 1)]
    found = [
        (leased.shard, request.position)
        for leased in adopted.ranges
        for request in readers[leased.shard].requests(leased.start, leased.end)
    ]
    assert sorted(found) == first
    two.check()
    two.commit_all()


def test_every_byte_is_in_exactly_one_lease_although_pulling_processes_are_killed(
    tmp_path: Path,
) -> None:
    with crew(4, tmp_path) as made:
        made.words[at.G_WINDOW_NS] = MS
        ranges: Ranges = {}
        running = {shard: process(made, "loop", shard) for shard in range(4)}
        try:
            for dead, pulls in ((1, 300), (2, 700)):
                _wait_for_pulls(made, running, pulls)
                running[dead].kill()
                _collect(made, dead, running.pop(dead), ranges)
                _take_over(made, dead, ranges)
                running[dead] = process(made, "loop", dead)
            _wait_for_pulls(made, running, 1_000)
            made.words[at.G_DRAINING] = 1
            for shard, each in running.items():
                _collect(made, shard, each, ranges)
                assert each.returncode == 0
        finally:
            for each in running.values():
                each.kill()
                each.wait()
        assert drained(made.segment)
        made.check()
        for shard in range(4):
            position = 0
            ours = [s for each in ranges.values() for s in each if s.shard == shard]
            for leased in sorted(ours, key=lambda each: each.start):
                assert leased.start == position
                position = leased.end
            assert position == made.word(shard, at.S_HEAD)


def _wait_for_pulls(made: Crew, running: dict[int, subprocess.Popen[bytes]], pulls: int) -> None:
    """Waits until the counters of all shards add up to this many leases."""
    while sum(made.word(shard, at.S_LEASE_COUNTER) for shard in range(4)) < pulls:
        assert all(each.poll() is None for each in running.values())


def _collect(made: Crew, shard: int, ended: subprocess.Popen[bytes], ranges: Ranges) -> None:
    ended.wait(timeout=60)
    for line in said_by(made, shard).read_bytes().splitlines():
        lease_id, leased = msgspec.json.decode(line, type=tuple[LeaseId, tuple[LeasedRange, ...]])
        assert ranges.setdefault(lease_id, leased) == leased


def _take_over(made: Crew, dead: int, ranges: Ranges) -> None:
    """As the supervisor and the dead shard's successor do."""
    made.leases.orphan(dead)
    adopted = adopt_orphans(made.leases, made.locks, dead, NOW)
    assert not list(made.leases.in_state(ORPHAN))
    while adopted:
        for lease in [each for each in adopted if _may_commit(made, each)]:
            assert ranges.setdefault(lease.lease_id, lease.ranges) == lease.ranges
            for leased in lease.ranges:
                if made.word(leased.shard, at.S_COMMITTED) == leased.start:
                    made.store(leased.shard, at.S_COMMITTED, leased.end)
            made.leases.finish(lease)
            adopted.remove(lease)
    made.leases.free_done(dead)


def _may_commit(made: Crew, lease: Lease) -> bool:
    """Its turn has come, or its dead holder had begun to move the words."""
    moved = any(made.word(leased.shard, at.S_COMMITTED) >= leased.end for leased in lease.ranges)
    return moved or is_next(made.segment, lease)


def test_a_turn_word_that_names_no_member_means_the_leader(four: Crew) -> None:
    split_once(four, NOW)
    four.groups.store(0, at.P_UPLOAD_TURN, 3)
    assert four.groups.upload_turn(Group(0, 2)) == 0
    assert four.groups.upload_turn(Group(2, 2)) == 2


def test_a_lease_notes_the_last_commit_that_its_producers_could_know(two: Crew) -> None:
    two.segment.words[at.G_COMMITS] = 41
    two.fill(0, NOW, TARGET)
    (pulled,) = two.puller(0).look(NOW).pulled
    assert pulled.lease.commits_seen == 41
    assert two.leases.read(0, pulled.lease.slot) == pulled.lease
