"""The buddy map: which shards upload together.

A group is an aligned run of a power of two of shard slots; its id is its first shard. The map is
one size word per slot, 0 or a power of two: of the slots whose run covers a shard, the largest is
its group. If the number of shards is not a power of two, the map is that of the next power of two,
cut off: a group's size may count slots without a shard. Such a group is halved so that both halves
have a shard, and a merge restores its full size in one step: of 12 shards, 8 to 11 are the group 8
of size 8, then the groups 8 and 10 of size 2.

    start    [8, -, -, -, -, -, -, -]    one group
    split 0  [4, -, -, -, 4, -, -, -]    upper slot first, then the lower's size: any prefix of
    split 0  [2, -, 2, -, 4, -, -, -]    these stores is a legal map
    merge 0  [4, -, 2, -, 4, -, -, -]    one store; the old size in slot 2 is covered: no meaning

Source: the buddy system (Knowlton 1965; Knuth, TAOCP 1, 2.5), applied to upload groups as in
Redpanda's note on Cloud Topics' write-request scheduler.

Writers hold locks: the group's for a split, those of both groups for a merge. This module takes no
lock and decides nothing (see uploader/groups/upload_turn.py).
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from shards.barrier import keep_order


class SizeWords(Protocol):
    """One size word per shard slot; in the daemon a view of shared memory."""

    def __getitem__(self, slot: int, /) -> int: ...

    def __setitem__(self, slot: int, size: int, /) -> None: ...


class Group(NamedTuple):
    """A group: its id, which is its first shard, and its size in slots, a power of two."""

    group: int
    size: int


class BuddyMap:
    """The map, over its size words."""

    def __init__(self, sizes: SizeWords, shards: int) -> None:
        self._sizes = sizes
        self.shards = shards
        self.slots = 1 << (shards - 1).bit_length()

    def start(self) -> None:
        """Puts all shards into one group."""
        for slot in range(1, self.shards):
            self._sizes[slot] = 0
        self._sizes[0] = self.slots

    def group_of(self, shard: int) -> Group:
        """The group that covers a shard."""
        size = self.slots
        while size:
            slot = shard & -size
            if self._sizes[slot] >= size:
                return Group(slot, size)
            size >>= 1
            keep_order()  # the upper slot of a split was filled before its lower one shrank
        raise ValueError(f"shard {shard} is in no group: the map was never started")

    def members(self, group: Group) -> range:
        """The shards of a group that exist."""
        return range(group.group, min(group.group + group.size, self.shards))

    def groups(self) -> list[Group]:
        """All groups in ascending order."""
        found = []
        shard = 0
        while shard < self.shards:
            group = self.group_of(shard)
            found.append(group)
            shard = group.group + group.size
        return found

    def can_split(self, group: Group) -> bool:
        """Whether the group has more than one shard: both halves must have one."""
        return len(self.members(group)) > 1

    def halves(self, group: Group) -> tuple[Group, Group]:
        """The lower and the upper half that a group splits into."""
        if not self.can_split(group):
            raise ValueError(f"group {group.group} of size {group.size} cannot be halved")
        half = group.size // 2
        while group.group + half >= self.shards:
            half //= 2
        return Group(group.group, half), Group(group.group + half, half)

    def split(self, group: Group) -> tuple[Group, Group]:
        """Halves a group; the caller holds its lock. Returns the lower and the upper half."""
        lower, upper = self.halves(group)
        self._sizes[upper.group] = upper.size
        keep_order()
        self._sizes[lower.group] = lower.size
        return lower, upper

    def upper_buddy(self, group: Group) -> Group | None:
        """The buddy of the same size that this group may absorb as the lower one.

        None if the group is itself an upper half, covers all shards, or its buddy is split or has
        no shard.
        """
        if group.size == self.slots or group.group % (2 * group.size):
            return None
        high = group.group + group.size
        if high >= self.shards or self.group_of(high) != Group(high, group.size):
            return None
        return Group(high, group.size)

    def merge(self, low: Group, high: Group) -> Group:
        """Joins two buddies; the caller holds both locks."""
        if self.upper_buddy(low) != high:
            raise ValueError(f"{high} is not the buddy that {low} may absorb")
        size = 2 * low.size
        while size < self.slots and not low.group % (2 * size) and low.group + size >= self.shards:
            size *= 2  # the next upper buddy has no shard
        merged = Group(low.group, size)
        self._sizes[low.group] = merged.size
        return merged

    def check_invariants(self) -> None:
        """Raises AssertionError unless aligned groups, powers of two, tile the shards."""
        next_shard = 0
        for group in self.groups():
            assert group.size & (group.size - 1) == 0, f"the size of {group} is not a power of two"
            assert group.group % group.size == 0, f"{group} is not aligned"
            assert group.group == next_shard, f"{group} does not follow shard {next_shard}"
            next_shard = group.group + group.size
        assert next_shard >= self.shards
        for shard in range(self.shards):
            size = self._sizes[shard]
            assert size & (size - 1) == 0, f"slot {shard} has size {size}"
            assert size == 0 or shard % size == 0, f"slot {shard} has size {size}"
