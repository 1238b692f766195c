"""examples/read/to_postgres.py: a real PostgreSQL has each record once, whatever is killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import psycopg
import pytest

from tests.e2e.daemon import HANG_S, ROOT, Daemon, wait_until

pytestmark = pytest.mark.slow

PROGRAM = ROOT / "examples" / "read" / "to_postgres.py"
COUNT, ROUNDS = 4_000, 6


@pytest.fixture(scope="module")
def conninfo() -> Iterator[str]:
    """A server of its own, on a socket in its folder. It refuses to run as root."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    assert folders, "PostgreSQL is missing: apt-get install --no-install-recommends postgresql"
    account: dict[str, Any] = {"user": "postgres", "group": "postgres", "extra_groups": []}
    if os.geteuid() != 0:
        account = {}
    with tempfile.TemporaryDirectory(prefix="hg-pg-", dir="/tmp") as folder:
        if account:
            shutil.chown(folder, "postgres")
        data = f"{folder}/data"
        initdb = [str(folders[-1] / "initdb"), "-D", data, "-A", "trust", "-U", "tester"]
        subprocess.run(initdb, check=True, stdout=subprocess.DEVNULL, cwd="/", **account)
        server = [str(folders[-1] / "postgres"), "-D", data, "-k", folder, "-h", ""]
        with subprocess.Popen(server, stderr=subprocess.DEVNULL, cwd="/", **account) as process:
            found = f"host={folder} user=tester dbname=postgres"

            def is_there() -> bool:
                with suppress(psycopg.OperationalError), psycopg.connect(found):
                    return True
                return False

            try:
                wait_until(is_there, "PostgreSQL to start")
                yield found
            finally:
                process.send_signal(signal.SIGINT)  # without waiting for its clients
                process.wait(HANG_S)


@contextmanager
def copying(daemon: Daemon, topic: str, conninfo: str) -> Iterator[subprocess.Popen[bytes]]:
    environ = os.environ | {"PYTHONPATH": str(ROOT / "clients" / "python")}
    with subprocess.Popen(
        [sys.executable, PROGRAM, topic, conninfo, daemon.url], env=environ
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_each_record_is_copied_once_though_the_program_is_killed(
    shared_daemon: Daemon, conninfo: str
) -> None:
    daemon = shared_daemon
    assert daemon.json("PUT", "/v0/topics/to.copy", {"partitions": 2}).status == 201
    with psycopg.connect(conninfo, autocommit=True) as database:

        def copied() -> int:
            with suppress(psycopg.errors.UndefinedTable):
                (found,) = database.execute("SELECT count(*) FROM records").fetchone() or (0,)
                return int(found)
            return 0

        def has_more(than: int) -> bool:
            return copied() > than

        for turn in range(ROUNDS):
            records = [{"data": turn * COUNT + n, "key": f"k{n}"} for n in range(COUNT)]
            assert daemon.json("POST", "/v0/topics/to.copy", {"records": records}).status == 200
            with copying(daemon, "to.copy", conninfo):  # and kills it somewhere
                wait_until(partial(has_more, turn * COUNT), "some to be copied")
                Event().wait(0.02 * turn)  # into the next batch
        with copying(daemon, "to.copy", conninfo), copying(daemon, "to.copy", conninfo):
            wait_until(lambda: copied() >= ROUNDS * COUNT, "all to be copied")
        rows = database.execute("SELECT data::int, key FROM records").fetchall()
    assert sorted(rows) == sorted((n, f"k{n % COUNT}") for n in range(ROUNDS * COUNT))
