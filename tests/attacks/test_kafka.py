"""Kafka's protocol with tokens: clients without one, with a stolen one, and with one of others."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from daemon.access.token_file import Scope, TokenFile
from daemon.kafka.served import OPEN, SERVED
from tests.daemon.kafka.frames import Key, authenticate, handshake, naming, plain
from tests.daemon.kafka.test_messages import read
from tests.e2e.daemon import HANG_S, Daemon
from tests.e2e.kafka import bootstrap, kafka_daemon
from tests.e2e.processes import shard_pids

AUTHORIZATION_FAILED = {29, 30, 31}  # of topics, groups, and the rest
ASKED = sorted(key for key, row in SERVED.items() if row.scopes is not OPEN)
SECRET, MISSING = "secrets", "missing"


class Line:
    """A connection, and the answers on it."""

    def __init__(self, daemon: Daemon, token: str = "") -> None:
        host, port = bootstrap(daemon).rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=HANG_S)
        if token:
            assert self.ask(handshake())[:2] == b"\0\0"
            assert self.ask(authenticate(plain(token)))[:2] == b"\0\0"

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self) -> bytes:
        """The next one without its number; empty if there is none any more."""
        size = self._read(4)
        return self._read(struct.unpack(">i", size)[0])[4:] if size else b""

    def ask(self, data: bytes) -> bytes:
        self.send(data)
        return self.answer()

    def _read(self, size: int) -> bytes:
        found = b""
        with suppress(ConnectionResetError):
            while len(found) < size and (data := self.socket.recv(size - len(found))):
                found += data
        return found

    def close(self) -> None:
        self.socket.close()


class Victim(NamedTuple):
    """A daemon with a topic and a group, and tokens by their names."""

    daemon: Daemon
    tokens: dict[str, str]

    def line(self, name: str = "") -> closing[Line]:
        return closing(Line(self.daemon, self.tokens[name] if name else ""))


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    folder = tmp_path_factory.mktemp("kafka")
    file = TokenFile(folder / "tokens.json")
    tokens = {
        "owner": file.issue("owner", list(Scope))[1],
        "another": file.issue("another", list(Scope), ["other*"])[1],
        "useless": file.issue("useless", [Scope.PUSH, Scope.COMPACT])[1],
    }
    with kafka_daemon(
        folder / "data", token=tokens["owner"], settings={"auth_file": file.path}
    ) as daemon:
        assert daemon.produce(SECRET, "the record").status == 200
        with closing(Line(daemon, tokens["owner"])) as line:
            assert errors(Key.OFFSET_COMMIT, line.ask(naming(Key.OFFSET_COMMIT, SECRET))) == [0]
        yield Victim(daemon, tokens)


def errors(key: int, said: bytes) -> list[int]:
    """All that an answer has, in the oldest version that is served."""
    found: list[int] = []

    def look(value: Any) -> None:
        if isinstance(value, tuple):
            for each in value:
                look(each)
        elif is_dataclass(value):
            for field in fields(value):
                if field.name == "error_code":
                    found.append(getattr(value, field.name).value)
                look(getattr(value, field.name))

    look(read(key, SERVED[key].versions.oldest, bytearray(b"\0\0\0\x09" + said)))
    return found


@pytest.mark.parametrize("key", ASKED)
def test_a_client_without_a_token_gets_no_answer_to_any_request(attacked: Victim, key: int) -> None:
    for before in (b"", handshake(), handshake("OAUTHBEARER")):
        with attacked.line() as line:
            if before:
                assert line.ask(before)[:2] == b"\0\0"
            assert line.ask(naming(key, SECRET)) == b""


@pytest.mark.parametrize("key", ASKED)
def test_a_token_that_is_for_others_learns_nothing_not_even_what_exists(
    attacked: Victim, key: int
) -> None:
    said = []
    for name in (SECRET, MISSING):
        with attacked.line("another") as line:
            said.append(line.ask(naming(key, name)).replace(name.encode(), b"?"))
    if key not in (Key.INIT_PRODUCER_ID, Key.LIST_GROUPS):
        found = errors(key, said[0].replace(b"?", SECRET.encode()))
        assert found and set(found) <= AUTHORIZATION_FAILED, found
    if key != Key.INIT_PRODUCER_ID:  # whose id is random
        assert said[0] == said[1]


@pytest.mark.parametrize("key", ASKED)
def test_a_token_without_the_scope_does_nothing(attacked: Victim, key: int) -> None:
    with attacked.line("useless") as line:
        found = errors(key, line.ask(naming(key, SECRET)))
    assert found and set(found) <= AUTHORIZATION_FAILED, found


def test_each_rule_needs_a_scope_that_a_useless_token_has_not() -> None:
    for key in ASKED:
        needed = SERVED[key].scopes
        assert needed and not {Scope.PUSH, Scope.COMPACT} & {*needed}


def test_nothing_of_this_was_stored_or_changed(attacked: Victim) -> None:
    daemon = attacked.daemon
    assert [each["data"] for each in daemon.read_all(SECRET)] == ["the record"]
    assert daemon.get(f"/v0/topics/{MISSING}").status == 404
    with attacked.line("owner") as line:
        assert SECRET.encode() in line.ask(naming(Key.LIST_GROUPS, ""))


def test_frames_of_strangers_are_small_and_hold_no_memory(attacked: Victim) -> None:
    (pid,) = shard_pids(attacked.daemon)
    shard = psutil.Process(pid)
    before_bytes = shard.memory_info().rss
    lines = [Line(attacked.daemon) for _ in range(100)]
    for line in lines:
        with suppress(OSError):
            line.send((16 << 20).to_bytes(4, "big") + b"\0\0\0\3" + bytes(1 << 20))
    for line in lines:
        assert line.answer() == b""
        line.close()
    assert shard.memory_info().rss - before_bytes < 64 << 20


def test_strangers_that_say_nothing_shut_nobody_out(attacked: Victim) -> None:
    strangers = [Line(attacked.daemon) for _ in range(600)]
    with attacked.line("owner") as line:
        assert SECRET.encode() in line.ask(naming(Key.METADATA, SECRET))
    for each in strangers:
        with suppress(OSError):  # it gave way
            each.socket.shutdown(socket.SHUT_WR)
        assert each.answer() == b"", "and its place is free for the next test"
        each.close()


def test_nobody_becomes_another_on_a_connection(attacked: Victim) -> None:
    with attacked.line("another") as line:
        assert line.ask(handshake())[:2] == b"\0\x22"
        assert line.ask(authenticate(plain(attacked.tokens["owner"])))[:2] == b"\0\x22"
        assert set(errors(Key.METADATA, line.ask(naming(Key.METADATA, SECRET)))) == {29}
    owner = attacked.tokens["owner"]
    for said in (plain(owner, whom="owner"), b"n,,\1auth=Bearer " + owner.encode() + b"\1\1"):
        with attacked.line() as line:
            assert line.ask(handshake())[:2] == b"\0\0"
            assert line.ask(authenticate(said))[:2] == b"\0\x3a"
            assert line.answer() == b""


def test_a_token_that_is_revoked_ends_connections_in_whatever_they_wait(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "tokens.json")
    owner = file.issue("owner", list(Scope))[1]
    stolen = file.issue("stolen", [Scope.READ, Scope.PRODUCE])[1]
    settings = {"auth_file": file.path}
    with kafka_daemon(tmp_path / "data", token=owner, settings=settings) as daemon:
        assert daemon.produce("t", "1").status == 200
        waiting, idle = Line(daemon, stolen), Line(daemon, stolen)
        fetch = bytearray(naming(Key.FETCH, "t"))
        struct.pack_into(">ii", fetch, 4 + 10 + 4, 60_000, 1 << 20)  # it waits for more
        waiting.send(bytes(fetch))
        with closing(Line(daemon, owner)) as line:
            file.revoke("stolen")
            for each in (waiting, idle):
                assert each.answer() == b""
                each.close()
            with closing(Line(daemon)) as again:
                assert again.ask(handshake())[:2] == b"\0\0"
                assert again.ask(authenticate(plain(stolen)))[:2] == b"\0\x3a"
            assert b"t" in line.ask(naming(Key.METADATA, "t")), "others go on"
