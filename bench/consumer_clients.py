"""Consumers of subscriptions in one process: streams, acknowledgments by batch, no parsing.

Each consumer has a stream and a connection for its acknowledgments, whose answers are read when
they come. A batch is complete when a later one has begun or nothing more is in the socket. It is
acknowledged with others, when they have ``ack_messages`` or after ACK_AFTER_S.
"""

from __future__ import annotations

import re
import select
from collections.abc import Sequence
from typing import NamedTuple, Self

from bench.processes import ServerError
from bench.stamps import ANCILLARY_BYTES, PATIENCE_S, connect, stamp_ns, wall_minus_monotonic_ns
from shards.clock import monotonic_ns

READ_BYTES = 1 << 18
ACK_AFTER_S = 0.005
EPOCH = re.compile(rb'"epoch":(\d+)')
ACCEPTED = re.compile(rb'"accepted":(\d+)')


class Consumed(NamedTuple):
    """What one read brought: when it was in the socket (monotonic), and its bytes."""

    socket_ns: int
    data: bytes


class _Consumer:
    """One consumer's sockets and what it has not acknowledged."""

    def __init__(self, port: int, path: str, name: str, *, acks: bool) -> None:
        self.name = name
        self.stream = connect(port)
        self.acks = connect(port)
        self.tail = b""
        self.held: str | None = None  # the batch that may go on
        self.pending: list[str] = []  # batches to be acknowledged, and their messages
        self.pending_messages = 0
        self.pending_ns = 0
        self.is_silent = not acks
        self.stream.sendall(
            f"GET {path}/consume?consumer={name} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Accept: application/x-ndjson\r\n\r\n".encode()
        )
        self._head = f"POST {path}/ack HTTP/1.1\r\nHost: 127.0.0.1\r\n".encode()

    def acknowledge(self) -> None:
        """Sends an acknowledgment of the batches that are pending."""
        body = f'{{"consumer":"{self.name}","batches":[{",".join(self.pending)}]}}'.encode()
        self.pending, self.pending_messages = [], 0
        self.acks.sendall(
            b"%sContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
            % (self._head, len(body), body)
        )

    def close(self) -> None:
        self.stream.close()
        self.acks.close()


class ConsumerClients:
    """Consumers ``c0``, ``c1``..., of the subscriptions at ``paths`` in turn; a context manager
    that closes them. ``received`` counts messages, ``accepted`` those whose acknowledgment was
    answered, ``batches`` the batches."""

    def __init__(
        self, port: int, paths: Sequence[str], count: int, *, acks: bool = True,
        ack_messages: int = 1,
    ) -> None:  # fmt: skip
        self._ack_messages = ack_messages
        self.received = 0
        self.accepted = 0
        self.batches = 0
        self._poll = select.epoll()
        self._consumers: dict[int, _Consumer] = {}  # by the number of a socket
        self._all: list[_Consumer] = []
        self._buffer = bytearray(READ_BYTES)
        try:
            for number in range(count):
                self._add(_Consumer(port, paths[number % len(paths)], f"c{number}", acks=acks))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes all connections."""
        self._poll.close()
        for consumer in self._all:
            consumer.close()

    @property
    def local_ports(self) -> tuple[int, int]:
        """Our ends of the first consumer's stream and of its other connection."""
        first = self._all[0]
        return first.stream.getsockname()[1], first.acks.getsockname()[1]

    def _add(self, consumer: _Consumer) -> None:
        self._all.append(consumer)
        for each in (consumer.stream, consumer.acks):
            self._consumers[each.fileno()] = consumer
            each.setblocking(False)
            self._poll.register(each.fileno(), select.EPOLLIN)
        consumer.acks.setblocking(True)

    def step(self, timeout_s: float = 1.0) -> list[Consumed]:
        """Takes what there is, and acknowledges it. Raises ServerError."""
        found = []
        is_late = self._acknowledge_late()
        timeout_s = min(timeout_s, ACK_AFTER_S) if is_late else timeout_s
        offset_ns = wall_minus_monotonic_ns()
        for number, _ in self._poll.poll(timeout_s):
            consumer = self._consumers[number]
            if number == consumer.acks.fileno():
                self._take_answer(consumer)
                continue
            size, ancillary, _, _ = consumer.stream.recvmsg_into([self._buffer], ANCILLARY_BYTES)
            if not size:
                raise ServerError(f"the stream of {consumer.name} ended")
            data = consumer.tail + self._buffer[:size]
            self._take(consumer, data, is_all=size < READ_BYTES)
            found.append(Consumed(stamp_ns(ancillary) - offset_ns if ancillary else 0, data))
        return found

    def _acknowledge_late(self) -> bool:
        """Acknowledges what has waited for its time; returns whether more will have to."""
        now_ns, is_left = monotonic_ns(), False
        for consumer in self._all:
            if consumer.pending:
                if now_ns - consumer.pending_ns > ACK_AFTER_S * 1e9:
                    consumer.acknowledge()
                else:
                    is_left = True
        return is_left

    def until(self, done: int, seconds: float = PATIENCE_S) -> None:
        """Until ``accepted`` is this. Raises ServerError if nothing comes for a while."""
        last, deadline_ns = -1, 0
        while self.accepted < done:
            if self.received + self.accepted != last:
                last = self.received + self.accepted
                deadline_ns = monotonic_ns() + int(seconds * 1e9)
            elif monotonic_ns() > deadline_ns:
                raise ServerError(
                    f"{self.received} of {done} messages came and {self.accepted} were accepted,"
                    f" then nothing for {seconds:g} s"
                )
            self.step()

    def _take(self, consumer: _Consumer, data: bytes, *, is_all: bool) -> None:
        epochs = EPOCH.findall(data)
        end = data.rfind(b"\n") + 1
        last = EPOCH.findall(data[end:])
        if last:  # of a message that is not all there
            del epochs[-len(last) :]
        consumer.tail = bytes(data[end:])
        if not epochs:
            return
        self.received += len(epochs)
        batches = [epoch.decode() for epoch in dict.fromkeys(epochs)]
        if consumer.held is not None and consumer.held != batches[0]:
            batches.insert(0, consumer.held)
        consumer.held = None
        if not is_all or consumer.tail:
            consumer.held = batches.pop()
        self.batches += len(batches)
        if not batches or consumer.is_silent:
            return
        if not consumer.pending:
            consumer.pending_ns = monotonic_ns()
        consumer.pending += batches
        consumer.pending_messages += len(epochs)
        if consumer.pending_messages >= self._ack_messages:
            consumer.acknowledge()

    def _take_answer(self, consumer: _Consumer) -> None:
        data = consumer.acks.recv(READ_BYTES)
        if not data:
            raise ServerError(f"the connection for the acknowledgments of {consumer.name} ended")
        if b"HTTP/1.1 200" not in data and b"HTTP/1.1" in data:
            raise ServerError(f"an acknowledgment was answered {data[:300]!r}")
        self.accepted += sum(map(int, ACCEPTED.findall(data)))
