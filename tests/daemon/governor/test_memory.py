"""The memory sensor: a limit of the kernel, or else the machine; and freed memory
goes back to the kernel while memory is short."""

from __future__ import annotations

import math
import os
import random
from pathlib import Path

import pytest

from daemon.governor.cgroup import CgroupMemory
from daemon.governor.memory import (
    EVERY_NS,
    KILLED_FIRST,
    PRESSURE_MIN,
    FreedMemory,
    MachineMemory,
    MemorySensor,
    allocated_bytes,
    be_killed_first,
    machine_memory,
)
from tests.daemon.governor.cgroups import MIB, FakeMachine


def sensor(
    machine: FakeMachine, *, allocated_mib: int = 100, total_mib: int = 1000, available_mib: int = 0
) -> MemorySensor:
    memory = MachineMemory(total_mib * MIB, available_mib * MIB)
    return MemorySensor(0, lambda: allocated_mib * MIB, CgroupMemory(machine.root), lambda: memory)


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    made = FakeMachine(tmp_path)
    made.v2("/h")
    return made


def test_a_limit_of_the_kernel_counts_whatever_the_machine_has(machine: FakeMachine) -> None:
    machine.group_v2("/h", used_mib=425, max_mib=1000)
    assert sensor(machine, available_mib=0).share(0) == pytest.approx(0.5)
    assert sensor(machine).limit_bytes(0) == 850 * MIB


def test_a_limit_of_the_kernel_counts_without_what_was_granted(machine: FakeMachine) -> None:
    machine.group_v2("/h", used_mib=425, max_mib=1000)
    found = sensor(machine)
    assert found.grant(0) == 425 * MIB
    assert found.share(0) == 0
    (machine.root / "sys/fs/cgroup/h/memory.stat").write_text("nothing\n")
    assert found.grant(0) == 0


def test_what_is_left_is_told_also_after_a_grant(machine: FakeMachine) -> None:
    found = sensor(machine, available_mib=550)
    found.share(0)
    assert found.left_bytes == 500 * MIB, "the kernel's 5 percent of the machine are kept"
    machine.group_v2("/h", used_mib=750, max_mib=1000)
    found = sensor(machine)
    found.grant(0)
    assert found.share(0) == 0 and found.left_bytes == 100 * MIB
    machine.group_v2("/h", used_mib=900, max_mib=1000)
    found.share(0)
    assert found.left_bytes == 0
    (machine.root / "sys/fs/cgroup/h/memory.stat").write_text("nothing\n")
    assert math.isnan(found.share(0)) and found.left_bytes is None


def test_of_a_machine_that_others_fill_nothing_is_granted(machine: FakeMachine) -> None:
    found = sensor(machine, available_mib=0)
    assert found.grant(0) == 0
    assert found.share(0) == 1


@pytest.mark.parametrize(
    ("available_mib", "share"), [(950, 0.1), (150, 0.5), (75, 0.8), (50, 1.0), (0, 1.0)]
)
def test_without_a_limit_it_is_what_the_daemon_has_of_what_it_can_have(
    machine: FakeMachine, available_mib: int, share: float
) -> None:
    """5 % of the machine stay for the kernel."""
    found = sensor(machine, available_mib=available_mib)
    assert found.share(0) == pytest.approx(share)
    assert found.limit_bytes(0) is None


def test_memory_that_other_programs_use_is_not_pressure_while_enough_is_left(
    machine: FakeMachine,
) -> None:
    found = sensor(machine, allocated_mib=300, total_mib=64_000, available_mib=8_000)
    assert found.share(0) < 0.1


@pytest.mark.parametrize("what", ["memory.current", "memory.stat"])
def test_what_cannot_be_read_is_not_a_number(machine: FakeMachine, what: str) -> None:
    machine.group_v2("/h", used_mib=425, max_mib=1000)
    (machine.root / "sys/fs/cgroup/h" / what).write_text("nothing\n")
    assert math.isnan(sensor(machine).share(0))
    (machine.root / "sys/fs/cgroup/h" / what).unlink()
    assert math.isnan(sensor(machine).share(0))


def test_a_machine_that_does_not_tell_its_memory_breaks_the_sensor(machine: FakeMachine) -> None:
    def hidden() -> MachineMemory:
        raise FileNotFoundError("/proc/meminfo")

    found = MemorySensor(0, lambda: 0, CgroupMemory(machine.root), hidden)
    assert math.isnan(found.share(0))


def test_this_process_and_this_machine_have_memory() -> None:
    assert MIB < allocated_bytes() < machine_memory().total_bytes
    page = os.sysconf("SC_PAGE_SIZE")
    assert allocated_bytes() % page == 0


def test_shared_pages_and_files_are_not_allocated_by_the_process(tmp_path: Path) -> None:
    statm = tmp_path / "statm"
    statm.write_text("10000 3000 1000 5 0 2500 0\n")
    assert allocated_bytes(statm) == 2000 * os.sysconf("SC_PAGE_SIZE")


def test_it_is_given_back_once_a_second_and_only_under_pressure() -> None:
    asked: list[int] = []
    pressure = [0.0]

    def trim(keep_bytes: int) -> int:
        asked.append(keep_bytes)
        return 1

    freed = FreedMemory(lambda: pressure[0], trim)
    freed.look(1)
    assert not asked
    pressure[0] = PRESSURE_MIN
    for now_ns in (2, 3, EVERY_NS, EVERY_NS + 2, EVERY_NS + 3):
        freed.look(now_ns)
    assert asked == [0, 0]


def test_a_process_that_is_to_be_killed_earlier_stays_so(tmp_path: Path) -> None:
    adjustment = tmp_path / "oom_score_adj"
    for before, after in ((0, KILLED_FIRST), (-900, KILLED_FIRST), (1000, 1000)):
        adjustment.write_text(f"{before}\n")
        be_killed_first(adjustment)
        assert int(adjustment.read_text()) == after
    be_killed_first(tmp_path / "no such file")


def test_what_bodies_took_is_not_kept() -> None:
    rng = random.Random(1)
    before = allocated_bytes()
    for _ in range(10):  # of all sizes, with small pieces in between that stay
        bodies = [bytes(rng.randrange(200_000, MIB)) for _ in range(60)]
        kept = [bytes(3000) for _ in range(100)]
        del bodies
    grown = allocated_bytes() - before
    FreedMemory(lambda: 1.0).look(1)
    assert allocated_bytes() - before < max(grown // 2, 4 * MIB)
    assert kept
