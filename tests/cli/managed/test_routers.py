"""``headgate routers``, against answers in the shapes of the HTTP API."""

from __future__ import annotations

import json
from typing import Any

from tests.scripted import Answer, Call, refusal, run, says, scripted


def status(name: str, **more: Any) -> dict[str, Any]:
    """A router as the API shows it."""
    return {
        "router": name, "router_id": 1, "source": "orders", "dest": "copies", "filter": {},
        "paused": False, "state": "running", "reason": "",
        "positions": [
            {"partition": 0, "position": 8, "head_seq": 10},
            {"partition": 1, "position": 3, "head_seq": 3},
        ],
        "lag": 2, "copied": 1200, "filtered": 3, "skipped": 0, "source_id": 1, "dest_id": 2,
        "created_ms": 5, **more,
    }  # fmt: skip


class Routers:
    """Routers in memory, with the answers to PUT, GET and DELETE."""

    def __init__(self, *present: dict[str, Any]) -> None:
        self.states = {each["router"]: each for each in present}

    def __call__(self, call: Call) -> Answer:
        name = call.path.rpartition("/")[2]
        if call.method == "PUT":
            known = name in self.states
            given = {key: value for key, value in call.body.items() if key != "from"}
            self.states[name] = self.states.get(name, status(name)) | given
            return Answer(200 if known else 201, self.states[name])
        if name not in self.states:
            return refusal(404, "unknown_router", f"there is no router {name!r}")
        if call.method == "DELETE":
            return Answer(200, self.states.pop(name))
        return Answer(200, self.states[name])


def test_routers_ls_follows_the_pages() -> None:
    def script(call: Call) -> Answer:
        if call.path == "/v0/routers":
            one = status("a", filter={"tag": "x*", "key": "k"})
            return Answer(200, {"routers": [one], "next_after": "a"})
        return Answer(200, {"routers": [status("b", state="held", lag=0)], "next_after": None})

    with scripted(script) as server:
        listed = run(server, "routers", "ls", "-o", "json")
        table = run(server, "routers", "ls")
    assert [router["router"] for router in json.loads(listed.stdout)] == ["a", "b"]
    assert [call.path for call in server.calls[:2]] == ["/v0/routers", "/v0/routers?after=a"]
    lines = table.stdout.splitlines()
    assert lines[0].split() == ["router", "source", "dest", "filter", "state", "lag", "copied"]
    assert lines[1].split() == [
        "a", "orders", "copies", "tag", "x*,", "key", "k", "running", "2", "1,200",
    ]  # fmt: skip


def test_routers_show_prints_the_state_with_its_reason_and_the_positions() -> None:
    told = status("r", state="held", reason="it is full", filter={"node": "n?"})
    with says(Answer(200, told)) as server:
        shown = run(server, "routers", "show", "r")
    assert shown.stdout == (
        "router r\n"
        "  orders -> copies\n"
        "  only node n?\n"
        "  held: it is full\n"
        "  copied 1,200, filtered 3\n"
        "\n"
        "partition  position  head seq  lag\n"
        "        0         8        10    2\n"
        "        1         3         3    0\n"
    )


def test_routers_create_puts_what_was_given() -> None:
    with scripted(Routers()) as server:
        result = run(
            server, "routers", "create", "r", "--source", "orders", "--dest", "copies", "--tag",
            "a*", "--from", "3,4", "--paused", "-o", "json",
        )  # fmt: skip
    assert result.exit_code == 0, result.output
    put = {"source": "orders", "dest": "copies", "filter": {"tag": "a*"}, "from": [3, 4],
           "paused": True}  # fmt: skip
    assert ("PUT", "/v0/routers/r", put) in [call[:3] for call in server.calls]


def test_creating_a_router_again_is_fine_and_with_another_filter_is_not() -> None:
    create = ("routers", "create", "r", "--source", "orders", "--dest", "copies")
    with scripted(Routers(status("r", filter={"tag": "a"}))) as server:
        same = run(server, *create, "--tag", "a")
        other = run(server, *create, "--tag", "b")
    assert same.exit_code == 0
    assert other.exit_code == 1
    assert "the router 'r' exists: orders -> copies, tag a" in other.stderr
    assert not [call for call in server.calls if call.method == "PUT"]


def test_a_place_to_begin_that_is_none_is_refused_before_anything_is_sent() -> None:
    with scripted(Routers()) as server:
        result = run(
            server, "routers", "create", "r", "--source", "a", "--dest", "b", "--from", "noon"
        )
    assert result.exit_code == 2
    assert "must be now, earliest, an offset or offsets with commas, got 'noon'" in result.stderr
    assert not server.calls


def test_a_router_is_paused_resumed_and_deleted() -> None:
    with scripted(Routers(status("r"))) as server:
        assert run(server, "routers", "pause", "r").exit_code == 0
        assert run(server, "routers", "resume", "r").exit_code == 0
        assert run(server, "routers", "delete", "r", "--yes").exit_code == 0
        gone = run(server, "routers", "show", "r")
    assert [call[:3] for call in server.calls if call.method != "GET"] == [
        ("PUT", "/v0/routers/r", {"paused": True}),
        ("PUT", "/v0/routers/r", {"paused": False}),
        ("DELETE", "/v0/routers/r", None),
    ]
    assert gone.exit_code == 1
    assert "there is no router 'r'" in gone.stderr
