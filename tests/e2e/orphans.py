"""Puts objects without the daemon, and runs the commands ``check`` and ``gc``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

from click.testing import CliRunner

import cli
from ledger import reads
from ledger.ledger import Ledger
from ledger.space import orphans
from ledger.types import LeaseId, ObjectRow
from shards.frame import CODEC_RECORDS
from tests.e2e.daemon import HANG_S, ROOT, Daemon
from tests.uploader.l0_samples import batch
from uploader.l0 import ExtentParts, RingRun, build, object_key
from uploader.l0.records import Record
from uploader.stores import open_store


class Place:
    """A data directory with its store; the daemon may run or not."""

    def __init__(self, data: Path, options: dict[str, Any]) -> None:
        self.data = data
        self.store_url = options.get("store", f"file://{data}/store")
        settings = {"gc_grace_ms": 0, **options.get("settings", {})}
        self.endpoint_url = settings.get("s3_endpoint_url")
        self.arguments = ["--data", str(data), "--store", self.store_url]
        for key, value in settings.items():
            self.arguments += ["--set", f"{key}={value}"]
        self.environ = {**os.environ, "PYTHONPATH": str(ROOT), **options.get("environ", {})}

    def command(self, name: str, *more: str) -> list[str]:
        return [sys.executable, "-m", "cli", *name.split(), *self.arguments, "-o", "json", *more]

    def run(self, name: str, *more: str) -> subprocess.CompletedProcess[str]:
        """A command to its end; ``check``, which only looks, runs in this process."""
        command = self.command(name, *more)
        if name != "check":
            return subprocess.run(
                command, cwd=ROOT, env=self.environ, capture_output=True, text=True,
                timeout=2 * HANG_S, check=False,
            )  # fmt: skip
        done = CliRunner().invoke(cli.headgate, command[3:], env=self.environ)
        return subprocess.CompletedProcess(command, done.exit_code, done.stdout, done.stderr)

    def json(self, name: str, *more: str, code: int = 0) -> Any:
        """What a command prints, with this exit code."""
        done = self.run(name, *more)
        assert done.returncode == code, done.stderr + done.stdout
        return json.loads(done.stdout)

    def put(self, incarnation: int, epoch: int, counter: int) -> str:
        """Puts a well-formed object that is never committed; returns its key."""
        lease_id = LeaseId(incarnation, epoch, 0, counter)
        runs = (RingRun(0, 0, 0, 1),)
        parts = ExtentParts("orders", 1, 0, CODEC_RECORDS, [batch([Record("1")], 5)], 1, 5, 5, runs)
        built = build(lease_id, 1, [parts])
        with closing(open_store(self.store_url, endpoint_url=self.endpoint_url)) as store:
            store.put(object_key(lease_id), built.body, built.crc32c)
        return object_key(lease_id)

    def present(self) -> set[str]:
        """All keys below ``l0/``."""
        with closing(open_store(self.store_url, endpoint_url=self.endpoint_url)) as store:
            return {head.key for head in store.list("l0/")}

    def ledger(self) -> Ledger:
        """The ledger, to read from."""
        path = self.data / "ledger" / "ledger.db"
        return Ledger(path, nullcontext(), must_exist=True)

    def rows(self) -> list[ObjectRow]:
        """The objects of the ledger."""
        with closing(self.ledger()) as ledger:
            return ledger.read(reads.objects)

    def named(self) -> list[str]:
        """The orphans that the ledger names for deletion."""
        with closing(self.ledger()) as ledger:
            return ledger.read(orphans.named)


def write_some(daemon: Daemon) -> list[Any]:
    """A few objects of records; returns what the topic holds."""
    for number in range(5):
        answer = daemon.produce("orders", number, number)
        assert answer.status == 200, answer
    return daemon.read_all("orders")
