"""``make demo``: starts a daemon, writes sample records, reads them, and compacts them.

It prints and runs the commands that a person would type. The daemon listens on a free loopback port
and keeps its data in a temporary folder; both are removed at the end, also after Ctrl-C.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from shards.clock import monotonic_ns
from tools.minio import free_port
from tools.ports import asked

READY_WITHIN_S = 90
STOP_WITHIN_S = 60
POLL_S = 0.05
EXAMPLES = Path("examples")


class DemoError(Exception):
    """The demonstration cannot continue; the message says why and where to look."""


def command_path() -> Path:
    """The ``headgate`` command of this interpreter. Raises DemoError."""
    path = Path(sys.executable).parent / "headgate"
    if not path.exists():
        raise DemoError(f"{path} does not exist; run `make setup` first")
    return path


def environment() -> dict[str, str]:
    """Our environment without HEADGATE_ settings, which could name another store."""
    return {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")}


def start(
    folder: Path, port: int, *options: str, environ: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Starts the daemon, with more options and variables; its log goes to ``folder``/daemon.log."""
    command = [str(command_path()), "serve", "--data", str(folder / "data")]
    command += ["--listen", f"127.0.0.1:{port}", *options]
    with (folder / "daemon.log").open("wb") as log:
        # In its own session: Ctrl-C reaches only this script, which then stops the daemon cleanly.
        return subprocess.Popen(
            command,
            env=environment() | dict(environ or {}),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def wait_until_ready(daemon: subprocess.Popen[bytes], folder: Path, port: int) -> None:
    """Returns when /readyz answers 200. Raises DemoError with the end of the daemon's log."""
    deadline_ns = monotonic_ns() + READY_WITHIN_S * 1_000_000_000
    while not is_ready(port):
        try:
            # A pause that ends early if the daemon ends.
            code = daemon.wait(timeout=POLL_S)
        except subprocess.TimeoutExpired:
            if monotonic_ns() < deadline_ns:
                continue
            reason = f"was not ready after {READY_WITHIN_S} s"
        else:
            reason = f"ended with exit code {code}"
        raise DemoError(f"the daemon {reason}; the end of its log:\n{log_tail(folder)}")


def is_ready(port: int) -> bool:
    """Whether the daemon says that it accepts requests."""
    return asked(port, "GET", "/readyz")[0] == 200


def log_tail(folder: Path) -> str:
    """The end of the daemon's log."""
    return (folder / "daemon.log").read_text(errors="replace")[-3000:].strip()


def show(sentence: str, *arguments: str, url: str) -> None:
    """Prints a sentence and a command line, and runs it. Raises DemoError if it fails."""
    print(f"\n# {sentence}\n$ headgate {' '.join(arguments)}", flush=True)
    command = [str(command_path()), *arguments, "--url", url]
    done = subprocess.run(command, env=environment(), check=False)
    if done.returncode != 0:
        raise DemoError(f"headgate {' '.join(arguments)} ended with exit code {done.returncode}")


def show_compaction(folder: Path, topic: str) -> None:
    """Compacts the records and prints the first rows of their table. Raises DemoError."""
    data = folder / "data"
    print(
        f"\n# Compact them into an Iceberg table with Spark (takes some seconds)\n"
        f"$ headgate compact --data {data}",
        flush=True,
    )
    command = [str(command_path()), "compact", "--data", str(data)]
    done = subprocess.run(command, env=environment(), check=False)
    if done.returncode != 0:
        raise DemoError(f"headgate compact ended with exit code {done.returncode}")
    print("\n# The first rows of the table, read with pyiceberg (docs/lake.md has more readers)")
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("headgate", uri=f"sqlite:///{data / 'catalog.db'}")
    rows = catalog.load_table(f"headgate.{topic}").scan(limit=3).to_arrow()
    for row in rows.select(["offset", "timestamp", "data"]).to_pylist():
        print(f"{row['offset']:>6}  {row['timestamp']:%Y-%m-%d %H:%M:%S}  {row['data']}")
    catalog.close()


def stop(daemon: subprocess.Popen[bytes], folder: Path) -> None:
    """Stops the daemon as an operator would. Raises DemoError if it does not end cleanly."""
    daemon.terminate()
    try:
        code = daemon.wait(timeout=STOP_WITHIN_S)
    except subprocess.TimeoutExpired:
        # Its whole process group: the shards must not outlive it.
        os.killpg(daemon.pid, signal.SIGKILL)
        daemon.wait()
        raise DemoError(f"the daemon did not end within {STOP_WITHIN_S} s of SIGTERM") from None
    if code != 0:
        raise DemoError(
            f"the daemon ended with exit code {code}; the end of its log:\n{log_tail(folder)}"
        )


def demonstrate(folder: Path) -> None:
    """Runs the demonstration and stops the daemon in any case."""
    samples = sorted(EXAMPLES.glob("*.ndjson"))
    if not samples:
        raise DemoError(f"no sample records in {EXAMPLES}; run this in the root of the repository")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    print(
        f"# A daemon on the embedded store, in a temporary folder\n"
        f"$ headgate serve --data {folder / 'data'} --listen 127.0.0.1:{port} &",
        flush=True,
    )
    daemon = start(folder, port)
    try:
        wait_until_ready(daemon, folder, port)
        for sample in samples:
            show(
                "Write sample records; the command returns when they are durable",
                *("produce", sample.stem, str(sample)),
                url=url,
            )
        show("Show the state of the daemon", "status", url=url)
        show("Show the upload groups: which shards upload together", "groups", url=url)
        show("Read them back", "read", samples[0].stem, "-n", "3", url=url)
        show_compaction(folder, samples[0].stem)
        show("Read again, now from the table",
             "read", samples[0].stem, "-n", "3", url=url)  # fmt: skip
    except BaseException:
        if daemon.poll() is None:
            stop(daemon, folder)
        raise
    stop(daemon, folder)
    print("\n# The daemon is stopped and its folder is removed. `make run` starts one that stays.")


def main() -> int:
    """Runs the demonstration; returns 0, 1 with a message on stderr, or 130 after Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with tempfile.TemporaryDirectory(prefix="headgate-demo-") as folder:
            demonstrate(Path(folder))
    except KeyboardInterrupt:
        print("\ndemo: stopped, and the daemon with it", file=sys.stderr)
        return 130
    except DemoError as error:
        print(f"\ndemo: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
