"""The buddy map: the published maps, true buddies only, and any prefix of its stores."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uploader.groups.buddy import BuddyMap, Group

SHARDS = [*range(1, 17), 24, 32]


def started(shards: int) -> BuddyMap:
    buddies = BuddyMap([0] * shards, shards)
    buddies.start()
    return buddies


def ids(buddies: BuddyMap) -> list[int]:
    """A map as the article writes it: every shard's group."""
    return [buddies.group_of(shard).group for shard in range(buddies.shards)]


def test_splits_give_the_documented_maps_in_order() -> None:
    buddies = started(8)
    seen = [ids(buddies)]
    for group in (0, 0, 0, 2, 4, 4, 6):
        buddies.split(buddies.group_of(group))
        seen.append(ids(buddies))
    assert seen == [
        [0, 0, 0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 4, 4, 4, 4],
        [0, 0, 2, 2, 4, 4, 4, 4],
        [0, 1, 2, 2, 4, 4, 4, 4],
        [0, 1, 2, 3, 4, 4, 4, 4],
        [0, 1, 2, 3, 4, 4, 6, 6],
        [0, 1, 2, 3, 4, 5, 6, 6],
        [0, 1, 2, 3, 4, 5, 6, 7],
    ]


def test_lower_buddy_absorbs_only_its_true_buddy() -> None:
    buddies = started(8)
    for group in (0, 0, 4):
        buddies.split(buddies.group_of(group))
    assert ids(buddies) == [0, 0, 2, 2, 4, 4, 6, 6]
    wanted = {0: Group(2, 2), 2: None, 4: Group(6, 2), 6: None}
    for group, buddy in wanted.items():
        assert buddies.upper_buddy(Group(group, 2)) == buddy
    with pytest.raises(ValueError, match="is not the buddy"):
        buddies.merge(Group(2, 2), Group(4, 2))  # neighbors of equal size, not buddies
    with pytest.raises(ValueError, match="is not the buddy"):
        buddies.merge(Group(2, 2), Group(0, 2))  # the upper one may not start it
    assert buddies.merge(Group(0, 2), Group(2, 2)) == Group(0, 4)
    # The buddy of 0-3 is 4-7 whole, not its half 4-5.
    assert buddies.upper_buddy(Group(0, 4)) is None
    with pytest.raises(ValueError, match="is not the buddy"):
        buddies.merge(Group(0, 4), Group(4, 2))
    buddies.merge(Group(4, 2), Group(6, 2))
    assert buddies.upper_buddy(Group(0, 4)) == Group(4, 4)


def test_a_group_of_one_shard_cannot_be_halved_whatever_its_size_says() -> None:
    buddies = started(3)
    lower, upper = buddies.split(Group(0, 4))
    assert (lower, upper) == (Group(0, 2), Group(2, 2))
    assert list(buddies.members(upper)) == [2]
    assert not buddies.can_split(upper)
    with pytest.raises(ValueError, match="group 2 of size 2 cannot be halved"):
        buddies.split(upper)
    assert not started(1).can_split(Group(0, 1))


@pytest.mark.parametrize(
    ("shards", "maps"),
    [
        (3, ["000", "002", "012"]),
        (6, ["000000", "000044", "002244", "012244", "012344", "012345"]),
        (
            12,
            ["0" * 12, "0" * 8 + "8888", "00004444" + "8888", "0022" + "4444" + "8888"],
        ),
    ],
)
def test_the_map_of_other_numbers_of_shards_is_the_power_of_two_map_cut_off(
    shards: int, maps: list[str]
) -> None:
    buddies = started(shards)
    seen = ["".join(map(str, ids(buddies)))]
    while len(seen) < len(maps):
        # The first of the largest groups.
        groups = [group for group in buddies.groups() if buddies.can_split(group)]
        buddies.split(max(groups, key=lambda g: (len(buddies.members(g)), -g.group)))
        seen.append("".join(map(str, ids(buddies))))
    assert seen == maps


@pytest.mark.parametrize("shards", SHARDS)
def test_every_number_of_shards_can_reach_a_group_for_each_shard_and_come_back(
    shards: int,
) -> None:
    buddies = started(shards)
    while splittable := [group for group in buddies.groups() if buddies.can_split(group)]:
        buddies.split(splittable[-1])
        buddies.check_invariants()
    assert ids(buddies) == list(range(shards))
    while pairs := [(g, b) for g in buddies.groups() if (b := buddies.upper_buddy(g)) is not None]:
        buddies.merge(*pairs[0])
        buddies.check_invariants()
    assert buddies.groups() == [Group(0, buddies.slots)]


class RecordedSizes(list[int]):
    """Size words that remember every store."""

    def __init__(self, shards: int) -> None:
        super().__init__([0] * shards)
        self.stores: list[tuple[int, int]] = []

    def __setitem__(self, slot, size):  # type: ignore[no-untyped-def]
        self.stores.append((slot, size))
        super().__setitem__(slot, size)


def tiles(sizes: list[int], shards: int) -> list[Group]:
    """The groups of a map, found without the code under test but for the rule of cover."""
    slots = 1
    while slots < shards:
        slots *= 2
    found: list[Group] = []
    for shard in range(shards):
        covering = [
            Group(slot, sizes[slot]) for slot in range(shards) if slot <= shard < slot + sizes[slot]
        ]
        group = max(covering, key=lambda each: each.size)
        if group not in found:
            found.append(group)
    position = 0
    for group in found:
        assert group.group == position
        assert group.size & (group.size - 1) == 0
        assert group.group % group.size == 0
        assert group.size <= slots
        position += group.size
    assert position >= shards
    return found


@given(
    shards=st.sampled_from(SHARDS),
    seed=st.integers(0, 2**32),
    steps=st.integers(0, 40),
    merge_share=st.floats(0, 1),
)
def test_after_any_history_the_groups_tile_the_shards_and_any_prefix_of_stores_is_a_legal_map(
    shards: int, seed: int, steps: int, merge_share: float
) -> None:
    rng = random.Random(seed)
    sizes = RecordedSizes(shards)
    buddies = BuddyMap(sizes, shards)
    buddies.start()
    for _ in range(steps):
        before_sizes, before = list(sizes), buddies.groups()
        sizes.stores.clear()
        pairs = [(g, b) for g in before if (b := buddies.upper_buddy(g)) is not None]
        splittable = [group for group in before if buddies.can_split(group)]
        if pairs and (rng.random() < merge_share or not splittable):
            low, high = rng.choice(pairs)
            assert low.size == high.size or high.group + high.size > shards
            assert low.group % (2 * low.size) == 0
            assert high.group == low.group + low.size
            merged = buddies.merge(low, high)
            assert list(buddies.members(merged)) == [
                *buddies.members(low),
                *buddies.members(high),
            ]
            assert len(sizes.stores) == 1
        elif splittable:
            group = rng.choice(splittable)
            lower, upper = buddies.split(group)
            assert buddies.members(lower)
            assert buddies.members(upper)
            assert lower.size == upper.size
            assert buddies.upper_buddy(lower) == upper
        after = buddies.groups()
        buddies.check_invariants()
        assert tiles(sizes, shards) == after
        replayed = list(before_sizes)
        for slot, size in sizes.stores:
            replayed[slot] = size
            assert tiles(replayed, shards) in (before, after)
