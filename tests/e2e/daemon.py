"""A real daemon for tests: started as a process, used over real sockets, stopped by its pid.

``wait_until`` polls until a condition holds. Its time limit only ends a hang, and is generous,
because no test may fail when a machine is slow.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

from shards.clock import monotonic_ns

ROOT = Path(__file__).resolve().parents[2]
HANG_S = 60.0
PAGE_ORIGIN = "http://pages.example"  # of a page that the daemon of a worker lets read
# What a request raises that gets no complete answer.
UNANSWERED = (OSError, http.client.HTTPException)
T = TypeVar("T")


def wait_until(
    look: Callable[[], T], what: str, hang_s: float = HANG_S, pause_s: float = 0.01
) -> T:
    """The first true value that ``look`` returns. Raises AssertionError after a hang."""
    deadline_ns = monotonic_ns() + int(hang_s * 1e9)
    while True:
        found = look()
        if found:
            return found
        if monotonic_ns() > deadline_ns:
            raise AssertionError(f"waited {hang_s} s for: {what}")
        time.sleep(pause_s)


class Answer(NamedTuple):
    """An HTTP answer; ``json`` is its decoded body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The error's code."""
        return str(self.json["error"]["code"])


@contextlib.contextmanager
def stream(
    port: int,
    path: str,
    *,
    method: str = "GET",
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = HANG_S,
) -> Iterator[http.client.HTTPResponse]:
    """An answer whose body is read as it comes, on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    with contextlib.closing(connection):
        connection.request(method, path, body, headers or {})
        with connection.getresponse() as answer:  # it has the socket
            yield answer


def ask(
    port: int,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = HANG_S,
) -> Answer:
    """One request on a connection of its own. Raises one of UNANSWERED."""
    with stream(
        port, path, method=method, body=body, headers=headers, timeout_s=timeout_s
    ) as answer:
        names = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, names, answer.read())


def command(*arguments: str) -> list[str]:
    """The command line of a subcommand of this checkout."""
    return [sys.executable, "-m", "cli", *arguments]


class Daemon:
    """One ``headgate serve``; use ``running`` to start and stop it."""

    def __init__(
        self, data: Path, *, shards: int = 1, store: str | None = None,
        environ: dict[str, str] | None = None, settings: dict[str, object] | None = None,
        listen: str = "127.0.0.1:0", config_file: Path | None = None, token: str = "",
        command: Sequence[str] = command("serve"),
    ) -> None:  # fmt: skip
        self.data = data
        self.token = token  # that its own requests are sent with
        arguments = ["--data", str(data), "--listen", listen, "--shards", str(shards)]
        if store is not None:
            arguments += ["--store", store]
        if config_file is not None:
            arguments += ["--config", str(config_file)]
        for key, value in (settings or {}).items():
            arguments += ["--set", f"{key}={value}"]
        self.command = [*command, *arguments]
        self.environ = {**os.environ, "PYTHONPATH": str(ROOT), **(environ or {})}
        self.process: subprocess.Popen[str]
        self.log: list[str] = []
        self.heard: Callable[[str], None] = lambda line: None  # is given each line of it
        self.port = 0

    def start(self) -> None:
        """Starts the process; its log is gathered by a thread."""
        self.process = subprocess.Popen(
            self.command, cwd=ROOT, env=self.environ, text=True, start_new_session=True,
            stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            self.heard(line)
            ready = re.search(r"ready on http://.*:(\d+) ", line)
            if ready:
                self.port = int(ready.group(1))

    def wait_ready(self) -> None:
        """Waits until the daemon says that it is ready; fails with its log when it ends first."""
        wait_until(
            lambda: self.port or self.process.poll() is not None, "the daemon to start", 2 * HANG_S
        )  # a take-over waits for 20 s
        assert self.port, f"the daemon ended with {self.process.returncode}:\n{self.text}"
        wait_until(lambda: self.get("/readyz").status == 200, "/readyz to be 200")

    @property
    def text(self) -> str:
        """The log so far."""
        return "".join(self.log)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        """One request on a connection of its own."""
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.token:
            fields.setdefault("Authorization", f"Bearer {self.token}")
        return ask(self.port, method, path, body, fields)

    def get(self, path: str) -> Answer:
        return self.ask("GET", path)

    def json(self, method: str, path: str, document: object = None) -> Answer:
        """A request with a JSON body, none for None."""
        if document is None:
            return self.ask(method, path)
        return self.ask(
            method, path, json.dumps(document).encode(), content_type="application/json"
        )

    def produce(self, topic: str, *data: object, **more: object) -> Answer:
        """Produces records of JSON data."""
        return self.json("POST", f"/v0/topics/{topic}", {"records": [{"data": d} for d in data],
                                                         **more})  # fmt: skip

    def diff(self, topic: str, **asked: object) -> Any:
        """A diff's answer; the test fails unless it is 200."""
        answer = self.json("POST", f"/v0/topics/{topic}/diff", asked)
        assert answer.status == 200, answer.body
        return answer.json

    def read_all(self, topic: str, partition: int = 0) -> list[Any]:
        """All records of a partition, page by page."""
        records: list[Any] = []
        from_seq = 0
        while True:
            page = self.diff(topic, from_seq=from_seq, partition=partition, limit=1000)
            records += page["records"]
            if page["caught_up"]:
                return records
            assert page["next_from_seq"] > from_seq, "a diff that is not caught up must move on"
            from_seq = page["next_from_seq"]

    def status(self) -> Any:
        return self.get("/v0/status").json

    def imports(self) -> list[Any]:
        """What imports have left; asked again while the ledger does not answer in time."""
        found: list[list[Any]] = []

        def told() -> bool:
            imports = self.get("/v0/scaling").json["imports"]
            if imports is not None:
                found.append(imports)
            return bool(found)

        wait_until(told, "what imports have left")
        return found[0]

    def alarm(self, name: str) -> Any:
        """Waits for an alarm. A busy machine may raise others too."""
        return wait_until(
            lambda: next((a for a in self.status()["alarms"] if a["alarm"] == name), None),
            f"the alarm {name}",
        )

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(HANG_S)
        self._reader.join(HANG_S)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code

    def kill_everything(self) -> None:
        """SIGKILL to the supervisor and all its shards, in one call."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.stop()


def wait_for_heartbeats(daemon: Daemon) -> None:
    """Waits until every shard has had a heartbeat that began after this call.

    ``status`` shows what the governor decided; the shards follow it at their next heartbeat.
    """
    began_ns = monotonic_ns()

    def are_later() -> bool:
        asked_ns = monotonic_ns()
        ages_ms = [shard["heartbeat_age_ms"] for shard in daemon.status()["shards"]]
        # An age is rounded down.
        return all(asked_ns - (age_ms + 1) * 1_000_000 > began_ns for age_ms in ages_ms)

    wait_until(are_later, "a heartbeat of every shard")


def empty(daemon: Daemon) -> None:
    """Deletes all routers, topics and cursors."""
    for kind, name in (("routers", "router"), ("topics", "topic"), ("cursors", "cursor")):
        while found := daemon.get(f"/v0/{kind}?limit=1000").json[kind]:
            for each in found:
                path = f"/v0/{kind}/{quote(each[name], safe='')}"
                deleted = daemon.ask("DELETE", path + "?force=true" * (kind == "topics"))
                assert deleted.status == 200, deleted


@contextlib.contextmanager
def running(data: Path, **options: Any) -> Iterator[Daemon]:
    """A daemon that is ready; at the end it must stop with exit code 0, or be dead already."""
    daemon = Daemon(data, **options)
    daemon.start()
    try:
        daemon.wait_ready()
        yield daemon
        if daemon.process.poll() is None:
            code = daemon.stop()
            assert code == 0, f"the daemon ended with {code}:\n{daemon.text}"
    finally:
        daemon.kill_everything()
