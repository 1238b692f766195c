"""The listening sockets, made by the supervisor: one per shard on one address (SO_REUSEPORT), and
one Unix socket in the data directory that all shards accept on.

The supervisor keeps them open over a shard's death, so that connections that wait in the dead
shard's queue are taken by its successor.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from compaction.access.connection import short_socket_path
from compaction.access.http_calls import SOCKET_NAME

# Accepted sockets inherit these. The kernel keeps little of what it has not sent yet, so that ten
# thousand clients that do not read cost 1 GiB of kernel memory and not 40, and a slow client gets
# what is new and not what was new 4 MiB ago. What is under way does not count.
NOT_SENT_BYTES_MAX = 128 << 10
# For clients whose machine is gone: otherwise the kernel sends again for 15 minutes, and they could
# fill the places of all streams. It also counts while a client that lives lets nothing be sent, so
# it must be longer than the HTTP front's own 60 s.
UNACKNOWLEDGED_MS_MAX = 120_000
BACKLOG = 4096  # connections that may wait for one shard; the kernel caps it at somaxconn


class KafkaSockets(Struct, frozen=True):
    """Where one shard serves Kafka's protocol: the address of all shards and its own, and the port
    of each shard."""

    fds: tuple[int, int]
    ports: tuple[int, ...]


class Listeners(NamedTuple):
    """What a daemon listens on. ``http`` has a socket of each shard, ``tls`` too or none; all
    shards accept on ``admin``. ``kafka`` and ``brokers`` have one of each shard, or none."""

    http: list[socket.socket]
    tls: list[socket.socket]
    admin: socket.socket
    kafka: Sequence[socket.socket] = ()
    brokers: Sequence[socket.socket] = ()

    @property
    def tcp(self) -> list[socket.socket]:
        """All but ``admin``."""
        return [*self.http, *self.tls, *self.kafka, *self.brokers]

    def kafka_of(self, shard: int) -> KafkaSockets | None:
        """What a shard serves Kafka's protocol on, if any does."""
        if not self.kafka:
            return None
        ports = tuple([int(each.getsockname()[1]) for each in self.brokers])
        return KafkaSockets((self.kafka[shard].fileno(), self.brokers[shard].fileno()), ports)


class ListenError(RuntimeError):
    """The address cannot be listened on."""


def open_listeners(
    host: str, port: int, count: int, setting: str = "listen"
) -> list[socket.socket]:
    """``count`` sockets on host:port, the value of ``setting``; port 0 means one that is free.
    Raises ListenError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made: list[socket.socket] = []
    try:
        # SO_REUSEPORT would let a second daemon of the same user share the address unnoticed; a
        # bind without it finds that out.
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            probe.listen(1)
            port = probe.getsockname()[1]
        for _ in range(count):
            listener = socket.socket(family, socket.SOCK_STREAM)
            made.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, NOT_SENT_BYTES_MAX)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS_MAX)
            listener.bind((host, port))
            listener.listen(BACKLOG)
            listener.setblocking(False)
    except (OSError, UnicodeError) as error:  # UnicodeError: a name like a..b
        for listener in made:
            listener.close()
        # The errno of a name that does not resolve is the resolver's, not the system's.
        reason = getattr(error, "strerror", None) or str(error)
        raise ListenError(
            f"{setting} = {host}:{port} cannot be used: {reason}; give another HOST:PORT"
        ) from error
    return made


def open_kafka_listeners(
    host: str, port: int, count: int
) -> tuple[list[socket.socket], list[socket.socket]]:
    """The sockets of all shards on host:port, and one of each shard on the ports after it; for
    port 0, on any. Raises ListenError."""
    shared = open_listeners(host, port, count, "kafka_listen")
    own: list[socket.socket] = []
    try:
        for shard in range(count):
            setting = f"kafka_listen = {host}:{port}: the port of shard {shard}"
            own += open_listeners(host, port and port + 1 + shard, 1, setting)
    except ListenError:
        for listener in (*shared, *own):
            listener.close()
        raise
    return shared, own


def address_of(listener: socket.socket) -> str:
    """HOST:PORT (for port 0, what the kernel chose)."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextmanager
def admin_listener(data_dir: str) -> Iterator[socket.socket]:
    """Listens on ``admin.sock`` in the data directory, for this user only; removes it at the end.

    The directory's lock is held, so a socket that is there is a dead daemon's. Raises ListenError.
    """
    path = Path(data_dir).resolve() / SOCKET_NAME
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)
        short, folder = short_socket_path(str(path))
        try:
            os.fchmod(listener.fileno(), 0o600)  # before the bind, which gives the file its mode
            listener.bind(short)
        finally:
            if folder is not None:
                os.close(folder)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ListenError(
            f"the socket {path} cannot be made: {error.strerror}; give a --data directory whose"
            " file system has Unix sockets"
        ) from error
    try:
        yield listener
    finally:
        listener.close()
        path.unlink(missing_ok=True)
