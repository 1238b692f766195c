"""Where a shard's pipes end: one listening Unix socket per shard, made by the supervisor.

Each process of a shard inherits its socket from the supervisor, so connections wait in its backlog
while a shard is being restarted, and find its successor. The names are in Linux's abstract
namespace: they leave no files. Anyone on the machine may connect to them; ``same_user`` refuses
other users. The random token only keeps the names of two daemons apart.
"""

from __future__ import annotations

import os
import socket
import struct

# A process of another shard has one connection. It leaves one when it dies, which stays until it
# is accepted: deaths of all shards, a few times in a row. The kernel caps it at somaxconn.
BACKLOG = 1024
_CREDENTIALS = struct.Struct("iII")  # SO_PEERCRED: process, user, group


def pipe_name(token: str, shard: int) -> bytes:
    """The abstract name of a shard's socket."""
    return b"\0headgate-%b-%d" % (token.encode(), shard)


def open_pipe_listeners(token: str, count: int) -> list[socket.socket]:
    """The sockets of shards 0 to ``count`` - 1. Raises OSError."""
    made: list[socket.socket] = []
    try:
        for shard in range(count):
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            made.append(listener)
            listener.bind(pipe_name(token, shard))
            listener.listen(BACKLOG)
            listener.setblocking(False)
    except OSError:
        for listener in made:
            listener.close()
        raise
    return made


def connected(name: bytes) -> socket.socket:
    """A connection to the socket with this name, waiting in its backlog or accepted.

    Raises OSError; BlockingIOError if the backlog is full, PermissionError for another user's.
    """
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        made.connect(name)
        if not same_user(made):
            raise PermissionError("the socket of an owner's shard belongs to another user")
    except OSError:
        made.close()
        raise
    return made


def same_user(connection: socket.socket) -> bool:
    """Whether the other end is a process of this user."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(data)
    return bool(user == os.geteuid())
