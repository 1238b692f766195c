"""What a shard process inherits from the supervisor: descriptors, and what they are.

The supervisor starts ``python -m daemon.shard`` with one JSON argument, an Inheritance. The
descriptors in it keep their numbers. The read end of a pipe tells of the supervisor's death: the
supervisor is its only writer, and never writes.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from daemon.config import Config
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
    pipe_fd: int  # where other shards connect to this one
    pipe_token: str  # names the sockets of all shards (delivery/pipes/addresses.py)
    alive_fd: int
    config: Config
    chaos: str = ""  # faults of the store, as uploader/stores/faults.py reads them

    @property
    def fds(self) -> tuple[int, ...]:
        """All descriptors, for ``pass_fds``."""
        sockets = (self.listen_fd, self.admin_fd, self.pipe_fd)
        return (self.segment_fd, *self.bell_fds, *sockets, self.alive_fd)


def encode(inheritance: Inheritance) -> str:
    """The argument of a shard process."""
    return msgspec.json.encode(inheritance).decode()


def decode(argument: str) -> Inheritance:
    """The inverse of encode."""
    return msgspec.json.decode(argument, type=Inheritance)
