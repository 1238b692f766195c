"""The commands against a running daemon."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import cli
from commands.shell.exits import DEGRADED, OK
from tests.e2e.daemon import HANG_S, Daemon, running, wait_until
from tests.e2e.processes import kill_shards
from tools.ports import kept_port

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def daemon(shared_daemon: Daemon) -> Daemon:
    return shared_daemon


def run(daemon: Daemon, *arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(
        cli.headgate, arguments, input=stdin, env={"HEADGATE_URL": daemon.url}
    )


def parsed(result: Result, *codes: int) -> Any:
    assert result.exit_code in (codes or (OK,)), result.stderr
    return json.loads(result.stdout)


def test_what_produce_sends_read_prints(daemon: Daemon) -> None:
    text = "".join(f'{{"n": {n}.50, "who": "user-{n % 7}"}}\n' for n in range(2_500))
    assert run(daemon, "topics", "create", "orders", "--partitions", "3").exit_code == 0
    summary = parsed(run(daemon, "produce", "orders", "--key", "who", "-o", "json", stdin=text))
    assert (summary["records"], summary["requests"], summary["deduped"]) == (2_500, 3, 0)
    assert sum(span["count"] for span in summary["partitions"]) == 2_500
    whole = run(daemon, "read", "orders")
    assert sorted(whole.stdout.splitlines()) == sorted(text.splitlines())
    last = run(daemon, "read", "orders", "--tail", "500").stdout.splitlines()
    assert sorted(last) == sorted(text.splitlines()[-500:])
    assert len(run(daemon, "read", "orders", "--since", "1h").stdout.splitlines()) == 2_500
    assert len(run(daemon, "read", "orders", "-n", "11").stdout.splitlines()) == 11
    state = parsed(run(daemon, "topics", "show", "orders", "-o", "json"))
    after = str(state["partitions"][1]["head_seq"] - 2)
    lines = run(
        daemon, "read", "orders", "--partition", "1", "--from-seq", after, "--with-meta"
    ).stdout.splitlines()
    assert [json.loads(line)["partition"] for line in lines] == [1, 1]


def test_read_keeps_what_matches_and_prints_texts_as_lines(daemon: Daemon) -> None:
    tags = ("even", "odd")
    records: list[dict[str, Any]] = [
        {"data": f"text {n}", "key": f"k{n % 3}", "tag": tags[n % 2]} for n in range(12)
    ]
    records.append({"data": {"n": 12}})
    assert daemon.json("POST", "/v0/topics/filtered", {"records": records}).status == 200

    def shown(*arguments: str) -> list[str]:
        return run(daemon, "read", "filtered", *arguments).stdout.splitlines()

    assert shown("--key", "k1") == [f'"text {n}"' for n in (1, 4, 7, 10)]
    assert shown("--key", "k[12]") == []
    assert shown("--key", "k?", "--tag", "od*", "-n", "2") == ['"text 1"', '"text 3"']
    assert shown("--tail", "3", "--tag", "*") == ['"text 10"', '"text 11"']
    assert shown("--format", "lines")[-2:] == ["text 11", '{"n": 12}']
    wrong = run(daemon, "read", "filtered", "--key", "x\\")
    assert wrong.exit_code == 2 and "key is a pattern that ends with a backslash" in wrong.stderr


def test_many_requests_at_a_time_keep_the_order_through_the_death_of_every_shard(
    daemon: Daemon,
) -> None:
    before = _cursors(daemon)  # of other runs, which ended early
    command = [sys.executable, str(CHECKOUT / "cli.py"), "produce", "ordered", "--batch", "50",
               "--url", daemon.url, "-o", "json"]  # fmt: skip
    with subprocess.Popen(
        command, env=os.environ | {"PYTHONPATH": str(CHECKOUT)}, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        text = b"".join(b"%d\n" % n for n in range(20_000))
        process.stdin.write(text[: len(text) // 2])
        process.stdin.flush()
        wait_until(lambda: _cursors(daemon) == before + 1, "the cursor of the run")
        kill_shards(daemon, 0, 1)
        process.stdin.write(text[len(text) // 2 :])
        process.stdin.close()
        summary = json.loads(process.stdout.read())
        assert process.wait(HANG_S) == 0
    assert summary["records"] == 20_000
    assert run(daemon, "read", "ordered").stdout.encode() == text
    assert _cursors(daemon) == before


def _cursors(daemon: Daemon) -> int:
    return len(parsed(run(daemon, "cursors", "ls", "-o", "json")))


def test_ctrl_c_ends_produce_with_a_summary_and_a_point_where_it_continues(daemon: Daemon) -> None:
    command = [sys.executable, str(CHECKOUT / "cli.py"), "produce", "cut", "--batch", "10",
               "--url", daemon.url, "-o", "json", "--progress"]  # fmt: skip
    with subprocess.Popen(
        command, env=os.environ | {"PYTHONPATH": str(CHECKOUT)}, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"".join(b"%d\n" % n for n in range(95)))
        process.stdin.flush()
        wait_until(lambda: len(run(daemon, "read", "cut").stdout.splitlines()) == 95, "the records")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 1
    summary = json.loads(out)
    assert (summary["records"], summary["error"]["code"]) == (95, "interrupted")
    assert b"stopped before line 96" in err and b"`tail -n +96` has the rest" in err
    assert b"and nothing after it" in err and not summary["error"]["is_unsure"]
    text = "".join(f"{n}\n" for n in range(120))
    again = run(daemon, "produce", "cut", "--resume", summary["error"]["resume"], stdin=text)
    assert again.exit_code == 0, again.stderr
    assert run(daemon, "read", "cut").stdout == text


def test_an_input_that_cannot_be_read_ends_the_run_with_the_reason(daemon: Daemon) -> None:
    result = run(daemon, "produce", "unread", "/proc/self/mem", "--wait", "1s")
    assert result.exit_code == 1 and "line 1: cannot be read: " in result.stderr, result.stderr


def test_a_refused_record_is_named_by_its_line(daemon: Daemon) -> None:
    text = "1\n2\n\n" + json.dumps("x" * 1_100_000) + "\n5\n"
    result = run(daemon, "produce", "lines", "--batch-bytes", "4000000", stdin=text)
    assert result.exit_code == 1 and "line 4: " in result.stderr
    result = run(daemon, "produce", "lines", "--batch", "1", "-o", "json", stdin=text)
    assert result.exit_code == 1 and json.loads(result.stdout)["records"] == 2
    assert run(daemon, "read", "lines").stdout == "1\n2\n"


def test_follow_shows_a_record_that_comes_later(daemon: Daemon) -> None:
    run(daemon, "produce", "later", stdin="1\n")
    with subprocess.Popen(
        [sys.executable, str(CHECKOUT / "cli.py"), "read", "later", "-f", "-n", "2"],
        env=os.environ | {"HEADGATE_URL": daemon.url, "PYTHONPATH": str(CHECKOUT)},
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        assert run(daemon, "produce", "later", stdin="2\n").exit_code == 0
        assert process.stdout.readline() == b"2\n"
        assert process.wait(HANG_S) == 0


def test_watch_shows_the_records_of_several_topics_that_match(daemon: Daemon) -> None:
    for topic in ("watched-a", "watched-b"):
        run(daemon, "produce", topic, stdin="0\n")
    with subprocess.Popen(
        [sys.executable, str(CHECKOUT / "cli.py"), "watch", "watched-a", "watched-b",
         "--key", "yes*", "-n", "2", "-o", "json"],
        env=os.environ | {"HEADGATE_URL": daemon.url, "PYTHONPATH": str(CHECKOUT)},
        stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["event"] == "caught-up"
        for topic, key in (("watched-a", "no"), ("watched-a", "yes"), ("watched-b", "yes-2")):
            records = [{"data": key, "key": key}]
            assert daemon.json("POST", f"/v0/topics/{topic}", {"records": records}).status == 200
        lines = [json.loads(line) for line in process.stdout]
        assert process.wait(HANG_S) == 0
    # Of two topics, in any order.
    assert sorted((line["topic"], line["seq"], line["data"]) for line in lines) == [
        ("watched-a", 3, "yes"), ("watched-b", 2, "yes-2"),
    ]  # fmt: skip


def test_objects_are_listed_printed_and_verified_while_the_daemon_runs(daemon: Daemon) -> None:
    parsed(run(daemon, "produce", "seen", "-o", "json", stdin='"first"\n"second"\n'))
    place = ("--data", str(daemon.data))
    listed = parsed(run(daemon, "objects", "ls", *place, "-o", "json"))
    assert listed[-1]["commit_number"] == daemon.status()["commits"]
    assert set(listed[0]) == {
        "key", "locator", "size_bytes", "created_ms", "commit_number", "extents", "records",
    }  # fmt: skip
    printed = run(daemon, "objects", "cat", listed[-1]["key"], *place).stdout.splitlines()
    found = [(line["topic"], line["seq"], line["data"]) for line in map(json.loads, printed)]
    assert found == [("seen", 1, "first"), ("seen", 2, "second")]
    verified = run(daemon, "objects", "verify", listed[-1]["key"], *place, "-o", "json")
    assert parsed(verified)["bad"] == []


def test_status_and_groups_keep_to_their_documented_shapes(daemon: Daemon) -> None:
    # On a machine that stands still for a while, a daemon is degraded for a while.
    status = parsed(run(daemon, "status", "-o", "json"), OK, DEGRADED)
    documented = {
        "version", "uptime_s", "ready", "store", "window_ms", "pressure", "memory_bound_bytes",
        "shards", "groups", "totals", "certificate", "standbys", "imports",
    }  # fmt: skip
    assert documented <= set(status)
    assert {"level", "rung", "inputs"} <= set(status["pressure"])
    store = {"url", "puts", "put_bytes", "put_failures", "gets", "get_bytes", "lists"}
    assert store <= set(status["store"])
    totals = {
        "requests_acked", "records_acked", "bytes_acked", "rejected", "objects_committed",
        "orphans_adopted",
    }  # fmt: skip
    assert totals <= set(status["totals"])
    shard = {
        "shard", "pid", "cpu", "group", "restarts", "heartbeat_age_ms", "ring_bytes",
        "ring_used_bytes", "requests_queued", "requests_acked", "records_acked", "bytes_acked",
    }  # fmt: skip
    assert all(shard <= set(each) for each in status["shards"])
    groups = parsed(run(daemon, "groups", "-o", "json"))
    group = {
        "group", "shards", "turn", "backlog_bytes", "last_upload_age_ms", "last_change_age_ms",
        "splits", "merges",
    }  # fmt: skip
    assert all(group <= set(each) for each in groups)
    assert sorted(shard for each in groups for shard in each["shards"]) == [0, 1]
    assert "shards 0-1" in run(daemon, "groups").stdout
    wait_until(lambda: "  ready  " in run(daemon, "status").stdout, "a daemon that is ready")


def test_config_show_is_what_serve_runs_with(daemon: Daemon) -> None:
    shown = parsed(run(daemon, "config", "show", "-o", "json", "--data", str(daemon.data)))
    assert shown["store_url"] == daemon.status()["store"]["url"]
    assert shown["ring_bytes"] == daemon.status()["shards"][0]["ring_bytes"]


def test_topics_live_and_die(daemon: Daemon) -> None:
    assert parsed(run(daemon, "topics", "create", "brief", "-o", "json"))["topic"] == "brief"
    assert run(daemon, "topics", "create", "brief").exit_code == 0
    assert run(daemon, "topics", "create", "brief", "--partitions", "2").exit_code == 1
    altered = parsed(run(daemon, "topics", "alter", "brief", "--partitions", "2", "-o", "json"))
    assert len(altered["partitions"]) == 2
    shrunk = run(daemon, "topics", "alter", "brief", "--partitions", "1")
    assert shrunk.exit_code == 1 and "partitions" in shrunk.stderr
    names = [state["topic"] for state in parsed(run(daemon, "topics", "ls", "-o", "json"))]
    assert "brief" in names
    assert run(daemon, "topics", "delete", "brief").exit_code == 0
    gone = run(daemon, "topics", "show", "brief")
    assert gone.exit_code == 1 and "hint: `headgate topics ls`" in gone.stderr


@pytest.mark.slow
def test_a_follow_outlives_a_restart_and_prints_each_record_once(tmp_path: Path) -> None:
    with kept_port() as port, running(tmp_path / "data", listen=f"127.0.0.1:{port}") as first:
        first.produce("kept", 1, 2)
        follow = subprocess.Popen(
            [sys.executable, "-c", "import cli; cli.main()", "read", "kept", "--follow",
             "-n", "4", "--url", first.url],
            cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            assert follow.stdout is not None
            assert [follow.stdout.readline() for _ in range(2)] == [b"1\n", b"2\n"]
            assert first.stop() == 0
            with running(tmp_path / "data", listen=f"127.0.0.1:{port}") as second:
                second.produce("kept", 3, 4)
                rest, said = follow.communicate(timeout=2 * HANG_S)
        finally:
            follow.kill()
            follow.wait()
    assert (follow.returncode, rest) == (0, b"3\n4\n"), said


def test_top_shows_what_a_real_daemon_does(daemon: Daemon) -> None:
    assert run(daemon, "produce", "topped", stdin="1\n2\n").exit_code == 0
    lines = run(daemon, "top", "-n", "2", "--interval", "0.1", "-o", "json").stdout.splitlines()
    first, second = (json.loads(line) for line in lines)
    assert first["rates"]["requests"] > 0 and set(second["rates"]["shards"]) == {"0", "1"}
    assert first["status"]["object_bytes_target"] == 4 << 20
    result = run(daemon, "top", "-n", "1")
    assert result.exit_code in (OK, DEGRADED), result.stderr
    for name in (
        "requests/s",
        "PUT/s",
        "fill",
        "pressure",
        "inputs",
        "busy",
        "hard: ring",
        "group 0",
    ):
        assert name in result.stdout, name


def test_a_command_works_on_messages_and_one_that_runs_at_a_sigterm_ends_first(
    daemon: Daemon, tmp_path: Path
) -> None:
    run(daemon, "topics", "create", "jobs")
    made = run(daemon, "subscriptions", "create", "jobs", "w", "--redeliveries-max", "0")
    assert made.exit_code == 0, made.stderr
    run(daemon, "produce", "jobs", "--key", "k", stdin='{"k": "a", "n": 1}\n{"k": "b", "n": 0}\n')
    command = f"cat; grep -q 1 {tmp_path}/fixed || exit $HEADGATE_PARTITION$HEADGATE_SEQ"
    worked = run(daemon, "consume", "jobs", "w", "--exec", command, "-n", "2", "--name", "w1")
    assert (worked.exit_code, worked.stderr.count("exit code")) == (0, 2)
    (first, second) = parsed(run(daemon, "subscriptions", "keys", "jobs", "w", "-o", "json"))
    assert {first["key"], second["key"]} == {"a", "b"}
    assert (
        "exit code 1"
        in parsed(run(daemon, "subscriptions", "keys", "jobs", "w", "a", "-o", "json"))["reason"]
    )
    assert run(daemon, "subscriptions", "skip", "jobs", "w", "b").exit_code == 0
    assert run(daemon, "subscriptions", "retry", "jobs", "w", "a").exit_code == 0
    slow = f"touch {tmp_path}/begun; until test -e {tmp_path}/end; do sleep 0.01; done"
    with subprocess.Popen(
        [sys.executable, str(CHECKOUT / "cli.py"), "consume", "jobs", "w", "--exec", slow],
        env=os.environ | {"HEADGATE_URL": daemon.url, "PYTHONPATH": str(CHECKOUT)},
    ) as process:
        wait_until((tmp_path / "begun").exists, "the command to run")
        process.send_signal(signal.SIGTERM)
        (tmp_path / "end").touch()
        assert process.wait(HANG_S) == 0
    shown = parsed(run(daemon, "subscriptions", "show", "jobs", "w", "-o", "json"))
    assert (shown["lag"], shown["acknowledged"], shown["skipped"]) == (0, 1, 1)
    assert not shown["consumers"]


def test_what_one_consumer_prints_and_does_not_acknowledge_another_one_gets(
    daemon: Daemon,
) -> None:
    run(daemon, "topics", "create", "printed")
    run(daemon, "subscriptions", "create", "printed", "s")
    run(daemon, "produce", "printed", "--key", "k", stdin='{"k": "a"}\n{"k": "b"}\n{"k": "c"}\n')
    looked = run(daemon, "consume", "printed", "s", "--ack", "none", "-n", "2")
    assert len(looked.stdout.splitlines()) == 2
    with subprocess.Popen(
        [sys.executable, str(CHECKOUT / "cli.py"), "consume", "printed", "s", "-o", "json"],
        env=os.environ | {"HEADGATE_URL": daemon.url, "PYTHONPATH": str(CHECKOUT)},
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        got = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.send_signal(signal.SIGINT)
        assert process.wait(HANG_S) == 0
    assert sorted(each["key"] for each in got) == ["a", "b", "c"]
    assert {each["attempt"] for each in got} == {1}
    assert parsed(run(daemon, "subscriptions", "show", "printed", "s", "-o", "json"))["lag"] == 0
    listed = parsed(run(daemon, "subscriptions", "ls", "printed", "-o", "json"))
    assert [each["subscription"] for each in listed] == ["s"]
