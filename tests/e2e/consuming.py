"""Consumers of subscriptions for tests, on connections to a shard of the test's choice."""

from __future__ import annotations

import contextlib
import http.client
import json
from typing import Any

from tests.e2e.daemon import Answer, Daemon
from tests.e2e.processes import connect_to
from tests.e2e.subscribing import PATIENT_MS


class ShardLine:
    """A keep-alive connection to one shard, for requests of any kind."""

    def __init__(self, daemon: Daemon, shard: int) -> None:
        self._stack = contextlib.ExitStack()
        self.socket = self._stack.enter_context(connect_to(daemon, shard)).socket

    def begin(self, method: str, path: str, document: object = None) -> None:
        """Sends a request; does not wait for its answer."""
        body = b"" if document is None else json.dumps(document).encode()
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAccept: application/x-ndjson\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self.socket.sendall(head.encode() + body)

    def response(self) -> http.client.HTTPResponse:
        """The head of the next answer; its body can be read from it."""
        response = self._stack.enter_context(http.client.HTTPResponse(self.socket))
        response.begin()
        return response

    def ask(self, method: str, path: str, document: object = None) -> Answer:
        """A request and its answer."""
        self.begin(method, path, document)
        response = self.response()
        return Answer(response.status, dict(response.getheaders()), response.read())

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> ShardLine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ConsumerStream:
    """A consumer's open stream at one shard."""

    def __init__(self, daemon: Daemon, shard: int, path: str, consumer: str) -> None:
        self._line = ShardLine(daemon, shard)
        self._line.begin("GET", f"{path}/consume?consumer={consumer}")
        self._answer = self._line.response()
        assert self._answer.status == 200, self._answer.read()
        self.told: list[dict[str, Any]] = []

    def messages(self, count: int) -> list[dict[str, Any]]:
        """The next messages; the test fails if the stream ends before."""
        found: list[dict[str, Any]] = []
        while len(found) < count:
            line = self._answer.readline()
            assert line.endswith(b"\n"), f"the stream ended after {found[-3:]}, {self.told[-3:]}"
            event = json.loads(line)
            if "seq" in event:
                found.append(event)
            else:
                self.told.append(event)
        return found

    def rest(self) -> list[dict[str, Any]]:
        """Everything until the stream ends."""
        return [json.loads(line) for line in self._answer.readlines()]

    def close(self) -> None:
        self._line.close()

    def __enter__(self) -> ConsumerStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def subscribe(daemon: Daemon, topic: str, name: str, **settings: object) -> str:
    """A new topic with a subscription; its path."""
    assert daemon.json("PUT", f"/v0/topics/{topic}", {"partitions": 1}).status == 201
    path = f"/v0/topics/{topic}/subscriptions/{name}"
    made = daemon.json("PUT", path, {"ack_timeout_ms": PATIENT_MS, **settings})
    assert made.status == 201, made.body
    return path


def owner_of(daemon: Daemon, path: str) -> int:
    """The shard that owns a subscription."""
    answer = daemon.get(path)
    assert answer.status == 200, answer.body
    return int(answer.json["owner_shard"])


def acknowledgment(consumer: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The body of an acknowledgment, message by message."""
    named = [{name: each[name] for name in ("partition", "seq", "epoch")} for each in messages]
    return {"consumer": consumer, "messages": named}
