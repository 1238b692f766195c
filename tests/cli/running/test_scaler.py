"""``headgate scaler``: how it begins and ends; what it answers is in ``tests/cli/keda/``."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from click.testing import CliRunner, Result

import cli
from commands.running import scaler


def run(*options: str) -> Result:
    return CliRunner().invoke(cli.headgate, ["scaler", *options])


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaler, "EXTRA", ("grpc", "package_that_is_not_there.module"))
    result = run()
    assert (result.exit_code, result.stdout) == (1, "")
    assert "needs grpcio and protobuf, which are not installed" in result.stderr
    assert "hint: pip install 'headgate[grpc]'" in result.stderr


def test_an_address_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = run("--listen", address)
    assert result.exit_code == 1 and f"cannot listen on {address}" in result.stderr
    assert "hint: --listen is HOST:PORT; is another program there?" in result.stderr


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1:port", "127.0.0.1:99999", ""])
def test_an_address_that_cannot_be_is_wrong_usage(address: str) -> None:
    result = run("--listen", address)
    assert result.exit_code == 2
    assert f"HOST:PORT, got {address!r}" in result.stderr


def test_it_needs_no_daemon_to_begin_and_ends_with_a_signal() -> None:
    with ended_by(signal.SIGTERM):
        result = run("--listen", "127.0.0.1:0", "--url", "http://127.0.0.1:1")
    assert result.exit_code == 0
    assert result.stderr.startswith("scaler listens on 127.0.0.1:")
    assert result.stderr.endswith(" and asks http://127.0.0.1:1\n")


@contextmanager
def ended_by(number: signal.Signals) -> Iterator[None]:
    """Sends the signal to this process as soon as a handler of the command waits for it."""
    done = threading.Event()

    def send() -> None:
        while not done.wait(0.01):
            if signal.getsignal(number) not in (signal.SIG_DFL, None):
                os.kill(os.getpid(), number)
                return

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
