"""Consumers over HTTP: the same messages in each format, and what they do with them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from commands.client.events import EventParser
from tests.e2e.consuming import subscribe
from tests.e2e.daemon import Daemon, stream, wait_until

RECORDS = [
    {"data": {"n": 1}, "key": "a", "tag": "t", "node": "n", "meta": {"m": [1]}, "ts": 5},
    {"data": "two\nlines", "key": "b", "ts": 6},
    {"data_b64": "AAE=", "ts": 7},
]


def of_lines(read: bytes) -> list[Any]:
    return [json.loads(line) for line in read.split(b"\n")[:-1]]


def of_events(read: bytes) -> list[Any]:
    return [json.loads(each.data) for each in EventParser().feed(read) if each.type == "message"]


def of_maps(read: bytes) -> list[Any]:
    with contextlib.suppress(msgspec.DecodeError):  # it has not come whole
        told = msgspec.msgpack.decode(read)
        assert told["event"] == "messages"
        return [in_json(each) for each in told["messages"]]
    return []


def in_json(message: dict[str, Any]) -> dict[str, Any]:
    """A message of msgpack, whose data and meta are JSON text, or bytes."""
    data = message.pop("data")
    named = {"data_b64": "AAE="} if isinstance(data, bytes) else {"data": json.loads(data)}
    meta = {"meta": json.loads(message["meta"])} if "meta" in message else {}
    return message | named | meta


FORMATS = {
    "application/x-ndjson": of_lines, "text/event-stream": of_events,
    "application/msgpack": of_maps,
}  # fmt: skip


@pytest.fixture
def path(shared_daemon: Daemon, request: pytest.FixtureRequest) -> Iterator[str]:
    """A subscription of a topic of the test's own, which has RECORDS."""
    name = request.node.name.partition("[")[0].removeprefix("test_")[:50]
    made = subscribe(shared_daemon, name, "s", backoff_ms=[1, 2])
    body = {"records": RECORDS}
    assert shared_daemon.json("POST", f"/v0/topics/{name}", body).status == 200
    yield made
    assert shared_daemon.ask("DELETE", f"/v0/topics/{name}").status == 200


def streamed(daemon: Daemon, path: str, accept: str, count: int) -> list[Any]:
    """The first messages of a stream that is left then."""
    headers = {"Accept": accept}
    with stream(daemon.port, f"{path}/consume?consumer=c", headers=headers) as answer:
        assert (answer.status, answer.getheader("Content-Type")) == (200, accept)
        read = b""
        while len(FORMATS[accept](read)) < count:
            more = answer.read1()
            assert more, f"the stream ended after {read!r}"
            read += more
        return FORMATS[accept](read)


def polled(daemon: Daemon, path: str, consumer: str, **query: object) -> Any:
    text = "&".join(f"{name}={value}" for name, value in query.items())
    answer = daemon.get(f"{path}/consume?consumer={consumer}&max=100&wait_ms=20000&{text}")
    assert answer.status == 200, answer.body
    return answer.json


def test_a_message_is_the_same_in_each_format_and_in_a_poll(
    shared_daemon: Daemon, path: str
) -> None:
    seen = [
        {"partition": 0, "attempt": 1, "seq": seq, **record}
        for seq, record in enumerate(RECORDS, 1)
    ]
    epochs = set()
    for accept in FORMATS:
        messages = streamed(shared_daemon, path, accept, len(RECORDS))
        epochs.add(messages[0]["epoch"])
        without = [{k: v for k, v in each.items() if k != "epoch"} for each in messages]
        assert sorted(without, key=lambda each: each["seq"]) == seen
        assert shared_daemon.json("POST", f"{path}/leave", {"consumer": "c"}).status == 200
    answer = polled(shared_daemon, path, "c")
    messages = sorted(answer["messages"], key=lambda each: each["seq"])
    assert [each | {"epoch": answer["epoch"]} for each in seen] == messages
    assert len(epochs | {answer["epoch"]}) == 4


def test_a_batch_is_acknowledged_but_for_what_is_excepted(shared_daemon: Daemon, path: str) -> None:
    batch = polled(shared_daemon, path, "c")
    but = [{"partition": 0, "seq": 2}]
    body = {"consumer": "c", "batch": batch["epoch"], "except": but}
    done = shared_daemon.json("POST", f"{path}/ack", body)
    found = {"accepted": 2, "refused": 0, "refused_messages": [], "epoch": batch["epoch"]}
    assert done.json == found
    rest = {"consumer": "c", "batch": batch["epoch"], "reason": "busy"}
    assert shared_daemon.json("POST", f"{path}/nack", rest).json["accepted"] == 1
    again = polled(shared_daemon, path, "c")
    assert [(each["seq"], each["attempt"]) for each in again["messages"]] == [(2, 2)]
    shared_daemon.json("POST", f"{path}/ack", {"consumer": "c", "batch": again["epoch"]})
    wait_until(lambda: shared_daemon.get(path).json["lag"] == 0, "all to be finished")
    shown = shared_daemon.get(path).json
    assert (shown["partitions"][0]["floor"], shown["acknowledged"]) == (3, 3)
    assert (shown["delivered"], shown["redelivered"], shown["refused"]) == (4, 1, 0)
