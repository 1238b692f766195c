"""Freed memory goes back to the kernel while memory is short."""

from __future__ import annotations

import random
from pathlib import Path

from daemon.governor.freed_memory import (
    EVERY_NS,
    KILLED_FIRST,
    PRESSURE_MIN,
    FreedMemory,
    be_killed_first,
)
from daemon.governor.memory import allocated_bytes

MIB = 1 << 20


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
