"""Carries out the decisions about groups, on shared memory and under the groups' locks.

There is one ``Puller`` per shard, used by its loop only. It loads and stores shared words and tries
locks. It never waits, and never touches a disk or the network. The object target in force is a
shared word.

The holder of a group's lock leaves its mark in the group's slot and removes it last. A holder that
finds a predecessor's mark first repairs the members' ``pulled`` words from the leases, since that
holder died between filling a lease and storing these words.

Only the holder of a group's lock writes the words of the group and the members' ``pulled``; a merge
holds the locks of both groups.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from msgspec.structs import replace

from shards import layout as at
from shards import locks
from shards.clock import wall_ms
from shards.doorbell import Doorbells
from shards.leases import Lease, LeaseTable
from shards.locks import LockFile
from shards.ring import RequestAt, RingReader
from shards.segment import Segment
from uploader.groups import upload_turn
from uploader.groups.buddy import BuddyMap, Group
from uploader.groups.members import MemberRequests
from uploader.groups.pull import LeaseRequests, Pending, cut
from uploader.groups.upload_turn import BuddyView, GroupView, Policy, UploadAction

LOCK_RETRY_NS = 5_000_000
_TRIES_MAX = 3  # each new try follows a change that another shard has finished


class Pulled(NamedTuple):
    """A lease that this shard has just taken, with its requests in pull order."""

    lease: Lease
    requests: tuple[tuple[int, RequestAt], ...]


class Look(NamedTuple):
    """The result of a look at the group: leases to upload, and when to look again.

    ``quiet_bytes``: while this shard publishes less than this, its requests cannot make the group
    due earlier, so it need not look at the group.
    """

    pulled: list[Pulled]
    again_at_ns: int
    quiet_bytes: int = 0


class _Sizes:
    """The size words of the group slots."""

    def __init__(self, segment: Segment) -> None:
        self._words = segment.words
        layout = segment.layout
        self._at = [layout.group(slot) + at.P_SIZE for slot in range(layout.shards)]

    def __getitem__(self, slot: int, /) -> int:
        return int(self._words[self._at[slot]])

    def __setitem__(self, slot: int, size: int, /) -> None:
        self._words[self._at[slot]] = size


class GroupTable:
    """The group words, as members, status and supervisor read them."""

    def __init__(self, segment: Segment) -> None:
        self.words = segment.words
        self.layout = segment.layout
        self.map = BuddyMap(_Sizes(segment), segment.layout.shards)
        self._shard_at = [segment.layout.shard(s) for s in range(segment.layout.shards)]

    def start(self) -> None:
        """Makes one group of all shards, before any shard runs."""
        self.map.start()

    def word(self, group: int, word: int) -> int:
        """A word of a group's slot."""
        return int(self.words[self.layout.group(group) + word])

    def store(self, group: int, word: int, value: int) -> None:
        """Stores a word of a group's slot; the caller holds its lock."""
        self.words[self.layout.group(group) + word] = value

    def pending(self, members: range) -> list[tuple[int, int]]:
        """For each member, where its pending bytes begin and how many there are.

        Computed, never stored. Each look reads this of every member, so it is one slice per word.
        """
        # A holder that died before it stored ``pulled`` leaves it below ``committed``, where the
        # ring may have wrapped since: nothing would be due there, and no pull would repair it.
        starts = map(max, self.column(at.S_PULLED, members), self.column(at.S_COMMITTED, members))
        heads = self.column(at.S_HEAD, members)
        return [
            (start, head - start if head > start else 0)
            for start, head in zip(starts, heads, strict=True)
        ]

    def shard_word(self, shard: int, word: int) -> int:
        """A word of a shard."""
        return int(self.words[self._shard_at[shard] + word])

    def column(self, word: int, members: range) -> Iterable[int]:
        """One word of each member."""
        first, stop = self.layout.shard(members.start), self.layout.shard(members.stop)
        return self.words[first + word : stop : at.SHARD_WORDS]

    def backlog_bytes(self, group: Group) -> int:
        """A group's backlog."""
        return sum(size_bytes for _, size_bytes in self.pending(self.map.members(group)))

    def inside(self) -> set[int]:
        """The shards that hold a group's lock, according to the marks."""
        first, stop = self.layout.group(0), self.layout.group(self.layout.shards)
        return {mark - 1 for mark in self.words[first + at.P_MARK : stop : at.GROUP_WORDS] if mark}

    def check_invariants(self) -> None:
        """Raises AssertionError unless map and ring words are legal. Call it while shards rest."""
        self.map.check_invariants()
        for shard, base in enumerate(self._shard_at):
            committed, pulled, head = (
                self.words[base + word] for word in (at.S_COMMITTED, at.S_PULLED, at.S_HEAD)
            )
            order = f"shard {shard}: committed {committed}, pulled {pulled}, head {head}"
            assert committed <= pulled <= head, order

    def upload_turn(self, group: Group) -> int:
        """The member whose upload turn it is."""
        found = self.word(group.group, at.P_UPLOAD_TURN)
        return found if found in self.map.members(group) else group.group


class Puller:
    """One shard's part in its group."""

    def __init__(
        self,
        segment: Segment,
        shard: int,
        lock_file: LockFile,
        bells: Doorbells,
        leases: LeaseTable,
        policy: Policy,
        requests: MemberRequests | None = None,
    ) -> None:
        self.shard = shard
        self.table = GroupTable(segment)
        self._segment = segment
        self._words = segment.words
        self._locks = lock_file
        self._bells = bells
        self._leases = leases
        self._policy = policy
        self._requests = requests or MemberRequests(
            [RingReader(segment, s) for s in range(segment.layout.shards)]
        )

    def _view(self, group: Group, members: range) -> GroupView:
        table = self.table
        oldest = self._requests.oldest
        backlog = 0
        oldest_ns = waits_ns = urgent_ns = upload_turn.NEVER
        urgent_ends = table.column(at.S_URGENT_END, members)
        for member, (start, size_bytes), urgent_end in zip(
            members, table.pending(members), urgent_ends, strict=True
        ):
            if size_bytes:
                backlog += size_bytes
                if urgent_end > start:
                    urgent_ns = min(urgent_ns, table.shard_word(member, at.S_URGENT_NS))
                known = oldest[member]
                if known.start != start or known.arrival_ns == upload_turn.NEVER:
                    known = self._requests.oldest_of(member, start, start + size_bytes)
                if known.arrival_ns < oldest_ns:  # min() would take twice as long
                    oldest_ns = known.arrival_ns
                if known.waits_ns < waits_ns:
                    waits_ns = known.waits_ns
        return GroupView(
            me=self.shard,
            leader=group.group,
            members=len(members),
            upload_turn=table.upload_turn(group),
            backlog_bytes=backlog if min(oldest_ns, waits_ns) < upload_turn.NEVER else 0,
            oldest_arrival_ns=oldest_ns,
            last_pull_ns=table.word(group.group, at.P_LAST_PULL_NS),
            last_change_ns=table.word(group.group, at.P_LAST_CHANGE_NS),
            window_ns=int(self._words[at.G_WINDOW_NS]),
            free_slots=len(self._leases.free_slots(self.shard)),
            can_split=table.map.can_split(group),
            oldest_waits_ns=waits_ns,
            urgent_ns=urgent_ns,
        )

    def look(self, now_ns: int) -> Look:
        """Does what the state of the group demands of this shard now."""
        target = self._words[at.G_TARGET_BYTES]
        if target != self._policy.object_bytes_target and target:
            self._policy = replace(self._policy, object_bytes_target=int(target))
        self._leases.free_done(self.shard)
        for _ in range(_TRIES_MAX):
            group = self.table.map.group_of(self.shard)
            members = self.table.map.members(group)
            view = self._view(group, members)
            decision = upload_turn.decide(view, now_ns, self._policy)
            if decision.do is UploadAction.IDLE:
                return Look([], self._try_merge(group, now_ns))
            if decision.do is UploadAction.WAIT:
                left = max(0, self._policy.object_bytes_target - view.backlog_bytes)
                if view.oldest_arrival_ns == upload_turn.NEVER:
                    left = 0  # what is pending waits; the next request may not
                again_at_ns = min(decision.at_ns, self._try_merge(group, now_ns))
                return Look([], again_at_ns, left // view.members)
            if decision.do is UploadAction.WAKE:
                self._bells.ring(view.upload_turn)
                return Look([], decision.at_ns)
            if decision.do is UploadAction.PASS_TURN:
                return Look([], self._pass_upload_turn(group, view, now_ns))
            if not self._locks.try_lock(locks.GROUP + group.group):
                return Look([], now_ns + LOCK_RETRY_NS)
            try:
                if self._changed(group, view.upload_turn):
                    continue
                self._enter(group)
                if decision.do is UploadAction.SPLIT:
                    group = self._split(group, now_ns)
                pulled = self._pull(group, now_ns)
                next_upload_turn = self._advance_upload_turn(group)
                self.table.store(view.leader, at.P_MARK, 0)
            finally:
                self._locks.unlock(locks.GROUP + view.leader)
            # Without a ring, what was published since the scan would wait for the next request.
            if next_upload_turn != self.shard and self.table.backlog_bytes(group):
                self._bells.ring(next_upload_turn)
            if decision.do is UploadAction.SPLIT:
                self._bells.ring(view.leader + group.size)
            return Look(pulled, now_ns if self.table.backlog_bytes(group) else upload_turn.NEVER)
        return Look([], now_ns + LOCK_RETRY_NS)

    def enter(self) -> Group | None:
        """Locks this shard's group for a purpose other than a pull, and repairs it if necessary.

        None if another shard holds the lock or the map has just changed: try again in 5 ms. The
        caller must call ``unmark`` when it has finished, and ``unlock`` in any case.
        """
        group = self.table.map.group_of(self.shard)
        if not self._locks.try_lock(locks.GROUP + group.group):
            return None
        if self.table.map.group_of(self.shard) != group:
            self._locks.unlock(locks.GROUP + group.group)
            return None
        self._enter(group)
        return group

    def unmark(self, group: Group) -> None:
        """Removes the mark that ``enter`` left."""
        self.table.store(group.group, at.P_MARK, 0)

    def unlock(self, group: Group) -> None:
        """Releases the lock that ``enter`` took."""
        self._locks.unlock(locks.GROUP + group.group)

    def _changed(self, group: Group, seen_upload_turn: int) -> bool:
        """Under the lock: whether map or upload turn have changed since the decision."""
        table = self.table
        return (
            table.map.group_of(group.group) != group or table.upload_turn(group) != seen_upload_turn
        )

    def _enter(self, group: Group) -> None:
        """Leaves this shard's mark, after repairing what a holder that died here left."""
        if self.table.word(group.group, at.P_MARK):
            self._repair(group)
        self.table.store(group.group, at.P_MARK, self.shard + 1)

    def _repair(self, group: Group) -> None:
        # Leases first. A lease that is committed in between is missing there, but then
        # ``committed`` has moved. In the opposite order its range would be pulled again.
        ends = self._leases.leased_ends()
        for member in self.table.map.members(group):
            base = self._segment.layout.shard(member)
            leased, committed = ends[member], int(self._words[base + at.S_COMMITTED])
            self._words[base + at.S_PULLED] = max(leased, committed)

    def _split(self, group: Group, now_ns: int) -> Group:
        table = self.table
        upper = table.map.halves(group)[1].group
        table.store(upper, at.P_UPLOAD_TURN, upper)
        table.store(upper, at.P_LAST_CHANGE_NS, now_ns)
        table.store(upper, at.P_LAST_PULL_NS, table.word(group.group, at.P_LAST_PULL_NS))
        table.store(upper, at.P_MARK, 0)
        lower, _ = table.map.split(group)
        table.store(lower.group, at.P_LAST_CHANGE_NS, now_ns)
        table.store(lower.group, at.P_SPLITS, table.word(lower.group, at.P_SPLITS) + 1)
        return lower

    def _pull(self, group: Group, now_ns: int) -> list[Pulled]:
        slots = self._leases.free_slots(self.shard)
        target = self._policy.object_bytes_target
        if self.table.backlog_bytes(group) >= target:
            self.table.store(group.group, at.P_LAST_FULL_NS, now_ns)
        members = self.table.map.members(group)
        in_order = [*range(self.shard, members.stop), *range(members.start, self.shard)]
        pending = [self._pending(member) for member in in_order]
        leases = cut(pending, len(slots), target)
        pulled = [
            self._take(slot, wanted)
            for slot, wanted in zip(slots, leases, strict=False)
            if wanted.ranges
        ]
        for taken in pulled:
            for leased in taken.lease.ranges:
                self._words[self._segment.layout.shard(leased.shard) + at.S_PULLED] = leased.end
        if pulled:
            self.table.store(group.group, at.P_LAST_PULL_NS, now_ns)
        else:  # what was known to wait has become void; the next look must not come for it again
            self._requests.forget()
        return pulled

    def _take(self, slot: int, wanted: LeaseRequests) -> Pulled:
        lease_id = self._segment.next_lease_id(self.shard)
        seen = int(self._words[at.G_COMMITS])
        lease = self._leases.fill(self.shard, slot, lease_id, wall_ms(), wanted.ranges, seen)
        return Pulled(lease, wanted.requests)

    def _pending(self, member: int) -> Pending:
        pulled = int(self._words[self._segment.layout.shard(member) + at.S_PULLED])
        return self._requests.pending(member, pulled)

    def _advance_upload_turn(self, group: Group) -> int:
        members = self.table.map.members(group)
        following = self.shard + 1 if self.shard + 1 < members.stop else members.start
        self.table.store(group.group, at.P_UPLOAD_TURN, following)
        return following

    def _pass_upload_turn(self, group: Group, view: GroupView, now_ns: int) -> int:
        """Passes the upload turn to the next member with a free lease slot; waits if none has."""
        members = self.table.map.members(group)
        after = [*range(self.shard + 1, members.stop), *range(members.start, self.shard)]
        able = next((member for member in after if self._leases.free_slots(member)), None)
        if able is None:
            return upload_turn.NEVER  # the commit of each slot rings its shard's bell
        if not self._locks.try_lock(locks.GROUP + group.group):
            return now_ns + LOCK_RETRY_NS
        try:
            if not self._changed(group, view.upload_turn):
                self.table.store(group.group, at.P_UPLOAD_TURN, able)
        finally:
            self._locks.unlock(locks.GROUP + group.group)
        self._bells.ring(able)
        return now_ns + LOCK_RETRY_NS

    def _try_merge(self, low: Group, now_ns: int) -> int:
        """Absorbs the upper buddy if this shard leads the lower one and both have been empty."""
        if low.group != self.shard:
            return upload_turn.NEVER
        high = self.table.map.upper_buddy(low)
        if high is None:
            # A split buddy may become whole again, and nobody rings for that.
            is_lower = low.size < self.table.map.slots and not low.group % (2 * low.size)
            pause = self._policy.hysteresis_ns(int(self._words[at.G_WINDOW_NS]))
            return now_ns + pause if is_lower else upload_turn.NEVER
        when = self._merge_at_ns(low, high)
        if when > now_ns:
            pause = self._policy.hysteresis_ns(int(self._words[at.G_WINDOW_NS]))
            return min(when, now_ns + pause)
        if not self._locks.try_lock(locks.GROUP + low.group):
            return now_ns + LOCK_RETRY_NS
        try:
            if not self._locks.try_lock(locks.GROUP + high.group):
                return now_ns + LOCK_RETRY_NS
            try:
                self._merge(low, high, now_ns)
            finally:
                self._locks.unlock(locks.GROUP + high.group)
        finally:
            self._locks.unlock(locks.GROUP + low.group)
        return now_ns + LOCK_RETRY_NS

    def _merge(self, low: Group, high: Group, now_ns: int) -> None:
        table = self.table
        if table.map.upper_buddy(low) != high or self._merge_at_ns(low, high) > now_ns:
            return
        self._enter(low)
        self._enter(high)
        last_pulls = [table.word(group.group, at.P_LAST_PULL_NS) for group in (low, high)]
        table.store(low.group, at.P_LAST_PULL_NS, max(last_pulls))
        table.store(low.group, at.P_LAST_CHANGE_NS, now_ns)
        table.store(low.group, at.P_UPLOAD_TURN, low.group)
        table.store(low.group, at.P_MERGES, table.word(low.group, at.P_MERGES) + 1)
        table.map.merge(low, high)
        table.store(high.group, at.P_MARK, 0)
        table.store(low.group, at.P_MARK, 0)

    def _merge_at_ns(self, low: Group, high: Group) -> int:
        window_ns = int(self._words[at.G_WINDOW_NS])
        return upload_turn.merge_at_ns(
            self._buddy_view(low), self._buddy_view(high), window_ns, self._policy
        )

    def _buddy_view(self, group: Group) -> BuddyView:
        return BuddyView(
            self.table.backlog_bytes(group),
            self.table.word(group.group, at.P_LAST_FULL_NS),
            self.table.word(group.group, at.P_LAST_CHANGE_NS),
        )
