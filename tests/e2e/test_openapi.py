"""/openapi.json says what the server does: every route, every answer, every error."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from msgspec.structs import replace

from daemon.api.openapi import document as document_of
from daemon.api.routes import ROUTES
from tests.e2e.daemon import Answer, Daemon, running, stream, wait_until
from tests.e2e.processes import held_commit
from tests.e2e.schema import Mismatch, check, resolve
from tests.e2e.wire import Wire, request

SETTINGS = {
    "ring_bytes": 65536, "object_bytes_target": 16384, "body_bytes_max": 16384,
    "push_allow": "127.0.0.1",
}  # fmt: skip
METHODS = ("GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS", "TRACE")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running(tmp_path_factory.mktemp("data"), settings=SETTINGS) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def document(daemon: Daemon) -> dict[str, Any]:
    found = daemon.get("/openapi.json").json
    assert isinstance(found, dict)
    return found


class Checked:
    """Asks, checks each answer against the document, and remembers what was seen."""

    def __init__(self, daemon: Daemon, document: dict[str, Any]) -> None:
        self._daemon = daemon
        self.port = daemon.port
        self.document = document
        self.seen: set[tuple[str, str, int]] = set()

    def ask(self, method: str, path: str, body: object = None, content_type: str = "") -> Answer:
        if body is None:
            answer = self._daemon.ask(method, path)
        elif isinstance(body, bytes):
            headers = {"content_type": content_type} if content_type else {}
            answer = self._daemon.ask(method, path, body, **headers)
        else:
            answer = self._daemon.json(method, path, body)
        return self.take(method, path, answer)

    def refused(self, path: str, **headers: str) -> int:
        """The status of a GET with these headers, which is not 200."""
        return self.take("GET", path, self._daemon.ask("GET", path, None, **headers)).status

    def text(self, path: str) -> None:
        """Asks for a text in each of its formats."""
        formats = self.document["paths"][path]["get"]["responses"]["200"]["content"]
        for accept in formats:
            answer = self._daemon.ask("GET", path, None, accept=accept)
            assert answer.status == 200 and answer.body.decode()
            assert answer.headers["content-type"].partition(";")[0] == accept
        self.seen.add(("GET", path, 200))

    def stream(self, path: str, formats_count: int = 3) -> None:
        """Opens a stream in each of its formats, and leaves it."""
        template = template_of(path, self.document)
        content = self.document["paths"][template]["get"]["responses"]["200"]["content"]
        formats = [each for each in content if each != "application/json"]
        assert len(formats) == formats_count
        for accept in formats:
            with stream(self._daemon.port, path, headers={"Accept": accept}) as answer:
                assert (answer.status, answer.getheader("Content-Type")) == (200, accept)
                assert answer.read(1)
        self.seen.add(("GET", template, 200))

    def take(self, method: str, path: str, answer: Answer) -> Answer:
        """Checks an answer that was received in another way."""
        template = template_of(path, self.document)
        operation = self.document["paths"][template][method.lower()]
        responses = operation["responses"]
        assert str(answer.status) in responses, f"{method} {path} answered {answer.status}"
        content = responses[str(answer.status)]["content"][answer.headers["content-type"]]
        check(answer.json, content["schema"], self.document)
        if answer.status in (429, 503):
            assert int(answer.headers["retry-after"]) >= 1
        if answer.status in (422, 429):
            assert answer.json["error"]["detail"]["limit"]
        self.seen.add((method, template, answer.status))
        return answer


def template_of(path: str, document: dict[str, Any]) -> str:
    """The documented path that this path is one of."""
    plain = path.partition("?")[0]
    for template in document["paths"]:
        if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template), plain):
            return str(template)
    raise AssertionError(f"{path} is not in the document")


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method in METHODS:
            if method.lower() in item:
                yield method, path, item[method.lower()]


def routers(api: Checked) -> None:
    one, other = "/v0/routers/r", "/v0/routers/s"
    assert api.ask("PUT", "/v0/topics/copies").status == 201
    assert api.ask("PUT", one, {"source": "t", "dest": "copies"}).status == 201
    assert api.ask("PUT", one, {"paused": True}).status == 200
    assert api.ask("PUT", other, {"source": "copies", "dest": "t"}).status == 409
    assert api.ask("PUT", other, {"source": "none", "dest": "t"}).status == 404
    assert api.ask("PUT", other, b"{}", "text/plain").status == 415
    assert api.ask("PUT", other, b" " * ((1 << 20) + 1), "application/json").status == 413
    assert api.ask("GET", one).status == 200
    assert api.ask("GET", other).status == 404
    assert api.ask("PUT", "/v0/routers/-", {}).status == 400
    for method in ("GET", "DELETE"):
        assert api.ask(method, "/v0/routers/-").status == 400
    assert api.ask("GET", "/v0/routers").status == 200
    assert api.ask("GET", "/v0/routers?limit=0").status == 400
    assert api.ask("DELETE", one).status == 200
    assert api.ask("DELETE", one).status == 404


def subscriptions(api: Checked) -> None:
    at = "/v0/topics/t/subscriptions"
    one, other = f"{at}/s", f"{at}/u"
    assert api.ask("PUT", one).status == 201
    assert api.ask("PUT", one, {"backoff_ms": [1, 5], "redeliveries_max": 0}).status == 200
    circle = {"poison": "dead_letter", "dead_letter_topic": "t"}
    assert api.ask("PUT", other, circle).status == 409
    assert api.ask("PUT", "/v0/topics/buried").status == 201
    assert api.ask("PUT", one, {"dead_letter_topic": "buried"}).status == 200
    assert api.ask("DELETE", "/v0/topics/buried").status == 409
    assert api.ask("PUT", one, {"dead_letter_topic": None}).status == 200
    assert api.ask("PUT", other, {"mode": "fifo"}).status == 400
    assert api.ask("GET", at).status == 200
    assert api.ask("GET", f"{at}?limit=0").status == 400
    assert api.ask("GET", "/v0/topics/none/subscriptions").status == 404
    assert api.ask("GET", "/v0/subscriptions").json["subscriptions"]
    assert api.ask("GET", "/v0/subscriptions?limit=0").status == 400
    assert api.ask("PUT", "/v0/topics/none/subscriptions/s").status == 404
    consumer = {"consumer": "c"}
    polled = api.ask("GET", f"{one}/consume?consumer=c&max=2&wait_ms=30000").json
    message = polled["messages"][0]
    place = {name: message[name] for name in ("partition", "seq")}
    assert api.ask("GET", one).status == 200
    assert api.ask("POST", f"{one}/nack", consumer | {"batch": polled["epoch"]}).status == 200
    assert api.ask("POST", f"{one}/nack", consumer | {"batch": polled["epoch"]}).status == 409
    assert api.ask("POST", f"{one}/ack", consumer | {"batch": polled["epoch"]}).status == 409
    assert api.ask("GET", f"{one}/keys").json["keys"]
    assert api.ask("GET", f"{one}/keys?limit=0").status == 400
    assert api.ask("GET", f"{one}/keys/k").status == 200
    assert api.ask("POST", f"{one}/retry", place).status == 200
    assert api.ask("POST", f"{one}/retry", {"key": "none"}).status == 404
    assert api.ask("POST", f"{one}/skip", {"key": "none"}).status == 404
    again = api.ask("GET", f"{one}/consume?consumer=c&max=1&wait_ms=30000").json
    assert api.ask("POST", f"{one}/nack", consumer | {"batch": again["epoch"]}).status == 200
    (blocked, *_) = api.ask("GET", f"{one}/keys").json["keys"]
    named = {name: blocked[name] for name in ("partition", "seq")}
    assert api.ask("POST", f"{one}/skip", named).status == 200
    repair = {"action": "retry", "where": {"key": "none"}}
    assert api.ask("POST", f"{one}/repair", repair).status == 200
    assert api.ask("POST", f"{one}/leave", consumer).status == 200
    assert api.ask("POST", f"{one}/seek", {"to": "earliest"}).status == 200
    last = api.ask("GET", f"{one}/consume?consumer=c&max=1&wait_ms=30000").json
    assert api.ask("POST", f"{one}/ack", consumer | {"batch": last["epoch"]}).status == 200
    acknowledged = {name: last["messages"][0][name] for name in ("partition", "seq")}
    assert api.ask("POST", f"{one}/resend", acknowledged).status == 200
    assert api.ask("POST", f"{one}/resend", acknowledged).status == 409
    api.stream(f"{one}/consume?consumer=c")
    assert api.refused(f"{one}/consume?consumer=c", accept="image/png") == 406
    assert api.ask("GET", f"{one}/consume").status == 400
    assert api.ask("GET", f"{other}/consume?consumer=c").status == 404
    assert api.ask("GET", f"{other}/keys").status == 404
    for method, path in (("GET", "-"), ("DELETE", "-"), ("GET", "-/keys/k")):
        assert api.ask(method, f"{at}/{path}").status == 400
    assert api.ask("GET", f"{other}/keys/k").status == 404
    bodies = {
        "ack": consumer | {"batch": 1}, "nack": consumer | {"batch": 1}, "leave": consumer,
        "retry": {"key": "k"}, "skip": {"key": "k"}, "repair": repair,
        "resend": place,
        "seek": {"to": "latest"},
    }  # fmt: skip
    for path, body in bodies.items():
        assert api.ask("POST", f"{other}/{path}", body).status == 404
        assert api.ask("POST", f"{one}/{path}", {}).status == 400
    for method, path in (("PUT", one), *(("POST", f"{one}/{path}") for path in bodies)):
        assert api.ask(method, path, b"{}", "text/plain").status == 415
        assert api.ask(method, path, b" " * ((1 << 20) + 1), "application/json").status == 413
    pushes(api, one, other)
    assert api.ask("DELETE", one).status == 200
    assert api.ask("DELETE", one).status == 404
    assert api.ask("GET", one).status == 404


def pushes(api: Checked, one: str, other: str) -> None:
    """``one`` is not pushed, ``other`` does not exist."""
    assert api.ask("POST", f"{one}/push/test").status == 409
    assert api.ask("POST", f"{other}/push/test").status == 404
    assert api.ask("GET", f"{one}/push/attempts").status == 409
    assert api.ask("GET", f"{other}/push/attempts").status == 404
    assert api.ask("POST", f"{one}/push/resume").status == 409
    assert api.ask("POST", f"{other}/push/resume").status == 404
    # It answers 404, which is an answer.
    push = {"endpoint": f"http://127.0.0.1:{api.port}/nothing", "rate_max": 1_000}
    assert api.ask("PUT", other, {"push": push, "paused": True}).status == 201
    assert api.ask("GET", f"{other}/consume?consumer=c").status == 409
    at = f"{other}/push/test"
    exchange = api.ask("POST", at, {"data": {"a": 1}}).json
    assert (exchange["status"], exchange["outcome"]) == (404, "receiver")
    assert api.ask("POST", at, {"data": "x" * (65 << 10)}).status == 413
    assert api.ask("POST", at, {"date": 1}).status == 400
    assert api.ask("POST", at, b"{}", "text/plain").status == 415
    assert api.ask("PUT", other, {"push": {"rate_max": 0.02}}).status == 200
    wait_until(lambda: api.ask("POST", at).status == 429, "the rate to be obeyed")
    assert api.ask("GET", f"{other}/push/attempts?seq=1").json == {"attempts": [], "kept": 0}
    assert api.ask("GET", f"{other}/push/attempts?seq=x").status == 400
    assert api.ask("POST", f"{other}/push/resume").status == 200
    assert api.ask("POST", f"{other}%21/push/resume").status == 400
    assert api.ask("DELETE", other).status == 200


def watches(api: Checked) -> None:
    one = "/v0/topics/t/watch"
    api.stream(one)
    assert api.ask("GET", one + "?from_seq=-1").status == 400
    assert api.ask("GET", "/v0/topics/none/watch").status == 404
    assert api.refused(one, accept="image/png") == 406
    assert api.ask("GET", one + "?partition=0&from_seq=1000000").status == 416
    asked = {"topics": [{"topic": "watched"}]}
    assert api.ask("POST", "/v0/watch", asked).status == 404
    topic_id = api.ask("PUT", "/v0/topics/watched").json["topic_id"]
    url = api.ask("POST", "/v0/watch", asked).json["stream_url"]
    assert api.ask("POST", "/v0/watch", {"topics": []}).status == 400
    ticket = api.ask("POST", "/v0/tickets", {"target": url})
    assert ticket.status == 200
    assert api.ask("POST", "/v0/tickets", {"target": "/v0/status"}).status == 400
    for path in ("/v0/watch", "/v0/tickets"):
        assert api.ask("POST", path, b"{}", "text/plain").status == 415
        assert api.ask("POST", path, b" " * ((1 << 20) + 1), "application/json").status == 413
    api.stream(ticket.json["stream_url"])
    assert api.ask("GET", url + "A").status == 400
    assert api.refused(url, accept="image/png") == 406
    assert api.refused(url, last_event_id=f"{topic_id}:0=1000000") == 416
    assert api.ask("DELETE", "/v0/topics/watched").status == 200
    assert api.ask("GET", url).status == 404


def cursors(api: Checked) -> None:
    one, other = "/v0/cursors/c", "/v0/cursors/d"
    assert api.ask("PUT", one).status == 201
    assert api.ask("PUT", one, {"positions": [{"seq": 4}]}).status == 200
    assert api.ask("PUT", other, {"positions": [{"seq": 4, "expected": 1}]}).status == 412
    assert api.ask("PUT", other, {"positions": [{"seq": -1}]}).status == 400
    assert api.ask("PUT", other, b"{}", "text/plain").status == 415
    assert api.ask("PUT", other, b" " * ((1 << 20) + 1), "application/json").status == 413
    assert api.ask("GET", one).status == 200
    assert api.ask("GET", other).status == 404
    for method in ("GET", "PUT", "DELETE"):
        assert api.ask(method, "/v0/cursors/-").status == 400
    assert api.ask("GET", "/v0/cursors").status == 200
    assert api.ask("GET", "/v0/cursors?limit=0").status == 400
    body = {"records": [{"data": 1}], "advance": {"cursor": "c", "expected": 4, "next": 5}}
    check(
        body, resolve({"$ref": "#/components/schemas/ProduceRequest"}, api.document), api.document
    )
    for status in (200, 412):
        assert api.ask("POST", "/v0/topics/t", body).status == status
    assert api.ask("DELETE", one).status == 200
    assert api.ask("DELETE", one).status == 404


def test_every_answer_that_is_documented_is_given_and_no_other(
    daemon: Daemon, document: dict[str, Any]
) -> None:
    api = Checked(daemon, document)
    topic, diff = "/v0/topics/t", "/v0/topics/t/diff"
    api.text("/metrics")
    api.text("/")
    api.stream("/v0/status/watch", 1)
    for path in ("/livez", "/readyz", "/openapi.json", "/v0/status", "/v0/scaling"):
        assert api.ask("GET", path).status == 200

    assert api.ask("GET", topic).status == 404
    assert api.ask("PUT", topic).status == 201
    assert api.ask("PUT", topic, {"partitions": 2}).status == 200
    assert api.ask("PUT", topic, {"partitions": 1}).status == 400
    assert api.ask("PUT", topic, {"lossy": 1}).status == 400
    assert api.ask("PUT", topic, b"{}", "text/plain").status == 415
    assert api.ask("PUT", topic, b" " * ((1 << 20) + 1), "application/json").status == 413
    assert api.ask("GET", topic).status == 200
    assert api.ask("PUT", "/v0/topics/T").status == 409
    assert api.ask("POST", "/v0/topics/T", [1]).status == 409

    full = {"data": {"a": 1}, "key": "k", "tag": "t", "node": "n", "meta": {"m": 1}, "ts": 5}
    spread = [{"data": n, "key": str(n)} for n in range(20)]
    produced = [
        {"records": [full, {"data_b64": "AAE="}], "partition": 0},
        {"records": spread, "idempotency_key": "k"},
        {"records": spread, "idempotency_key": "k"},
        {"records": [full], "partition": 0, "expected_seq": 10_000},
        {"records": [full], "expected_seq": 0},
    ]
    for body in produced:
        check(body, resolve({"$ref": "#/components/schemas/ProduceRequest"}, document), document)
    statuses = [api.ask("POST", topic, body).status for body in produced]
    assert statuses == [200, 200, 200, 412, 400]
    assert api.ask("POST", topic, b"1\n2\n", "application/x-ndjson").status == 200
    assert api.ask("POST", topic, b"[1]", "").status == 415
    assert api.ask("POST", topic, [1] * 10_001).status == 413
    assert api.ask("POST", "/v0/topics/none?create=false", [1]).status == 404
    hooks(api)
    foreign(api)

    for asked, status in (
        ({}, 200), ({"from_ts": 0, "limit": 3}, 200), ({"tail": True, "wait_ms": 1}, 200),
        ({"limit": 0}, 400), ({"from_seq": 0, "topic_id": 1}, 200), ({"from_seq": 10**9}, 416),
    ):  # fmt: skip
        assert api.ask("POST", diff, asked).status == status
    for query, status in (
        ("", 200), ("?from_seq=1&limit=2&partition=1", 200), ("?tail=true&wait_ms=1", 200),
        ("?limit=0", 400), ("?from_seq=1&tail=true", 400), ("?from_seq=1000000000", 416),
    ):  # fmt: skip
        assert api.ask("GET", f"{topic}/records{query}").status == status
    both = api.ask("GET", f"{topic}/records?limit=2"), api.ask("POST", diff, {"limit": 2})
    assert both[0].json == both[1].json and len(both[0].json["records"]) == 2
    assert api.ask("GET", "/v0/topics/none/records").status == 404
    assert api.ask("POST", diff).status == 200
    assert api.ask("POST", diff, b"{}", "text/plain").status == 415
    assert api.ask("POST", diff, b" " * ((1 << 20) + 1), "application/json").status == 413
    assert api.ask("POST", "/v0/topics/none/diff", {}).status == 404

    assert api.ask("GET", "/v0/topics?limit=1").status == 200
    assert api.ask("GET", "/v0/topics?limit=0").status == 400
    for method in ("GET", "PUT", "DELETE"):
        assert api.ask(method, "/v0/topics/-").status == 400
    plan(api)
    trim(api)
    cursors(api)
    watches(api)
    routers(api)
    subscriptions(api)
    assert api.ask("PUT", "/v0/topics/small", {"cap_records": 1, "discard": "reject"}).status == 201
    assert api.ask("POST", "/v0/topics/small", [1, 2]).status == 422
    assert [api.ask("POST", "/v0/hooks/small", [n]).status for n in (1, 2)] == [200, 422]
    assert api.ask("DELETE", topic).status == 200
    assert api.ask("DELETE", topic).status == 404

    throttle(daemon, api)
    stop(daemon, api)
    documented = answers_of(document)
    left = documented - api.seen
    # The ledger or the store must fail for these; their shape is that of all errors.
    failing = {(m, p, 503) for m, p, _ in documented if p.startswith("/v0/")}
    # A thousand simultaneous plans: tests/e2e/test_plans.py. 100,000 cursors:
    # tests/daemon/intake/test_cursor_cache.py. A thousand consumers:
    # tests/e2e/test_bad_consumers.py. A dead letter that is on its way, a thousand messages that
    # are resent: test_dead_letters.py and test_resent.py. An upload that hangs:
    # tests/e2e/test_outage.py. Too many partitions: tests/attacks/test_partitions.py. Foreign
    # requests that are refused for now: tests/daemon/intake/test_foreign.py; that have no topic, or
    # a full one: tests/e2e/test_foreign.py.
    at = "/v0/topics/{topic}/subscriptions/{subscription}"
    assert left - failing == {
        ("POST", "/v0/plans", 429), ("PUT", "/v0/cursors/{cursor}", 409),
        ("POST", "/v0/topics/{topic}", 504), ("PUT", "/v0/topics/{topic}", 422),
        ("POST", "/v0/hooks/{topic}", 504),
        ("GET", f"{at}/consume", 429), ("POST", f"{at}/resend", 429),
        ("POST", f"{at}/retry", 409), ("POST", f"{at}/skip", 409),
        *((method, f"/v0/elastic/{path}", 429)
          for path in ("_bulk", "{topic}/_bulk") for method in ("POST", "PUT")),
        *(("POST", "/v0/otlp/{topic}/v1/logs", status) for status in (404, 422, 504)),
    }  # fmt: skip


def test_every_answer_of_an_internal_route_is_given_and_no_other(shared_daemon: Daemon) -> None:
    """They are not in the document that is served, since they may change with any release."""
    internal = [replace(route, is_internal=False) for route in ROUTES if route.is_internal]
    api = Checked(shared_daemon, document_of(internal))
    assert not set(api.document["paths"]) & set(document_of(ROUTES)["paths"])
    for path in ("live_leases", "settled_commits", "lake"):
        assert api.ask("GET", f"/v0/admin/{path}").status == 200
    assert api.ask("POST", "/v0/admin/await_backup").status == 200
    at_handover = "/v0/admin/handover"  # 200: tests/e2e/test_standby.py, since this one has none
    assert api.ask("POST", at_handover).status == 409
    at_tokens = "/v0/admin/tokens"  # 200: tests/attacks/test_tokens.py, since this one has no file
    assert api.ask("POST", at_tokens, {}).status == 400
    assert api.ask("POST", at_tokens, b"{}", "text/plain").status == 415
    assert api.ask("POST", at_tokens, b" " * ((1 << 20) + 1), "application/json").status == 413
    for kind, read, write in (
        ("ledger", "topics.page", "lake.runs.begin"),
        ("catalog", "lake.catalog.pointers", "lake.catalog.add"),
    ):
        at = f"/v0/admin/{kind}"
        arguments = {"topics.page": ["", 10], "lake.catalog.pointers": ["headgate"]}[read]
        assert api.ask("POST", f"{at}/{read}", arguments).status == 200
        assert api.ask("POST", f"{at}/{read}", [1, 2, 3]).status == 400
        assert api.ask("POST", f"{at}/{read}", b"[]", "text/plain").status == 415
        assert api.ask("POST", f"{at}/nothing", []).status == 404
        assert api.ask("POST", f"{at}/{read}", b" " * ((16 << 20) + 1)).status == 413
        arguments = {
            "lake.runs.begin": ["r", "o", 0, 1, None],
            "lake.catalog.add": [[["n", "t", "file:///m"]]],
        }[write]
        assert api.ask("POST", f"{at}/{write}?run=lost", arguments).status == 409
    documented = answers_of(api.document)
    # The ledger or the store must fail for these.
    left = documented - api.seen - {("POST", at_tokens, 200), ("POST", at_handover, 200)}
    assert {status for _, _, status in left} == {503}


def answers_of(document: dict[str, Any]) -> set[tuple[str, str, int]]:
    """Those of a daemon without tokens (the others: tests/attacks/test_tokens.py)."""
    return {
        (method, path, int(status))
        for method, path, operation in operations(document)
        for status in operation["responses"]
        if status not in ("401", "403")
    }


def trim(api: Checked) -> None:
    """Provokes every answer to a trim of the topic ``t``."""
    at = "/v0/topics/t/trim"
    asked = {"partition": 0, "before_seq": 2}
    assert api.ask("POST", at, asked).status == 200
    assert api.ask("POST", at, {"partition": 9, "before_seq": 2}).status == 400
    assert api.ask("POST", "/v0/topics/none/trim", asked).status == 404
    assert api.ask("POST", at, b" " * ((1 << 20) + 1), "application/json").status == 413
    assert api.ask("POST", at, b"{}", "text/plain").status == 415


def plan(api: Checked) -> None:
    """Provokes every answer to a plan of the topic ``t``."""
    document = api.document
    asked = {"topics": ["t"], "from": {"t": {"0": 1}}, "to": {"t": {"0": 2}}, "limit": 1}
    check(asked, resolve({"$ref": "#/components/schemas/PlanRequest"}, document), document)
    answer = api.ask("POST", "/v0/plans", asked)
    assert answer.status == 200
    at = f"/v0/plans/{answer.json['plan']}"
    big = b" " * ((1 << 20) + 1)
    assert api.ask("PUT", at).status == 200
    assert api.ask("PUT", at, big, "application/json").status == 413
    assert api.ask("DELETE", at, big, "application/json").status == 413
    assert api.ask("DELETE", at).status == 200
    assert api.ask("DELETE", at).status == 404
    assert api.ask("PUT", at).status == 404
    assert api.ask("POST", "/v0/plans", {"topics": []}).status == 400
    assert api.ask("POST", "/v0/plans", {"topics": ["none"]}).status == 404
    assert api.ask("POST", "/v0/plans", big, "application/json").status == 413
    assert api.ask("POST", "/v0/plans", b"{}", "text/plain").status == 415


def hooks(api: Checked) -> None:
    """What others send."""
    hook = "/v0/hooks/t"
    assert api.ask("POST", hook, b"a=1", "application/x-www-form-urlencoded").status == 200
    assert api.ask("POST", hook, b"").status == 400
    assert api.ask("POST", "/v0/hooks/none?create=false", b"1").status == 404
    assert api.ask("POST", "/v0/hooks/T", b"1").status == 409
    assert api.ask("POST", f"{hook}?partition=0&expected_seq=10000", b"1").status == 412
    assert api.ask("POST", hook, b"x" * ((1 << 20) + 1), "text/plain").status == 413


def foreign(api: Checked) -> None:
    """Requests in formats of others."""
    api.text("/v0/elastic/")
    lines, large = "application/x-ndjson", b" " * (16_384 + 1)
    for path in ("/v0/elastic/_bulk", "/v0/elastic/t/_bulk"):
        for method in ("POST", "PUT"):
            assert api.ask(method, path, b'{"index":{"_index":"t"}}\n{}\n', lines).status == 200
            assert api.ask(method, path, b'{"index":{"_index":"t"}}\n', lines).status == 400
            assert api.ask(method, path, large, lines).status == 413
            assert api.ask(method, path, b"{}", "text/plain").status == 415
    logs = "/v0/otlp/t/v1/logs"
    one = {"resourceLogs": [{"scopeLogs": [{"logRecords": [{"body": {"stringValue": "x"}}]}]}]}
    assert api.ask("POST", logs, one).status == 200
    assert api.ask("POST", "/v0/otlp/T/v1/logs", one).status == 409
    assert api.ask("POST", logs, [1]).status == 400
    assert api.ask("POST", logs, large, "application/json").status == 413
    assert api.ask("POST", logs, b"{}", "text/plain").status == 415


def throttle(daemon: Daemon, api: Checked) -> None:
    """Fills a ring with promises: bodies that were announced and do not arrive."""
    head = request(
        "POST", "/v0/topics/t", Content_Type="application/json", Content_Length="16000",
        Expect="100-continue",
    )  # fmt: skip
    wires: list[Wire] = []
    try:
        while True:
            wire = Wire(daemon.port)
            wires.append(wire)
            answer = wire.ask(head)
            if answer.status != 100:
                break
            assert len(wires) < 10, "16,000 bytes do not fit ten times into 65,536"
        assert (answer.status, answer.code) == (429, "throttled")
        assert answer.json["error"]["detail"]["retry_after_ms"] >= 1000
        api.take("POST", "/v0/topics/t", answer)
        with closing(Wire(daemon.port)) as hook:
            answer = hook.ask(head.replace(b"/v0/topics/", b"/v0/hooks/"))
        assert (answer.status, answer.code) == (429, "throttled")
        api.take("POST", "/v0/hooks/t", answer)
        # Who asks for it waits with an unread body until a client goes away.
        waiting = Wire(daemon.port)
        wires.append(waiting)
        body = b'{"records": [{"data": "' + b"x" * 15_000 + b'"}]}'
        sent = request("POST", "/v0/topics/t?disable_backpressure=true", body)
        waiting.send(sent[:5_000])
        wait_until(lambda: daemon.status()["shards"][0]["requests_queued"] == 1, "it to wait")
        waiting.send(sent[5_000:])
        wires.pop(0).close()
        stored = waiting.answer()
        assert stored is not None and stored.status == 200
        api.take("POST", "/v0/topics/t?disable_backpressure=true", stored)
    finally:
        for wire in wires:
            wire.close()
    # What was promised to clients that went away is free again.
    wait_until(lambda: daemon.produce("after", "x" * 15_000).status == 200, "the ring to be free")


def stop(daemon: Daemon, api: Checked) -> None:
    """While the daemon stops, open connections are told."""
    asking = request("GET", "/readyz")
    # A shard without work would give connections 3 s for their ends.
    with held_commit(daemon, "after"), Wire(daemon.port) as busy, Wire(daemon.port) as wire:
        # A request on its way keeps the first connection, a poll the second.
        busy.send(asking[:-2])
        assert wire.ask(asking).status == 200
        poll = json.dumps({"tail": True, "wait_ms": 30_000}).encode()
        wire.send(request("POST", "/v0/topics/after/diff", poll))
        assert daemon.get("/livez").status == 200  # so the bytes before it have been read
        daemon.process.send_signal(signal.SIGTERM)
        polled = wire.answer()
        assert polled is not None and polled.status == 200, "a poll ends early and is answered"
        busy.send(asking[-2:])
        answer = busy.answer()
        assert answer is not None
        api.take("GET", "/readyz", answer)


@pytest.mark.parametrize(
    ("body", "fits"),
    [
        ({"records": [{"data": 1}]}, True),
        ({"records": []}, False),
        ({"records": [{"data": 1, "offset": 1}]}, False),
        ({"records": [{"data": 1, "ts": -1}]}, False),
        ({"records": [{"data": 1}], "partition": "0"}, False),
        ({"records": [{"data": 1}], "expected_seq": -1}, False),
        ({"records": [{"data": 1}], "more": 1}, False),
        ({"records": [{"data": 1}], "ack_timeout_ms": 60_000}, True),
        ({"records": [{"data": 1}], "ack_timeout_ms": 99}, False),
        ({"records": [{"data": 1}], "dedupe": "body"}, True),
        ({"records": [{"data": 1}], "dedupe": "key"}, False),
        ([1, "two", None], True),
        ([], False),
    ],
)
def test_the_document_and_the_server_agree_on_what_may_be_produced(
    shared_daemon: Daemon, body: object, fits: bool
) -> None:
    document = shared_daemon.get("/openapi.json").json
    post = document["paths"]["/v0/topics/{topic}"]["post"]
    schema = post["requestBody"]["content"]["application/json"]["schema"]
    try:
        check(body, schema, document)
        documented = True
    except Mismatch:
        documented = False
    answer = shared_daemon.json("POST", "/v0/topics/agreed", body)
    assert (documented, answer.status == 200) == (fits, fits)


def test_every_route_of_the_server_is_in_the_document(shared_daemon: Daemon) -> None:
    """The server's 405 with Allow says which methods a path has."""
    document = shared_daemon.get("/openapi.json").json
    for path, item in document["paths"].items():
        documented = {method for method in METHODS if method.lower() in item}
        refused = shared_daemon.ask("TRACE", re.sub(r"{\w+}", "t", path))
        assert refused.status == 405
        assert set(refused.headers["allow"].split(", ")) == documented
