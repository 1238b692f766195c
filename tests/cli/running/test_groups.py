"""``headgate groups``: the buddy tree."""

from __future__ import annotations

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from commands.running.groups import draw
from daemon.schemas.api import GroupStatus
from tests.cli.running.test_status import STATUS
from tests.scripted import Answer, run, says


def of(
    group: int,
    shards: list[int],
    turn: int = 0,
    backlog_bytes: int = 0,
    last_upload_age_ms: int | None = None,
    last_change_age_ms: int | None = None,
    splits: int = 0,
    merges: int = 0,
) -> GroupStatus:
    """A group of shards."""
    return GroupStatus(
        group, shards, turn, backlog_bytes, last_upload_age_ms, last_change_age_ms, splits, merges
    )


def test_groups_draws_the_tree_and_gives_the_list_as_json() -> None:
    with says(Answer(200, STATUS)) as server:
        drawn, listed = run(server, "groups"), run(server, "groups", "-o", "json")
    assert drawn.stdout == (
        "shards 0-1  group 0  [0 1*]  backlog 1.5 KiB  uploaded 40 ms ago  changed 1 min 30 s ago"
        "  splits 0  merges 1\n"
    )
    assert json.loads(listed.stdout) == STATUS["groups"]


def test_the_tree_of_one_group_is_one_line() -> None:
    group = of(0, [0, 1, 2, 3], 2, 0, 1_500, None, 0, 0)
    assert draw([group], 4) == (
        "shards 0-3  group 0  [0 1 2* 3]  backlog 0 B  uploaded 1.5 s ago  changed never"
        "  splits 0  merges 0"
    )


def test_the_tree_shows_splits_members_turns_and_backlogs() -> None:
    groups = [
        of(0, [0, 1], 1, 9 << 20, 40, 8_000, 2, 1),
        of(2, [2], 2, 512, None, 8_000, 1, 0),
        of(3, [3], 3),
    ]
    assert draw(groups, 4).split("\n") == [
        "shards 0-3     split",
        (
            "├─ shards 0-1  group 0  [0 1*]  backlog 9.0 MiB  uploaded 40 ms ago"
            "  changed 8.0 s ago  splits 2  merges 1"
        ),
        "└─ shards 2-3  split",
        (
            "   ├─ shard 2  group 2  [2*]  backlog 512 B  uploaded never"
            "  changed 8.0 s ago  splits 1  merges 0"
        ),
        (
            "   └─ shard 3  group 3  [3*]  backlog 0 B  uploaded never  changed never"
            "  splits 0  merges 0"
        ),
    ]


def test_with_three_shards_the_tree_is_the_one_of_four_cut_off() -> None:
    nodes = [line.split("  ")[0] for line in draw([of(0, [0, 1]), of(2, [2])], 3).split("\n")]
    assert nodes == ["shards 0-2", "├─ shards 0-1", "└─ shard 2"]
    assert draw([of(0, [0, 1, 2], 1)], 3).startswith("shards 0-2  group 0  [0 1* 2]")


def test_a_half_without_shards_is_not_drawn() -> None:
    groups = [of(0, [0, 1, 2, 3]), of(4, [4, 5])]
    nodes = [line.split("  ")[0] for line in draw(groups, 6).split("\n")]
    assert nodes == ["shards 0-5", "├─ shards 0-3", "└─ shards 4-5"]


def test_a_large_group_shows_its_range_and_turn() -> None:
    assert "[0..31, turn 7*]" in draw([of(0, list(range(32)), 7)], 32)


def test_a_group_that_is_missing_from_the_snapshot_is_drawn_as_changing() -> None:
    lines = draw([of(0, [0, 1])], 4).split("\n")
    assert lines[2] == "└─ shards 2-3  changing"


@st.composite
def maps(draw_: st.DrawFn) -> tuple[int, list[GroupStatus]]:
    """A number of shards and a legal map over it."""
    shard_count = draw_(st.integers(1, 40))
    groups: list[GroupStatus] = []

    def cover(low: int, size: int) -> None:
        if low >= shard_count:
            return
        while size > 1 and low + size // 2 >= shard_count:
            size //= 2  # the same shards without an upper half that has none
        if size > 1 and draw_(st.booleans()):
            cover(low, size // 2)
            cover(low + size // 2, size // 2)
        else:
            groups.append(of(low, list(range(low, min(low + size, shard_count))), low))

    cover(0, 1 << math.ceil(math.log2(shard_count)) if shard_count > 1 else 1)
    return shard_count, groups


@given(maps())
def test_every_group_of_a_legal_map_is_drawn_once_and_nothing_is_changing(
    case: tuple[int, list[GroupStatus]],
) -> None:
    shard_count, groups = case
    lines = draw(groups, shard_count).split("\n")
    drawn = [line for line in lines if "  group " in line]
    assert [f"  group {group.group}  [" in line for group, line in zip(groups, drawn, strict=True)]
    assert not any("changing" in line for line in lines)
    assert len(lines) == 2 * len(groups) - 1
