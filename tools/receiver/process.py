"""A receiver as a process: started, told how to behave, killed, stopped and started again."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Self

import msgspec

from shards.clock import monotonic_ns
from tools.ports import kept_port
from tools.receiver.behavior import Behavior, Counts
from tools.receiver.log import Entry, load

ROOT = Path(__file__).resolve().parents[2]
HANG_S = 60.0


class ReceiverError(Exception):
    """The receiver did not start, or did not answer."""


class ReceiverProcess:
    """A context manager: the process runs within it. Without a ``log`` it only counts."""

    def __init__(self, log: Path | None = None, cpus: Iterable[int] = (), seed: int = 1) -> None:
        self.log = log
        self._keeper = contextlib.ExitStack()
        self.port = self._keeper.enter_context(kept_port())
        self._cpus = set(cpus)
        self._seed = seed
        self._behaviors: dict[str, Behavior] = {}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def url(self, name: str) -> str:
        """The URL of an endpoint."""
        return f"http://127.0.0.1:{self.port}/{name}"

    @property
    def pid(self) -> int:
        """Of the process, which runs."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Starts it, on the same port as before; endpoints behave as they were told."""
        command = [sys.executable, "-P", "-m", "tools.receiver", str(self.port)]
        command += [str(self.log) if self.log is not None else "", str(self._seed)]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        if self._cpus:
            os.sched_setaffinity(self._process.pid, self._cpus)
        deadline_ns = monotonic_ns() + int(HANG_S * 1e9)
        while True:
            with contextlib.suppress(OSError, http.client.HTTPException):
                for name, behavior in [("", Behavior()), *self._behaviors.items()]:
                    self._ask("PUT", name, behavior)
                return
            if self._process.poll() is not None or monotonic_ns() > deadline_ns:
                raise ReceiverError(f"the receiver ended with {self._process.poll()}")
            time.sleep(0.01)

    def behave(self, name: str, behavior: Behavior) -> None:
        """An endpoint behaves like this from now on, also after a restart."""
        self._behaviors[name] = behavior
        self._ask("PUT", name, behavior)

    def counts(self, name: str) -> Counts:
        """What an endpoint was sent since the last start."""
        return msgspec.json.decode(self._ask("GET", name), type=Counts)

    def kill(self) -> None:
        """SIGKILL; connections break, and new ones are refused."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(HANG_S)

    def end(self) -> None:
        """SIGKILL, and its port is anybody's."""
        self.kill()
        self._keeper.close()

    def stop(self) -> None:
        """SIGSTOP: connections are accepted, and nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def entries(self) -> list[Entry]:
        """Everything that it noted, in all its lives."""
        assert self.log is not None
        return load(self.log)

    def _ask(self, method: str, name: str, behavior: Behavior | None = None) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG_S)
        with contextlib.closing(connection):
            body = msgspec.json.encode(behavior) if behavior is not None else None
            connection.request(method, f"/-/{name}", body)
            answer = connection.getresponse()
            content = answer.read()
        if answer.status != 200:
            raise ReceiverError(f"{method} {name} was answered {answer.status}: {content!r}")
        return content
