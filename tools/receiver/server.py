"""The receiver itself: a bare asyncio Protocol with httptools on uvloop, several times as fast as
what sends to it.

Each path is an endpoint of its own, made when it is first named. ``PUT /-/NAME`` with a Behavior
changes one, ``GET /-/NAME`` tells its Counts.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import httptools
import msgspec
import uvloop

from shards.clock import monotonic_ns
from tools.receiver.behavior import (
    Behavior,
    Endpoint,
    Verdict,
    Way,
)
from tools.receiver.log import Came, Event, Went

BACKLOG = 2_048
ENDPOINTS_MAX = 10_000
CONTROL = "/-/"
CUT_BYTES = 10  # of the first line, before its status
WORDS = {200: "OK", 202: "Accepted", 204: "No Content", 503: "Service Unavailable"}


class Receiver:
    """The endpoints; what they do is noted in ``log`` if there is one."""

    def __init__(self, log: Path | None, seed: int) -> None:
        self.endpoints: dict[str, Endpoint] = {}
        self.numbers: Iterator[int] = itertools.count(monotonic_ns() // 1_000_000 * 1_000_000)
        self.connections: Iterator[int] = itertools.count(monotonic_ns() // 1_000_000 * 1_000_000)
        self._rng = random.Random(seed)
        self._log = _open(log) if log is not None else None
        self._encode = msgspec.json.Encoder().encode

    @property
    def is_logged(self) -> bool:
        return self._log is not None

    def endpoint(self, name: str) -> Endpoint:
        """The endpoint of this name. Raises ValueError if there are too many."""
        found = self.endpoints.get(name)
        if found is None:
            if len(self.endpoints) >= ENDPOINTS_MAX:
                raise ValueError(f"a receiver has {ENDPOINTS_MAX} endpoints at most")
            found = self.endpoints[name] = Endpoint(random.Random(self._rng.random()))
        return found

    def note(self, entry: Came | Went) -> None:
        """Writes an entry: a kill right after this does not undo it."""
        if self._log is not None:
            os.write(self._log, self._encode(entry) + b"\n")


class _Connection(asyncio.Protocol):
    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._number = next(receiver.connections)
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport
        self._seen: set[str] = set()
        self._begin()

    def _begin(self) -> None:
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The transports of uvloop do not inherit from those of asyncio.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.abort()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        path, body = self._url.decode().partition("?")[0], b"".join(self._body)
        headers, method = self._headers, self._parser.get_method()
        self._begin()
        if path.startswith(CONTROL):
            self._control(method, path.removeprefix(CONTROL), body)
        else:
            self._post(path.strip("/"), headers, body)

    def _control(self, method: bytes, name: str, body: bytes) -> None:
        try:
            endpoint = self._receiver.endpoint(name)
            if method == b"PUT":
                endpoint.behave(msgspec.json.decode(body, type=Behavior))
        except (ValueError, msgspec.MsgspecError) as error:
            self._transport.write(_answer(400, json.dumps(str(error)).encode()))
            return
        found = msgspec.json.encode(endpoint.counts)
        self._transport.write(_answer(200, found, "application/json"))

    def _post(self, name: str, headers: dict[str, str], body: bytes) -> None:
        receiver = self._receiver
        endpoint = receiver.endpoint(name)
        counts, now_ns = endpoint.counts, monotonic_ns()
        counts.under_way += 1
        counts.under_way_max = max(counts.under_way_max, counts.under_way)
        if name not in self._seen:
            self._seen.add(name)
            counts.connections += 1
        number = next(receiver.numbers)
        if receiver.is_logged:
            events = events_of(headers, body)
            receiver.note(
                Came(name, number, now_ns // 1_000_000, events, self._number,
                     headers.get("webhook-id", ""))
            )  # fmt: skip
            verdict = endpoint.post(now_ns, len(events), [event.data for event in events])
        else:
            verdict = endpoint.post(now_ns, body.count(b'"specversion"') or 1)
        latency_ms = endpoint.behavior.latency_ms
        if latency_ms:
            loop = asyncio.get_running_loop()
            loop.call_later(latency_ms / 1e3, self._answer, name, number, verdict)
        else:
            self._answer(name, number, verdict)

    def _answer(self, name: str, number: int, verdict: Verdict) -> None:
        self._receiver.endpoint(name).counts.under_way -= 1
        is_gone = self._transport.is_closing()
        is_whole = verdict.way is Way.WHOLE and not is_gone
        self._receiver.note(
            Went(name, number, monotonic_ns() // 1_000_000, verdict.status, is_whole)
        )
        if is_gone or verdict.way is Way.SILENT:
            return
        if verdict.way is Way.LOST:
            self._transport.abort()
            return
        answer = _answer(verdict.status, b"", retry_after=verdict.retry_after)
        if verdict.way is Way.CUT:
            answer = answer[:CUT_BYTES]
        self._transport.write(answer)
        if verdict.way is Way.CUT:
            self._transport.close()


def events_of(headers: dict[str, str], body: bytes) -> tuple[Event, ...]:
    """The events of a request, in any of the three modes of CloudEvents over HTTP. What is in none
    of them is one event without an id."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/cloudevents-batch+json":
        return tuple(_event(each) for each in json.loads(body))
    if kind == "application/cloudevents+json":
        return (_event(json.loads(body)),)
    return (Event(headers.get("ce-id", ""), body.decode(errors="replace")),)


def _event(document: dict[str, Any]) -> Event:
    data = document.get("data", document.get("data_base64"))
    return Event(document["id"], json.dumps(data, ensure_ascii=False, separators=(",", ":")))


def _answer(
    status: int, body: bytes, content_type: str = "text/plain", retry_after: str = ""
) -> bytes:
    head = f"HTTP/1.1 {status} {WORDS.get(status, 'Other')}\r\nContent-Type: {content_type}\r\n"
    if retry_after:
        head += f"Retry-After: {retry_after}\r\n"
    if 300 <= status < 400:
        head += "Location: /elsewhere\r\n"
    if status != 204:
        head += f"Content-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


def _open(log: Path) -> int:
    """The log, after its last whole line."""
    number = os.open(log, os.O_RDWR | os.O_CREAT)
    data = log.read_bytes()
    os.ftruncate(number, data.rfind(b"\n") + 1)
    os.lseek(number, 0, os.SEEK_END)
    return number


async def serve(port: int, log: Path | None, seed: int) -> None:
    """Answers on 127.0.0.1:``port`` until the process is ended."""
    receiver = Receiver(log, seed)
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    server = await asyncio.get_running_loop().create_server(
        lambda: _Connection(receiver), sock=listener, backlog=BACKLOG
    )
    async with server:
        await server.serve_forever()


def main(port: int, log: Path | None, seed: int) -> None:
    """Runs until the process is ended."""
    uvloop.run(serve(port, log, seed))
