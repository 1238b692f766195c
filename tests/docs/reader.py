"""A reader who types the commands of a page into a shell, one after the other."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.docs.pages import Command, Runs
from tests.e2e.daemon import HANG_S, ROOT, Daemon, wait_until
from tests.minio import Bucket

HERE = re.compile(r"(?:127\.0\.0\.1|localhost):7440|headgate:7440|10\.0\.0\.5:7440")


class Reader:
    """Has a folder of its own, a daemon, and a bucket for a page that needs one."""

    def __init__(self, folder: Path, daemon: Daemon, bucket: Bucket | None) -> None:
        self.folder = folder
        self.daemon = daemon
        self.address = f"127.0.0.1:{daemon.port}"
        self.bucket = bucket
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.stack = ExitStack()
        (folder / "bin").mkdir()
        self.write("bin/headgate", f'#!/bin/sh\nexec {sys.executable} -m cli "$@"\n', 0o755)
        for name in ("etc", "lib", "log"):
            (folder / name).mkdir()
        self.environ = {
            **os.environ,
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "HOME": str(folder),
            "XDG_CONFIG_HOME": str(folder),
            "HEADGATE_LISTEN": "127.0.0.1:0",
            "HEADGATE_SHARDS": "1",
            "HEADGATE_URL": daemon.url,
        }
        if bucket is not None:
            self.environ |= bucket.environment
            self.environ["HEADGATE_S3_ENDPOINT_URL"] = bucket.endpoint_url

    def write(self, name: str, text: str, mode: int = 0o600) -> Path:
        """A file in the folder."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    def typed(self, command: str, step: Runs) -> str:
        """The command with this machine's addresses and folders."""
        for old, new in step.swap.items():
            assert old in command, f"{command} has no {old}"
            command = command.replace(old, new.format_map(self.environ))
        command = re.sub(r"^make ", f"make -C {ROOT} -o setup VENV={sys.prefix} ", command)
        command = HERE.sub(self.address, command).replace(".venv/bin/headgate", "headgate")
        command = re.sub(r":(?:4317|7441|7443)\b", ":0", command).replace(
            "0.0.0.0:0", "127.0.0.1:0"
        )
        if self.bucket is not None:
            command = command.replace("s3://", f"s3://{self.bucket.bucket}/")
        for there, name in (
            ("/etc/headgate", "etc"),
            ("/var/lib/headgate", "lib"),
            ("/var/log", "log"),
        ):
            command = command.replace(there, str(self.folder / name))
        return command

    def run(self, command: Command, step: Runs) -> None:
        """Types a command, and compares what it prints with what the page and the test say."""
        if step.first is not None:
            step.first(self)
        text = self.typed(command.text, step)
        out = self.folder / f"out-{len(list(self.folder.glob('out-*')))}"
        with out.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-uc", text], cwd=self.folder, env=self.environ, start_new_session=True,
                stdin=subprocess.PIPE, stdout=file, stderr=subprocess.STDOUT,
            )  # fmt: skip
        assert process.stdin is not None
        process.stdin.write(step.stdin.encode())
        process.stdin.close()
        self.processes[command.text] = process
        if not step.ends:

            def is_done() -> bool:
                if process.poll() is not None:
                    return True
                has_done = step.until is None or step.until(self)
                return bool(has_done and re.search(step.prints, out.read_text()))

            try:
                wait_until(is_done, f"{text} to print {step.prints}", 2 * HANG_S)
            except AssertionError as hang:
                hang.add_note(out.read_text())
                raise
        if not step.stays:
            self.end(command.text, stop=not step.ends)
        printed = out.read_text()
        found = re.search(step.prints, printed)
        assert found, f"{text}\nprinted no {step.prints!r} but\n{printed}"
        assert process.returncode in (None, 0) or (not step.ends and process.returncode == -2), (
            f"{text}\nended with {process.returncode}:\n{printed}"
        )
        for name in re.findall(r'"(\w+)":', command.shown):
            assert f'"{name}":' in printed, f"{text}\nprinted no {name} but\n{printed}"
        self.environ |= found.groupdict()
        if step.stays and "AT" in found.groupdict():
            self.address = found["AT"]
            self.environ["HEADGATE_URL"] = f"http://{self.address}"

    def end(self, begin: str, *, stop: bool = True) -> None:
        """Ends commands that begin so by Ctrl-C, or waits until they end."""
        for text in [each for each in self.processes if each.startswith(begin)]:
            process = self.processes.pop(text)
            if stop and process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
            try:
                process.wait(HANG_S)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


@contextmanager
def reading(folder: Path, daemon: Daemon, bucket: Bucket | None) -> Iterator[Reader]:
    """A reader; what still runs in the end is ended."""
    reader = Reader(folder, daemon, bucket)
    with reader.stack:
        try:
            yield reader
        finally:
            reader.end("")
