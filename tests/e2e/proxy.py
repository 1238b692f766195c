"""An HTTP proxy in front of a store, whose faults a test chooses request by request.

It reads a whole request, asks ``decide`` what to do with it, forwards it byte for byte (the
signature covers the host that the client used, which is the proxy's), and returns the answer or
not. A fault is a function of the request, so a test assigns another function to say "the third PUT
of an object" or "all of them for now".

``obey`` takes a plan of ``uploader/stores/faults.py`` instead, in the vocabulary of ``headgate
serve --chaos``, for all requests.

``Fault.HOLD`` keeps an answer until ``release``, for tests that look at a daemon during a PUT.
"""

from __future__ import annotations

import contextlib
import http.client
import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import urlsplit

from shards.clock import monotonic_ns
from tests.e2e.daemon import HANG_S
from uploader.stores import faults


class Fault(Enum):
    """What happens to a request."""

    NONE = "none"  # forwarded and answered
    LOSE_ANSWER = "lose answer"  # forwarded; the connection is reset instead of the answer
    SLOW_DOWN = "slow down"  # answered 503 SlowDown, not forwarded
    HOLD = "hold"  # forwarded; answered after ``release``
    DELAY = "delay"  # forwarded and answered ``delay_s`` later
    RESET = "reset"  # not forwarded; the connection is reset
    TIMEOUT = "timeout"  # forwarded; nothing for a while, then the connection is reset
    FULL = "full"  # answered 507, not forwarded
    FORBIDDEN = "forbidden"  # answered 403, not forwarded


OF_PLAN = {
    faults.Fault.NONE: Fault.NONE,
    faults.Fault.BUSY: Fault.SLOW_DOWN,
    faults.Fault.RESET_BEFORE: Fault.RESET,
    faults.Fault.RESET_AFTER: Fault.LOSE_ANSWER,
    faults.Fault.TIMEOUT_AFTER: Fault.TIMEOUT,
    faults.Fault.FULL: Fault.FULL,
    faults.Fault.READ_ONLY: Fault.FORBIDDEN,
}


class Request(NamedTuple):
    """A request as ``decide`` sees it; ``number`` counts PUTs of objects from 1, else 0."""

    method: str
    path: str
    number: int

    @property
    def is_object_put(self) -> bool:
        """Whether an L0 object is put."""
        return self.number > 0


Decide = Callable[[Request], Fault]
_XML = b"<?xml version='1.0'?><Error><Code>%s</Code><Message>%s</Message></Error>"
REFUSALS = {
    Fault.SLOW_DOWN: (503, _XML % (b"SlowDown", b"later")),
    Fault.FULL: (507, _XML % (b"XMinioStorageFull", b"no space")),
    Fault.FORBIDDEN: (403, _XML % (b"AccessDenied", b"read-only")),
}


def no_fault(_: Request) -> Fault:
    """Everything passes."""
    return Fault.NONE


def object_puts(fault: Fault) -> Decide:
    """Applies this fault to every PUT of an object, and to nothing else."""
    return lambda request: fault if request.is_object_put else Fault.NONE


class StoreProxy:
    """See the module's head; made by ``store_proxy``."""

    def __init__(self, endpoint_url: str) -> None:
        self.decide: Decide = no_fault
        self.delay_s = 0.0
        self.met: list[tuple[Request, Fault]] = []
        self._upstream = urlsplit(endpoint_url)
        self._mutex = threading.Lock()
        self._puts = 0
        self._released = threading.Event()
        self._ended = threading.Event()
        self._held = 0
        self._connections: set[socket.socket] = set()
        self._server = _server(self)
        self.endpoint_url = f"http://127.0.0.1:{self._server.server_port}"

    @property
    def held(self) -> int:
        """Answers that wait for ``release`` now."""
        return self._held

    def count(self, fault: Fault) -> int:
        """How many PUTs of objects met this fault."""
        return sum(request.is_object_put and met is fault for request, met in list(self.met))

    def release(self) -> None:
        """Lets held answers go, and does not hold any more."""
        self.decide = no_fault
        self._released.set()

    def obey(self, plan: faults.FaultPlan, rng: random.Random) -> None:
        """Meets all requests with the faults of a plan, by the machine's clock; torn writes are
        for ``file://``."""

        def decide(request: Request) -> Fault:
            with self._mutex:
                writes = request.method == "PUT"
                decision = plan.decide(monotonic_ns() / 1e9, rng, writes=writes)
            self._ended.wait(decision.delay_s)
            return OF_PLAN[decision.fault]

        self.decide = decide

    def hold_object_puts(self) -> None:
        """Holds the answers of all PUTs of objects from now on."""
        self._released.clear()
        self.decide = object_puts(Fault.HOLD)

    def serve(self, handler: BaseHTTPRequestHandler) -> None:
        """One request; called by the server in a thread per connection."""
        length = int(handler.headers.get("Content-Length", 0))
        body = handler.rfile.read(length)
        if len(body) < length:
            handler.close_connection = True
            return
        request = self._numbered(handler.command, handler.path)
        fault = self.decide(request)
        self.met.append((request, fault))
        if fault in REFUSALS:
            code, document = REFUSALS[fault]
            _answer(handler, code, [("Content-Type", "application/xml")], document)
            return
        if fault is Fault.RESET:
            _reset(handler)
            return
        status, headers, answer = self._forward(handler, body)
        if fault is Fault.TIMEOUT:
            self._ended.wait(faults.TIMEOUT_S)
        if fault in (Fault.LOSE_ANSWER, Fault.TIMEOUT):
            _reset(handler)
            return
        if fault is Fault.HOLD:
            with self._mutex:
                self._held += 1
            self._released.wait()
            with self._mutex:
                self._held -= 1
        if fault is Fault.DELAY:
            self._ended.wait(self.delay_s)
        try:
            _answer(handler, status, headers, answer)
        except ConnectionError:
            handler.close_connection = True  # the daemon that asked was killed

    def _numbered(self, method: str, path: str) -> Request:
        with self._mutex:
            is_object = method == "PUT" and "/l0/" in path
            self._puts += is_object
            return Request(method, path, self._puts if is_object else 0)

    def _forward(
        self, handler: BaseHTTPRequestHandler, body: bytes
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        host, port = self._upstream.hostname or "", self._upstream.port
        upstream = http.client.HTTPConnection(host, port, timeout=HANG_S)
        with contextlib.closing(upstream):
            upstream.putrequest(
                handler.command, handler.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in handler.headers.items():
                if name.lower() not in ("expect", "connection"):
                    upstream.putheader(name, value)
            upstream.endheaders(body)
            answer = upstream.getresponse()
            dropped = ["connection", "transfer-encoding"]
            if handler.command != "HEAD":
                dropped.append("content-length")  # of a HEAD it is the object's, not the answer's
            headers = [(n, v) for n, v in answer.getheaders() if n.lower() not in dropped]
            return answer.status, headers, answer.read()

    def start(self) -> threading.Thread:
        """Serves in a thread."""
        thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), name="proxy")
        thread.start()
        return thread

    def close(self) -> None:
        """Ends all connections and their threads."""
        self.release()
        self._ended.set()
        self._server.shutdown()
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._server.server_close()

    def opened(self, connection: socket.socket) -> None:
        """A connection began."""
        self._connections.add(connection)

    def closed(self, connection: socket.socket) -> None:
        """A connection is over."""
        self._connections.discard(connection)


def _server(proxy: StoreProxy) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            proxy.opened(self.connection)

        def finish(self) -> None:
            proxy.closed(self.connection)
            super().finish()

        def serve(self) -> None:
            proxy.serve(self)

        def handle(self) -> None:
            with contextlib.suppress(ConnectionError):  # a killed daemon's connection
                super().handle()

        def log_message(self, format: str, *args: object) -> None:
            """Keeps stderr for what matters."""

    for method in ("GET", "PUT", "POST", "HEAD", "DELETE"):
        setattr(Handler, f"do_{method}", Handler.serve)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False
    return server


def _reset(handler: BaseHTTPRequestHandler) -> None:
    linger = struct.pack("ii", 1, 0)
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    handler.close_connection = True


def _answer(
    handler: BaseHTTPRequestHandler, status: int, headers: list[tuple[str, str]], body: bytes
) -> None:
    handler.send_response(status)
    for name, value in headers:
        handler.send_header(name, value)
    if handler.command != "HEAD":
        handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(body)


@contextlib.contextmanager
def store_proxy(endpoint_url: str) -> Iterator[StoreProxy]:
    """A proxy in front of the store at ``endpoint_url``; close the daemon before it."""
    proxy = StoreProxy(endpoint_url)
    thread = proxy.start()
    try:
        yield proxy
    finally:
        proxy.close()
        thread.join()
