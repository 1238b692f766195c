"""Files below the target are merged by the next run, and every reader sees the same rows."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shards.clock import wall_ms
from tests.e2e.daemon import ROOT, running
from tests.e2e.lake import DAY_MS, diff_rows, produce_some, table_rows
from tests.e2e.orphans import Place
from tests.e2e.test_compact import JOB_S, locations

# The command, with a target that files of a few records reach together.
SMALL_TARGET = """import sys
from compaction.run import small_files
small_files.files_to_merge.__kwdefaults__["target_bytes"] = int(sys.argv.pop(1))
import cli
cli.headgate()
"""


def compact(place: Place, target_bytes: int) -> Any:
    arguments = place.command("compact")
    arguments = arguments[arguments.index("compact") :]
    done = subprocess.run(
        [sys.executable, "-c", SMALL_TARGET, str(target_bytes), *arguments],
        cwd=ROOT, env=place.environ, capture_output=True, text=True, timeout=JOB_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    (table,) = json.loads(done.stdout)["tables"]
    return table


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_files_are_merged_once_they_reach_the_target_together(data: Path) -> None:
    rng = random.Random(1)
    settings = {"gc_grace_ms": 0, "snapshot_keep_ms": 0}
    place = Place(data, {"settings": settings})
    # Noon of yesterday: late in a day, the oldest of the days would have one file, of few records.
    now_ms = wall_ms() // DAY_MS * DAY_MS - DAY_MS // 2
    with running(data, settings=settings) as daemon:
        assert daemon.json("PUT", "/v0/topics/orders", {"partitions": 3}).status == 201
        for _ in range(3):
            produce_some(daemon, rng, "orders", 60, now_ms)
            table = compact(place, 1 << 40)
        assert table["rewritten"] == 0
        separate = table["files_now"]
        produce_some(daemon, rng, "orders", 60, now_ms)
        before = diff_rows(daemon, "orders")
        merged = compact(place, 4_000)
        assert merged["rewritten"] == separate["files"]
        assert merged["files_now"]["files"] < separate["files"]
        assert merged["files_now"]["largest"] > separate["largest"]
        assert merged["rows"] == len(before), "the merged rows, and those that are new"
        assert diff_rows(daemon, "orders") == before
        assert table_rows(locations(place)["orders"]) == before
        assert place.json("check", "--deep")["problems"] == []
        assert place.json("gc")["lake_files"] >= separate["files"]
        assert diff_rows(daemon, "orders") == before == table_rows(locations(place)["orders"])
