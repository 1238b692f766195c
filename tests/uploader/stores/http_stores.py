"""HTTP servers that misbehave in ways that a real store does not show on demand.

``ScriptedStore`` answers what a test tells it to; ``ResettingProxy`` lets a request through to a
real store and breaks the connection instead of handing back the answer.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import urlsplit


class Request(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    port: int = 0
    """The port of the client: another port is another connection."""


class Answer(NamedTuple):
    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


def error(status: int, code: str) -> Answer:
    """An answer as S3 words it."""
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>said so</Message></Error>"
    return Answer(status, body.encode(), (("Content-Type", "application/xml"),))


class ScriptedStore(NamedTuple):
    endpoint_url: str
    requests: list[Request]


@contextmanager
def scripted_store(answers: Callable[[Request], Answer | None]) -> Iterator[ScriptedStore]:
    """A server that answers with ``answers(request)``; None keeps the client waiting."""
    requests: list[Request] = []
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(self.command, self.path, headers, body, self.client_address[1])
            requests.append(request)
            answer = answers(request)
            if answer is None:
                ended.wait()
                self.close_connection = True
                return
            self.send_response(answer.status)
            for name, value in answer.headers:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)

        def log_message(self, format: str, *args: object) -> None:
            """Keeps stderr for what matters."""

    for method in ("GET", "PUT", "POST", "HEAD", "DELETE"):
        setattr(Handler, f"do_{method}", Handler.answer)

    class Server(ThreadingHTTPServer):
        request_queue_size = 128  # of 5, those beyond try again after 1, 2 and 4 s, if they may
        daemon_threads = True

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield ScriptedStore(f"http://127.0.0.1:{server.server_port}", requests)
    finally:
        ended.set()
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def resetting_proxy(endpoint_url: str) -> Iterator[str]:
    """The URL of a proxy that resets each connection as soon as the real store has answered."""
    upstream = urlsplit(endpoint_url)
    listener = socket.create_server(("127.0.0.1", 0))

    def relay(client: socket.socket, server: socket.socket) -> None:
        """Both ways until the server has answered. One thread: a socket that another thread
        reads from is not closed by ``close``."""
        while True:
            for ready in select.select([client, server], [], [])[0]:
                data = ready.recv(65536)
                if not data or (ready is server and not data.startswith(b"HTTP/1.1 100")):
                    return
                (server if ready is client else client).sendall(data)

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return  # the listener is closed
            with socket.create_connection((upstream.hostname, upstream.port or 80)) as server:
                relay(client, server)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
