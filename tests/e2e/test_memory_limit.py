"""A daemon with a memory limit, in a real cgroup: it needs root (tools/cgroups.py).

Row D15: ten times the load for minutes, no kill by the kernel, nothing lost.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.overload import OverloadResult, measure
from bench.overload_clients import Crowd
from tools.cgroups import memory_group

MIB = 1 << 20
# Two shards with the default rings and processes of 60 MB each need 300 MiB at rest, once the
# rings have been around, and 350 when all bodies, uploads and answers are there that may be.
LIMIT_BYTES = 512 * MIB
CROWD = Crowd(seconds=120, large=150, waiting=30, small=20, stalled=20)


def overloaded(folder: Path, crowd: Crowd) -> OverloadResult:
    cpus = os.sched_getaffinity(0)
    with memory_group(LIMIT_BYTES) as group:
        return measure(group, folder, crowd, 2, (cpus, cpus))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ten_times_the_load_for_two_minutes_neither_kills_nor_loses(tmp_path: Path) -> None:
    found = overloaded(tmp_path, CROWD)

    assert found.overload >= 10, found
    assert (found.kills, found.deaths) == (0, 0), found
    assert found.contradictions == []
    assert found.unknown == 0
    assert set(found.statuses) <= {"200", "429 throttled", "503 memory_short"}
    assert found.bodies_acked >= 100
    assert found.records_read >= found.bodies_acked
    assert found.kept_peak_bytes < LIMIT_BYTES * 0.85
