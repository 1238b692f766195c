"""examples/read: each program is run on a compacted topic of a running daemon."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import pytest

from compaction.run.java import find_java
from tests.e2e.daemon import ROOT, Daemon, running

SAMPLES = ROOT / "examples" / "orders.ndjson"
READ = ROOT / "examples" / "read"
HANG_S = 300.0
LINES = SAMPLES.read_text().splitlines()

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon whose topic `orders` is compacted, except for one record that came later."""
    with running(tmp_path_factory.mktemp("examples") / "headgate-data") as daemon:
        answer = daemon.ask(
            "POST", "/v0/topics/orders", SAMPLES.read_bytes(), content_type="application/x-ndjson"
        )
        assert answer.status == 200, answer.body
        run([sys.executable, "-m", "cli", "compact", "--data", str(daemon.data)])
        daemon.produce("orders", {"status": "late"})
        yield daemon


def run(command: list[str]) -> str:
    """What a program printed; it must end with 0."""
    environ = {
        **os.environ,
        "JAVA_HOME": str(find_java().home),
        "PYTHONPATH": str(ROOT),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_pyiceberg_reads_the_first_rows_of_the_table(daemon: Daemon) -> None:
    printed = run([sys.executable, str(READ / "read_pyiceberg.py"), str(daemon.data)])
    rows = [line.split(maxsplit=2) for line in printed.splitlines()]
    assert [(int(offset), data) for offset, _, data in rows] == list(enumerate(LINES[:10], 1))


def test_duckdb_counts_the_table(daemon: Daemon) -> None:
    printed = run([sys.executable, str(READ / "read_duckdb.py"), str(daemon.data)])
    counts = Counter(json.loads(line)["status"] for line in LINES)
    assert printed.splitlines() == [f"{status} {counts[status]}" for status in sorted(counts)]


def test_spark_reads_the_table_and_what_came_after_it(daemon: Daemon) -> None:
    printed = run([sys.executable, str(READ / "read_spark.py"), daemon.url])
    found = [line.split(maxsplit=1) for line in printed.splitlines()]
    assert [int(offset) for offset, _ in found] == list(range(1, len(LINES) + 2))
    assert [data for _, data in found[:-1]] == LINES
    assert json.loads(found[-1][1]) == {"status": "late"}
