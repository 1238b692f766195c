"""A connection to a daemon: whole answers only, and no token in what is printed."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from commands.client.http import Client, Unreachable
from compaction.access.connection import DaemonAddress
from compaction.access.http_calls import DaemonUnreachable, call


@pytest.fixture
def cut_off() -> Iterator[str]:
    """The address of a server that ends each answer before its length."""

    def serve(listener: socket.socket) -> None:
        with listener.accept()[0] as taken:
            taken.recv(1 << 16)
            taken.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{"a":1}')

    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = threading.Thread(target=serve, args=(listener,))
        serving.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        serving.join()


def test_an_answer_that_ends_early_is_no_answer_for_the_compaction(cut_off: str) -> None:
    with pytest.raises(DaemonUnreachable, match="7 bytes read, 3 more expected"):
        call(cut_off, "GET", "/", once=True)


def test_an_answer_that_ends_early_is_a_lost_connection_for_a_command(cut_off: str) -> None:
    with Client(cut_off) as client, pytest.raises(Unreachable, match="3 more expected"):
        client.call("GET", "/")


def test_an_address_is_printed_without_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADGATE_TOKEN", "hgt_secret")
    address = DaemonAddress.of("http://127.0.0.1:7440/base/")
    assert address.headers == {"Authorization": "Bearer hgt_secret"}
    assert repr(address) == "DaemonAddress(127.0.0.1:7440/base)"
    assert repr(DaemonAddress.of("unix:/tmp/a.sock")) == "DaemonAddress(/tmp/a.sock)"
