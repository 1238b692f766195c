"""Whoever changes anything has a line of the audit log, also on a full disk and before a kill."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from compaction.access.http_calls import DaemonRefused, call, socket_address
from daemon.access.token_file import Scope, TokenFile
from daemon.api.route import Route
from daemon.api.routes import ROUTES
from tests.attacks.test_tokens import World, body_of, target_of
from tests.e2e.daemon import UNANSWERED, running, wait_until
from tests.e2e.processes import stopped
from tests.e2e.wire import Wire, request

# Every other route that is not GET: records, what becomes of them, and leases that end by
# themselves. A new route is in one of the two.
CHANGES_NOTHING = {
    "POST /v0/topics/{topic}", "POST /v0/topics/{topic}/diff", "POST /v0/watch",
    "POST /v0/tickets", "POST /v0/topics/{topic}/subscriptions/{subscription}/ack",
    "POST /v0/topics/{topic}/subscriptions/{subscription}/nack",
    "POST /v0/topics/{topic}/subscriptions/{subscription}/leave",
    "POST /v0/plans", "PUT /v0/plans/{plan}", "DELETE /v0/plans/{plan}",
    "POST /v0/admin/await_backup",
    "POST /v0/elastic/_bulk", "PUT /v0/elastic/_bulk", "POST /v0/elastic/{topic}/_bulk",
    "PUT /v0/elastic/{topic}/_bulk", "POST /v0/otlp/{topic}/v1/logs",
}  # fmt: skip


def name_of(route: Route) -> str:
    return f"{route.method} {route.path}"


CHANGES = [
    each
    for each in ROUTES
    if each.method != "GET"
    and name_of(each) not in CHANGES_NOTHING
    # Through the socket only.
    and each.path != "/v0/admin/tokens"
]


class Audited(NamedTuple):
    world: World
    path: Path

    def lines(self) -> list[Any]:
        """Those that are whole."""
        found = [line for line in self.path.read_bytes().split(b"\n") if line.endswith(b"}")]
        return [json.loads(line) for line in found]


def check_numbers(lines: list[Any]) -> None:
    """No line is missing or there twice."""
    by_process = sorted(lines, key=lambda line: (line["run"], line["process"]))
    for _, group in groupby(by_process, lambda line: (line["run"], line["process"])):
        numbers = [line["n"] for line in group]
        assert numbers == list(range(1, len(numbers) + 1))


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Audited]:
    folder = tmp_path_factory.mktemp("audit")
    file, path = TokenFile(folder / "tokens.json"), folder / "audit.log"
    tokens = {
        "all": file.issue("all", list(Scope))[1],
        "reader": file.issue("reader", [Scope.READ])[1],
        "narrow": file.issue("narrow", [Scope.PRODUCE], ["new"])[1],
    }
    settings = {
        "auth_file": file.path, "admin_over_tcp": "true", "audit_log": path,
        "trusted_proxies": "127.0.0.0/8", "log_level": "debug",
    }  # fmt: skip
    with running(folder / "data", shards=2, settings=settings) as daemon:
        world = World(daemon, file, tokens)
        world.good("PUT", "/v0/topics/mine")
        yield Audited(world, path)


@pytest.mark.parametrize("route", CHANGES, ids=[name_of(route) for route in CHANGES])
def test_each_route_that_changes_something_has_a_line_before_and_after(
    audited: Audited, route: Route
) -> None:
    target = target_of(route).replace("ledger/topics.page", "ledger/space.orphans.name")
    target = target.replace("catalog/topics.page", "catalog/lake.catalog.add")
    before = len(audited.lines())
    answer = audited.world.ask(
        route.method, target, "all", "X-Forwarded-For: 6.6.6.6, 203.0.113.9", body=body_of(route)
    )
    # A test before may have left requests whose topics are only created now.
    told = audited.lines()[before:]
    (asked,) = [line for line in told if line["event"] == "asked" and line["path"] == target]
    (outcome,) = [line for line in told if line.get("of") == asked["n"]
                  and line["process"] == asked["process"]]  # fmt: skip
    assert (asked["who"], asked["from"]) == ("all", "203.0.113.9")
    assert (asked["method"], asked["path"]) == (route.method, target)
    assert outcome["status"] // 100 == answer.status // 100, (outcome, answer)
    code = None if answer.status < 300 else answer.code
    assert outcome["code"] == code


def test_what_changes_nothing_has_no_line(audited: Audited) -> None:
    before = len(audited.lines())
    for route in ROUTES:
        if name_of(route) in CHANGES_NOTHING - {"POST /v0/topics/{topic}", "POST /v0/plans"}:
            audited.world.ask(route.method, target_of(route), "all", body=body_of(route))
    for name in ("topics.page", "lake.runs.renew"):
        audited.world.ask("POST", f"/v0/admin/ledger/{name}", "all", body=b"[]")
    audited.world.good("POST", "/v0/topics/mine", b'{"records":[{"data":1}]}')
    told = [line for line in audited.lines()[before:] if line["event"] != "tokens"]
    assert not told, json.dumps(told)


def test_who_is_gone_before_it_is_accepted_has_a_line_and_makes_no_error(audited: Audited) -> None:
    """Nobody can tell its address any more."""
    world, before = audited.world, len(audited.lines())
    shards = [psutil.Process(pid) for pid in pids(world)]
    with stopped(world.daemon.process.pid):  # it would kill a shard that is silent
        for shard in shards:
            shard.suspend()
        for number in range(20):
            with Wire(world.daemon.port) as wire:
                wire.send(request("POST", f"/v0/topics/gone{number}", b'{"records":[{"data":1}]}',
                                  authorization=f"Bearer {world.tokens['all']}"))  # fmt: skip
                wire.reset()
        for shard in shards:
            shard.resume()
    wait_until(
        lambda: (
            "a bug" in world.daemon.text
            or [line for line in audited.lines()[before:] if "/gone" in line.get("path", "")]
        ),
        "a topic of one of them",
    )
    world.good("POST", "/v0/topics/mine", b'{"records":[{"data":1}]}')
    assert "a bug" not in world.daemon.text


def test_a_topic_that_is_created_by_writing_to_it_has_a_line(audited: Audited) -> None:
    audited.world.good("POST", "/v0/topics/written", b'{"records":[{"data":1}]}')
    lines = audited.lines()  # those of who was gone may be among the last
    (asked,) = [line for line in lines if line.get("path") == "/v0/topics/written"]
    assert asked["event"] == "asked"
    (outcome,) = [line for line in lines if line.get("of") == asked["n"]
                  and line["process"] == asked["process"]]  # fmt: skip
    assert outcome["status"] == 200


def test_refusals_starts_and_tokens_have_lines(audited: Audited) -> None:
    world = audited.world
    before = len(audited.lines())
    assert world.ask("GET", "/v0/topics", None).status == 401
    assert world.ask("PUT", "/v0/topics/x", "reader").status == 403
    assert world.ask("POST", "/v0/topics/x", "hg_wrong", body=b"{}").status == 401
    # Refused when its topic is to be created: what its body names is known late.
    body = b'{"records":[{"data":1}],"advance":{"cursor":"theirs","expected":0,"next":1}}'
    assert world.ask("POST", "/v0/topics/new", "narrow", body=body).status == 403
    told = [
        (line["event"], line["who"], line["method"], line["path"], line["status"])
        for line in audited.lines()[before:]
        if line["event"] == "refused"
    ]
    assert told == [
        ("refused", None, "GET", "/v0/topics", 401),
        ("refused", "reader", "PUT", "/v0/topics/x", 403),
        ("refused", None, "POST", "/v0/topics/x", 401),
        ("refused", "narrow", "POST", "/v0/topics/new", 403),
    ]
    (started,) = [line for line in audited.lines() if line["event"] == "started"]
    assert (started["process"], started["former"]) == ("supervisor", "none")
    world.file.issue("later", [Scope.READ])
    world.file.revoke("later")

    def tokens() -> list[Any]:
        return [line for line in audited.lines() if line["event"] == "tokens"]

    last = wait_until(
        lambda: [line for line in tokens() if line["generation"] == 5], "the shard that tells"
    )[-1]
    assert last["count"] == 3 and last["process"] == "shard 0"
    socket = socket_address(str(world.daemon.data))
    for method, target, body in (
        ("PUT", "/v0/topics/local", b""),
        ("POST", "/v0/admin/tokens", b'{"revoke":"nobody"}'),
    ):
        with contextlib.suppress(DaemonRefused):
            call(socket, method, target, body)
        (local,) = [line for line in audited.lines() if line.get("path") == target]
        assert (local["who"], local["from"]) == (None, "admin.sock")


def test_a_reload_has_a_line(audited: Audited) -> None:
    audited.world.daemon.process.send_signal(signal.SIGHUP)
    (line,) = wait_until(
        lambda: [line for line in audited.lines() if line["event"] == "reloaded"], "its line"
    )
    assert (line["process"], line["changed"]) == ("supervisor", [])


def test_no_secret_is_in_the_log(audited: Audited) -> None:
    token = audited.world.tokens["all"]
    for sent in ("all", "reader", None):
        for method, path in (("PUT", f"/v0/topics/{token}"), ("DELETE", f"/v0/routers/{token}")):
            assert audited.world.ask(method, path, sent).status == 400
    text = audited.path.read_text() + audited.world.daemon.text
    for token in audited.world.tokens.values():
        assert token not in text and token.rpartition("_")[2] not in text


def test_on_a_full_disk_settings_are_refused_and_records_go_on(audited: Audited) -> None:
    world = audited.world
    records = b'{"records":[{"data":1}]}'
    # A file that no other one of the daemon's is larger than, and that may not grow.
    told_bytes = audited.path.stat().st_size
    with audited.path.open("r+b") as file:
        file.truncate(256 << 20)
    shards = [psutil.Process(pid) for pid in pids(world)]
    limits = [shard.rlimit(psutil.RLIMIT_FSIZE) for shard in shards]
    for shard, limit in zip(shards, limits, strict=True):
        shard.rlimit(psutil.RLIMIT_FSIZE, (256 << 20, limit[1]))
    try:
        for method, target in (
            ("PUT", "/v0/topics/full"), ("DELETE", "/v0/topics/mine"),
            ("POST", "/v0/topics/full"), ("PUT", "/v0/cursors/full"),
        ):  # fmt: skip
            answer = world.ask(method, target, "all", body=records if method == "POST" else b"")
            assert (answer.status, answer.code) == (503, "audit_log"), (method, target, answer)
        world.good("POST", "/v0/topics/mine", records)
        assert world.ask("GET", "/v0/topics/full", "all").status == 404
        assert world.ask("GET", "/v0/topics", None).status == 401, "refusals need no line"
    finally:
        for shard, limit in zip(shards, limits, strict=True):
            shard.rlimit(psutil.RLIMIT_FSIZE, limit)
    world.good("PUT", "/v0/topics/full")
    with audited.path.open("r+b") as file:
        file.seek(256 << 20)
        later = file.read()
        file.truncate(told_bytes)
        file.seek(told_bytes)
        file.write(later)
    assert audited.lines()[-1]["status"] == 200
    check_numbers(audited.lines())


def pids(world: World) -> list[int]:
    return [shard["pid"] for shard in world.ask("GET", "/v0/status", "all").json["shards"]]


@pytest.mark.slow
def test_nothing_is_changed_without_a_line_whenever_the_daemon_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    created: list[str] = []
    for run in range(3):
        with running(
            tmp_path / "data", shards=2, settings={"audit_log": path, "auth_file": ""}
        ) as daemon:
            if run == 2:
                there = {
                    each["topic"] for each in daemon.get("/v0/topics?limit=1000").json["topics"]
                }
                break
            while len(created) < 40 * (run + 1):
                created.append(f"t{len(created)}")
                daemon.json("PUT", f"/v0/topics/{created[-1]}", {})
            with Wire(daemon.port) as wire:
                created.append(f"t{len(created)}")
                wire.send(request("PUT", f"/v0/topics/{created[-1]}"))
                daemon.kill_everything()
                try:
                    wire.answer()
                except UNANSWERED:
                    pass
    lines = [json.loads(line) for line in path.read_bytes().split(b"\n") if line]
    asked = {line["path"].rpartition("/")[2] for line in lines if line["event"] == "asked"}
    assert there <= asked and len(there) >= 79
    check_numbers(lines)
    assert len({line["run"] for line in lines}) == 3
