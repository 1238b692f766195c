"""The headgate command as a process, with real daemons: exit codes, JSON shapes, output."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.e2e.daemon import HANG_S, ROOT, Daemon, running, wait_until
from tests.e2e.processes import Line, connect_to, stopped
from tests.e2e.stores import on_s3
from tests.minio import Bucket
from tools.ports import kept_port

STATUS = {
    "version", "uptime_s", "ready", "store", "window_ms", "pressure", "memory_bound_bytes",
    "shards", "groups", "totals",
}  # fmt: skip
STORE = {"url", "puts", "put_bytes", "put_failures", "gets", "get_bytes", "lists"}
SHARD = {
    "shard", "pid", "cpu", "group", "restarts", "heartbeat_age_ms", "ring_bytes",
    "ring_used_bytes", "requests_acked", "records_acked", "bytes_acked",
}  # fmt: skip
GROUP = {
    "group", "shards", "turn", "backlog_bytes", "last_upload_age_ms", "last_change_age_ms",
    "splits", "merges",
}  # fmt: skip
TOTALS = {
    "requests_acked", "records_acked", "bytes_acked", "rejected", "objects_committed",
    "orphans_adopted",
}  # fmt: skip
OBJECT = {
    "key", "locator", "size_bytes", "created_ms", "commit_number", "extents", "records",
}  # fmt: skip


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)


def command(*arguments: str) -> list[str]:
    """The command line of a subcommand."""
    return [sys.executable, "-m", "cli", *arguments]


def headgate(daemon: Daemon | None, *arguments: str, stdin: str = "", **environ: str) -> Ended:
    """Runs a subcommand to its end, with the daemon's address in the environment."""
    url = {"HEADGATE_URL": daemon.url} if daemon is not None else {}
    done = subprocess.run(
        command(*arguments), cwd=ROOT, env={**os.environ, **url, **environ}, input=stdin,
        capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip
    return Ended(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon whose data folder the tests know, because they list its objects too."""
    with running(tmp_path_factory.mktemp("cli") / "data", shards=2) as started:
        yield started


def test_status_and_groups_have_the_shapes_that_are_promised(daemon: Daemon) -> None:
    daemon.produce("shapes", 1)
    status = headgate(daemon, "status", "-o", "json")
    groups = headgate(daemon, "groups", "-o", "json")
    assert (status.code, status.stderr) == (0, "") == (groups.code, groups.stderr)
    assert set(status.json) >= STATUS
    assert set(status.json["store"]) >= STORE and set(status.json["totals"]) >= TOTALS
    assert {"level", "rung", "inputs"} <= set(status.json["pressure"])
    assert [shard["shard"] for shard in status.json["shards"]] == [0, 1]
    assert all(set(shard) >= SHARD for shard in status.json["shards"])
    assert status.json["ready"] is True and status.json["store"]["url"].startswith("file://")
    assert all(set(group) >= GROUP for group in groups.json)
    assert [group["shards"] for group in groups.json] == [[0, 1]]
    assert "shards 0-1  group 0" in headgate(daemon, "groups").stdout
    assert "shard" in headgate(daemon, "status").stdout


def test_topics_are_made_listed_changed_and_deleted(daemon: Daemon) -> None:
    made = headgate(daemon, "topics", "create", "t1", "--partitions", "2", "-o", "json")
    assert made.code == 0 and made.json["config"]["partitions"] == 2
    assert [p["partition"] for p in made.json["partitions"]] == [0, 1]
    again = headgate(daemon, "topics", "create", "t1", "--partitions", "2", "-o", "json")
    assert again.code == 0 and again.json == made.json
    grown = headgate(daemon, "topics", "alter", "t1", "--partitions", "3", "-o", "json")
    assert grown.code == 0 and grown.json["config"]["partitions"] == 3
    shrunk = headgate(daemon, "topics", "alter", "t1", "--partitions", "1")
    assert shrunk.code == 1 and "partitions" in shrunk.stderr
    listed = headgate(daemon, "topics", "ls", "-o", "json")
    assert grown.json in listed.json
    shown = headgate(daemon, "topics", "show", "t1", "-o", "json")
    assert shown.json == grown.json
    assert headgate(daemon, "topics", "delete", "t1").code == 0
    gone = headgate(daemon, "topics", "show", "t1")
    assert gone.code == 1 and "t1" in gone.stderr
    assert "hint: `headgate topics ls`" in gone.stderr


def test_produce_from_stdin_is_read_back_as_it_was_written(daemon: Daemon) -> None:
    lines = '{"k": "a", "n": 1.50}\n"text"\n[1, 2]\n'
    sent = headgate(daemon, "produce", "copied", "--key", "k", "-o", "json", stdin=lines)
    assert (sent.code, sent.stderr) == (0, "")
    assert sent.json["records"] == 3 and sent.json["error"] is None
    assert sent.json["partitions"] == [{"partition": 0, "first_seq": 1, "last_seq": 3, "count": 3}]
    assert headgate(daemon, "read", "copied").stdout == lines
    assert headgate(daemon, "read", "copied", "-n", "1").stdout == '{"k": "a", "n": 1.50}\n'
    assert headgate(daemon, "read", "copied", "--tail", "1").stdout == "[1, 2]\n"
    assert headgate(daemon, "read", "copied", "--since", "1h").stdout == lines
    whole = headgate(daemon, "read", "copied", "--with-meta", "--from-seq", "2").stdout
    assert json.loads(whole)["seq"] == 3


def test_a_line_that_is_not_a_record_ends_produce_with_1_and_its_number(daemon: Daemon) -> None:
    sent = headgate(daemon, "produce", "broken", "-o", "json", stdin="1\n2\n{\n")
    assert sent.code == 1 and "line 3" in sent.stderr
    assert sent.json["records"] == 2 and sent.json["error"]["line"] == 3
    assert headgate(daemon, "read", "broken").stdout == "1\n2\n"


def test_read_follow_prints_what_comes_and_ends_well_with_ctrl_c(daemon: Daemon) -> None:
    daemon.produce("followed", "old")
    reader = subprocess.Popen(
        command("read", "followed", "--follow"), cwd=ROOT, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env={**os.environ, "HEADGATE_URL": daemon.url}, text=True,
    )  # fmt: skip
    with reader:
        assert reader.stdout is not None and reader.stderr is not None
        try:
            assert reader.stdout.readline() == '"old"\n'
            for number in range(3):
                daemon.produce("followed", number)
                assert reader.stdout.readline() == f"{number}\n"
            reader.send_signal(signal.SIGINT)
            assert reader.wait(HANG_S) == 0
            assert reader.stderr.read() == ""
        finally:
            reader.kill()


def test_objects_are_listed_printed_and_verified_while_the_daemon_runs(
    daemon: Daemon, tmp_path: Path
) -> None:
    daemon.produce("objects", {"a": 1}, "two")
    place = ("--data", str(daemon.data))
    listed = headgate(None, "objects", "ls", *place, "-o", "json")
    assert listed.code == 0 and all(set(row) == OBJECT for row in listed.json)
    committed = len(listed.json)
    assert [row["commit_number"] for row in listed.json] == list(range(1, committed + 1))
    assert committed == daemon.status()["commits"]
    key = listed.json[-1]["key"]
    printed = headgate(None, "objects", "cat", key, *place).stdout.splitlines()
    assert [json.loads(line)["data"] for line in printed] == [{"a": 1}, "two"]
    verified = headgate(None, "objects", "verify", *place, "-o", "json")
    assert verified.code == 0
    assert verified.json["objects"] == committed and verified.json["bad"] == []
    assert daemon.get("/readyz").status == 200


@pytest.mark.slow
def test_objects_verify_names_the_one_object_with_a_flipped_byte(
    data: Path, tmp_path: Path
) -> None:
    with running(data, shards=1) as daemon:
        for number in range(3):
            daemon.produce("t", f"record {number}")
    copy = tmp_path / "copy"
    shutil.copytree(data, copy, ignore=shutil.ignore_patterns("*.sock"))
    place = ("--data", str(copy))
    keys = [row["key"] for row in headgate(None, "objects", "ls", *place, "-o", "json").json]
    assert len(keys) == 3
    (segment,) = [path for path in (copy / "store").rglob("*") if b"record 1" in content(path)]
    damaged = bytearray(segment.read_bytes())
    damaged[damaged.index(b"record 1")] ^= 1
    segment.write_bytes(damaged)

    verified = headgate(None, "objects", "verify", *place, "-o", "json")
    assert verified.code == 1
    assert [item["key"] for item in verified.json["bad"]] == [keys[1]]
    assert headgate(None, "objects", "verify", keys[0], keys[2], *place).code == 0
    table = headgate(None, "objects", "verify", *place)
    assert table.code == 1 and keys[1] in table.stdout and "1 bad" in table.stdout


def content(path: Path) -> bytes:
    """A file's bytes; none for a folder."""
    return path.read_bytes() if path.is_file() else b""


@pytest.mark.slow
def test_objects_on_s3_are_verified_in_place(data: Path, bucket: Bucket) -> None:
    options = on_s3(bucket, commit_window_min_ms=1)
    place = (
        "--data", str(data), "--store", bucket.url,
        "--set", f"s3_endpoint_url={bucket.endpoint_url}",
    )  # fmt: skip
    with running(data, shards=1, **options) as daemon:
        for number in range(2):
            daemon.produce("t", number)
        keys = [row["key"] for row in headgate(None, "objects", "ls", *place, "-o", "json").json]
        assert len(keys) == 2
        gone = f"{bucket.prefix}/{keys[0]}"
        bucket.client.delete_object(Bucket=bucket.bucket, Key=gone)
        verified = headgate(None, "objects", "verify", *place, "-o", "json", **bucket.environment)
    assert verified.code == 1
    assert [item["key"] for item in verified.json["bad"]] == [keys[0]]


def test_an_address_without_a_daemon_is_3(data: Path) -> None:
    with kept_port() as port:
        url = f"http://127.0.0.1:{port}"
        for arguments in (["status", "-o", "json"], ["groups"], ["topics", "ls"], ["read", "t"]):
            ended = headgate(None, *arguments, "--url", url)
            told = json.loads(ended.stdout)["error"] if "json" in arguments else None
            assert ended.code == 3 and (told or {"code": "unreachable"})["code"] == "unreachable"
            assert told or ended.stdout == "", arguments
            assert url in ended.stderr and "headgate serve" in ended.stderr


@contextlib.contextmanager
def relayed(line: Line) -> Iterator[str]:
    """A URL that leads to this one connection, because other shards may not answer."""
    listener = socket.create_server(("127.0.0.1", 0))

    def relay() -> None:
        client, _ = listener.accept()
        with client:
            ways = {client: line.socket, line.socket: client}
            while True:
                for ready in select.select(list(ways), [], [])[0]:
                    data = ready.recv(65536)
                    if not data:
                        return
                    ways[ready].sendall(data)

    thread = threading.Thread(target=relay)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(HANG_S)
    finally:
        listener.close()


@pytest.mark.slow
def test_a_daemon_with_a_shard_that_is_not_ready_makes_status_4(data: Path) -> None:
    with (
        running(data, shards=2) as daemon,
        connect_to(daemon, 0) as line,
        contextlib.ExitStack() as stack,
    ):
        killed: set[int] = set()

        def shard_1() -> tuple[int | None, bool]:
            line.socket.sendall(b"GET /v0/status HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = line.answer()
            assert answer is not None
            state = answer.json["shards"][1]
            return state["pid"], state["ready"]

        def is_stopped_on_its_way() -> bool:
            """Stops the shard. One that serves by then is killed: its successor may be met earlier,
            since it has half a second of imports before it."""
            pid, _ = shard_1()
            if pid is None or pid in killed:
                return False
            stack.enter_context(stopped(pid))
            if shard_1() == (pid, False):
                return True
            killed.add(pid)
            os.kill(pid, signal.SIGKILL)
            return False

        wait_until(is_stopped_on_its_way, "a shard that does not serve yet")
        with relayed(line) as url:
            ended = headgate(None, "status", "-o", "json", "--url", url)
        assert ended.code == 4 and "degraded" in ended.stderr
        assert ended.json["ready"] is False
        stack.close()
        wait_until(lambda: headgate(daemon, "status").code == 0, "status to be good again")


@pytest.mark.parametrize(
    "arguments",
    [
        ["serve", "--no-such-flag"],
        ["serve", "--shards", "many"],
        ["serve", "--set", "shards"],
        ["serve", "--set", "shard=2"],
        ["serve", "--store", "ftp://x"],
        ["serve", "--listen", "nonsense"],
        ["read", "t", "--since", "1h", "--tail", "1"],
        ["status", "-o", "xml"],
        ["nonsense"],
    ],
)
def test_wrong_usage_is_2_and_says_why(tmp_path: Path, arguments: list[str]) -> None:
    environ = {"HEADGATE_DATA_DIR": str(tmp_path / "data")}
    ended = headgate(None, *arguments, **environ)
    assert (ended.code, ended.stdout) == (2, "")
    assert ended.stderr and "Traceback" not in ended.stderr
    assert not (tmp_path / "data").exists()


def test_config_show_is_what_serve_runs_with(daemon: Daemon) -> None:
    shown = headgate(None, "config", "show", "-o", "json", "--data", str(daemon.data))
    assert shown.code == 0
    assert shown.json["store_url"] == daemon.status()["store"]["url"]
    assert shown.json["ring_bytes"] == daemon.status()["shards"][0]["ring_bytes"]
