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
from tests.e2e.stores import on_s3
from tests.minio import Bucket

PAGE = (ROOT / "docs" / "lake.md").read_text()
SAMPLES = ROOT / "examples" / "orders.ndjson"
JOB_S = 300.0  # ends a hang only


def blocks_of(page: str) -> list[tuple[str, str]]:
    """Language and text of each block that has a language."""
    return [
        (found[1], found[2])
        for found in re.finditer(r"^```(\w+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    ]


GIVES_UP = "headgate quarantine accept KEY\n"  # of which there is none here
IN_A_BUCKET = "### In a bucket\n"
BEFORE, _, AFTER = PAGE.partition(IN_A_BUCKET)
BUCKET_PART, _, AFTER = AFTER.partition("\n## ")


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


def run(
    daemon: Daemon, folder: Path, language: str, text: str, more: dict[str, str] | None = None
) -> str:
    """Runs a block as a person would. Returns what it printed."""
    command = {"sh": ["sh", "-euc", text], "python": [sys.executable, "-c", text]}[language]
    environ = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "JAVA_HOME": str(find_java().home),
        "PYTHONPATH": str(ROOT),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "HEADGATE_URL": daemon.url,
        **(more or {}),
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
    page = BEFORE + AFTER
    assert page.count(GIVES_UP) == 1
    for language, text in blocks_of(page.replace(GIVES_UP, "")):
        printed = run(daemon, folder, language, text)
        assert printed.strip(), f"nothing was printed by:\n{text}"
        if 'format("headgate")' in text and "readStream" in text:
            assert printed.split()[-1] == str(daemon.diff("orders")["head_seq"])
        ran += 1
    assert ran >= 10


@pytest.mark.s3
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_block_about_a_bucket_runs_on_one(tmp_path: Path, bucket: Bucket) -> None:
    endpoint = bucket.endpoint_url.removeprefix("http://")
    with running(tmp_path / "headgate-data", **on_s3(bucket)) as daemon:
        answer = daemon.ask(
            "POST", "/v0/topics/orders", SAMPLES.read_bytes(), content_type="application/x-ndjson"
        )
        assert answer.status == 200, answer.body
        run(daemon, tmp_path, "sh", f"headgate compact --set s3_endpoint_url={bucket.endpoint_url}"
            f" --store {bucket.url}", bucket.environment)  # fmt: skip
        records = daemon.diff("orders")["head_seq"]
        printed = [
            run(daemon, tmp_path, language, text.replace("127.0.0.1:9000", endpoint),
                bucket.environment)
            for language, text in blocks_of(BUCKET_PART)
        ]  # fmt: skip
    by_pyiceberg, by_duckdb, by_spark = printed
    assert "timestamp" in by_pyiceberg and "shipped" in by_duckdb
    assert int(by_spark) == records


def test_the_page_has_every_option_of_the_source() -> None:
    listed = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE, re.MULTILINE))
    assert {name: listed.get(name) for name in ACCEPTED} == ACCEPTED
