"""Cursors that move with the records of a request, over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.e2e.daemon import Answer, Daemon, running
from tests.e2e.wire import request, wire_of_each_shard


def put(daemon: Daemon, name: str, *positions: dict[str, Any]) -> Answer:
    return daemon.json("PUT", f"/v0/cursors/{name}", {"positions": list(positions)})


def positions(daemon: Daemon, name: str) -> dict[int, int]:
    answer = daemon.get(f"/v0/cursors/{name}")
    assert answer.status == 200, answer.body
    return {each["partition"]: each["seq"] for each in answer.json["positions"]}


def step(name: str, expected: int, following: int, **more: object) -> dict[str, object]:
    return {"cursor": name, "expected": expected, "next": following, **more}


def test_a_cursor_moves_with_the_records_or_nothing_is_stored(shared_daemon: Daemon) -> None:
    assert put(shared_daemon, "sink").status == 201
    assert put(shared_daemon, "sink").status == 200
    stored = shared_daemon.produce("cursors.a", 1, 2, advance=step("sink", 0, 7))
    late = shared_daemon.produce("cursors.a", 3, advance=step("sink", 0, 9))
    other = shared_daemon.produce("cursors.a", 4, advance=step("sink", 0, 3, partition=5))

    assert (stored.status, other.status) == (200, 200)
    assert (late.status, late.code) == (412, "cursor_moved")
    detail = late.json["error"]["detail"]
    assert detail == {"cursor": "sink", "partition": 0, "expected": 0, "position": 7}
    assert positions(shared_daemon, "sink") == {0: 7, 5: 3}
    assert [r["data"] for r in shared_daemon.read_all("cursors.a")] == [1, 2, 4]


def test_a_msgpack_body_moves_a_cursor_too(shared_daemon: Daemon) -> None:
    put(shared_daemon, "packed")
    body = msgspec.msgpack.encode({"records": [{"data": 1}], "advance": step("packed", 0, 4)})
    for status in (200, 412):
        answer = shared_daemon.ask(
            "POST", "/v0/topics/cursors.packed", body, content_type="application/msgpack"
        )
        assert answer.status == status
    assert positions(shared_daemon, "packed") == {0: 4}


def test_a_cursor_that_is_set_on_one_shard_is_found_there_by_all(shared_daemon: Daemon) -> None:
    with wire_of_each_shard(shared_daemon, "warm") as wires:
        for turn, order in enumerate((wires, wires[::-1])):
            for name in (f"set.{turn}", f"set.{turn}"):  # created again under the same name
                assert order[0].json("PUT", f"/v0/cursors/{name}", {}).status == 201
                for at, wire in enumerate(order):
                    order[0].json("PUT", f"/v0/cursors/{name}", {"positions": [{"seq": 100 * at}]})
                    document = {
                        "records": [{"data": at}], "advance": step(name, 100 * at, 100 * at + 1)
                    }  # fmt: skip
                    assert wire.json("POST", "/v0/topics/cursors.set", document).status == 200
                assert order[0].ask(request("DELETE", f"/v0/cursors/{name}", b"")).status == 200
                gone = order[-1].json("POST", "/v0/topics/cursors.set", document)
                assert (gone.status, gone.json["error"]["code"]) == (404, "cursor_unknown")


def test_a_setting_may_expect_where_the_cursor_is(shared_daemon: Daemon) -> None:
    put(shared_daemon, "fenced", {"seq": 5}, {"partition": 2, "seq": 1, "expected": 0})
    refused = put(shared_daemon, "fenced", {"seq": 9}, {"partition": 2, "seq": 0, "expected": 0})
    assert (refused.status, refused.code) == (412, "cursor_moved")
    assert positions(shared_daemon, "fenced") == {0: 5, 2: 1}


def test_cursors_are_listed_by_name_a_page_at_a_time(shared_daemon: Daemon) -> None:
    for n in range(5):
        put(shared_daemon, f"zz-page-{n}", {"seq": n})
    first = shared_daemon.get("/v0/cursors?after=zz-page-&limit=3").json
    rest = shared_daemon.get(f"/v0/cursors?after={first['next_after']}&limit=3").json
    found = first["cursors"] + rest["cursors"]
    assert [(c["cursor"], c["kind"], c["positions"][0]["seq"]) for c in found] == [
        (f"zz-page-{n}", "client", n) for n in range(5)
    ]
    assert rest["next_after"] is None


@pytest.mark.parametrize(
    ("advance", "status", "code", "said"),
    [
        (step("nobody", 0, 1), 404, "cursor_unknown", "PUT /v0/cursors/nobody"),
        (step("bad", 5, 5), 400, "invalid", "next is 5"),
        (step("bad", 5, 4), 400, "invalid", "more than expected, 5"),
        (step("bad", -1, 4), 400, "invalid", "expected"),
        (step("bad", 0, 2**53 + 1), 400, "invalid", "next"),
        (step("bad", 0, 1, partition=1000), 400, "invalid", "partition"),
        (step("bad", 0, 1, partition=-1), 400, "invalid", "partition"),
        (step("b" * 1_000_000, 0, 1), 400, "invalid", "255"),
        (step("a/b", 0, 1), 400, "invalid_cursor", "a/b"),
        (step("", 0, 1), 400, "invalid_cursor", "letter or digit"),
        (step("bad", 0, 1, what=1), 400, "invalid", "what"),
        ({"cursor": "bad"}, 400, "invalid", "expected"),
        ("bad", 400, "invalid", "advance"),
    ],
)
def test_a_bad_step_is_refused_and_leaves_nothing(
    shared_daemon: Daemon, advance: object, status: int, code: str, said: str
) -> None:
    answer = shared_daemon.produce("cursors.bad", 1, advance=advance)
    assert (answer.status, answer.code) == (status, code), answer.body
    assert said in answer.json["error"]["message"]
    assert len(answer.body) < 1_000
    assert shared_daemon.get("/v0/topics/cursors.bad").status == 404


@pytest.mark.parametrize(
    ("name", "document", "status", "code"),
    [
        ("n" * 300, {}, 400, "invalid_cursor"),
        ("%20", {}, 400, "invalid_cursor"),
        ("bad", {"positions": [{"seq": -1}]}, 400, "invalid"),
        ("bad", {"positions": [{"seq": 0, "partition": 1000}]}, 400, "invalid"),
        ("bad", {"positions": [{"seq": 0}] * 1001}, 400, "invalid"),
        ("bad", {"positions": [{"seq": 1}, {"seq": 2}]}, 400, "invalid"),
        ("bad", {"positions": 3}, 400, "invalid"),
        ("bad", {"positions": [{"seq": 3, "expected": 1}]}, 412, "cursor_moved"),
    ],
)
def test_a_bad_setting_is_refused_and_creates_no_cursor(
    shared_daemon: Daemon, name: str, document: object, status: int, code: str
) -> None:
    answer = shared_daemon.json("PUT", f"/v0/cursors/{name}", document)
    assert (answer.status, answer.code) == (status, code), answer.body
    there = "invalid_cursor" if code == "invalid_cursor" else "cursor_unknown"
    assert shared_daemon.get(f"/v0/cursors/{name}").code == there
    assert shared_daemon.ask("DELETE", f"/v0/cursors/{name}").code == there


@pytest.mark.slow
def test_cursors_outlive_a_kill(data: Path) -> None:
    with running(data, shards=2) as daemon:
        put(daemon, "durable", {"seq": 3})
        assert daemon.produce("durable", 1, advance=step("durable", 3, 8)).status == 200
        daemon.kill_everything()
    with running(data, shards=1) as daemon:
        assert positions(daemon, "durable") == {0: 8}
        assert daemon.produce("durable", 2, advance=step("durable", 3, 9)).status == 412
        assert daemon.produce("durable", 2, advance=step("durable", 8, 9)).status == 200
