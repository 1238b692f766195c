"""A daemon with a memory limit, in a real cgroup: it needs root (tools/cgroups.py).

Row D15: ten times the load, no kill by the kernel, nothing lost. Memory is short within seconds
and stays so, because a shard stores 1.5 MiB in a second.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from bench.overload import OverloadResult, measure
from bench.overload_clients import Crowd
from daemon.governor.cgroup import MAX_SHARE
from tools.cgroups import memory_group

MIB = 1 << 20
# Two shards with the default rings: 146 MiB of shared memory and 98 of processes at rest. All
# bodies that the rings have room for need another 150. ``ROOMY`` has that, ``TIGHT`` has not. With
# ``SPENT`` memory is above the limit of the gate for good after the first requests.
ROOMY_BYTES = 512 * MIB
TIGHT_BYTES = 344 * MIB
SPENT_BYTES = 312 * MIB
CROWD = Crowd(seconds=45, large=150, waiting=30, small=20, stalled=20)
HOARDERS = Crowd(seconds=15, stalled=150, large=20, small=20)


def measured(folder: Path, limit_bytes: int, crowd: Crowd) -> OverloadResult:
    """What becomes of a crowd: nothing is killed or lost, and a part of the limit is never used,
    since the sensor counts without it."""
    cpus = os.sched_getaffinity(0)
    with memory_group(limit_bytes) as group:
        found = measure(group, folder, crowd, 2, (cpus, cpus))
    assert (found.kills, found.deaths) == (0, 0), found
    assert found.contradictions == []
    assert found.unknown == 0
    assert found.records_read >= found.bodies_acked
    assert found.kept_peak_bytes < limit_bytes * MAX_SHARE, found
    return found


@pytest.mark.slow
def test_ten_times_the_load_neither_kills_nor_loses(tmp_path: Path) -> None:
    """Less than the rings alone would fill: bodies are refused before they come."""
    found = measured(tmp_path, TIGHT_BYTES, CROWD)

    assert found.overload >= 10, found
    assert found.bodies_acked >= 100
    assert set(found.statuses) <= {"200", "429 throttled", "503 memory_short"}, found
    assert found.statuses["503 memory_short"] > 0, "memory was never short"


@pytest.mark.slow
def test_memory_that_stays_used_refuses_nobody_for_good(tmp_path: Path) -> None:
    """Those who wait are answered in the end, though what is used never falls again."""
    crowd = replace(CROWD, seconds=30, stalled=0, large=20)
    cpus = os.sched_getaffinity(0)
    with memory_group(SPENT_BYTES) as group:
        found = measure(group, tmp_path, crowd, 2, (cpus, cpus))

    assert (found.kills, found.deaths, found.contradictions) == (0, 0, []), found
    assert found.statuses["200"] > crowd.waiting


@pytest.mark.slow
def test_with_memory_for_full_rings_only_they_refuse(tmp_path: Path) -> None:
    found = measured(tmp_path, ROOMY_BYTES, replace(CROWD, seconds=20))

    assert found.bodies_acked >= 100
    assert found.statuses["429 throttled"] > 0, "no ring was full"


@pytest.mark.slow
def test_bodies_that_never_end_take_no_more_than_the_limit_leaves_for_them(tmp_path: Path) -> None:
    """150 MiB come to the rings, which have room for 128 of them, and rest in the processes."""
    found = measured(tmp_path, TIGHT_BYTES, HOARDERS)

    assert found.statuses["503 memory_short"] > 0, "memory was never short"
