"""The commands that talk to a daemon, against answers in the shapes of the HTTP API.

That the daemon answers so is tested with the daemon (tests/test_cli_e2e.py).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import cli
from daemon.config import KEYS
from tests.scripted import Answer, Call, Scripted, refusal, scripted

CHECKOUT = Path(__file__).resolve().parents[1]

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
groups    1: 0 (2 shards)

shard  pid  cpu  group  restarts  heartbeat  ring used      ring  requests  records    bytes
    0  100    0      0         0  12 ms ago    3.0 MiB  64.0 MiB     1,000   12,345  7.0 MiB
    1  101    1      0         0  12 ms ago    3.0 MiB  64.0 MiB     1,000   12,345  7.0 MiB
"""


def state(topic: str = "orders", partitions: int = 1, **config: Any) -> dict[str, Any]:
    """A topic as GET answers it."""
    usual = {
        "partitions": partitions, "columns": {}, "priority": None, "auto_priority": True,
        "lossy": False, "cap_records": None, "cap_bytes": None, "ttl_ms": None, "discard": "old",
    }  # fmt: skip
    rows = [
        {"partition": n, "head_seq": 10, "earliest_seq": 1, "next_seq": 11, "count": 10,
         "bytes": 2048} for n in range(partitions)
    ]  # fmt: skip
    return {
        "topic": topic, "config": usual | config, "partitions": rows, "effective_priority": 0,
    }  # fmt: skip


def run(server: Scripted, *arguments: str, stdin: str | bytes | None = None) -> Result:
    environ = {"HEADGATE_URL": server.url}
    return CliRunner().invoke(cli.headgate, arguments, input=stdin, env=environ)


def says(answer: Answer) -> Any:
    return scripted(lambda call: answer)


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
            self.states[name] = state(name, **call.body)
            return Answer(200 if known else 201, self.states[name])
        if name not in self.states:
            return refusal(404, "topic_not_found", f"there is no topic {name!r}")
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
    assert put == state("t", 3)["config"]


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


def accepted(call: Call) -> Answer:
    """An acknowledgement of a produce request for one partition."""
    count = len(call.body["records"])
    return Answer(
        200,
        {
            "topic": "t", "partition": 0, "first_seq": 1, "last_seq": count, "count": count,
            "head_seq": count, "deduped": False,
        },
    )  # fmt: skip


def test_produce_sends_lines_of_json_in_batches() -> None:
    with scripted(accepted) as server:
        result = run(
            server, "produce", "t", "--batch", "2", "--key", "k", "--partition", "0",
            stdin='{"k":"a"}\n{"k": 1}\n\n"x"\n',
        )  # fmt: skip
    assert result.exit_code == 0
    assert result.stdout == "3 records (20 B) to t in 2 requests; partition 0: 1-1\n"
    first, second = (call.body for call in server.calls)
    assert first["records"] == [{"data": {"k": "a"}, "key": "a"}, {"data": {"k": 1}, "key": "1"}]
    assert second["records"] == [{"data": "x"}]
    assert first["partition"] == second["partition"] == 0
    assert first["idempotency_key"] != second["idempotency_key"]


def test_produce_summary_as_json_adds_up_the_partitions() -> None:
    def script(call: Call) -> Answer:
        n = len(server.calls)
        part = {"partition": n % 2, "first_seq": n, "last_seq": n, "count": 1}
        return Answer(200, {"topic": "t", "partitions": [part], "deduped": n == 3})

    with scripted(script) as server:
        result = run(server, "produce", "t", "--batch", "1", "-o", "json", stdin="1\n2\n3\n")
    assert json.loads(result.stdout) == {
        "topic": "t", "records": 3, "requests": 3, "bytes": 3, "retries": 0, "deduped": 1,
        "partitions": [
            {"partition": 0, "first_seq": 2, "last_seq": 2, "count": 1},
            {"partition": 1, "first_seq": 1, "last_seq": 3, "count": 2},
        ],
        "error": None,
    }  # fmt: skip


def test_produce_stops_at_the_refused_batch_and_names_the_line() -> None:
    def script(call: Call) -> Answer:
        if len(server.calls) == 2:
            return refusal(413, "too_large", "the record has 9 bytes, the limit is 8", line=2)
        return accepted(call)

    with scripted(script) as server:
        text = "1\n\n2\n3\n4\n5\n6\n"
        result = run(server, "produce", "t", "--batch", "2", "-o", "json", stdin=text)
    assert result.exit_code == 1 and len(server.calls) == 2
    assert "line 5: the record has 9 bytes" in result.stderr
    assert "the 2 records before it are stored" in result.stderr
    summary = json.loads(result.stdout)
    assert summary["records"] == 2
    assert (summary["error"]["line"], summary["error"]["code"]) == (5, "too_large")


def test_produce_names_all_lines_of_a_batch_that_is_refused_as_a_whole() -> None:
    with says(refusal(422, "topic_full")) as server:
        result = run(server, "produce", "t", stdin="1\n2\n3\n")
    assert result.exit_code == 1 and "lines 1 to 3: no (topic_full)" in result.stderr
    assert result.stdout == ""


def test_produce_sends_what_stands_before_a_line_that_is_no_record() -> None:
    with scripted(accepted) as server:
        result = run(server, "produce", "t", stdin="1\n2\n{\n4\n")
    assert result.exit_code == 1
    assert "line 3: is no JSON" in result.stderr
    assert [len(call.body["records"]) for call in server.calls] == [2]


def test_produce_repeats_a_lost_batch_with_the_same_key() -> None:
    def script(call: Call) -> Answer:
        return Answer(0) if len(server.calls) == 1 else accepted(call)

    with scripted(script) as server:
        result = run(server, "produce", "t", "-o", "json", stdin="1\n")
    first, second = server.calls
    assert first == second and json.loads(result.stdout)["retries"] == 1


def test_produce_of_nothing_is_fine_and_sends_nothing() -> None:
    with scripted(accepted) as server:
        result = run(server, "produce", "t", stdin="")
    assert result.exit_code == 0 and server.calls == []
    assert result.stdout == "0 records (0 B) to t in 0 requests\n"


def test_produce_reads_a_file(tmp_path: Path) -> None:
    file = tmp_path / "records.json"
    file.write_text('[{"a": 1}, {"a": 2}]')
    with scripted(accepted) as server:
        assert run(server, "produce", "t", str(file), "--format", "json").exit_code == 0
    assert [each["data"] for each in server.calls[0].body["records"]] == [{"a": 1}, {"a": 2}]


class Log:
    """Records of partitions in memory, behind diff as DESIGN 12 has it."""

    def __init__(self, *partitions: list[dict[str, Any]]) -> None:
        self.partitions = partitions
        self.page = 1_000

    def __call__(self, call: Call) -> Answer:
        if call.method == "GET":
            return Answer(200, state("t", len(self.partitions)))
        records = self.partitions[call.body["partition"]]
        if "from_ts" in call.body:
            left = [each for each in records if each["ts"] >= call.body["from_ts"]]
        elif "tail" in call.body:
            left = records[-call.body["tail"] :]
        else:
            left = [each for each in records if each["seq"] > call.body["from_seq"]]
        shown = left[: min(call.body["limit"], self.page)]
        head = records[-1]["seq"] if records else 0
        after = shown[-1]["seq"] if shown else max(head, call.body.get("from_seq", 0))
        return Answer(
            200,
            {
                "records": shown, "next_from_seq": after, "head_seq": head, "earliest_seq": 1,
                "caught_up": after >= head, "lag": head - after, "tombstone": None,
            },
        )  # fmt: skip


def log_of(count: int, ts: int = 0, step: int = 1) -> list[dict[str, Any]]:
    return [{"seq": n, "ts": ts + n * step, "data": {"n": n}} for n in range(1, count + 1)]


def numbers(result: Result) -> list[int]:
    return [json.loads(line)["n"] for line in result.stdout.splitlines()]


def test_read_prints_the_data_of_all_records_page_by_page() -> None:
    log = Log(log_of(7))
    log.page = 3
    with scripted(log) as server:
        result = run(server, "read", "t")
    assert result.exit_code == 0 and numbers(result) == [1, 2, 3, 4, 5, 6, 7]
    assert [call.body["from_seq"] for call in server.calls[1:]] == [0, 3, 6]
    assert all(call.body["limit"] == 1_000 for call in server.calls[1:])


def test_read_prints_whole_records_with_their_partition() -> None:
    record = {"seq": 1, "ts": 5, "data": [1], "key": "k", "meta": {"a": "b"}}
    with scripted(Log([record])) as server:
        result = run(server, "read", "t", "--with-meta")
    assert json.loads(result.stdout) == {"partition": 0, **record}


def test_read_keeps_the_spelling_of_data_and_makes_it_one_line() -> None:
    answers = {
        "records": "@", "next_from_seq": 3, "head_seq": 3, "earliest_seq": 1, "caught_up": True,
        "lag": 0, "tombstone": None,
    }  # fmt: skip
    records = (
        b'[{"seq":1,"ts":1,"data":{"a": 1.50}},{"seq":2,"ts":1,"data":{"b":\n 2}},'
        b'{"seq":3,"ts":1,"data_b64":"AAE="}]'
    )
    body = json.dumps(answers).encode().replace(b'"@"', records)
    with says(Answer(200, body)) as server:
        result = run(server, "read", "t", "--partition", "0")
    assert result.stdout.splitlines() == ['{"a": 1.50}', '{"b":2}', '{"data_b64":"AAE="}']


def test_read_ends_after_n_records() -> None:
    with scripted(Log(log_of(5), log_of(5))) as server:
        assert numbers(run(server, "read", "t", "-n", "7")) == [1, 2, 3, 4, 5, 1, 2]
        assert numbers(run(server, "read", "t", "-n", "2", "--follow")) == [1, 2]


def test_read_from_an_offset_is_exclusive_and_one_partition_is_enough() -> None:
    with scripted(Log(log_of(5), log_of(3))) as server:
        result = run(server, "read", "t", "--from-seq", "2", "--partition", "1")
    assert numbers(result) == [3]
    assert len(server.calls) == 1


def test_read_since_asks_for_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "wall_ms", lambda: 3_600_000 + 4)
    with scripted(Log(log_of(5))) as server:
        assert numbers(run(server, "read", "t", "--since", "1h")) == [4, 5]
        assert numbers(run(server, "read", "t", "--since", "1970-01-01T00:00:00.003Z")) == [3, 4, 5]


def test_the_tail_of_several_partitions_is_the_newest_of_all() -> None:
    with scripted(Log(log_of(9, ts=0, step=10), log_of(9, ts=50, step=1))) as server:
        result = run(server, "read", "t", "--tail", "4", "--with-meta")
    found = [
        (line["partition"], line["seq"]) for line in map(json.loads, result.stdout.split("\n")[:-1])
    ]
    assert found == [(0, 6), (0, 7), (0, 8), (0, 9)]


def test_the_tail_of_one_partition_may_be_longer_than_a_page() -> None:
    log = Log(log_of(20))
    log.page = 3
    with scripted(log) as server:
        assert numbers(run(server, "read", "t", "--tail", "8")) == list(range(13, 21))


def test_a_gap_is_named_on_stderr() -> None:
    gap = {"gap_from": 1, "gap_to": 4, "reason": "cap_records"}

    def script(call: Call) -> Answer:
        answer = Log(log_of(1))(call)
        return answer._replace(body=answer.body | {"tombstone": gap})

    with scripted(script) as server:
        result = run(server, "read", "t", "--partition", "0")
    assert result.exit_code == 0
    assert "records 1 to 4 of partition 0 of t are gone: cap_records" in result.stderr


def test_following_polls_all_partitions_from_where_they_stand() -> None:
    log = Log(log_of(2), log_of(1))

    def script(call: Call) -> Answer:
        if call.body and call.body["wait_ms"] and call.body["partition"] == 1:
            log.partitions[1].append({"seq": 2, "ts": 9, "data": {"n": 99}})
        return log(call)

    with scripted(script) as server:
        result = run(server, "read", "t", "--follow", "-n", "4")
    assert numbers(result) == [1, 2, 1, 99]
    waits = {call.body["wait_ms"] for call in server.calls[1:]}
    assert waits == {0, 250}


def started(server: Scripted, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    """The command as a process of its own."""
    return subprocess.Popen(
        [sys.executable, str(CHECKOUT / "cli.py"), *arguments],
        env=os.environ | {"HEADGATE_URL": server.url, "PYTHONPATH": str(CHECKOUT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def test_ctrl_c_ends_a_follow_without_complaint() -> None:
    with scripted(Log(log_of(1))) as server, started(server, "read", "t", "-f") as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b'{"n": 1}\n'
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert process.stderr.read() == b""


def test_a_reader_that_has_seen_enough_is_no_failure() -> None:
    log = Log(log_of(1))
    with scripted(log) as server, started(server, "read", "t", "-f") as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        log.partitions[0].append({"seq": 2, "ts": 2, "data": {"n": 2}})
        assert process.wait(30) == 0
        assert process.stderr.read() == b""


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


def test_config_docs_is_the_page() -> None:
    page = CliRunner().invoke(cli.headgate, ["config", "docs"]).stdout
    assert page == (CHECKOUT / "docs" / "configuration.md").read_text()


def test_serve_hands_its_configuration_to_the_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    from daemon import supervisor

    seen = []

    def run_instead(config: Any) -> int:
        seen.append(config)
        return 7

    monkeypatch.setattr(supervisor, "run", run_instead)
    arguments = (
        "serve --data /srv/x --listen [::1]:9 --shards 3 --store s3://bucket/p --set records_max=5"
    )
    result = CliRunner().invoke(cli.headgate, arguments.split())
    assert result.exit_code == 7
    (config,) = seen
    assert (config.data_dir, config.listen, config.shards) == ("/srv/x", "[::1]:9", 3)
    assert (config.store_url, config.records_max) == ("s3://bucket/p", 5)
    assert config.origins["shards"] == "--shards"
