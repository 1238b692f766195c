"""Pairs of daemons on one bucket, started with ``--standby``."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.e2e.daemon import HANG_S, ROOT, UNANSWERED, Daemon, ask, wait_until
from tests.e2e.stores import on_s3
from tests.minio import Bucket
from tools.ports import kept_port

STANDBY = (sys.executable, "-m", "cli", "serve", "--standby")


class Standby(Daemon):
    """A daemon on a port of its own, which it has as a standby and as an owner."""

    def __init__(self, data: Path, bucket: Bucket, endpoint_url: str | None = None,
                 **options: Any) -> None:  # fmt: skip
        self._keeper = contextlib.ExitStack()  # nobody else gets its port while there is this
        port = self._keeper.enter_context(kept_port())
        super().__init__(
            data, listen=f"127.0.0.1:{port}", command=options.pop("command", STANDBY),
            shards=options.pop("shards", 1),
            **on_s3(bucket, endpoint_url, **options),
        )  # fmt: skip
        self.port = port

    def readiness(self) -> int:
        """The status of /readyz; 0 if nobody answers."""
        try:
            return ask(self.port, "GET", "/readyz", timeout_s=HANG_S).status
        except UNANSWERED:
            return 0

    def is_standby(self) -> bool:
        """Whether it waits, and has read the log."""
        try:
            found = self.status()
        except (*UNANSWERED, ValueError):
            return False
        return bool(found.get("standby", {}).get("able"))

    def wait_owner(self, hang_s: float = 2 * HANG_S) -> None:
        """Waits until it owns the prefix and serves."""
        wait_until(
            lambda: self.readiness() == 200 or self.process.poll() is not None,
            f"the standby to take over:\n{self.text}", hang_s,
        )  # fmt: skip
        assert self.process.poll() is None, self.text

    def wait_standby(self) -> None:
        """Waits until it follows an owner."""
        wait_until(
            lambda: self.is_standby() or self.process.poll() is not None,
            f"the standby to follow:\n{self.text}",
        )
        assert self.process.poll() is None, self.text


@contextlib.contextmanager
def started(*daemons: Standby) -> Iterator[None]:
    """Kills at the end what still runs."""
    try:
        for daemon in daemons:
            daemon.start()
        yield
    finally:
        for daemon in daemons:
            if hasattr(daemon, "process"):
                daemon.kill_everything()


def wait_known(owner: Daemon, count: int = 1) -> None:
    """Waits until the owner knows of this many standbys."""
    wait_until(lambda: owner.status()["standbys"]["known"] == count, "the owner to see it", 90)


def handover(data: Path) -> subprocess.CompletedProcess[str]:
    """``headgate handover``."""
    return subprocess.run(
        [sys.executable, "-m", "cli", "handover", "--data", str(data)],
        cwd=ROOT, timeout=2 * HANG_S, capture_output=True, text=True, check=False,
    )  # fmt: skip
