"""Runs ``compact`` and ``gc`` in turn throughout a chaos run.

The commands run as an operator's timer starts them, on the daemon's data directory, with Spark. A
step may kill or stop the command that is running. A command may fail because the daemon dies: it
says so in one sentence, with exit code 1, and the next one continues. Contradictions are recorded:
a traceback, records in quarantine (the store that the commands read is undamaged), a run that fails
without a cause.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from tests.chaos.clients import Client
from tests.e2e.daemon import ROOT

COMMANDS = ("compact", "gc")
# A command's own: compactions take Spark's start and more, on a machine that is busy.
HANG_S = 600.0


class Keeper(Client):
    """Runs the commands until it is told to stop; ``once`` runs each one undisturbed."""

    def __init__(self, data: Path, settings: dict[str, object]) -> None:
        super().__init__("keeper of the lake")
        self.done: Counter[str] = Counter()
        self.contradictions: list[str] = []
        self.rows = 0
        self.deleted = 0
        self._arguments = ["--data", str(data), "-o", "json"]
        for name, value in settings.items():
            self._arguments += ["--set", f"{name}={value}"]
        self._mutex = threading.Lock()
        self._at_work: subprocess.Popen[bytes] | None = None
        self._harmed = False

    def work(self) -> None:
        """Runs the commands in turn."""
        while not self.stopping.is_set():
            for name in COMMANDS:
                if not self.stopping.is_set():
                    self._run(name, in_peace=False)

    def once(self) -> None:
        """Runs each command once, undisturbed; both must succeed."""
        for name in COMMANDS:
            self._run(name, in_peace=True)

    def harm(self, number: int) -> bool:
        """Sends a signal to the running command. Returns whether there was one."""
        with self._mutex:
            process = self._at_work
            if process is None or process.poll() is not None:
                return False
            self._harmed = self._harmed or number == signal.SIGKILL
            process.send_signal(number)
            return True

    def _run(self, name: str, *, in_peace: bool) -> None:
        command = [sys.executable, "-m", "cli", name, *self._arguments]
        if name == "compact":
            command += ["--master", "local[1]"]
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = subprocess.Popen(
                command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=out,
                stderr=err, start_new_session=True,
            )  # fmt: skip
            with self._mutex:
                self._at_work, self._harmed = process, False
            try:
                code = process.wait(HANG_S)
            finally:
                with self._mutex:
                    self._at_work = None
                # A killed driver's JVM ends by itself; whatever it does until then is harmless.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            out.seek(0)
            err.seek(0)
            self._judge(name, code, out.read(), err.read().decode(errors="replace"), in_peace)

    def _judge(self, name: str, code: int, out: bytes, err: str, in_peace: bool) -> None:
        how = "killed" if self._harmed and code == -signal.SIGKILL else "failed" if code else "done"
        self.done[f"{name} {how}"] += 1
        if "Traceback" in err:
            self.contradictions.append(f"command: {name} ended in a traceback: {err[-2000:]}")
        report: Any = json.loads(out) if out.strip() and how != "killed" else {}
        self.rows += report.get("rows", 0)
        self.deleted += report.get("collected", 0)
        if report.get("quarantined"):
            self.contradictions.append(f"quarantined: {name} says {report['quarantined']!r:.500}")
        if in_peace and code != 0:
            self.contradictions.append(
                f"command: {name} ended with {code} though nothing was in its way: {err[-2000:]}"
                f" {report.get('failed') or report.get('problems') or ''}"
            )
