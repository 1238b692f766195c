"""Cgroups with a memory limit: they need root and a memory controller (tools/cgroups.py)."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.e2e.daemon import wait_until
from tools.cgroups import MemoryWatch, memory_group

pytestmark = pytest.mark.slow

MIB = 1 << 20
TAKE = "import sys; kept = bytearray(bytes(int(sys.argv[1]))); input()"


def taker(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdin=subprocess.PIPE)


def python_that_takes(size_bytes: int) -> list[str]:
    return [sys.executable, "-c", TAKE, str(size_bytes)]


def test_a_process_that_goes_over_the_limit_is_killed_and_counted() -> None:
    with memory_group(64 * MIB) as group:
        with taker(group.command(python_that_takes(256 * MIB))) as process:
            code = process.wait()
        kills = group.kills

    assert code == -9
    assert kills == 1


def test_a_process_below_the_limit_lives_and_its_use_is_seen() -> None:
    with memory_group(512 * MIB) as group, MemoryWatch(group) as watch:
        with taker(group.command(python_that_takes(100 * MIB))) as process:
            wait_until(lambda: watch.kept_peak_bytes >= 100 * MIB, "the memory to be seen")
            process.communicate(b"\n")
        code = process.returncode
        kills, folder = group.kills, group.folder

    assert code == 0
    assert kills == 0
    assert watch.kept_peak_bytes <= 300 * MIB
    assert not folder.exists()
