"""Raw bytes on a socket, which no HTTP library would send, and connections to a known shard.

``Wire`` sends the given bytes and reads whole answers. Its time limit only ends a hang.
"""

from __future__ import annotations

import json
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from tests.e2e.daemon import HANG_S, Answer, Daemon, wait_for_heartbeats, wait_until

_ENOUGH = 64  # the kernel spreads connections by a hash: 64 on one side of two do not happen


class StreamCut(AssertionError):
    """An answer without an end was cut off, instead of ended."""


class Wire:
    """One connection, by TLS if there is a ``context``."""

    def __init__(self, port: int, token: str = "", context: ssl.SSLContext | None = None) -> None:
        self._token = token  # of ``json``
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=HANG_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            self._socket = context.wrap_socket(self._socket, server_hostname="localhost")
        self._buffer = b""

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes both directions."""
        self._socket.close()

    def half_close(self) -> None:
        """Closes our direction: nothing more will be sent. The other side may have reset both."""
        with suppress(OSError):  # a TLS socket's own shutdown ends its reading too
            socket.socket.shutdown(self._socket, socket.SHUT_WR)

    def reset(self) -> None:
        """Closes with a reset: what is in flight in either direction is lost."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Sends everything, unless the other side has closed already."""
        try:
            self._socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError, ssl.SSLError):
            return  # what it has said can still be read

    def _more(self) -> bool:
        try:
            data = self._socket.recv(1 << 16)
        except (ConnectionResetError, ssl.SSLEOFError):
            data = b""
        self._buffer += data
        return bool(data)

    def _until(self, mark: bytes) -> bytes | None:
        while mark not in self._buffer:
            if not self._more():
                return None
        found, _, self._buffer = self._buffer.partition(mark)
        return found

    def answer(self, *, bodiless: bool = False) -> Answer | None:
        """The next answer; None when the connection ended instead."""
        head = self._until(b"\r\n\r\n")
        if head is None:
            assert self._buffer == b"", f"half an answer: {self._buffer!r}"
            return None
        first, *lines = head.decode("latin-1").split("\r\n")
        version, status, _ = first.split(" ", 2)
        assert version == "HTTP/1.1", first
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        if headers.get("transfer-encoding") == "chunked" and not bodiless:
            return Answer(int(status), headers, self._chunks())
        length = 0 if bodiless else int(headers.get("content-length", "0"))
        return Answer(int(status), headers, self._take(length))

    def _take(self, length: int) -> bytes:
        while len(self._buffer) < length:
            if not self._more():
                raise StreamCut("the connection ended inside an answer's body")
        body, self._buffer = self._buffer[:length], self._buffer[length:]
        return body

    def _chunks(self) -> bytes:
        """The body of a stream, up to its end."""
        body = b""
        while True:
            size = self._until(b"\r\n")
            if size is None:
                raise StreamCut("a stream ended without its last chunk")
            data = self._take(int(size, 16) + 2)
            assert data.endswith(b"\r\n"), f"a chunk is longer than it says: {data[-40:]!r}"
            if len(data) == 2:
                return body
            body += data[:-2]

    def answers(self) -> list[Answer]:
        """All answers until the other side closes."""
        found: list[Answer] = []
        while True:
            answer = self.answer()
            if answer is None:
                return found
            found.append(answer)

    def ask(self, data: bytes) -> Answer:
        """Sends and reads one answer; the test fails when the connection ends."""
        self.send(data)
        answer = self.answer()
        assert answer is not None, f"no answer to {data[:200]!r}"
        return answer

    def json(self, method: str, path: str, document: object) -> Answer:
        """A request with a JSON body, the connection kept."""
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        return self.ask(
            request(method, path, json.dumps(document).encode(), "application/json", **headers)
        )


def request(
    method: str, path: str, body: bytes | None = None, content_type: str = "application/json", /,
    *fields: str, **headers: str,
) -> bytes:  # fmt: skip
    """The bytes of a request; header names with ``_`` for ``-``; ``Content-Type`` unless empty.
    ``fields`` are lines of the head as they are."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
        if content_type:
            lines.append(f"Content-Type: {content_type}")
    lines += [*fields, *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


def chunked(body: bytes, *sizes: int) -> bytes:
    """``body`` in the chunked transfer coding: chunks of the given sizes, then the rest."""
    pieces = []
    for size in (*sizes, len(body)):
        piece, body = body[:size], body[size:]
        if piece:
            pieces.append(b"%x\r\n%s\r\n" % (len(piece), piece))
    return b"".join([*pieces, b"0\r\n\r\n"])


@contextmanager
def wire_of_each_shard(daemon: Daemon, topic: str) -> Iterator[list[Wire]]:
    """One connection to each shard, by number; a record for each try goes to ``topic``.

    No other client may produce meanwhile: its counter shows which shard answered.
    """
    with ExitStack() as stack:
        found: dict[int, Wire] = {}
        wait_for_heartbeats(daemon)  # what was acknowledged before is counted
        shards = len(_acknowledged(daemon))
        for _ in range(_ENOUGH):
            before = _acknowledged(daemon)
            wire = stack.enter_context(Wire(daemon.port, daemon.token))
            answer = wire.json("POST", f"/v0/topics/{topic}", {"records": [{"data": 0}]})
            assert answer.status == 200
            found.setdefault(_counted_by(daemon, before), wire)
            if len(found) == shards:
                yield [found[shard] for shard in range(shards)]
                return
        raise AssertionError(f"{_ENOUGH} connections went to shards {sorted(found)} only")


def _counted_by(daemon: Daemon, before: list[int]) -> int:
    """The shard whose counter has risen."""

    def risen() -> list[int]:
        return [s for s, count in enumerate(_acknowledged(daemon)) if count > before[s]]

    return wait_until(risen, "the acknowledged request to be counted")[0]


def _acknowledged(daemon: Daemon) -> list[int]:
    return [shard["requests_acked"] for shard in daemon.status()["shards"]]


@contextmanager
def full_ring(daemon: Daemon, topic: str, *fields: str) -> Iterator[None]:
    """While a ring of 64 KiB has no room, because bodies up to 16 kB are promised and do not come;
    ``fields`` are those of the heads. It lasts for the 20 s that a body may take, so requests of
    one size end with the first that is refused."""
    with ExitStack() as filling:
        for size in (16_000, 1_000, 100):
            head = request(
                "POST", f"/v0/topics/{topic}", None, "application/json",
                f"Content-Length: {size}", "Expect: 100-continue", *fields,
            )  # fmt: skip
            while (status := filling.enter_context(Wire(daemon.port)).ask(head).status) == 100:
                continue
            assert status == 429, status
        yield
