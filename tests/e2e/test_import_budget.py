"""The byte budget of an import against a real daemon whose uploads are what limits it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from bench.imports import SLOW_STORE, SLOW_STORE_CHAOS, import_files, write_files
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
    """What each of them does to the rate is for ``make bench`` and a virtual clock
    (``tests/cli/importing/test_byte_budget.py``): here an object has room in each budget that
    was found, and not in the other one."""
    files = write_files(tmp_path / "files", FILE_BYTES)
    paying_bytes = cast(int, SLOW_STORE["object_bytes_target"])
    for turn in range(TURNS):
        ours = import_files(ByteBudget(), daemon.url, f"ours-{turn}", files)
        assert ours.peak_bytes <= CEILING_BYTES
        assert ours.budget_bytes >= paying_bytes, ours
    law = IntervalLaw(CEILING_BYTES, interval_s=0.0005)
    law.bytes = START_BYTES  # where ours begins
    import_files(law, daemon.url, "by-interval", files[:2])
    assert law.bytes == IntervalLaw.FLOOR_BYTES < paying_bytes
