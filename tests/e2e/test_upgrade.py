"""A data directory of the version before serves under this one, and not the other way round."""

from __future__ import annotations

import io
import sqlite3
import subprocess
import sys
import tarfile
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from ledger.schema import MIGRATIONS
from tests.e2e.daemon import ROOT, Daemon, running, wait_until
from tests.e2e.processes import shard_pids

pytestmark = pytest.mark.slow


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True).stdout


def version_before(folder: Path) -> Path:
    """The last release, or the last commit while there is none, in a folder."""
    tags = git("tag", "--list", "v*", "--sort=-v:refname", "--merged", "HEAD~1").decode().split()
    archive = git("archive", tags[0] if tags else "HEAD~1")
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    return folder


def lag(daemon: Daemon) -> int:
    state = daemon.json("GET", "/v0/topics/orders/subscriptions/billing").json
    return int(state["lag"])


def test_what_the_version_before_wrote_is_served_and_goes_on(tmp_path: Path) -> None:
    former = version_before(tmp_path / "former")
    old = {
        "command": [sys.executable, "-P", "-m", "cli", "serve"],
        "environ": {"PYTHONPATH": str(former)},
    }
    with running(tmp_path / "data", **old) as daemon:
        assert daemon.json("PUT", "/v0/topics/orders", {"partitions": 2}).status == 201
        for n in range(20):
            record = {"records": [{"data": n, "key": str(n)}]}
            assert daemon.json("POST", "/v0/topics/orders", record).status == 200
        settings = {"start": "earliest"}
        made = daemon.json("PUT", "/v0/topics/orders/subscriptions/billing", settings)
        assert made.status == 201, made.body
        (shard,) = shard_pids(daemon)
        assert psutil.Process(shard).environ()["PYTHONPATH"].split(":")[0] == str(former)
    with running(tmp_path / "data") as daemon:
        found = []
        for partition in range(2):
            answer = daemon.diff("orders", partition=partition, from_seq=0)
            found += [record["data"] for record in answer["records"]]
        assert sorted(found) == [*range(20)]
        wait_until(lambda: lag(daemon) == 20, "the subscription to be read")
        assert daemon.produce("orders", 20).status == 200


def test_a_ledger_of_a_later_version_is_refused_by_a_sentence(tmp_path: Path) -> None:
    with running(tmp_path):
        pass
    with closing(sqlite3.connect(tmp_path / "ledger" / "ledger.db")) as connection:
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    later = Daemon(tmp_path)
    later.start()
    try:
        assert later.process.wait() == 1
    finally:
        later.kill_everything()
    assert "version" in later.text and "Traceback" not in later.text, later.text
