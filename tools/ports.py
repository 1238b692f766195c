"""A port for a server that a test starts, ends and starts again."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def kept_port() -> Iterator[int]:
    """A loopback port that nobody else is given while the block runs, also when nothing listens.

    The kernel gives a port to whoever asks for any, as soon as its listener is gone. The socket
    that keeps this one never listens: it is not in the way of a server that has SO_REUSEADDR and
    names the port.
    """
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", 0))
        yield int(keeper.getsockname()[1])
