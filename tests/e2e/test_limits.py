"""Limits of tokens and of the daemon hold over all shards; others notice nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

import pytest

from daemon.access.token_file import Scope, TokenFile
from shards.clock import monotonic_ns
from tests.e2e.daemon import Answer, Daemon, running
from tests.e2e.wire import Wire

SHARDS = 4
ALL = list(Scope)
RECORDS = b'{"records":[{"data":1}]}'


TOKENS: dict[str, dict[str, float]] = {
    "friend": {},
    "guest": {"requests": 20},
}


class World(NamedTuple):
    """A daemon, and its tokens by name."""

    daemon: Daemon
    tokens: dict[str, str]


def asked(method: str, target: str, token: str | None, body: bytes = b"", *fields: str) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: 127.0.0.1", *fields]
    if token is not None:
        lines.append(f"Authorization: Bearer {token}")
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    file = TokenFile(tmp_path_factory.mktemp("auth") / "tokens.json")
    tokens = {name: file.issue(name, ALL, limits=limits)[1] for name, limits in TOKENS.items()}
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


def test_requests_of_a_token_are_limited_over_all_shards_and_others_are_not(world: World) -> None:
    guest, friend = (asked("POST", "/v0/topics/t", world.tokens[name], RECORDS)
                     for name in ("guest", "friend"))  # fmt: skip
    found = run(world, guest, 200)
    assert 20 <= found.accepted <= 20 * (found.seconds + 1) * 1.05
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
