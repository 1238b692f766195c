"""Memory limits of control groups, versions 1 and 2, on a tree of files and on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemon.governor.cgroup import LOOK_AGAIN_NS, CgroupMemory, limited_groups
from tests.daemon.governor.cgroups import MIB, FakeMachine


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path)


def share(machine: FakeMachine, segment_mib: int = 0) -> float | None:
    return CgroupMemory(machine.root).share(segment_mib * MIB, 0)


@pytest.mark.parametrize(
    ("max_mib", "high_mib", "limit_mib"),
    [(1000, None, 850), (None, 600, 600), (1000, 600, 600), (1000, 900, 850)],
)
def test_version_2_has_the_lower_of_high_and_85_percent_of_max(
    machine: FakeMachine, max_mib: int | None, high_mib: int | None, limit_mib: int
) -> None:
    machine.v2("/system.slice/headgate.service")
    machine.group_v2(
        "/system.slice/headgate.service", used_mib=300, max_mib=max_mib, high_mib=high_mib
    )
    assert share(machine) == pytest.approx(300 / limit_mib)


def test_version_1_has_85_percent_of_its_limit_and_the_lines_of_its_tree(
    machine: FakeMachine,
) -> None:
    machine.v1("/docker/abc")
    machine.group_v1("/docker/abc", limit_mib=1000, used_mib=400, inactive_mib=60)
    assert share(machine) == pytest.approx(340 / 850)


@pytest.mark.parametrize("version", [1, 2])
def test_the_page_cache_and_the_segment_are_not_what_can_run_out(
    machine: FakeMachine, version: int
) -> None:
    if version == 1:
        machine.v1("/h")
        machine.group_v1("/h", limit_mib=1000, used_mib=700, inactive_mib=200, shmem_mib=130)
    else:
        machine.v2("/h")
        machine.group_v2("/h", max_mib=1000, used_mib=700, inactive_mib=200, shmem_mib=130)
    assert share(machine, 128) == pytest.approx((700 - 200 - 128) / (850 - 128))
    assert share(machine, 300) == pytest.approx((700 - 200 - 130) / (850 - 300)), (
        "only what is there of it"
    )


def test_each_limit_on_the_way_up_counts_and_the_closest_wins(machine: FakeMachine) -> None:
    machine.v2("/a/b/c")
    machine.group_v2("", used_mib=5000)
    machine.group_v2("/a", used_mib=900, max_mib=1000)
    machine.group_v2("/a/b", used_mib=500)
    machine.group_v2("/a/b/c", used_mib=100, max_mib=1000)
    assert share(machine) == pytest.approx(900 / 850)
    assert [group.limit_bytes for group in limited_groups(machine.root)] == [850 * MIB] * 2


@pytest.mark.parametrize("version", [1, 2])
def test_without_a_limit_there_is_no_share(machine: FakeMachine, version: int) -> None:
    if version == 1:
        machine.v1("/h")
        machine.group_v1("/h", limit_mib=None, used_mib=700)
    else:
        machine.v2("/h")
        machine.group_v2("/h", used_mib=700)
    assert share(machine) is None


@pytest.mark.parametrize(
    ("place", "mount_root"),
    [
        ("/docker/abc", "/docker/abc"),  # the host's names, the container's mount
        ("/", "/"),  # a namespace of its own
        ("/../../init.scope", "/"),  # moved out of the namespace's root
    ],
)
def test_in_a_container_the_groups_are_found_below_the_mount(
    machine: FakeMachine, place: str, mount_root: str
) -> None:
    machine.v2(place, mount_root)
    machine.group_v2("", used_mib=85, max_mib=1000)
    assert share(machine) == pytest.approx(0.1)


def test_a_machine_without_groups_for_memory_has_no_share(machine: FakeMachine) -> None:
    machine.process("1:cpu:/\n", "/ /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu")
    assert share(machine) is None
    machine.v2("/gone")
    assert share(machine) is None


def test_limits_that_change_are_seen_after_a_second(machine: FakeMachine) -> None:
    machine.v2("/h")
    machine.group_v2("/h", used_mib=85)
    memory = CgroupMemory(machine.root)
    assert memory.share(0, 0) is None
    machine.group_v2("/h", used_mib=85, max_mib=1000)
    assert memory.share(0, LOOK_AGAIN_NS - 1) is None
    assert memory.share(0, LOOK_AGAIN_NS) == pytest.approx(0.1)
    machine.group_v2("/h", used_mib=170, max_mib=1000)
    assert memory.share(0, LOOK_AGAIN_NS + 1) == pytest.approx(0.2), "usage is always new"


def test_a_limit_below_the_segment_is_reached(machine: FakeMachine) -> None:
    machine.v2("/h")
    machine.group_v2("/h", used_mib=120, shmem_mib=100, max_mib=100)
    found = share(machine, 100)
    assert found is not None and found > 1


def test_what_was_granted_is_on_both_sides_until_less_is_used(machine: FakeMachine) -> None:
    machine.v2("/h")
    machine.group_v2("/h", used_mib=750, shmem_mib=100, max_mib=1000)
    memory = CgroupMemory(machine.root)
    assert memory.grant(100 * MIB, 0) == 650 * MIB
    assert memory.share(100 * MIB, 0) == 0
    assert memory.grant(100 * MIB, 0) == 0, "no more than before"
    machine.group_v2("/h", used_mib=800, shmem_mib=100, max_mib=1000)
    assert memory.share(100 * MIB, 0) == pytest.approx(50 / 100), "850 less 100 and 650"
    machine.group_v2("/h", used_mib=400, shmem_mib=100, max_mib=1000)
    assert memory.share(100 * MIB, 0) == 0
    machine.group_v2("/h", used_mib=800, shmem_mib=100, max_mib=1000)
    assert memory.share(100 * MIB, 0) == pytest.approx(400 / 450), "300 are left of the grant"


def test_what_the_closest_limit_leaves_counts_the_segment_as_used(machine: FakeMachine) -> None:
    machine.v2("/a/h")
    machine.group_v2("/a", used_mib=800, shmem_mib=100, max_mib=1000)
    machine.group_v2("/a/h", used_mib=400, shmem_mib=100, max_mib=800)
    memory = CgroupMemory(machine.root)
    memory.share(100 * MIB, 0)
    assert memory.left_bytes == 50 * MIB
    machine.group_v2("/a", used_mib=400, max_mib=1000)
    memory.share(100 * MIB, 0)
    assert memory.left_bytes == 280 * MIB


def test_nothing_is_granted_above_the_limit(machine: FakeMachine) -> None:
    machine.v2("/h")
    machine.group_v2("/h", used_mib=850, max_mib=1000)
    memory = CgroupMemory(machine.root)
    assert memory.grant(0, 0) == 0
    assert memory.share(0, 0) == 1


def test_the_groups_of_this_process_can_be_read() -> None:
    for group in limited_groups():
        assert group.used_bytes(0) > 0
