"""What a shard process inherits from the supervisor: descriptors, and what they are.

``Ground`` makes what all shards share, before the prefix is owned, and starts their processes:
``python -m daemon.process.shard NUMBER`` with an Inheritance as its standard input. A standby
starts them early, as *spares*: they load what they need, and wait for that input. An argument has a
limit, which a long ``push_allow`` reaches, and ``ps`` shows it. The descriptors keep their numbers.
The read end of a pipe tells of the supervisor's death: the supervisor is its only writer, and never
writes.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator

import msgspec
from msgspec import Struct

from daemon import memory
from daemon.access.tickets import KEY_BYTES
from daemon.config import Config
from daemon.process.listeners import KafkaSockets, Listeners
from daemon.tls.certificate import Certificate, Pair
from delivery.pipes.addresses import open_pipe_listeners
from shards.doorbell import Doorbells
from shards.layout import Layout
from shards.segment import Segment


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
    kafka: KafkaSockets | None = None
    chaos: str = ""  # faults of the store, as uploader/stores/faults.py reads them

    @property
    def fds(self) -> tuple[int, ...]:
        """All descriptors, for ``pass_fds``."""
        sockets = (self.listen_fd, self.admin_fd, self.pipe_fd)
        tls = () if self.tls_fd is None else (self.tls_fd,)
        kafka = () if self.kafka is None else self.kafka.fds
        return (self.segment_fd, *self.bell_fds, *sockets, *tls, *kafka, self.alive_fd)


class Ground:
    """What the processes of one daemon share, and the spares among them."""

    def __init__(self, config: Config, listeners: Listeners, chaos: str = "") -> None:
        self.layout = memory.layout_of(config)
        self.segment = Segment.create(self.layout)
        self.bells = Doorbells.create(config.shards)
        self.listeners = listeners
        self._alive_read, self._alive_write = os.pipe()
        self._pipe_token = secrets.token_hex(8)
        self._ticket_key = secrets.token_hex(KEY_BYTES)
        self._pipe_listeners = open_pipe_listeners(self._pipe_token, config.shards)
        self._chaos = chaos
        self._spares: dict[int, subprocess.Popen[bytes]] = {}

    def prepare_spares(self, config: Config, certificate: Certificate | None) -> None:
        """Starts the processes of all shards, which wait."""
        # They inherit it: a Ctrl-C is for the one that they wait for.
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            for shard in range(config.shards):
                inheritance = self._inheritance(shard, 0, config, certificate)
                self._spares[shard] = _start(inheritance, subprocess.PIPE, "spare")
        finally:
            signal.signal(signal.SIGINT, handler)

    def start(
        self, shard: int, cpu: int, config: Config, certificate: Certificate | None
    ) -> subprocess.Popen[bytes]:
        """Starts a shard: its spare, if there is one."""
        inheritance = self._inheritance(shard, cpu, config, certificate)
        spare = self._spares.pop(shard, None)
        if spare is not None and spare.stdin is not None:
            with contextlib.suppress(BrokenPipeError), spare.stdin as pipe:
                pipe.write(msgspec.json.encode(inheritance))
            return spare  # of one that is dead, the supervisor starts another
        with as_input(inheritance) as fd:
            return _start(inheritance, fd)

    def _inheritance(
        self, shard: int, cpu: int, config: Config, certificate: Certificate | None
    ) -> Inheritance:
        listeners = self.listeners
        return Inheritance(
            shard=shard,
            cpu=cpu,
            layout=self.layout,
            segment_fd=self.segment.fd,
            bell_fds=self.bells.fds,
            listen_fd=listeners.http[shard].fileno(),
            admin_fd=listeners.admin.fileno(),
            pipe_fd=self._pipe_listeners[shard].fileno(),
            pipe_token=self._pipe_token,
            alive_fd=self._alive_read,
            ticket_key=self._ticket_key,
            config=config,
            tls_fd=listeners.tls[shard].fileno() if listeners.tls else None,
            tls_pair=None if certificate is None else certificate.in_force.pair,
            chaos=self._chaos,
            kafka=listeners.kafka_of(shard),
        )

    def close(self) -> None:
        """Ends the spares, and frees everything."""
        for spare in self._spares.values():
            spare.kill()
            spare.communicate()
        listeners = self.listeners
        for listener in (*listeners.tcp, *self._pipe_listeners):
            listener.close()
        self.bells.close()
        os.close(self._alive_read)
        os.close(self._alive_write)
        self.segment.close()


def _start(inheritance: Inheritance, stdin: int, *more: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "daemon.process.shard", str(inheritance.shard), *more],
        pass_fds=inheritance.fds,
        stdin=stdin,
    )


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
