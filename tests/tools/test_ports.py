"""A port that is kept for servers that come one after the other."""

from __future__ import annotations

import errno
import socket

import pytest

from tools.ports import kept_port


def test_a_kept_port_is_nobodys_but_of_servers_that_name_it_one_after_the_other() -> None:
    with kept_port() as port:
        for _ in range(2):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port))
            with socket.create_server(("127.0.0.1", port)):
                socket.create_connection(("127.0.0.1", port)).close()
            with socket.socket() as other, pytest.raises(OSError) as caught:
                other.bind(("127.0.0.1", port))
            assert caught.value.errno == errno.EADDRINUSE
