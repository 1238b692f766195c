"""The servers that are measured: started on chosen CPUs, and stopped by pid.

Each server has its own folder in the work folder, for its data and its log. The folder is removed
with the server, because a saturated case leaves gigabytes.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from shards.clock import monotonic_ns
from tools import minio
from tools.buckets import client as bucket_client
from tools.ports import asked

ROOT = Path(__file__).parent.parent
READY_WITHIN_S = 120
STOP_WITHIN_S = 60
POLL_S = 0.02
OBJECT_BYTES_TARGET = 4 << 20
BUCKET = "bench"


class ServerError(Exception):
    """A server did not start, died or did not stop; the message has the end of its log."""


@contextmanager
def pinned(cpus: Iterable[int]) -> Iterator[None]:
    """Processes that this thread starts in here use only these CPUs."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(cpus))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def cpu_s(processes: Iterable[psutil.Process]) -> float:
    """CPU-seconds so far of the processes that are alive."""
    total = 0.0
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def post_ndjson(
    connection: http.client.HTTPConnection, topic: str, partition: int, body: bytes
) -> None:
    """Sends a request and waits for its acknowledgment. Raises ServerError if there is none."""
    _post(connection, f"/v0/topics/{topic}?partition={partition}", body, "application/x-ndjson")


def post(connection: http.client.HTTPConnection, topic: str, body: bytes) -> None:
    """The same with a JSON body, whose records may have keys."""
    _post(connection, f"/v0/topics/{topic}", body, "application/json")


def _post(
    connection: http.client.HTTPConnection, path: str, body: bytes, content_type: str
) -> None:
    connection.request("POST", path, body, {"Content-Type": content_type})
    answer = connection.getresponse()
    content = answer.read()
    if answer.status != 200:
        raise ServerError(f"produce was answered {answer.status}: {content[:300]!r}")


class Server:
    """A started process with its folder."""

    def __init__(
        self,
        command: list[str],
        folder: Path,
        port: int,
        cpus: Iterable[int],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.port = port
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "log").open("ab") as log, pinned(cpus):
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=dict(environment) if environment is not None else plain_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches only us; we then stop it cleanly
            )

    def wait_until(self, path: str) -> None:
        """Returns when ``path`` is answered with a status below 500. Raises ServerError."""
        deadline_ns = monotonic_ns() + READY_WITHIN_S * 1_000_000_000
        while not self._answers(path):
            try:
                code = self.process.wait(timeout=POLL_S)
            except subprocess.TimeoutExpired:
                if monotonic_ns() < deadline_ns:
                    continue
                reason = f"is not ready after {READY_WITHIN_S} s"
            else:
                reason = f"ended with {code}"
            raise ServerError(f"{self.process.args!r} {reason}; {self.log_end()}")

    def ask(self, method: str, path: str, body: bytes | None = None) -> Any:
        """The JSON answer to a request. Raises ServerError for anything but 2xx."""
        content = self.ask_bytes(method, path, body)
        return json.loads(content) if content else None

    def ask_bytes(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """The body of the answer to a request. Raises ServerError for anything but 2xx."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            headers = {"Content-Type": "application/json"} if body is not None else {}
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise ServerError(f"{method} {path} failed: {error}; {self.log_end()}") from error
        finally:
            connection.close()
        if not 200 <= answer.status < 300:
            raise ServerError(f"{method} {path} was answered {answer.status}: {content[:500]!r}")
        return content

    def processes(self) -> list[psutil.Process]:
        """The process and its descendants that are alive."""
        parent = psutil.Process(self.process.pid)
        return [parent, *parent.children(recursive=True)]

    def cpu_s(self) -> float:
        """CPU-seconds of the process and its descendants so far."""
        return cpu_s(self.processes())

    def side_threads_cpu_s(self) -> float:
        """CPU-seconds of all threads except the main ones: uploaders, ledger, readers."""
        total = 0.0
        for process in self.processes():
            try:
                threads = process.threads()
            except psutil.NoSuchProcess:
                continue
            total += sum(t.user_time + t.system_time for t in threads if t.id != process.pid)
        return total

    def log_end(self) -> str:
        """The last lines of its log."""
        text = (self.folder / "log").read_text(errors="replace")
        return f"the end of its log:\n{text[-2000:].strip()}"

    def stop(self) -> None:
        """Kills it and removes its folder."""
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder)

    def _answers(self, path: str) -> bool:
        return 0 < asked(self.port, "GET", path)[0] < 500


class Daemon(Server):
    """``headgate serve``."""

    def wait_until_quiet(self) -> None:
        """Returns when all accepted requests are committed, so that loads do not overlap."""
        deadline_ns = monotonic_ns() + READY_WITHIN_S * 1_000_000_000
        while any(shard["ring_used_bytes"] for shard in self.ask("GET", "/v0/status")["shards"]):
            if monotonic_ns() > deadline_ns:
                raise ServerError(f"not quiet {READY_WITHIN_S} s after a load; {self.log_end()}")
            time.sleep(POLL_S)

    def stop(self) -> None:
        """Stops it cleanly and removes its folder. Raises ServerError if it does not end well."""
        try:
            self.end()
        finally:
            shutil.rmtree(self.folder)

    def end(self) -> None:
        """Stops it cleanly. Raises ServerError if it does not end well."""
        self.process.terminate()
        try:
            code = self.process.wait(timeout=STOP_WITHIN_S)
            complaint = f"ended with {code} on SIGTERM" if code else ""
        except subprocess.TimeoutExpired:
            # The whole process group: shards must not outlive it.
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            complaint = f"did not end within {STOP_WITHIN_S} s of SIGTERM"
        if complaint:
            raise ServerError(f"{self.process.args!r} {complaint}; {self.log_end()}")


class Minio:
    """A MinIO with one bucket."""

    def __init__(self, folder: Path, cpus: Iterable[int]) -> None:
        self._folder = folder
        (folder / "data").mkdir(parents=True)
        port = minio.free_port()
        with pinned(cpus):
            self._process = minio.start(minio.find_or_build(), folder / "data", port)
        self.endpoint_url = f"http://127.0.0.1:{port}"
        client = bucket_client(self.endpoint_url)
        client.create_bucket(Bucket=BUCKET)
        client.close()

    @property
    def environment(self) -> dict[str, str]:
        """Credentials for boto3."""
        return {
            "AWS_ACCESS_KEY_ID": minio.ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": minio.SECRET_KEY,
            "AWS_DEFAULT_REGION": minio.REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def cpu_s(self) -> float:
        """CPU-seconds of MinIO so far."""
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system)

    def stop(self) -> None:
        """Stops it and removes its data."""
        minio.stop(self._process)
        shutil.rmtree(self._folder)


def plain_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Our environment without HEADGATE_ and AWS_ settings, with the checkout importable."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HEADGATE_", "AWS_"))
    }
    return kept | {"PYTHONPATH": str(ROOT)} | dict(more or {})


def start_daemon(
    folder: Path,
    cpus: Iterable[int],
    shards: int,
    store: Minio | None,
    settings: Mapping[str, object] | None = None,
    chaos: str = "",
    within: Callable[[Sequence[str]], list[str]] = list,
    path: Path | None = None,
) -> Daemon:
    """A daemon on the data directory in ``folder``, ready, on the embedded store or on ``store``.

    ``settings`` have precedence over those of all benchmarks. ``within`` makes the command that
    is started of that of the daemon.
    """
    port = minio.free_port()
    command = [sys.executable, "-m", "cli", "serve", "--data", str(folder / "data")]
    command += ["--listen", f"127.0.0.1:{port}", "--shards", str(shards)]
    wanted = {"object_bytes_target": OBJECT_BYTES_TARGET} | dict(settings or {})
    for name, value in wanted.items():
        command += ["--set", f"{name}={value}"]
    if chaos:
        command += ["--chaos", chaos]
    environment = plain_environment(store.environment if store else None)
    if path is not None:
        environment["PYTHONPATH"] = f"{path}:{environment['PYTHONPATH']}"
    if store is not None:
        command += ["--store", f"s3://{BUCKET}/{folder.name}"]
        command += ["--set", f"s3_endpoint_url={store.endpoint_url}"]
        command += ["--set", f"s3_region={minio.REGION}"]
    daemon = Daemon(within(command), folder, port, cpus, environment)
    _ready(daemon, "/readyz")
    return daemon


def start_null(folder: Path, cpus: Iterable[int]) -> Server:
    """The null responder."""
    port = minio.free_port()
    server = Server([sys.executable, "-m", "bench.null_responder", str(port)], folder, port, cpus)
    _ready(server, "/")
    return server


def start_null_fan(folder: Path, cpus: Iterable[int]) -> Server:
    """The null fan-out."""
    port = minio.free_port()
    server = Server([sys.executable, "-m", "bench.null_fan", str(port)], folder, port, cpus)
    _ready(server, "/")
    return server


def start_s2_lite(binary: str, folder: Path, cpus: Iterable[int]) -> Server:
    """s2-lite on a local directory, with a basin that creates streams by itself."""
    port = minio.free_port()
    (folder / "root").mkdir(parents=True)
    init = folder / "init.json"
    basin = {"name": "bench-basin", "config": {"create_stream_on_append": True}, "streams": []}
    init.write_text(json.dumps({"basins": [basin]}))
    command = [binary, "--local-root", str(folder / "root"), "--port", str(port)]
    server = Server([*command, "--init-file", str(init)], folder, port, cpus)
    _ready(server, "/health")
    return server


def s2_lite_binary(named: str | None) -> str | None:
    """The binary of s2-lite, if one is given or found on PATH. Raises ServerError."""
    given = named or os.environ.get("HEADGATE_BENCH_S2_LITE")
    if given and not os.access(given, os.X_OK):
        raise ServerError(f"s2-lite: {given} is not an executable file; correct or leave it out")
    return given or shutil.which("s2-lite")


def _ready(server: Server, path: str) -> None:
    try:
        server.wait_until(path)
    except BaseException:
        server.stop()
        raise
