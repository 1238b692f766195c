"""The byte budget of an import against a real daemon whose uploads are what limits it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

import pytest

from bench.imports import SLOW_STORE, SLOW_STORE_CHAOS, AllIn, import_files, write_files
from commands.importing.byte_budget import CEILING_BYTES, START_BYTES, ByteBudget
from tests.cli.importing.daemon_model import IntervalLaw
from tests.e2e.daemon import Daemon, running

FILE_BYTES = 16_000_000
TURNS = 3


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    serve = (sys.executable, "-m", "cli", "serve", "--chaos", SLOW_STORE_CHAOS)
    with running(tmp_path / "data", settings=SLOW_STORE, command=serve) as started:
        yield started


@pytest.mark.slow
def test_the_budget_finds_what_pays_and_the_law_on_processing_over_interval_collapses(
    daemon: Daemon, tmp_path: Path
) -> None:
    files = write_files(tmp_path / "files", FILE_BYTES)
    law = IntervalLaw(CEILING_BYTES, interval_s=0.0005)
    law.bytes = START_BYTES  # where ours begins
    ours, all_in = [], []
    for turn in range(TURNS):  # in alternation, so that other work on the machine meets both
        all_in.append(import_files(AllIn(), daemon.url, f"all-in-{turn}", files))
        ours.append(import_files(ByteBudget(), daemon.url, f"ours-{turn}", files))
    assert max(each.peak_bytes for each in ours) <= CEILING_BYTES
    rate = mean(each.bytes_per_s for each in ours)
    assert rate >= 0.9 * mean(each.bytes_per_s for each in all_in), (ours, all_in)
    collapsed = import_files(law, daemon.url, "by-interval", files[:2])
    assert law.bytes == IntervalLaw.FLOOR_BYTES
    assert collapsed.bytes_per_s <= 0.6 * rate
