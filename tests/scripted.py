"""A real HTTP server whose answers a test prepares, for tests of clients.

It replaces the daemon only at the other end of a socket; the daemon itself is tested elsewhere.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any, NamedTuple

from click.testing import CliRunner, Result

import cli
from delivery.streams.wire import chunk


class Call(NamedTuple):
    """A request as it was received; calls are equal whatever their headers are."""

    method: str
    path: str
    body: Any
    headers: Mapping[str, str] = MappingProxyType({})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Call) and self[:3] == other[:3]


class Lasting(NamedTuple):
    """A body without an end: ``more`` is asked for its next bytes again and again, until it returns
    None, which hangs up."""

    more: Callable[[], bytes | None]


class Answer(NamedTuple):
    """An answer; bytes are sent as they are, a Lasting in chunks, everything else as JSON. Status 0
    hangs up."""

    status: int
    body: Any = None
    headers: Mapping[str, str] = MappingProxyType({})


Script = Callable[[Call], Answer]


def refusal(status: int, code: str, message: str = "no", **detail: Any) -> Answer:
    """An error as the API answers it."""
    return Answer(status, {"error": {"code": code, "message": message, "detail": detail}})


class Scripted(ThreadingHTTPServer):
    """Answers by ``script`` and remembers all calls and how many connections there were."""

    daemon_threads = False
    request_queue_size = 128  # of 5, those beyond try again after 1, 2 and 4 s, if they may

    def __init__(self, script: Script) -> None:
        self.script = script
        self.calls: list[Call] = []
        self.connections = 0
        self.closing = threading.Event()
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Scripted

    def setup(self) -> None:
        self.server.connections += 1
        super().setup()

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        document = json.loads(body) if body else None
        call = Call(self.command, self.path, document, dict(self.headers))
        self.server.calls.append(call)
        answer = self.server.script(call)
        if answer.status == 0:
            self.close_connection = True
            return
        if isinstance(answer.body, Lasting):
            self._stream(answer.body.more)
            return
        data = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        self.send_response(answer.status)
        self.send_header("Content-Length", str(len(data)))
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, more: Callable[[], bytes | None]) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Connection", "close")
        self.end_headers()
        while (data := more()) is not None:
            try:
                self.wfile.write(chunk(data))
            except OSError:
                return  # the client has gone
            if not data and self.server.closing.wait(0.005):
                return

    do_GET = do_PUT = do_POST = do_DELETE = _answer


@contextmanager
def scripted(script: Script) -> Iterator[Scripted]:
    """A server that runs during a ``with`` block."""
    server = Scripted(script)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.closing.set()
        server.shutdown()
        thread.join()
        server.server_close()


def says(answer: Answer) -> AbstractContextManager[Scripted]:
    """A server that always answers this."""
    return scripted(lambda call: answer)


def state(topic: str = "orders", partitions: int = 1, **config: Any) -> dict[str, Any]:
    """A topic as GET answers it."""
    usual = {
        "partitions": partitions, "columns": {}, "priority": None, "auto_priority": True,
        "lossy": False, "cap_records": None, "cap_bytes": None, "ttl_ms": None, "discard": "old",
        "dedupe": "none", "retain_for_subscriptions": None, "hook": None, "kafka_value": "bytes",
        "kafka_cleanup_policy": "delete",
    }  # fmt: skip
    rows = [
        {"partition": n, "head_seq": 10, "earliest_seq": 1, "next_seq": 11, "count": 10,
         "bytes": 2048, "compacted_seq": 0, "lost_seq": 0, "lost_reason": ""}
        for n in range(partitions)
    ]  # fmt: skip
    return {
        "topic": topic, "topic_id": 7, "table": topic, "config": usual | config,
        "partitions": rows, "effective_priority": 250, "band": 2,
        "age_ms": 0, "recency": 250, "watchers": 3, "lagged_watchers": 0, "created_ms": 1,
    }  # fmt: skip


def run(server: Scripted, *arguments: str, stdin: str | bytes | None = None) -> Result:
    """The command with this server as its daemon."""
    environ = {"HEADGATE_URL": server.url}
    return CliRunner().invoke(cli.headgate, arguments, input=stdin, env=environ)
