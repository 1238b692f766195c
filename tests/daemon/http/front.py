"""A front under test: the real server on uvloop in a thread, a scripted application, raw sockets.

``Script`` is the application: the path says what happens. It notes what it saw under a condition
variable, so that tests wait for events and not for time.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import uvloop

from daemon.http.application import QUEUED
from daemon.http.head import Head
from daemon.http.limits import HttpLimits
from daemon.http.request import Request
from daemon.http.server import Server
from daemon.schemas.errors import ApiError
from delivery.streams.outlet import Outlet

# Only ends a hang; nothing is measured against it.
PATIENCE_S = 60.0

T = TypeVar("T")


class Script:
    """/echo answers immediately, /later when told to, /fail raises, /full refuses in admit,
    /queue waits for its admission and then answers, ..."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.routed = 0
        self.fields: dict[Head, dict[str, str]] = {}  # the headers of each head
        self.segments: dict[Head, tuple[str, ...]] = {}
        self.admitted: list[tuple[str, int | None]] = []
        self.tokens: set[object] = set()
        self.handled: list[tuple[str, bytes]] = []
        self.later: list[Request] = []
        self.closed: list[str] = []
        self.outlets: list[Outlet] = []
        self.queued: list[Request] = []  # requests to /queue, until ``let_in`` or ``turn_away``

    def route(self, head: Head) -> str:
        self.routed += 1
        self.fields[head] = head.headers
        self.segments[head] = head.segments
        if head.path == "/missing":
            raise ApiError(404, "not_found", "nothing here")
        if head.path == "/only-get" and head.method != "GET":
            raise ApiError(405, "method_not_allowed", "GET it", {"allow": ["GET", "HEAD"]})
        if head.path == "/broken-route":
            raise ZeroDivisionError("route")
        return head.segments[0] if head.segments else ""

    def is_probe(self, route: str) -> bool:
        return route == "probe"

    def let_in(self) -> None:
        """Admits the first that waits."""
        request = self.queued.pop(0)
        request.on_close = None
        request.connection.admitted(request, self._token())

    def turn_away(self) -> None:
        """Refuses the first that waits."""
        request = self.queued.pop(0)
        request.on_close = None
        request.connection.not_admitted(
            request, ApiError(503, "ack_timeout", "too late", retry_after_s=1)
        )

    def take(self, request: Request, body_bytes: int) -> None:
        token = self.admit(request, body_bytes)
        if token is QUEUED:
            return
        try:
            self.handle(request, token)
        finally:
            if token is not None:
                self.release(token)

    def admit(self, request: Request, body_bytes: int | None) -> object | None:
        head = request.head
        self.admitted.append((head.path, body_bytes))
        if head.route == "full":
            raise ApiError(429, "throttled", "full", retry_after_s=2)
        if head.route == "broken-admit":
            raise ZeroDivisionError("admit")
        if head.route == "free":
            return None
        if head.route == "queue":
            with self.changed:
                self.queued.append(request)
                self.changed.notify_all()
            request.on_close = lambda: self.queued.remove(request)
            request.connection.await_admission()
            return QUEUED
        return self._token()

    def _token(self) -> object:
        token = object()
        with self.changed:
            self.tokens.add(token)
            self.changed.notify_all()
        return token

    def release(self, token: object) -> None:
        with self.changed:
            self.tokens.remove(token)
            self.changed.notify_all()

    def refused(self, request: Request, error: ApiError) -> None:
        pass

    def handle(self, request: Request, token: object | None) -> None:
        head = request.head
        with self.changed:
            self.handled.append((head.path, request.body))
            self.changed.notify_all()
        what = head.route
        if what == "later":
            request.on_close = lambda: self._closed(head.path)
            with self.changed:
                self.later.append(request)
                self.changed.notify_all()
        elif what == "fail":
            raise ZeroDivisionError("handle")
        elif what == "answered-then-fail":
            request.respond_ok_json(b"{}")
            raise ZeroDivisionError("handle, late")
        elif what == "refuse":
            raise ApiError(400, "invalid", "no")
        elif what == "big":
            request.respond(200, b"x" * int(head.query["bytes"]))
        elif what == "empty":
            request.respond(204)
        elif what == "abandon":
            request.abandon()
        elif what == "free":
            request.respond_ok_json(b"{}")
        elif what == "stream":
            request.stream("text/event-stream", self._opened)
        else:
            seen = {
                "method": head.method,
                "path": head.path,
                "segments": self.segments[head],
                "query": head.query,
                "headers": self.fields[head],
                "content_type": head.content_type,
                "content_encoding": head.content_encoding,
                "body": request.body.decode("latin-1"),
            }
            request.respond_ok_json(json.dumps(seen).encode())

    def _opened(self, outlet: Outlet) -> None:
        with self.changed:
            self.outlets.append(outlet)
            self.changed.notify_all()

    def _closed(self, path: str) -> None:
        with self.changed:
            self.closed.append(path)
            self.changed.notify_all()

    def wait(self, condition: Callable[[], object]) -> None:
        """Waits until the condition holds; it is looked at whenever something happened."""
        with self.changed:
            assert self.changed.wait_for(condition, PATIENCE_S)

    def wait_for_later(self, count: int) -> None:
        """Waits until ``count`` requests in all have come to /later."""
        self.wait(lambda: len(self.later) >= count)


class Front:
    """A server that runs in a thread of its own."""

    def __init__(self, limits: HttpLimits) -> None:
        self.script = Script()
        self.server = Server()
        self.limits = limits
        self._up = threading.Event()
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            uvloop.run(self._main())
        except BaseException as error:
            self._failure = error
        finally:
            self._up.set()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        await self.server.start(self.script, "127.0.0.1", 0, self.limits)
        self.port = self.server.port
        self._up.set()
        await self._stop.wait()
        await self.server.close()

    def start(self) -> None:
        self._thread.start()
        assert self._up.wait(PATIENCE_S)
        assert self._failure is None

    def stop(self) -> None:
        if self._failure is None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE_S)
        assert self._failure is None, self._failure

    def call(self, function: Callable[[], T]) -> T:
        """Runs ``function`` on the loop's thread."""

        async def run() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(PATIENCE_S)

    def answer(self, index: int, body: bytes) -> None:
        """Answers a request to /later."""
        self.call(lambda: self.script.later[index].respond_ok_json(body))

    def drained(self) -> None:
        """Waits until no connection is left."""
        asyncio.run_coroutine_threadsafe(self.server.drained(), self._loop).result(PATIENCE_S)

    @contextmanager
    def client(self) -> Iterator[Client]:
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield Client(sock)


class Answer:
    """A response as a client reads it."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])


class Client:
    """A raw socket that reads answers strictly."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._buffer = bytearray()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def half_close(self) -> None:
        self.sock.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Closes with RST instead of FIN."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.sock.close()

    def answer(self, *, to_head: bool = False) -> Answer:
        while b"\r\n\r\n" not in self._buffer:
            self._more()
        end = self._buffer.index(b"\r\n\r\n")
        raw = bytes(self._buffer[:end])
        del self._buffer[: end + 4]
        lines = raw.decode("latin-1").split("\r\n")
        version, status, _ = lines[0].split(" ", 2)
        assert version == "HTTP/1.1"
        headers = {}
        for line in lines[1:]:
            name, value = line.split(": ", 1)
            headers[name.lower()] = value
        length = 0 if to_head else int(headers.get("content-length", "0"))
        while len(self._buffer) < length:
            self._more()
        body = bytes(self._buffer[:length])
        del self._buffer[:length]
        return Answer(int(status), headers, body)

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes."""
        while len(self._buffer) < count:
            self._more()
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data

    def ended(self) -> bool:
        """Waits for the end of the stream; whether nothing came before it."""
        try:
            return not self._buffer and self.sock.recv(65536) == b""
        except ConnectionResetError:
            return not self._buffer

    def _more(self) -> None:
        data = self.sock.recv(65536)
        assert data, f"the connection ended after {bytes(self._buffer[:200])!r}"
        self._buffer += data


@contextmanager
def serving(**limits: int) -> Iterator[Front]:
    front = Front(HttpLimits(**limits))
    front.start()
    try:
        yield front
    finally:
        front.stop()


def post(path: str, body: bytes = b"", *headers: str) -> bytes:
    """A whole POST."""
    lines = [f"POST {path} HTTP/1.1", "Host: test", *headers, f"Content-Length: {len(body)}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def get(path: str, *headers: str) -> bytes:
    """A whole GET."""
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: test", *headers]).encode() + b"\r\n\r\n"


def chunked(path: str, *chunks: bytes, headers: tuple[str, ...] = ()) -> bytes:
    """A whole chunked POST."""
    lines = [f"POST {path} HTTP/1.1", "Host: test", "Transfer-Encoding: chunked", *headers]
    body = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body + b"0\r\n\r\n"
