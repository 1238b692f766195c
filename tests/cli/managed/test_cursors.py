"""``headgate cursors``, against answers in the shapes of the HTTP API."""

from __future__ import annotations

import json
from typing import Any

from tests.scripted import Answer, Call, refusal, run, says, scripted


def state(name: str, *positions: tuple[int, int], kind: str = "client") -> dict[str, Any]:
    there = [{"partition": partition, "seq": seq} for partition, seq in positions]
    return {"cursor": name, "cursor_id": 1, "kind": kind, "positions": there, "created_ms": 1}


def source(name: str, size: int | None, lag: int | None) -> dict[str, Any]:
    return {
        "source": {"name": name, "topic_id": 7, "size_bytes": size, "lag_bytes": lag, "told_ms": 9}
    }


def test_cursors_ls_follows_the_pages_and_shortens_long_rows() -> None:
    def script(call: Call) -> Answer:
        if call.path == "/v0/cursors":
            known = state("import:1", (0, 4)) | source("/logs/a\u009b", 2052, 2048)
            unknown = state("import:2", (0, 4)) | source("s3://b/k.gz", None, None)
            return Answer(200, {"cursors": [state("a"), known, unknown], "next_after": "a"})
        many = [(partition, 7) for partition in range(6)]
        return Answer(
            200, {"cursors": [state("router/r", *many, kind="router")], "next_after": None}
        )

    with scripted(script) as server:
        listed = run(server, "cursors", "ls", "-o", "json")
        table = run(server, "cursors", "ls")
    shown = json.loads(listed.stdout)
    assert [each["cursor"] for each in shown] == ["a", "import:1", "import:2", "router/r"]
    assert [each["source"] and each["source"]["lag_bytes"] for each in shown] == [
        None, 2048, None, None
    ]  # fmt: skip
    assert [call.path for call in server.calls[:2]] == ["/v0/cursors", "/v0/cursors?after=a"]
    assert [line.rstrip() for line in table.stdout.splitlines()] == [
        "cursor    kind            partition:position  source       lag",
        "a         client                         0:0  -            -",
        "import:1  client                         0:4  /logs/a\ufffd     2.0 KiB",
        "import:2  client                         0:4  s3://b/k.gz  ?",
        "router/r  router  0:7 1:7 2:7 3:7 and 2 more  -            -",
    ]


def test_cursors_show_prints_each_position() -> None:
    with says(Answer(200, state("a", (0, 5), (12, 900)))) as server:
        shown = run(server, "cursors", "show", "a")
    assert shown.stdout == (
        "cursor a, moved by: client\n"
        "\n"
        "partition  position\n"
        "        0         5\n"
        "       12       900\n"
    )


def test_cursors_show_says_what_the_cursor_follows() -> None:
    with says(Answer(200, state("a", (0, 5)) | source("/logs/a", 7, 2))) as server:
        shown = run(server, "cursors", "show", "a")
    assert shown.stdout.splitlines()[:2] == [
        "cursor a, moved by: client",
        "source /logs/a, lag: 2 B, as told at 1970-01-01 00:00:00+00:00",
    ]


def test_create_does_not_move_a_cursor_that_has_moved() -> None:
    def script(call: Call) -> Answer:
        if call.body == {"positions": []}:
            return Answer(201, state("a"))
        return refusal(412, "cursor_moved", "it is elsewhere", position=7)

    with scripted(script) as server:
        made = run(server, "cursors", "create", "a")
        refused = run(server, "cursors", "create", "a", "--seq", "3", "--partition", "2")
    assert made.exit_code == 0
    assert refused.exit_code == 1
    assert "cursor 'a' exists and is at 7 in partition 2" in refused.stderr
    assert "hint: `headgate cursors set a`" in refused.stderr
    assert server.calls[-1].body == {"positions": [{"seq": 3, "partition": 2, "expected": 0}]}


def test_set_moves_a_cursor_and_creates_none() -> None:
    def script(call: Call) -> Answer:
        if call.path.endswith("/none"):
            return refusal(404, "cursor_unknown", "there is no cursor 'none'")
        return Answer(200, state("a", (0, 9)))

    with scripted(script) as server:
        done = run(server, "cursors", "set", "a", "--seq", "9", "--expected", "4")
        missing = run(server, "cursors", "set", "none", "--seq", "9")
    assert (done.exit_code, missing.exit_code) == (0, 1)
    assert "there is no cursor 'none'" in missing.stderr
    puts = [call for call in server.calls if call.method == "PUT"]
    assert [call.body for call in puts] == [
        {"positions": [{"seq": 9, "partition": 0, "expected": 4}]}
    ]


def test_delete_asks_the_daemon_once() -> None:
    with says(Answer(200, {"cursor": "a", "deleted": True})) as server:
        assert run(server, "cursors", "delete", "a", "--yes").exit_code == 0
    assert [(call.method, call.path) for call in server.calls] == [("DELETE", "/v0/cursors/a")]
