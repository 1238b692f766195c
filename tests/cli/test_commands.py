"""The commands that talk to a daemon, against answers in the shapes of the HTTP API.

That the daemon answers so is tested with the daemon (tests/cli/test_e2e.py).
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import cli
from daemon.config import KEYS
from tests.scripted import Answer, Call, refusal, run, says, scripted, state

CHECKOUT = Path(__file__).resolve().parents[2]

STATUS: dict[str, Any] = {
    "version": "0.1.0",
    "uptime_s": 200.5,
    "ready": True,
    "store": {
        "url": "file:///srv/headgate/store", "puts": 1200, "put_bytes": 5 << 20, "put_failures": 1,
        "gets": 3, "get_bytes": 2048, "lists": 2,
    },
    "window_ms": 0.5,
    "pressure": {"level": 0.25, "rung": "coalesce", "inputs": {"ring": 0.25}},
    "memory_bound_bytes": 512 << 20,
    "retention": {"records_evicted": 4_321, "clock_jump_ms": None},
    "shards": [
        {
            "shard": shard, "pid": 100 + shard, "cpu": shard, "group": 0, "restarts": 0,
            "heartbeat_age_ms": 12, "ring_bytes": 64 << 20, "ring_used_bytes": 3 << 20,
            "requests_acked": 1000, "records_acked": 12345, "bytes_acked": 7 << 20,
        }
        for shard in range(2)
    ],
    "groups": [
        {
            "group": 0, "shards": [0, 1], "turn": 1, "backlog_bytes": 1536,
            "last_upload_age_ms": 40, "last_change_age_ms": 90000, "splits": 0, "merges": 1,
        }
    ],
    "totals": {
        "requests_acked": 2000, "records_acked": 24690, "bytes_acked": 14 << 20, "rejected": 4,
        "objects_committed": 1199, "orphans_adopted": 0,
    },
    "a_field_of_the_future": [1],
}  # fmt: skip

STATUS_TEXT = """\
headgate 0.1.0  ready  up 3 min 20 s

store     file:///srv/headgate/store
          1,200 puts of 5.0 MiB, 1 failed; 3 gets of 2.0 KiB; 2 lists
window    0.5 ms
pressure  0.25 (coalesce)
memory    at most 512 MiB by its bounds
acked     2,000 requests, 24,690 records, 14.0 MiB; 4 rejected
objects   1,199 committed, 0 adopted
evicted   4,321 records
groups    1: 0 (2 shards)

shard  pid  cpu  group  restarts  heartbeat  ring used      ring  requests  records    bytes
    0  100    0      0         0  12 ms ago    3.0 MiB  64.0 MiB     1,000   12,345  7.0 MiB
    1  101    1      0         0  12 ms ago    3.0 MiB  64.0 MiB     1,000   12,345  7.0 MiB
"""


def test_status_is_a_table_for_people() -> None:
    with says(Answer(200, STATUS)) as server:
        result = run(server, "status")
    assert (result.exit_code, result.stdout, result.stderr) == (0, STATUS_TEXT, "")
    assert server.calls == [Call("GET", "/v0/status", None)]


def test_status_as_json_is_what_the_daemon_said() -> None:
    with says(Answer(200, STATUS)) as server:
        result = run(server, "status", "-o", "json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == STATUS


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"ready": False}, "the daemon is not ready"),
        ({"shards": [STATUS["shards"][0], {"shard": 1, "pid": None}]}, "shard 1 has no process"),
        (
            {"alarms": [{"alarm": "store_failing", "message": "store failing for 42 s: No space"}]},
            "store failing for 42 s: No space",
        ),
        ({"retention": {"clock_jump_ms": -7_200_000}}, "the wall clock went back by 2 h"),
    ],
)
def test_status_of_a_degraded_daemon_ends_in_4(change: dict[str, Any], reason: str) -> None:
    with says(Answer(200, STATUS | change)) as server:
        result = run(server, "status", "--output", "json")
        table = run(server, "status")
    assert result.exit_code == table.exit_code == 4
    assert json.loads(result.stdout) == STATUS | change
    assert reason in result.stderr and reason in table.stderr


def test_status_leaves_out_what_the_daemon_left_out() -> None:
    bare = {"version": "9", "ready": True, "shards": [{"shard": 0, "pid": 7}], "groups": []}
    with says(Answer(200, bare)) as server:
        result = run(server, "status")
    assert result.exit_code == 0 and "up -" in result.stdout


def test_groups_draws_the_tree_and_gives_the_list_as_json() -> None:
    with says(Answer(200, STATUS)) as server:
        drawn, listed = run(server, "groups"), run(server, "groups", "-o", "json")
    assert drawn.stdout == (
        "shards 0-1  group 0  [0 1*]  backlog 1.5 KiB  uploaded 40 ms ago  changed 1 min 30 s ago"
        "  splits 0  merges 1\n"
    )
    assert json.loads(listed.stdout) == STATUS["groups"]


def test_the_command_starts_without_what_only_the_lake_needs() -> None:
    """pyarrow alone takes as long as all else that the command imports."""
    code = "import sys, cli; print({'pyarrow', 'pyiceberg', 'pyspark'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=CHECKOUT
    )
    assert done.stdout == "set()\n"


@pytest.mark.parametrize("command", [["status"], ["groups"], ["topics", "ls"], ["read", "t"]])
def test_no_daemon_is_3_with_a_hint(command: list[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        result = CliRunner().invoke(cli.headgate, [*command, "--url", url])
    assert (result.exit_code, result.stdout) == (3, "")
    assert url in result.stderr and "headgate serve" in result.stderr


def test_another_program_at_the_address_is_1() -> None:
    with says(Answer(200, b"hello")) as server:
        result = run(server, "status")
    assert result.exit_code == 1 and "hint: is --url the address" in result.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["status", "--no-such-option"],
        ["no-such-command"],
        ["status", "-o", "xml"],
        ["status", "--url", "nonsense"],
        ["read", "t", "--since", "yesterday"],
        ["read", "t", "--since", "1h", "--tail", "5"],
        ["read", "t", "-n", "0"],
        ["topics", "alter", "t"],
        ["topics", "create", "t", "--column", "price"],
        ["topics", "create", "t", "--cap-bytes", "many"],
        ["produce", "t", "no-such-file"],
        ["config", "show", "--set", "shards"],
        ["config", "show", "--set", "shard=1"],
        ["serve", "--shards", "none"],
        ["serve", "--config", "no-such-file.toml"],
        ["objects", "ls", "--store", "nonsense"],
    ],
)
def test_wrong_usage_and_wrong_configuration_are_2(command: list[str]) -> None:
    result = CliRunner().invoke(cli.headgate, command)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr


def test_a_wrong_configuration_names_key_value_and_origin() -> None:
    result = CliRunner().invoke(
        cli.headgate, ["serve", "--set", "log_level=loud"], env={"HEADGATE_SHARDS": "0"}
    )
    assert "log_level = 'loud' (--set)" in result.stderr
    assert "shards = '0' (environment HEADGATE_SHARDS)" in result.stderr


def test_topics_ls_follows_the_cursor() -> None:
    def script(call: Call) -> Answer:
        if call.path == "/v0/topics":
            return Answer(200, {"topics": [state("a")], "next_cursor": "a"})
        return Answer(200, {"topics": [state("b", 3)], "next_cursor": None})

    with scripted(script) as server:
        listed = run(server, "topics", "ls", "-o", "json")
        table = run(server, "topics", "ls")
    assert [topic["topic"] for topic in json.loads(listed.stdout)] == ["a", "b"]
    assert [call.path for call in server.calls[:2]] == ["/v0/topics", "/v0/topics?cursor=a"]
    assert table.stdout == (
        "topic  partitions  records    bytes  highest seq\n"
        "a               1       10  2.0 KiB           10\n"
        "b               3       30  6.0 KiB           10\n"
    )


def test_topics_show_prints_settings_that_are_not_the_default_and_partitions() -> None:
    with says(Answer(200, state(partitions=2, ttl_ms=5))) as server:
        shown, body = (
            run(server, "topics", "show", "orders"),
            run(server, "topics", "show", "orders", "-o", "json"),
        )
    assert shown.stdout == (
        "topic orders\n"
        "  partitions = 2\n"
        "  ttl_ms = 5\n"
        "\n"
        "partition  earliest seq  head seq  next seq  records    bytes\n"
        "        0             1        10        11       10  2.0 KiB\n"
        "        1             1        10        11       10  2.0 KiB\n"
    )
    assert json.loads(body.stdout) == state(partitions=2, ttl_ms=5)


class Topics:
    """Topics in memory, behind PUT, GET and DELETE."""

    def __init__(self, *present: dict[str, Any]) -> None:
        self.states = {each["topic"]: each for each in present}

    def __call__(self, call: Call) -> Answer:
        name = call.path.rpartition("/")[2]
        if call.method == "PUT":
            known = name in self.states
            before = self.states[name]["config"] if known else {}
            self.states[name] = state(name, **before | call.body)
            return Answer(200 if known else 201, self.states[name])
        if name not in self.states:
            return refusal(404, "unknown_topic", f"there is no topic {name!r}")
        if call.method == "DELETE":
            return Answer(200, self.states.pop(name))
        return Answer(200, self.states[name])


def test_topics_create_puts_only_what_was_given() -> None:
    with scripted(Topics()) as server:
        result = run(
            server, "topics", "create", "t", "--partitions", "4", "--column", "a:b:long",
            "--no-auto-priority", "--cap-records", "9", "-o", "json",
        )  # fmt: skip
    assert result.exit_code == 0
    put = {"partitions": 4, "columns": {"a:b": "long"}, "auto_priority": False, "cap_records": 9}
    assert Call("PUT", "/v0/topics/t", put) in server.calls
    assert json.loads(result.stdout)["config"]["partitions"] == 4


def test_creating_a_topic_again_is_fine_and_with_other_settings_is_not() -> None:
    with scripted(Topics(state("t", 4))) as server:
        same = run(server, "topics", "create", "t", "--partitions", "4")
        other = run(server, "topics", "create", "t", "--partitions", "5")
    assert same.exit_code == 0
    assert other.exit_code == 1
    assert "partitions is 4, not 5" in other.stderr and "topics alter t" in other.stderr
    assert not [call for call in server.calls if call.method == "PUT"]


def test_topics_alter_changes_what_was_given_and_keeps_the_rest() -> None:
    with scripted(Topics(state("t", 2, ttl_ms=5))) as server:
        result = run(server, "topics", "alter", "t", "--partitions", "3", "--ttl-ms", "none")
    assert result.exit_code == 0
    (put,) = [call.body for call in server.calls if call.method == "PUT"]
    assert put == {"partitions": 3, "ttl_ms": None}


def test_altering_deleting_and_showing_a_topic_that_is_not_there_is_1() -> None:
    with scripted(Topics()) as server:
        for command in (["alter", "t", "--lossy"], ["delete", "t"], ["show", "t"]):
            result = run(server, "topics", *command)
            assert (result.exit_code, result.stdout) == (1, "")
            assert "there is no topic 't'" in result.stderr


def test_topics_delete_does_not_ask_a_script() -> None:
    with scripted(Topics(state("t"))) as server:
        assert run(server, "topics", "delete", "t").exit_code == 0
        assert server.calls == [Call("DELETE", "/v0/topics/t", None)]


def test_config_show_prints_values_and_origins(tmp_path: Path) -> None:
    file = tmp_path / "headgate.toml"
    file.write_text("records_max = 5\n")
    command = ["config", "show", "--config", str(file), "--set", "log_level=debug"]
    environ = {"HEADGATE_LOG_FORMAT": "json"}
    runner = CliRunner(env=environ)
    values = json.loads(runner.invoke(cli.headgate, [*command, "-o", "json"]).stdout)
    assert tuple(values) == KEYS
    assert (values["records_max"], values["log_level"], values["log_format"]) == (
        5,
        "debug",
        "json",
    )
    both = json.loads(runner.invoke(cli.headgate, [*command, "--origin", "-o", "json"]).stdout)
    assert both["records_max"] == {"value": 5, "origin": f"file {file}"}
    assert both["log_format"]["origin"] == "environment HEADGATE_LOG_FORMAT"
    table = runner.invoke(cli.headgate, [*command, "--origin"]).stdout.splitlines()
    assert table[0].split() == ["key", "value", "origin"]
    assert ["log_level", "debug", "--set"] in [line.split() for line in table]
    assert "--set" not in runner.invoke(cli.headgate, command).stdout


def test_a_flag_goes_before_a_set_of_the_same_key() -> None:
    command = ["config", "show", "-o", "json", "--shards", "3", "--set", "shards=4"]
    assert json.loads(CliRunner().invoke(cli.headgate, command).stdout)["shards"] == 3


def test_bench_runs_the_checkout_s_bench_with_its_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "__file__", str(tmp_path / "cli.py"))
    without = CliRunner().invoke(cli.headgate, ["bench"])
    assert without.exit_code == 1 and "make bench" in without.stderr
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "__init__.py").touch()  # or the checkout's own package comes first
    (tmp_path / "bench" / "__main__.py").write_text(
        "import pathlib, sys\npathlib.Path('seen').write_text(' '.join(sys.argv[1:]))\nsys.exit(5)"
    )
    assert CliRunner().invoke(cli.headgate, ["bench", "--help", "-x", "y"]).exit_code == 5
    assert (tmp_path / "seen").read_text() == "--help -x y"


def test_config_docs_is_the_page() -> None:
    page = CliRunner().invoke(cli.headgate, ["config", "docs"]).stdout
    assert page == (CHECKOUT / "docs" / "configuration.md").read_text()


def test_serve_hands_its_configuration_to_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    from daemon import serve

    seen = []

    def run_instead(config: Any, **options: Any) -> int:
        seen.append((config, options))
        return 7

    monkeypatch.setattr(serve, "run", run_instead)
    arguments = (
        "serve --data /srv/x --listen [::1]:9 --shards 3 --store s3://bucket/p --set records_max=5"
    )
    result = CliRunner().invoke(cli.headgate, arguments.split())
    assert result.exit_code == 7
    ((config, options),) = seen
    assert options["take_over"] is False
    assert (config.data_dir, config.listen, config.shards) == ("/srv/x", "[::1]:9", 3)
    assert (config.store_url, config.records_max) == ("s3://bucket/p", 5)
    assert config.origins["shards"] == "--shards"
