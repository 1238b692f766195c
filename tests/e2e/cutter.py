"""Connections that break: a listener in front of a daemon that cuts each one after some bytes."""

from __future__ import annotations

import contextlib
import random
import selectors
import socket
import struct
import threading
from collections.abc import Iterator

RESET = struct.pack("ii", 1, 0)  # no lingering: closing sends a reset


class Cutter:
    """Forwards to ``port``. What a connection answers ends after a random number of bytes, of which
    a client gets at least a head; ``cuts`` counts them."""

    def __init__(self, port: int, rng: random.Random, bytes_max: int) -> None:
        self.cuts = 0
        self._to = port
        self._rng = rng
        self._bytes_max = bytes_max
        self._stopping = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.02)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def stop(self) -> None:
        """Ends all connections."""
        self._stopping.set()
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        """One connection after the other, which is how the client under test makes them."""
        while not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                client, _ = self._listener.accept()
                with client, socket.create_connection(("127.0.0.1", self._to)) as daemon:
                    self._forward(client, daemon)

    def _forward(self, client: socket.socket, daemon: socket.socket) -> None:
        left = self._rng.randint(300, self._bytes_max)
        with selectors.DefaultSelector() as selector:
            selector.register(client, selectors.EVENT_READ)
            selector.register(daemon, selectors.EVENT_READ)
            while not self._stopping.is_set():
                for key, _ in selector.select(0.02):
                    if key.fileobj is client:
                        asked = client.recv(65_536)
                        if not asked:
                            return
                        daemon.sendall(asked)
                        continue
                    data = daemon.recv(65_536)
                    if not data:
                        return
                    with contextlib.suppress(ConnectionError):  # the client has left
                        client.sendall(data[:left])
                    left -= len(data)
                    if left <= 0:
                        self.cuts += 1
                        if self._rng.random() < 0.5:
                            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                        return


@contextlib.contextmanager
def cut_connections(port: int, rng: random.Random, bytes_max: int) -> Iterator[Cutter]:
    """A cutter that runs during a ``with`` block."""
    cutter = Cutter(port, rng, bytes_max)
    try:
        yield cutter
    finally:
        cutter.stop()
