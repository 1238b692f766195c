"""What a shard process inherits from the supervisor: descriptors, and what they are.

The supervisor starts ``python -m daemon.process.shard NUMBER`` with an Inheritance as its standard
input. An argument has a limit, which a long ``push_allow`` reaches, and ``ps`` shows it. The
descriptors keep their numbers. The read end of a pipe tells of the supervisor's death: the
supervisor is its only writer, and never writes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import msgspec
from msgspec import Struct

from daemon.config import Config
from daemon.tls.certificate import Pair
from shards.layout import Layout


class Inheritance(Struct, frozen=True):
    """What one shard starts with. Fields that end in ``fd`` are descriptors."""

    shard: int
    cpu: int
    layout: Layout
    segment_fd: int
    bell_fds: tuple[int, ...]
    listen_fd: int
    admin_fd: int
    tls_fd: int | None
    pipe_fd: int  # where other shards connect to this one
    pipe_token: str  # names the sockets of all shards (delivery/pipes/addresses.py)
    alive_fd: int
    ticket_key: str  # in hex; of all shards of a daemon (daemon/access/tickets.py)
    config: Config
    tls_pair: Pair | None = None  # that is in force
    chaos: str = ""  # faults of the store, as uploader/stores/faults.py reads them

    @property
    def fds(self) -> tuple[int, ...]:
        """All descriptors, for ``pass_fds``."""
        sockets = (self.listen_fd, self.admin_fd, self.pipe_fd)
        tls = () if self.tls_fd is None else (self.tls_fd,)
        return (self.segment_fd, *self.bell_fds, *sockets, *tls, self.alive_fd)


@contextlib.contextmanager
def as_input(inheritance: Inheritance) -> Iterator[int]:
    """A descriptor to read it from, as the standard input of a shard's process."""
    fd = os.memfd_create("headgate-inheritance")
    try:
        os.write(fd, msgspec.json.encode(inheritance))
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)


def decode(text: bytes) -> Inheritance:
    """What was read from there."""
    return msgspec.json.decode(text, type=Inheritance)
