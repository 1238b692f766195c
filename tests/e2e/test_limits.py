"""Limits of tokens and of the daemon hold over all shards; others notice nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

import pytest

from daemon.access.token_file import Scope, TokenFile
from shards.clock import monotonic_ns
from tests.e2e.daemon import Answer, Daemon, ask, running, stream, wait_until
from tests.e2e.wire import Wire, chunked
from tests.e2e.wire import request as request_of

SHARDS = 2
ALL = list(Scope)
RECORDS = b'{"records":[{"data":1}]}'


TOKENS: dict[str, dict[str, float]] = {
    "friend": {},
    "guest": {"requests": 20},
    "prober": {"requests": 1 / 60},
    "writer": {"bytes_in": 50_000},
    "slow-writer": {"bytes_in": 100_000},
    "reader": {"bytes_out": 50_000},
    "watcher": {"bytes_out": 100_000},
    "streamer": {"streams": 2},
    "few": {"connections": 3},
    "operator": {"settings": 3},
    "counted": {},
    "keyed": {"dedupe_entries": 5},
}


class World(NamedTuple):
    """A daemon, and its tokens by name."""

    daemon: Daemon
    tokens: dict[str, str]


def asked(method: str, target: str, token: str, body: bytes = b"") -> bytes:
    return request_of(method, target, body or None, authorization=f"Bearer {token}")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    file = TokenFile(tmp_path_factory.mktemp("auth") / "tokens.json")
    tokens = {name: file.issue(name, ALL, limits=limits)[1] for name, limits in TOKENS.items()}
    few = {"topics": 2, "partitions": 10, "subscriptions": 1, "routers": 1, "cursors": 3}
    tokens["maker"] = file.issue("maker", ALL, ["made-*"], limits=few)[1]
    with running(
        tmp_path_factory.mktemp("data"), shards=SHARDS, settings={"auth_file": file.path}
    ) as daemon:
        yield World(daemon, tokens)


class Run(NamedTuple):
    """What came of requests on many connections."""

    accepted: int
    refused: list[Answer]
    seconds: float


def run(world: World, request: bytes, refusals: int, connections: int = 2 * SHARDS) -> Run:
    """Sends as fast as answers come, on connections of all shards, until this many are refused."""
    accepted, refused = 0, list[Answer]()
    with ExitStack() as stack:
        wires = [stack.enter_context(Wire(world.daemon.port)) for _ in range(connections)]
        begin_ns = monotonic_ns()
        while len(refused) < refusals:
            for wire in wires:
                wire.send(request)
            for wire in wires:
                answer = wire.answer()
                assert answer is not None
                if answer.status < 300:
                    accepted += 1
                else:
                    refused.append(answer)
        return Run(accepted, refused, (monotonic_ns() - begin_ns) / 1e9)


def most(rate: float, seconds: float) -> float:
    """Requests that a limit may let through. Shards that look at the same moment may each take the
    last one there is room for."""
    return rate * (seconds + 1) * 1.05 + SHARDS - 1


def test_requests_of_a_token_are_limited_over_all_shards_and_others_are_not(world: World) -> None:
    guest, friend = (asked("POST", "/v0/topics/t", world.tokens[name], RECORDS)
                     for name in ("guest", "friend"))  # fmt: skip
    found = run(world, guest, 200)
    # Of the last one's time a part may lie in the claims of shards.
    assert 19 <= found.accepted <= most(20, found.seconds)
    assert {answer.status for answer in found.refused} == {429}
    error = found.refused[0].json["error"]
    assert error["code"] == "over_limit"
    assert "token 'guest' is limited to 20/s requests" in error["message"]
    detail = error["detail"]
    assert (detail["limit"], detail["value"], detail["of"]) == ("requests", "20/s", "token")
    assert 1 <= detail["retry_after_ms"] <= 1000
    assert found.refused[0].headers["retry-after"] == "1"
    with Wire(world.daemon.port) as wire:
        assert [wire.ask(friend).status for _ in range(30)] == [200] * 30


def test_requests_that_are_refused_for_something_else_count_too(world: World) -> None:
    token = world.tokens["prober"]
    statuses = []
    for target in ("/v0/nothing", "/v0/topics/?x", "/v0/topics", "/v0/status"):
        with Wire(world.daemon.port) as wire:
            wire.send(asked("DELETE", target, token) * 2)
            answers = [wire.answer() for _ in range(2)]
            statuses += [answer.status for answer in answers if answer is not None]
            over = answers[1]
            assert over is not None and over.code == "over_limit" and "retry-after" in over.headers
    assert statuses == [404, *[429] * 7]


def test_bytes_of_bodies_are_limited_before_they_are_sent(world: World) -> None:
    body = b'{"records":[{"data":"' + b"x" * 10_000 + b'"}]}'
    request = asked("POST", "/v0/topics/t", world.tokens["writer"], body)
    found = run(world, request, 20)
    assert len(body) * found.accepted <= 50_000 * (found.seconds + 1) * 1.05 + len(body)
    assert found.refused[0].json["error"]["detail"]["limit"] == "bytes_in"
    assert found.refused[0].json["error"]["detail"]["value"] == "50000/s"
    head = request.partition(b"\r\n\r\n")[0] + b"\r\nExpect: 100-continue\r\n\r\n"
    with ExitStack() as stack:
        wire = stack.enter_context(Wire(world.daemon.port))
        answer = wire.ask(head)
        if answer.status == 100:  # it has become its turn
            answer = wire.ask(body)
            assert answer.status == 200
        while answer.status != 429:  # bodies that do not come take no time in which others may
            answer = stack.enter_context(Wire(world.daemon.port)).ask(head)
            assert answer.status in (100, 429)


@pytest.mark.slow
def test_a_body_of_unknown_length_is_read_no_faster_than_its_limit(world: World) -> None:
    body = b'{"records":[{"data":"' + b"x" * 300_000 + b'"}]}'
    head = asked("POST", "/v0/topics/t", world.tokens["slow-writer"])[:-2]
    head += b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    begin_ns = monotonic_ns()
    with Wire(world.daemon.port) as wire:
        answer = wire.ask(head + chunked(body, *[10_000] * 30) + b"")
        assert answer.status == 200
        answer = wire.ask(head + chunked(body[:-2] + b"]}", 1000))
        assert answer.status in (200, 429)
    seconds = (monotonic_ns() - begin_ns) / 1e9
    assert len(body) * (1 + (answer.status == 200)) <= 100_000 * (seconds + 1) * 1.05 + 300_000


def test_bytes_of_answers_are_limited(world: World) -> None:
    with Wire(world.daemon.port) as wire:
        for _ in range(4):
            wire.ask(asked("POST", "/v0/topics/read", world.tokens["friend"],
                           b'{"records":[{"data":"' + b"x" * 20_000 + b'"}]}'))  # fmt: skip
    request = asked("POST", "/v0/topics/read/diff", world.tokens["reader"], b"{}")
    found = run(world, request, 10, connections=2)
    # An answer whose size is not known before is sent, and each connection may get one.
    assert 80_000 * (found.accepted - 2) <= 50_000 * (found.seconds + 1) * 1.05
    assert found.refused[0].json["error"]["detail"]["limit"] == "bytes_out"


@pytest.mark.slow
def test_a_stream_is_sent_no_faster_than_its_limit_and_loses_nothing(world: World) -> None:
    with Wire(world.daemon.port) as wire:
        for n in range(20):
            wire.ask(asked("POST", "/v0/topics/stream", world.tokens["friend"],
                           b'{"records":[{"data":"%04d%s"}]}' % (n, b"x" * 20_000)))  # fmt: skip
    fields = {"Authorization": f"Bearer {world.tokens['watcher']}"}
    begin_ns = monotonic_ns()
    got, size, seen = b"", 0, list[int]()
    with stream(world.daemon.port, "/v0/topics/stream/watch?from_seq=0", headers=fields) as watch:
        while len(seen) < 20:
            data = watch.read1(65536)
            size += len(data)
            got += data
            seen = [int(n) for n in re.findall(rb'"(\d{4})x', got)]
    seconds = (monotonic_ns() - begin_ns) / 1e9
    assert seen == list(range(20))
    assert size <= 100_000 * (seconds + 1) * 1.05 + 150_000, "one write may be ahead"


def test_connections_and_streams_of_a_token_are_counted_over_all_shards(world: World) -> None:
    request = asked("GET", "/openapi.json", world.tokens["few"])
    with ExitStack() as stack:
        wires = [stack.enter_context(Wire(world.daemon.port)) for _ in range(6)]
        answers = [wire.ask(request) for wire in wires]
        assert sorted(answer.status for answer in answers) == [200] * 3 + [429] * 3
        refused = next(answer for answer in answers if answer.status == 429)
        assert refused.json["error"]["detail"] == {
            "limit": "connections", "value": "3", "of": "token",
        }  # fmt: skip
    with Wire(world.daemon.port) as wire:
        key = {"X-Api-Key": world.tokens["few"]}
        wait_until(
            lambda: ask(world.daemon.port, "GET", "/openapi.json", headers=key).status == 200,
            "a place of those that have ended",
        )
        assert wire.ask(request_of("GET", "/livez")).status == 200
        assert wire.ask(asked("PUT", "/v0/topics/watched", world.tokens["friend"])).status < 300
    request = asked("GET", "/v0/topics/watched/watch", world.tokens["streamer"])
    with ExitStack() as stack:
        for _ in range(2):
            opened = stack.enter_context(Wire(world.daemon.port))
            opened.send(request)
            assert opened._more(), "the head of a stream"
        with Wire(world.daemon.port) as wire:
            answer = wire.ask(request)
            assert (answer.status, answer.json["error"]["detail"]["limit"]) == (429, "streams")


def test_changes_of_settings_are_limited_and_records_are_not(world: World) -> None:
    request = asked("PUT", "/v0/topics/settled", world.tokens["operator"])
    found = run(world, request, 10)
    assert found.accepted <= most(3, found.seconds)
    assert found.refused[0].json["error"]["detail"]["limit"] == "settings"
    write = asked("POST", "/v0/topics/settled", world.tokens["operator"], RECORDS)
    with Wire(world.daemon.port) as wire:
        assert [wire.ask(write).status for _ in range(10)] == [200] * 10


def test_what_a_token_is_for_is_counted_whoever_made_it(world: World) -> None:
    with Wire(world.daemon.port) as wire:

        def put(target: str, body: bytes = b"{}", token: str = "maker") -> Answer:
            return wire.ask(asked("PUT", target, world.tokens[token], body))

        def limit(answer: Answer) -> object:
            assert (answer.status, answer.code) == (429, "over_limit"), answer
            return answer.json["error"]["detail"]["limit"]

        assert put("/v0/topics/of-others", token="friend").status < 300
        assert put("/v0/topics/made-1", b'{"partitions":4}', "friend").status == 201
        assert limit(put("/v0/topics/made-2", b'{"partitions":7}')) == "partitions"
        assert put("/v0/topics/made-2", b'{"partitions":6}').status == 201
        assert limit(put("/v0/topics/made-2", b'{"partitions":7}')) == "partitions"
        assert put("/v0/topics/made-2", b'{"priority":7}').status == 200
        assert limit(put("/v0/topics/made-3")) == "topics"
        write = asked("POST", "/v0/topics/made-4", world.tokens["maker"], RECORDS)
        assert limit(wire.ask(write)) == "topics"
        assert wire.ask(asked("GET", "/v0/topics/made-4", world.tokens["friend"])).status == 404
        for first, second, kind in (
            ("/v0/topics/made-1/subscriptions/a", "/v0/topics/made-2/subscriptions/a",
             "subscriptions"),
            ("/v0/routers/one", "/v0/routers/two", "routers"),
        ):  # fmt: skip
            body = b'{"source":"made-1","dest":"made-2"}' if kind == "routers" else b"{}"
            assert put(first, body).status == 201
            assert put(first).status == 200
            assert limit(put(second, body)) == kind
        names = iter(range(9))
        while (answer := put(f"/v0/cursors/made-{next(names)}")).status == 201:
            pass
        assert limit(answer) == "cursors"
        deleted = asked("DELETE", "/v0/topics/made-2/subscriptions/a", world.tokens["maker"])
        assert wire.ask(deleted).status == 404
        assert wire.ask(asked("DELETE", "/v0/routers/one", world.tokens["maker"])).status == 200
        assert wire.ask(asked("DELETE", "/v0/topics/made-2", world.tokens["maker"])).status == 200
        assert put("/v0/topics/made-3").status == 201


def test_idempotency_keys_of_a_token_are_limited_over_all_shards(world: World) -> None:
    token = world.tokens["keyed"]
    body = b'{"records":[{"data":1}],"idempotency_key":"k"}'
    keyed = asked("POST", "/v0/topics/keyed", token, body)
    found = run(world, keyed, 10)
    # The fifth of a second's worth may have to wait: a fiftieth of it lies in the claims of shards.
    assert 4 <= found.accepted <= most(5, found.seconds)
    assert {answer.status for answer in found.refused} == {429}
    error = found.refused[0].json["error"]
    assert error["detail"]["limit"] == "dedupe_entries"
    assert "limited to 5/s requests with an idempotency key" in error["message"]
    by_body = asked("POST", "/v0/topics/keyed", token, RECORDS[:-1] + b',"dedupe":"body"}')
    assert run(world, by_body, 1).refused[0].json["error"]["detail"]["limit"] == "dedupe_entries"
    with Wire(world.daemon.port) as wire:
        plain = asked("POST", "/v0/topics/keyed", token, RECORDS)
        assert [wire.ask(plain).status for _ in range(10)] == [200] * 10, "without a key"
        whole = asked("POST", "/v0/topics/keyed", world.tokens["friend"], body)
        assert [wire.ask(whole).status for _ in range(10)] == [200] * 10, "another token"


def traffic(world: World, token: str) -> list[int]:
    """What the metrics say of a token: requests, bytes in and out, refusals."""
    with Wire(world.daemon.port) as wire:
        page = wire.ask(asked("GET", "/metrics", world.tokens["friend"])).body.decode()
    found = re.findall(rf'headgate_token_(\w+)_total{{token="{token}"}} (\S+)', page)
    counts = {name: int(float(value)) for name, value in found}
    names = ("requests", "received_bytes", "sent_bytes", "refused_requests")
    return [counts.get(name, 0) for name in names]


def test_what_a_token_does_is_counted_over_all_shards_by_its_name(world: World) -> None:
    token = world.tokens["counted"]
    produce = asked("POST", "/v0/topics/t", token, RECORDS)
    diff = asked("POST", "/v0/topics/t/diff", token, b'{"from_seq":1,"limit":1}')
    body_bytes = len(diff.partition(b"\r\n\r\n")[2])
    sent_bytes = 0
    for _ in range(20):  # connections of all shards
        with Wire(world.daemon.port) as wire:
            assert wire.ask(produce).status == 200
            answer = wire.ask(diff)
            assert answer.status == 200
            sent_bytes += len(answer.body)
            assert wire.ask(asked("GET", "/nothing", token)).status == 404
            assert wire.ask(asked("POST", "/v0/topics/t", f"{token}0", RECORDS)).status == 401
    with Wire(world.daemon.port) as wire:
        chunks = asked("POST", "/v0/topics/t", token)[:-2]
        chunks += b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        chunks += chunked(RECORDS)
        assert wire.ask(chunks).status == 200
    wanted = [41, 21 * len(RECORDS) + 20 * body_bytes, sent_bytes, 20]

    def is_counted() -> bool:
        found = traffic(world, "counted")
        framing = found[1] - wanted[1]  # of the body whose length was not known
        found[1] -= framing
        assert all(count <= most for count, most in zip(found, wanted, strict=True)), found
        return 0 <= framing <= 20 and found == wanted

    wait_until(is_counted, "heartbeats of all shards")
