"""The file of tokens as others leave it: missing, gone, locked, or an older one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import cli
from compaction.access.http_calls import DaemonRefused, call, socket_address
from daemon.access.token_file import Scope, TokenFile
from tests.attacks.test_tokens import RECORDS, World
from tests.e2e.daemon import Daemon, running, wait_until
from uploader.stores.disk import locked


def create(data: Path, name: str) -> str:
    made = CliRunner().invoke(
        cli.headgate, ["tokens", "create", name, "--scope", "produce,read", "--data", str(data)]
    )
    assert made.exit_code == 0, made.output
    return str(made.output.strip())


@pytest.mark.slow
def test_the_first_token_is_made_through_the_socket_and_a_file_that_is_gone_is_not_made_again(
    tmp_path: Path,
) -> None:
    file = TokenFile(tmp_path / "tokens.json")
    options: Any = {"settings": {"auth_file": file.path}}
    with running(tmp_path / "data", **options) as daemon:
        assert "it was made and has no tokens" in daemon.text
        assert file.path.stat().st_mode & 0o777 == 0o600
        world = World(daemon, file, {})
        assert world.ask("GET", "/v0/topics", None).status == 401
        token = create(tmp_path / "data", "first")
        wait_until(lambda: world.ask("GET", "/v0/topics", token).status == 200, "the token")
    file.path.unlink()
    refused = ended(Daemon(tmp_path / "data", **options), 1)
    assert f"{file.path} is gone, and its generation 2 was read before" in refused
    assert not file.path.exists()


@pytest.mark.slow
def test_a_process_that_holds_the_files_lock_stops_no_producer(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "tokens.json")
    tokens = {"all": file.issue("all", list(Scope))[1]}
    made: list[bytes] = []
    lock = tmp_path / "tokens.json.lock"
    body = b'{"create":{"name":"late","scopes":["read"]}}'

    def create_late() -> None:
        """Asks again when it is refused: the shard waits for the lock for ten seconds only."""
        address = socket_address(str(tmp_path / "data"))
        while not made:
            try:
                made.append(call(address, "POST", "/v0/admin/tokens", body, once=True))
            except DaemonRefused as error:
                if "another process has held" not in str(error):
                    raise

    with running(tmp_path / "data", settings={"auth_file": file.path}) as daemon:
        world = World(daemon, file, tokens)
        world.good("POST", "/v0/topics/t", RECORDS)
        (shard,) = world.ask("GET", "/v0/status", "all").json["shards"]
        files = Path(f"/proc/{shard['pid']}/fd")
        with locked(lock):
            asking = threading.Thread(target=create_late)
            asking.start()
            wait_until(
                lambda: any(os.path.realpath(each) == str(lock) for each in files.iterdir()),
                "the shard to wait for the lock",
            )
            for _ in range(20):
                world.good("POST", "/v0/topics/t", RECORDS)
                world.good("GET", "/v0/topics")
            assert not made
        asking.join()
        assert len(made) == 1


@pytest.mark.slow
def test_a_shard_that_is_killed_while_the_file_is_damaged_goes_on_with_the_same_tokens(
    tmp_path: Path,
) -> None:
    file = TokenFile(tmp_path / "tokens.json")
    tokens = {name: file.issue(name, list(Scope))[1] for name in ("all", "leaver")}
    with running(tmp_path / "data", settings={"auth_file": file.path}) as daemon:
        world = World(daemon, file, tokens)
        file.revoke("leaver")
        wait_until(lambda: world.ask("GET", "/v0/topics", "leaver").status == 401, "its end")
        file.path.write_bytes(b"{")
        (shard,) = world.ask("GET", "/v0/status", "all").json["shards"]
        os.kill(shard["pid"], signal.SIGKILL)

        def is_another() -> bool:
            with contextlib.suppress(OSError, AssertionError):
                answer = world.ask("GET", "/v0/status", "all")
                return answer.status == 200 and answer.json["shards"][0]["pid"] != shard["pid"]
            return False

        wait_until(is_another, "a shard that serves")
        world.good("POST", "/v0/topics/t", RECORDS)
        assert world.ask("GET", "/v0/topics", "leaver").status == 401
        said = "the tokens that were read before stay in force"
        wait_until(lambda: said in daemon.text, "the log to say so")

        def problems() -> list[str]:
            answer = world.ask("GET", "/v0/status", "all")
            if answer.status == 401:
                return ["the token is not known yet"]
            alarms = answer.json["alarms"]
            return [each["message"] for each in alarms if each["alarm"] == "tokens_unusable"]

        (problem,) = wait_until(problems, "the alarm of the successor")
        assert str(file.path) in problem and problem.startswith("changes of tokens have no effect")
        file.path.unlink()
        later = TokenFile(file.path)
        for number in range(4):  # a generation above that of the file that is gone
            later.issue(f"later{number}", list(Scope))
        tokens["all"] = later.issue("all", list(Scope))[1]
        wait_until(lambda: not problems(), "the end of the alarm")


def test_an_older_file_that_is_put_back_while_the_daemon_is_down_is_refused(
    tmp_path: Path,
) -> None:
    file = TokenFile(tmp_path / "tokens.json")
    tokens = {name: file.issue(name, list(Scope))[1] for name in ("keeper", "leaver")}
    older = file.path.read_bytes()
    options: Any = {"settings": {"auth_file": file.path}}
    with running(tmp_path / "data", **options) as daemon:
        world = World(daemon, file, tokens)
        file.revoke("leaver")
        wait_until(lambda: world.ask("GET", "/v0/topics", "leaver").status == 401, "its end")
        kept = tmp_path / "data" / "tokens-read.json"
        wait_until(lambda: json.loads(kept.read_bytes())["generation"] == 3, "it to be remembered")
        daemon.kill_everything()
    file.path.write_bytes(older)
    refused = ended(Daemon(tmp_path / "data", **options), 1)
    assert "has the generation 2, and 3 was read before" in refused and str(kept) in refused


def test_an_open_daemon_says_so_as_long_as_it_is(tmp_path: Path) -> None:
    with running(tmp_path / "data", settings={"insecure_open": "true"}) as daemon:
        alarm = daemon.alarm("insecure_open")
        assert not alarm["not_ready"]
        assert "every client that reaches the daemon may do everything" in alarm["message"]
        assert (
            'headgate_alarm_active{alarm="insecure_open"} 1' in daemon.get("/metrics").body.decode()
        )
        assert "insecure_open is on: every client that reaches" in daemon.text


def ended(daemon: Daemon, code: int) -> str:
    """The log of a daemon that does not start."""
    daemon.start()
    assert daemon.process.wait() == code
    daemon._reader.join()
    assert daemon.process.stderr is not None
    daemon.process.stderr.close()
    return daemon.text


def test_a_port_that_others_reach_is_not_opened_without_tokens(tmp_path: Path) -> None:
    text = ended(Daemon(tmp_path / "data", listen="0.0.0.0:0"), 2)
    assert "without an auth_file" in text and "insecure_open = true" in text
