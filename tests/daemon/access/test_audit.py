"""The audit log: a line before each change, numbers that show gaps, and a bound for refusals."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from daemon.access.audit import (
    REFUSAL_NS,
    REFUSALS_BURST,
    AuditedRequest,
    AuditError,
    AuditLog,
    check_audit_log,
)
from daemon.schemas.errors import ApiError

PUT = AuditedRequest("shop", "10.0.0.7", "", "PUT", "/v0/topics/orders")


class World:
    def __init__(self, folder: Path, **more: Any) -> None:
        self.path = folder / "audit.log"
        self.counter = [0, 0]
        self.now_ns = 10**12
        self.audit = AuditLog(
            str(self.path), "shard 3", 7, self.counter, 1, now_ms=lambda: 1_700_000_000_123,
            now_ns=lambda: self.now_ns, **more,
        )  # fmt: skip

    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.path.read_bytes().splitlines()]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.audit.close()


@contextmanager
def file_bytes(limit: int) -> Iterator[None]:
    """While no file of this process may grow beyond that, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_change_has_a_line_before_and_one_after_it(world: World) -> None:
    with world.audit.change(PUT):
        assert [line["event"] for line in world.lines()] == ["asked"]
    with pytest.raises(ApiError), world.audit.change(PUT):
        raise ApiError(409, "refused", "no")
    with pytest.raises(KeyboardInterrupt), world.audit.change(PUT):
        raise KeyboardInterrupt
    lines = world.lines()
    assert lines[0] == {
        "time": "2023-11-14T22:13:20.123+00:00", "run": 7, "process": "shard 3", "n": 1,
        "event": "asked", "who": "shop", "from": "10.0.0.7", "method": "PUT",
        "path": "/v0/topics/orders",
    }  # fmt: skip
    assert [line["n"] for line in lines] == [1, 2, 3, 4, 5, 6] and world.counter == [0, 6]
    outcomes = [(line["of"], line["status"], line["code"]) for line in lines[1::2]]
    assert outcomes == [(1, 200, None), (3, 409, "refused"), (5, 0, "KeyboardInterrupt")]
    assert world.path.stat().st_mode & 0o777 == 0o600


def test_on_a_full_disk_nothing_is_changed_and_no_number_is_lost(world: World) -> None:
    with world.audit.change(PUT):
        pass
    for room in (0, 20):
        with file_bytes(world.path.stat().st_size + room):
            with pytest.raises(ApiError) as refused, world.audit.change(PUT):
                raise AssertionError("it was changed")
            assert (refused.value.status, refused.value.code) == (503, "audit_log")
            assert str(world.path) in refused.value.message
            assert not world.audit.note("tokens")
    with world.audit.change(PUT):
        pass
    whole = [json.loads(line) for line in world.path.read_text().splitlines() if line[-1:] == "}"]
    assert [line["n"] for line in whole] == [1, 2, 3, 4]
    torn = [line for line in world.path.read_text().splitlines() if line[-1:] != "}"]
    assert len(torn) == 1, "half of a line, on a line of its own"


def test_half_a_line_of_another_process_takes_no_line_with_it(world: World) -> None:
    world.audit.note("first")
    with world.path.open("ab") as file:
        file.write(b'{"time":"20')
    with world.audit.change(PUT):
        pass
    lines = world.path.read_text().splitlines()
    assert lines.pop(1) == '{"time":"20'
    assert [json.loads(line)["n"] for line in lines] == [1, 2, 3]


def test_a_file_that_is_renamed_or_removed_is_followed_by_a_new_one(
    world: World, tmp_path: Path
) -> None:
    world.audit.note("first")
    world.path.rename(tmp_path / "audit.log.1")
    world.audit.note("second")
    world.path.unlink()
    world.audit.note("third")
    assert [(line["n"], line["event"]) for line in world.lines()] == [(3, "third")]
    old = json.loads((tmp_path / "audit.log.1").read_text())
    assert (old["n"], old["event"]) == (1, "first")


def test_strangers_cannot_fill_the_disk(world: World) -> None:
    error = ApiError(401, "unauthenticated", "who?")
    for _ in range(5 * REFUSALS_BURST):
        world.audit.refused(PUT, error)
    assert len(world.lines()) == REFUSALS_BURST
    for _ in range(3):
        world.now_ns += REFUSAL_NS
        world.audit.refused(PUT, error)
        world.audit.refused(PUT, error)
    told = [line["left_out"] for line in world.lines()[REFUSALS_BURST:]]
    assert told == [4 * REFUSALS_BURST, 1, 1]
    assert {(line["event"], line["status"]) for line in world.lines()} == {("refused", 401)}


@pytest.mark.parametrize(
    ("address", "forwarded", "sender"),
    [
        ("203.0.113.5", "1.2.3.4", "203.0.113.5"),
        ("10.0.0.1", "1.2.3.4", "1.2.3.4"),
        ("::ffff:10.0.0.1", "1.2.3.4", "1.2.3.4"),
        ("10.0.0.1", "6.6.6.6, 1.2.3.4, 10.9.9.9", "1.2.3.4"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.2", "10.0.0.2"),
        ("10.0.0.1", "unknown", "unknown"),
        ("fd00::1%eth0", "2001:db8::7", "2001:db8::7"),
        ("", "1.2.3.4", "admin.sock"),
    ],
)
def test_only_trusted_proxies_say_whom_a_request_is_of(
    tmp_path: Path, address: str, forwarded: str, sender: str
) -> None:
    world = World(tmp_path, trusted_proxies=["10.0.0.0/8", "fd00::/8"])
    assert world.audit.sender(address, forwarded) == sender
    world.audit.close()


def test_text_of_others_stays_within_its_line(world: World) -> None:
    asked = AuditedRequest(None, "1.1.1.1", "", "GET", '/a\n{"n":9}\u2028' + "x" * 5000)
    world.audit.refused(asked, ApiError(403, "forbidden", "no"))
    data = world.path.read_bytes()
    assert data.count(b"\n") == 1 and len(data) < 1000
    assert world.lines()[0]["path"].startswith('/a\n{"n":9}')


def test_without_a_file_nothing_is_written_or_refused() -> None:
    audit = AuditLog(None, "shard 0", 1, [0], 0)
    with audit.change(PUT):
        audit.refused(PUT, ApiError(401, "x", "x"))
        assert audit.note("x")
    audit.close()


def test_a_file_that_others_may_read_or_a_link_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.touch(0o644)
    path.chmod(0o644)
    with pytest.raises(AuditError, match="chmod 600"):
        check_audit_log(str(path))
    link = tmp_path / "link"
    link.symlink_to(path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    for wrong in (link, tmp_path, tmp_path / "missing" / "audit.log", tmp_path / "pipe"):
        with pytest.raises(AuditError, match=str(wrong)):
            check_audit_log(str(wrong))
    path.chmod(0o600)
    check_audit_log(str(path))
    check_audit_log(None)
