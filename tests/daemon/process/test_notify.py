"""sd_notify: real datagrams over a real socket, by path and by abstract name."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.process.notify import Notifier

SECOND_NS = 1_000_000_000


@pytest.fixture(params=["path", "abstract"])
def manager(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, socket.socket]]:
    """An address as NOTIFY_SOCKET has it, and the socket that is bound to it."""
    monkeypatch.chdir(tmp_path)  # a socket's path has 107 bytes; pytest's folders may be longer
    address = "notify" if request.param == "path" else f"@headgate-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(address.replace("@", "\0"))
        bound.setblocking(False)
        yield address, bound


def datagrams(bound: socket.socket) -> list[str]:
    """All that was sent so far: a datagram on a local socket is there when send returns."""
    found = []
    while True:
        try:
            found.append(bound.recv(4096).decode())
        except BlockingIOError:
            return found


def test_each_message_is_one_datagram(manager: tuple[str, socket.socket]) -> None:
    address, bound = manager
    notifier = Notifier(address)
    notifier.ready("2 shards")
    notifier.reloading(5_000_999)
    notifier.stopping("draining", 20.0)
    assert datagrams(bound) == [
        "READY=1\nSTATUS=2 shards",
        "RELOADING=1\nMONOTONIC_USEC=5000",
        "STOPPING=1\nSTATUS=draining\nEXTEND_TIMEOUT_USEC=20000000",
    ]


def test_a_start_after_ready_is_given_an_hour(manager: tuple[str, socket.socket]) -> None:
    address, bound = manager
    watched, free = Notifier(address, 30_000_000), Notifier(address)
    for notifier in (watched, free):
        notifier.starting("taking over")
        notifier.ready("")
    assert datagrams(bound) == [
        "STATUS=taking over\nWATCHDOG_USEC=3600000000",
        "READY=1\nSTATUS=\nWATCHDOG_USEC=30000000",
        "STATUS=taking over",
        "READY=1\nSTATUS=",
    ]


def test_the_variables_are_taken_out_of_the_environment_so_that_no_shard_inherits_them() -> None:
    environ = {
        "NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "7", "PATH": "/bin",
    }  # fmt: skip
    Notifier.take(environ, 7)
    assert environ == {"PATH": "/bin"}


def beats(notifier: Notifier, bound: socket.socket, tick_ns: int, ticks: int) -> list[int]:
    """The times in ns of the beats that came, asked on each tick."""
    came = []
    for tick in range(1, ticks + 1):
        notifier.alive(tick * tick_ns)
        came += [tick * tick_ns for _ in datagrams(bound)]
    return came


def test_the_watchdog_is_fed_in_less_than_half_its_period(
    manager: tuple[str, socket.socket],
) -> None:
    address, bound = manager
    for usec in (500_000, 1_000_000, 30_000_000):
        environ = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": str(usec)}
        notifier = Notifier.take(environ, 7)
        tick_ns = SECOND_NS // 10
        came = beats(notifier, bound, tick_ns, usec * 3_000 // tick_ns)
        gaps = [after - before for before, after in itertools.pairwise(came)]
        assert len(came) > 6
        assert max(gaps) < usec * 1_000 / 2
        assert usec < 4_000_000 or min(gaps) > tick_ns, "a long period needs few beats"


@pytest.mark.parametrize(
    "watched",
    [{}, {"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "8"}, {"WATCHDOG_USEC": "soon"}],
    ids=["none", "of another process", "no number"],
)
def test_a_watchdog_that_is_not_ours_is_not_fed(
    manager: tuple[str, socket.socket], watched: dict[str, str]
) -> None:
    address, bound = manager
    notifier = Notifier.take({"NOTIFY_SOCKET": address, **watched}, 7)
    assert beats(notifier, bound, SECOND_NS, 60) == []


def test_without_a_service_manager_nothing_is_sent(caplog: pytest.LogCaptureFixture) -> None:
    notifier = Notifier.take({"WATCHDOG_USEC": "1000000"}, 7)
    notifier.ready("")
    notifier.alive(SECOND_NS)
    assert not caplog.records


def test_a_manager_that_is_gone_is_said_and_does_no_harm(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Notifier("gone").ready("")
    assert "did not take READY=1: [Errno 2] No such file or directory" in caplog.text


def test_a_beat_that_was_not_taken_is_due_on_the_next_tick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    notifier = Notifier("late", 1_000_000)
    notifier.alive(SECOND_NS)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind("late")
        bound.setblocking(False)
        notifier.alive(SECOND_NS + 1)
        assert datagrams(bound) == ["WATCHDOG=1"]
