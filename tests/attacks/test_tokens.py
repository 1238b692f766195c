"""Whoever has no token, or another one, gets nowhere: every route, every spelling."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

import cli
from compaction.access.http_calls import call, socket_address
from compaction.source.errors import SourceError
from compaction.source.planner import DaemonPlanner
from compaction.source.schemas import PlanRequest
from daemon.access.token_file import Scope, TokenFile
from daemon.api.route import Route
from daemon.api.routes import ROUTES
from tests.e2e.daemon import Answer, Daemon, running, stream, wait_until
from tests.e2e.wire import Wire, request

RECORDS = b'{"records":[{"data":"planted"}]}'
PARAMETERS = {
    "{topic}": "secrets", "{subscription}": "workers", "{key}": "k", "{cursor}": "warehouse",
    "{router}": "copier", "{wid}": "x", "{plan}": "1", "{operation}": "topics.page",
}  # fmt: skip
BODIES = {
    "/v0/topics/{topic}": RECORDS,
    "/v0/routers/{router}": b'{"source":"secrets","dest":"mine"}',
    "/v0/watch": b'{"topics":[{"topic":"secrets"}]}',
    "/v0/plans": b'{"topics":["secrets"]}',
    "/v0/tickets": b'{"target":"/v0/topics/secrets/watch"}',
}
# That no route of a path may have. OPTIONS is answered where there are ``cors_origins``.
OTHER_METHODS = ("HEAD", "OPTIONS", "PATCH")
CLOSED = [route for route in ROUTES if not route.is_open]
NAMES = [f"{route.method} {route.path}" for route in CLOSED]


class World(NamedTuple):
    """A daemon with tokens: one for everything, and others of strangers."""

    daemon: Daemon
    file: TokenFile
    tokens: dict[str, str]

    def ask(
        self, method: str, target: str, token: str | None, *fields: str, body: bytes = b""
    ) -> Answer:
        fields = (*fields, "Connection: close")
        if token is not None:
            fields = (*fields, f"Authorization: Bearer {self.tokens.get(token, token)}")
        with Wire(self.daemon.port) as wire:
            wire.send(request(method, target, body or None, "application/json", *fields))
            answer = wire.answer(bodiless=method == "HEAD")
        assert answer is not None
        return answer

    def good(self, method: str, target: str, body: bytes = b"", token: str = "all") -> object:
        answer = self.ask(method, target, token, body=body)
        assert answer.status in (200, 201), answer
        return answer.json

    def streams(self, token: str) -> int:
        """How many are open."""
        shards = self.ask("GET", "/v0/status", token).json["shards"]
        return sum(shard["streams"] for shard in shards)

    def state(self) -> object:
        """What an attacker must not change."""
        answers = [
            self.ask("GET", f"/v0/{kind}", "all").json[kind]
            for kind in ("topics", "cursors", "routers", "subscriptions")
        ]
        kept = {
            "topic", "topic_id", "config", "cursor", "positions", "router", "source", "dest",
            "paused", "subscription", "subscription_id",
        }  # fmt: skip
        heads = [[part["head_seq"] for part in topic["partitions"]] for topic in answers[0]]
        return heads, [
            [{name: value for name, value in each.items() if name in kept} for each in answer]
            for answer in answers
        ]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    file = TokenFile(tmp_path_factory.mktemp("auth") / "tokens.json")
    tokens = {"all": file.issue("all", list(Scope))[1]}
    for scope in Scope:
        tokens[scope] = file.issue(f"of-{scope}", [scope])[1]
    tokens["elsewhere"] = file.issue("elsewhere", list(Scope), ["mine", "mine-*"])[1]
    tokens["stranger"] = file.issue(
        "stranger", list(Scope), ["mine", "mine-a", "mine.b", "sec-rets"]
    )[1]
    tokens["wide"] = file.issue("wide", list(Scope), ["mine", "r*", "*opier", "s?b*"])[1]
    tokens["revoked"] = file.issue("gone", list(Scope))[1]
    file.revoke("gone")
    long_ago = TokenFile(file.path, lambda: 1_700_000_000_000)
    tokens["expired"] = long_ago.issue("old", list(Scope), expires_in=timedelta(days=1))[1]
    settings = {
        "auth_file": file.path, "admin_over_tcp": "true", "cors_origins": "https://page.example",
    }  # fmt: skip
    with running(tmp_path_factory.mktemp("data"), settings=settings) as daemon:
        made = World(daemon, file, tokens)
        made.good("POST", "/v0/topics/secrets", RECORDS)
        made.good("PUT", "/v0/topics/mine")
        made.good("PUT", "/v0/topics/secrets/subscriptions/workers")
        made.good("PUT", "/v0/cursors/warehouse")
        made.good("PUT", "/v0/routers/copier", b'{"source":"secrets","dest":"mine","paused":true}')
        yield made


def target_of(route: Route) -> str:
    target = route.path
    for name, value in PARAMETERS.items():
        target = target.replace(name, value)
    return target + ("?consumer=c&max=1" if route.path.endswith("/consume") else "")


def body_of(route: Route) -> bytes:
    if route.body is None or route.method == "GET":
        return b""
    return BODIES.get(route.path, b"{}")


def escaped(target: str) -> str:
    return target.replace("secrets", "%73ecrets").replace("copier", "%63opier")


@pytest.mark.parametrize("route", CLOSED, ids=NAMES)
def test_no_route_does_anything_without_a_token_that_allows_it(world: World, route: Route) -> None:
    before = world.state()
    target, body = target_of(route), body_of(route)
    wrong = world.tokens["all"][:-1] + ("0" if world.tokens["all"][-1] != "0" else "1")
    for spelled in (target, escaped(target), f"http://127.0.0.1{target}"):
        for token in (None, wrong, "revoked", "expired", "hg_x", "x" * 3000):
            answer = world.ask(route.method, spelled, token, body=body)
            assert (answer.status, answer.code) == (401, "unauthenticated"), (spelled, token)
            assert answer.headers["www-authenticate"].startswith("Bearer")
            assert "secrets" not in answer.body.decode()
        for scope in set(Scope) - set(route.scopes):
            answer = world.ask(route.method, spelled, scope, body=body)
            assert (answer.status, answer.code) == (403, "forbidden"), (spelled, scope)
    useful = {scope for each in ROUTES if each.path == route.path for scope in each.scopes}
    for method in OTHER_METHODS:
        for token in (None, wrong, "revoked", "expired"):
            assert world.ask(method, target, token).status == 401, (method, token)
        for scope in set(Scope) - useful:
            assert world.ask(method, target, scope).status == 403, (method, scope)
    for field in ("Authorization: Bearer x", f"Authorization: Bearer {world.tokens['all']}"):
        answer = world.ask(route.method, target, "all", field, body=body)
        assert answer.status == 400, "two tokens"
    answer = world.ask(route.method, target, "all", f"X-Api-Key: {world.tokens['all']}", body=body)
    assert answer.status == 400, "two tokens"
    assert world.state() == before


OF_A_TOPIC = [route for route in CLOSED if "{topic}" in route.path or route.concerns_all_topics]


@pytest.mark.parametrize("route", OF_A_TOPIC, ids=[f"{r.method} {r.path}" for r in OF_A_TOPIC])
def test_a_token_of_other_topics_learns_nothing_of_a_topic_not_even_that_it_exists(
    world: World, route: Route
) -> None:
    before = world.state()
    target, body = target_of(route), body_of(route)
    missing = world.ask(route.method, target.replace("secrets", "nothing"), "elsewhere", body=body)
    for spelled in (target, escaped(target), f"http://127.0.0.1{target}"):
        there = world.ask(route.method, spelled, "elsewhere", body=body)
        assert (there.status, there.code) == (403, "forbidden"), spelled
        assert there.body == missing.body.replace(b"nothing", b"secrets")
    if all(each in OF_A_TOPIC for each in CLOSED if each.path == route.path):
        for method in OTHER_METHODS:
            for name in ("secrets", "nothing"):
                answer = world.ask(method, target.replace("secrets", name), "elsewhere")
                assert answer.status == 403, (method, name)
    assert world.state() == before


STATUS_STREAM = "/v0/status/watch"  # it has no end, and a test of its own
WITH_RIGHTS = [route for route in CLOSED if route.gets_rights and route.path != STATUS_STREAM]
NAMED = {"secrets": "nothing", "copier": "nobodys", "warehouse": "nowhere_1", "workers": "no_such"}


def renamed(text: str) -> str:
    """The same with names that nothing has."""
    for name, other in NAMED.items():
        text = text.replace(name, other)
    return text


@pytest.mark.parametrize("route", WITH_RIGHTS, ids=[f"{r.method} {r.path}" for r in WITH_RIGHTS])
def test_what_a_handler_checks_itself_tells_a_stranger_nothing(world: World, route: Route) -> None:
    before = world.state()
    target, body = target_of(route), body_of(route).decode()
    is_named = renamed(target + body) != target + body
    for form in ("%s", "http://127.0.0.1%s"):
        for path in {target, escaped(target)}:
            there = world.ask(route.method, form % path, "elsewhere", body=body.encode())
            told = there.body.decode()
            if is_named:
                missing = world.ask(
                    route.method, form % renamed(target), "elsewhere", body=renamed(body).encode()
                )
                assert (there.status, renamed(told)) == (missing.status, missing.body.decode())
                assert there.status >= 400
            else:
                assert not any(name in told for name in NAMED), told
    if route.method == "GET":
        head = world.ask("HEAD", target, "elsewhere")
        assert head.status == world.ask("GET", target, "elsewhere").status and not head.body
    assert world.state() == before


def test_each_route_has_a_case_and_says_whose_rights_it_needs() -> None:
    """A new route must be among the cases of this module, or say here why it needs none."""
    for route in CLOSED:
        assert "{" not in target_of(route), f"{route.path}: name its parameters in PARAMETERS"
        assert route.scopes, route.path
        knows_its_topics = "{topic}" in route.path or route.concerns_all_topics or route.gets_rights
        # The pieces of a foreign request are checked, each for its topic.
        knows_its_topics = knows_its_topics or route.foreign is not None
        assert knows_its_topics or route.path in ("/openapi.json", "/v0/elastic/"), route.path
    # The page has no figures of its own.
    assert [route.path for route in ROUTES if route.is_open] == ["/", "/livez", "/readyz"]


def test_the_stream_of_the_status_tells_a_stranger_nothing(world: World) -> None:
    told = {}
    for token in ("all", "elsewhere"):
        headers = {"Authorization": f"Bearer {world.tokens[token]}"}
        with stream(world.daemon.port, STATUS_STREAM, headers=headers) as answer:
            lines = iter(answer.readline, b"")
            told[token] = next(line.decode() for line in lines if line.startswith(b"data: "))
    assert "secrets" in told["all"]
    assert '"topics":' in told["elsewhere"]
    assert not any(name in told["elsewhere"] for name in NAMED), told["elsewhere"]


@pytest.mark.parametrize(
    ("method", "target", "body"),
    [
        ("POST", "/v0/watch", b'{"topics":[{"topic":"mine"},{"topic":"%s"}]}'),
        ("PUT", "/v0/routers/thief", b'{"source":"%s","dest":"mine"}'),
        ("PUT", "/v0/routers/spammer", b'{"source":"mine","dest":"%s"}'),
        ("PUT", "/v0/topics/mine/subscriptions/s", b'{"dead_letter_topic":"%s"}'),
        ("POST", "/v0/tickets", b'{"target":"/v0/topics/%s/watch?key=a"}'),
        (
            "POST", "/v0/topics/mine",
            b'{"records":[{"data":1}],"advance":{"cursor":"%s","expected":0,"next":1}}',
        ),
    ],
)  # fmt: skip
def test_what_a_body_names_is_authorized_too(
    world: World, method: str, target: str, body: bytes
) -> None:
    before = world.state()
    there = world.ask(method, target, "elsewhere", body=body.replace(b"%s", b"secrets"))
    missing = world.ask(method, target, "elsewhere", body=body.replace(b"%s", b"nothing"))
    assert (there.status, there.code) == (403, "forbidden"), there
    assert there.body == missing.body.replace(b"nothing", b"secrets")
    assert world.state() == before


def test_another_router_cannot_be_seen_changed_or_deleted(world: World) -> None:
    before = world.state()
    for method, body in (("GET", b""), ("DELETE", b"")):
        there = world.ask(method, "/v0/routers/copier", "elsewhere", body=body)
        missing = world.ask(method, "/v0/routers/nobody", "elsewhere", body=body)
        assert (there.status, there.code) == (404, "unknown_router")
        assert there.body == missing.body.replace(b"nobody", b"copier")
    changed = world.ask("PUT", "/v0/routers/copier", "elsewhere", body=b'{"paused":false}')
    assert (changed.status, changed.code) == (403, "forbidden")
    assert world.state() == before


def test_a_wid_that_somebody_else_got_opens_nothing(world: World) -> None:
    wid = json.loads(
        world.ask("POST", "/v0/watch", "all", body=b'{"topics":[{"topic":"secrets"}]}').body
    )["wid"]
    for token, status in (("elsewhere", 403), ("produce", 403), (None, 401)):
        assert world.ask("GET", f"/v0/watch/{wid}", token).status == status
    own = json.loads(
        world.ask("POST", "/v0/watch", "elsewhere", body=b'{"topics":[{"topic":"mine"}]}').body
    )["wid"]
    assert world.ask("HEAD", f"/v0/watch/{own}", "elsewhere").status == 200


def ticketed(world: World, target: str, token: str = "elsewhere") -> str:
    """The URL of a stream with a ticket."""
    body = json.dumps({"target": target}).encode()
    return str(world.ask("POST", "/v0/tickets", token, body=body).json["stream_url"])


def test_a_ticket_opens_the_stream_that_it_is_for_and_does_nothing_else(world: World) -> None:
    mine = ticketed(world, "/v0/topics/mine/watch?key=a%2Bb*")
    for spelled in (mine, f"http://127.0.0.1{mine}", mine.replace("mine", "%6dine")):
        assert world.ask("HEAD", spelled, None).status == 200
    query = mine.partition("?")[2]
    for method, target in (
        ("HEAD", mine.replace("a%2Bb", "c")), ("HEAD", f"{mine}&partition=0"),
        ("HEAD", f"/v0/topics/secrets/watch?{query}"), ("GET", f"/v0/topics/mine?{query}"),
        ("POST", f"/v0/topics/mine?{query}"), ("GET", f"/v0/status?{query}"),
        ("POST", f"/v0/tickets?{query}"),
    ):  # fmt: skip
        assert world.ask(method, target, None).status == 401, target
    assert world.ask("HEAD", mine, "elsewhere").status == 400, "two tokens"
    assert world.ask("DELETE", mine, None).status == 405
    wid = world.ask("POST", "/v0/watch", "all", body=b'{"topics":[{"topic":"secrets"}]}').json
    theirs = ticketed(world, wid["stream_url"])
    assert world.ask("HEAD", theirs, None).status == 403, "their topics are compared"
    own = world.ask("POST", "/v0/watch", "elsewhere", body=b'{"topics":[{"topic":"mine"}]}').json
    assert world.ask("HEAD", ticketed(world, own["stream_url"]), None).status == 200
    for target in ("/v0/topics/mine", "//mine/watch", "v0/topics/mine/watch", "/%zz", mine):
        body = json.dumps({"target": target}).encode()
        assert world.ask("POST", "/v0/tickets", "elsewhere", body=body).status == 400, target


def test_a_token_in_a_url_is_refused_by_name_and_not_shown(world: World) -> None:
    token = world.tokens["all"]
    for name in ("token", "access_token", "Token", "api_key", "key", "%74oken"):
        for path in ("/v0/status", "/v0/topics/mine/watch", "/livez", "/nothing"):
            for sent in ("all", None):
                answer = world.ask("GET", f"{path}?{name}={token}", sent)
                assert (answer.status, answer.code) == (400, "token_in_url"), (name, path)
                assert token not in answer.body.decode()
    for path in (f"/v0/topics/{token}", f"/v0/topics/mine/diff/x{token}.y", f"/{token}",
                 f"/v0/topics/{token.replace('_', '%5f')}", f"/livez?{token}=1"):  # fmt: skip
        for method, body in (("PUT", b""), ("POST", RECORDS), ("GET", b"")):
            for sent in ("all", "elsewhere", None):
                answer = world.ask(method, path, sent, body=body)
                assert (answer.status, answer.code) == (400, "token_in_url"), (method, path)
                assert token not in answer.body.decode()
    assert token not in world.daemon.text
    for user in (f"x:{token}", token):
        answer = world.ask("GET", f"http://{user}@127.0.0.1/v0/status", "all")
        assert (answer.status, answer.code) == (400, "bad_request")
        assert "a user or a password" in answer.body.decode() and token not in str(answer.body)


def test_lists_show_what_a_token_is_for(world: World) -> None:
    topics = world.ask("GET", "/v0/topics", "elsewhere").json["topics"]
    assert [topic["topic"] for topic in topics] == ["mine"]
    for path, name in (
        ("/v0/cursors", "cursors"), ("/v0/routers", "routers"),
        ("/v0/subscriptions", "subscriptions"),
    ):  # fmt: skip
        assert world.ask("GET", path, "elsewhere").json[name] == []
        assert len(world.ask("GET", path, "all").json[name]) >= 1
    assert world.ask("GET", "/v0/scaling", "elsewhere").json["subscriptions"] == []


def test_cursors_of_routers_and_subscriptions_are_among_no_patterns_but_all(world: World) -> None:
    known = [each["cursor"] for each in world.ask("GET", "/v0/cursors", "all").json["cursors"]]
    assert "router/copier" in known
    assert world.ask("GET", "/v0/cursors", "wide").json["cursors"] == []
    for name in ("copier", "nobodys"):
        assert world.ask("GET", f"/v0/cursors/router%2F{name}", "wide").status == 403
    assert world.ask("GET", "/v0/cursors/router%2Fcopier", "all").status == 200


def test_no_page_of_a_list_ends_with_a_name_that_a_token_is_not_for(world: World) -> None:
    for path, name in (
        ("/v0/topics", "topic"), ("/v0/cursors", "cursor"), ("/v0/routers", "router"),
        ("/v0/subscriptions", "subscription_id"),
    ):  # fmt: skip
        kind = path.removeprefix("/v0/")
        shown = [each[name] for each in world.ask("GET", path, "elsewhere").json[kind]]
        parameter, following = (
            ("cursor", "next_cursor") if kind == "topics" else ("after", "next_after")
        )
        found: list[object] = []
        target = f"{path}?limit=1"
        while True:
            page = world.ask("GET", target, "elsewhere").json
            found += [each[name] for each in page[kind]]
            more = page[following]
            if more is None:
                break
            assert more == found[-1], path
            target = f"{path}?limit=1&{parameter}={more}"
        assert found == shown, path


def test_a_router_that_a_token_may_not_change_does_not_tell_its_ends(world: World) -> None:
    for body in (b"{}", b'{"source":"mine","dest":"mine-a"}'):
        answer = world.ask("PUT", "/v0/routers/copier", "elsewhere", body=body)
        assert (answer.status, answer.code) == (403, "forbidden")
        assert b"secrets" not in answer.body


def test_status_and_metrics_show_a_limited_token_only_what_it_is_for(world: World) -> None:
    world.good("PUT", "/v0/topics/mine/subscriptions/own")

    def told() -> set[str]:
        first = world.ask("GET", "/v0/status", "all").json["subscriptions"]["first"]
        return {each["topic"] for each in first}

    wait_until(lambda: told() >= {"secrets", "mine"}, "owners to tell of both")
    for path in ("/v0/status", "/metrics", "/v0/scaling"):
        whole = world.ask("GET", path, "all").body
        shown = world.ask("GET", path, "elsewhere")
        assert shown.status == 200
        assert b"secrets" in whole and (path == "/v0/scaling" or b"copier" in whole), path
        for hidden in (b"secrets", b"copier", b"workers"):
            assert hidden not in shown.body, (path, hidden)
        assert b'"own"' in shown.body, path
    own = b'headgate_token_requests_total{token="elsewhere"}'
    wait_until(lambda: own in world.ask("GET", "/metrics", "elsewhere").body, "a heartbeat")
    metrics = [world.ask("GET", "/metrics", token).body for token in ("elsewhere", "all")]
    assert metrics[0].count(b"headgate_token_requests_total{") == 1
    assert b'{token="all"}' in metrics[1] and b'{token="all"}' not in metrics[0]
    status = world.ask("GET", "/v0/status", "elsewhere").json
    assert status["subscriptions"]["count"] == 1 and status["routers"]["count"] == 0
    world.good("DELETE", "/v0/topics/mine/subscriptions/own")


def test_an_error_does_not_name_topics_that_a_token_is_not_for(world: World) -> None:
    world.good("PUT", "/v0/topics/mine-a")
    world.good("PUT", "/v0/routers/there", b'{"source":"mine-a","dest":"secrets"}')
    world.good("PUT", "/v0/topics/mine.b")
    world.good("PUT", "/v0/topics/sec.rets")
    world.good("PUT", "/v0/topics/secrets/subscriptions/dead", b'{"dead_letter_topic":"mine.b"}')
    cases = (
        ("PUT", "/v0/routers/back", b'{"source":"mine","dest":"mine-a"}', 409, "router_cycle"),
        ("DELETE", "/v0/topics/mine.b", b"", 409, "dead_letter_topic"),
        ("PUT", "/v0/topics/sec-rets", b"", 409, "table_name_taken"),
    )  # fmt: skip
    world.good("PUT", "/v0/routers/copier", b'{"source":"secrets","dest":"mine"}')
    for method, target, body, status, code in cases:
        for token, is_named in (("all", True), ("stranger", False)):
            answer = world.ask(method, target, token, body=body)
            assert (answer.status, answer.code) == (status, code), answer
            said = answer.body.decode()
            assert ("secrets" in said or "sec.rets" in said) is is_named, said
            if not is_named:
                assert "is not for" in said and answer.json["error"]["detail"] == {}
    world.good("DELETE", "/v0/routers/there")
    world.good("DELETE", "/v0/topics/secrets/subscriptions/dead")
    for topic in ("mine-a", "mine.b", "sec.rets"):
        world.good("DELETE", f"/v0/topics/{topic}")


def test_a_push_needs_a_scope_of_its_own(world: World) -> None:
    body = b'{"push":{"endpoint":"https://hooks.example.com/"}}'
    target = "/v0/topics/mine/subscriptions/pushed"
    answer = world.ask("PUT", target, "manage", body=body)
    assert (answer.status, answer.code) == (
        403,
        "forbidden",
    ) and "scope push" in answer.body.decode()
    assert world.ask("GET", target, "all").status == 404


def test_probes_and_the_socket_of_the_daemons_user_need_no_token(world: World) -> None:
    for path in ("/livez", "/readyz"):
        assert world.ask("GET", path, None).status == 200
        assert world.ask("GET", path, "hg_x").status == 200
    assert b"secrets" in call(socket_address(str(world.daemon.data)), "GET", "/v0/topics")


def test_tokens_are_made_and_revoked_through_the_socket_and_by_nobody_else(world: World) -> None:
    data = ["--data", str(world.daemon.data)]
    runner = CliRunner()

    def run(*arguments: str) -> Any:
        result = runner.invoke(cli.headgate, ["tokens", *arguments, *data, "-o", "json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.output)

    made = run(
        "create", "by-socket", "--scope", "read", "--topics", "m*", "--expires", "1d",
        "--limit", "requests=100/s",
    )  # fmt: skip
    wait_until(lambda: world.ask("GET", "/v0/topics/mine", made["token"]).status == 200, "it")
    (row,) = [each for each in run("ls") if each["name"] == "by-socket"]
    assert row["limits"] == {"requests": "100/s"} and "token" not in row and row["expires"]
    assert run("revoke", "by-socket")["id"] == made["id"]
    wait_until(lambda: world.ask("GET", "/v0/topics/mine", made["token"]).status == 401, "its end")
    for arguments, said in (
        (["revoke", "by-socket"], "has no token 'by-socket'"),
        (["create", "all", "--scope", "read"], "has a token 'all' already"),
    ):
        refused = runner.invoke(cli.headgate, ["tokens", *arguments, *data])
        assert refused.exit_code == 1 and said in refused.output, refused.output
    newest = world.file.path.read_bytes()
    older = {**json.loads(newest), "generation": 1}
    world.file.path.write_text(json.dumps(older))
    for change in (["create", "late", "--scope", "read"], ["revoke", "all"]):
        refused = runner.invoke(cli.headgate, ["tokens", *change, *data])
        assert "an older file was put back" in refused.output and refused.exit_code == 1
    assert json.loads(world.file.path.read_bytes()) == older
    world.file.path.write_bytes(newest)
    before = world.file.tokens()
    body = b'{"create":{"name":"mine","scopes":["admin"]}}'
    for token in ("all", Scope.ADMIN):
        answer = world.ask("POST", "/v0/admin/tokens", token, body=body)
        assert (answer.status, answer.code) == (403, "forbidden"), answer
    assert world.file.tokens() == before


def test_a_token_does_what_it_is_for(world: World) -> None:
    assert world.ask("POST", "/v0/topics/mine", "elsewhere", body=RECORDS).status == 200
    assert world.ask("POST", "/v0/topics/mine-too", "elsewhere", body=RECORDS).status == 200
    assert world.ask("POST", "/v0/topics/mine/diff", Scope.READ).json["head_seq"] == 1
    world.good("DELETE", "/v0/topics/mine-too")


def test_commands_send_the_token_of_the_environment(world: World, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{world.daemon.port}"
    file = tmp_path / "token"
    file.write_text(world.tokens["elsewhere"])
    for environ in (
        {"HEADGATE_TOKEN": world.tokens["elsewhere"]},
        {"HEADGATE_TOKEN_FILE": str(file)},
    ):
        listed = CliRunner().invoke(cli.headgate, ["topics", "ls", "--url", url], env=environ)
        assert listed.exit_code == 0 and "mine" in listed.output
        assert "secrets" not in listed.output
    refused = CliRunner().invoke(cli.headgate, ["topics", "ls", "--url", url])
    assert refused.exit_code == 1 and "this daemon needs a token" in refused.output
    assert "HEADGATE_TOKEN" in refused.output


def test_the_spark_source_takes_the_token_from_a_file_and_a_limited_one_reads_by_diff(
    world: World, tmp_path: Path
) -> None:
    request = PlanRequest(topics=["secrets"], from_={}, to={})

    def planner(token: str) -> DaemonPlanner:
        file = tmp_path / token
        file.write_text(world.tokens[token] + "\n")
        made = DaemonPlanner(f"http://127.0.0.1:{world.daemon.port}", str(file))
        assert world.tokens[token].encode() not in pickle.dumps(made)
        return made

    assert planner("all").state("secrets").topic == "secrets"
    assert planner("all").page(request).partitions
    with pytest.raises(SourceError, match=r"use a token .* for all topics, or read by .*/diff"):
        planner("elsewhere").page(request)
    with pytest.raises(SourceError, match="cannot read tokenFile /nowhere"):
        DaemonPlanner(planner("all").url, "/nowhere").state("secrets")


def test_a_revoked_token_gets_and_stores_nothing_more(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "tokens.json")
    keeper, spy = (file.issue(name, list(Scope))[1] for name in ("keeper", "spy"))
    with running(tmp_path / "data", shards=2, settings={"auth_file": file.path}) as daemon:
        world = World(daemon, file, {"keeper": keeper, "spy": spy})
        world.good("PUT", "/v0/topics/t", token="keeper")
        world.good("PUT", "/v0/topics/t/subscriptions/s", token="keeper")
        asked = partial(request, authorization=f"Bearer {spy}")
        post = asked("POST", "/v0/topics/u", RECORDS)
        with Wire(daemon.port) as watch, Wire(daemon.port) as consume, Wire(daemon.port) as poll, \
                Wire(daemon.port) as slow, Wire(daemon.port) as idle, \
                Wire(daemon.port) as page:  # fmt: skip
            ticket = ticketed(world, "/v0/topics/t/watch", "spy")
            page.send(request("GET", ticket))
            for wire, path in (
                (watch, "/v0/topics/t/watch"),
                (consume, "/v0/topics/t/subscriptions/s/consume?consumer=c"),
            ):
                wire.send(asked("GET", path))
            poll.send(asked("POST", "/v0/topics/t/diff", b'{"wait_ms":30000}'))
            stored = 0

            def idle_status() -> int:
                """Of a whole request whose head is known."""
                nonlocal stored
                status = idle.ask(post).status
                stored += status == 200
                return status

            assert (idle_status(), idle_status()) == (200, 200)
            slow.send(asked("POST", "/v0/topics/t", RECORDS)[:-1])
            wait_until(lambda: world.streams("keeper") == 3, "all streams")
            file.revoke("spy")
            refused = poll.answer()
            assert refused is not None and refused.status == 401, refused
            refused = slow.answer()
            assert refused is not None and refused.status == 401, refused
            for wire in (watch, consume, page):
                assert wire.answer() is not None, "the stream ends whole"

            # Each shard looks at the file by itself.
            wait_until(lambda: idle_status() == 401, "the shard of the idle connection")
            wait_until(lambda: world.ask("HEAD", ticket, None).status == 401, "each shard")
        world.good("POST", "/v0/topics/t", RECORDS, token="keeper")
        for topic, count in (("t", 1), ("u", stored)):
            assert world.ask("POST", f"/v0/topics/{topic}/diff", "keeper").json["head_seq"] == count
