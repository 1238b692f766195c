"""Each command and program in docs/lake.md runs, in the folder that the page describes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from compaction.run.java import find_java
from compaction.source.options import ACCEPTED
from tests.e2e.daemon import ROOT, Daemon, running

PAGE = (ROOT / "docs" / "lake.md").read_text()
SAMPLES = ROOT / "examples" / "orders.ndjson"
JOB_S = 300.0  # ends a hang only
OTHERS = re.compile(r"make spark-archive\n")  # tests/compaction/test_archive.py

BLOCKS = [
    (language, text, PAGE[: found.start()].count("\n") + 2)
    for found in re.finditer(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    for language, text in [found.groups()]
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lake-docs")


@pytest.fixture(scope="module")
def daemon(folder: Path) -> Iterator[Daemon]:
    """A daemon with the page's topic, where its programs expect the data directory."""
    with running(folder / "headgate-data", settings={"admin_over_tcp": "true"}) as daemon:
        answer = daemon.ask(
            "POST", "/v0/topics/orders", SAMPLES.read_bytes(), content_type="application/x-ndjson"
        )
        assert answer.status == 200, answer.body
        yield daemon


def run(daemon: Daemon, folder: Path, language: str, text: str) -> str:
    """Runs a block as a person would. Returns what it printed."""
    command = {"sh": ["sh", "-euc", text], "python": [sys.executable, "-c", text]}[language]
    environ = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "JAVA_HOME": str(find_java().home),
        "PYTHONPATH": str(ROOT),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "HEADGATE_URL": daemon.url,
    }
    done = subprocess.run(
        [word.replace("http://127.0.0.1:7440", daemon.url) for word in command],
        cwd=folder, env=environ, capture_output=True, text=True, timeout=JOB_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_block_of_the_page_runs_in_order(daemon: Daemon, folder: Path) -> None:
    ran = 0
    for language, text, line in BLOCKS:
        if OTHERS.fullmatch(text):
            continue
        printed = run(daemon, folder, language, text)
        assert printed.strip(), f"line {line}: nothing was printed"
        if 'format("headgate")' in text and "readStream" in text:
            assert printed.split()[-1] == str(daemon.diff("orders")["head_seq"])
        ran += 1
    assert ran >= 10


def test_the_page_has_every_option_of_the_source() -> None:
    listed = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE, re.MULTILINE))
    assert {name: listed.get(name) for name in ACCEPTED} == ACCEPTED
