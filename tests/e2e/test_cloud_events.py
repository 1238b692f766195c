"""CloudEvents as hooks: what the SDK sends, and what Headgate itself pushes, is read as it was."""

from __future__ import annotations

from base64 import b64decode
from datetime import UTC, datetime
from typing import Any

import pytest
from cloudevents.core.bindings.http import HTTPMessage, to_binary_event, to_structured_event
from cloudevents.core.v1.event import CloudEvent

from tests.e2e.daemon import Answer, Daemon, wait_until
from tests.signing import secret_of

SECRET = secret_of(b"a key that both Headgates have....")
BATCH = "application/cloudevents-batch+json"
ABOUT = {
    "id": "A-1", "source": "/shop/täglich", "type": "order.placed", "subject": "50 % \"off\"",
    "time": datetime(2026, 1, 31, 12, 0, 0, 123_000, tzinfo=UTC), "partitionkey": "customer-7",
}  # fmt: skip


def send(daemon: Daemon, topic: str, message: HTTPMessage) -> Answer:
    """What the SDK made goes to a topic."""
    return daemon.ask("POST", f"/v0/hooks/{topic}", message.body, **message.headers)


def event(data: Any, **more: Any) -> CloudEvent:
    return CloudEvent({**ABOUT, "specversion": "1.0", **more}, data)


@pytest.mark.parametrize("mode", [to_binary_event, to_structured_event], ids=["binary", "json"])
def test_an_event_of_the_sdk_is_a_record_and_its_repeat_is_none(
    daemon: Daemon, topic: str, mode: Any
) -> None:
    message = mode(event({"n": 1}, datacontenttype="application/json"))
    assert send(daemon, topic, message).json["deduped"] is False
    assert send(daemon, topic, message).json["deduped"] is True
    other = mode(event({"n": 2}, datacontenttype="application/json"))
    assert send(daemon, topic, other).json["deduped"] is False, "nothing is lost"
    record, _ = daemon.read_all(topic)
    assert record["data"] == {"n": 1}
    assert (record["key"], record["tag"]) == ("customer-7", "order.placed")
    assert record["ts"] == 1_769_860_800_123
    meta = record["meta"]
    assert (meta["id"], meta["source"], meta["subject"]) == (
        "A-1", "/shop/täglich", "50 % \"off\"",
    )  # fmt: skip


@pytest.mark.parametrize("mode", [to_binary_event, to_structured_event], ids=["binary", "json"])
@pytest.mark.parametrize(
    ("kind", "data"),
    [("application/octet-stream", bytes(range(256))), ("text/xml", "<a>é</a>")],
    ids=["bytes", "text"],
)
def test_what_is_not_json_is_bytes(
    daemon: Daemon, topic: str, mode: Any, kind: str, data: Any
) -> None:
    assert send(daemon, topic, mode(event(data, datacontenttype=kind))).status == 200
    (record,) = daemon.read_all(topic)
    assert b64decode(record["data_b64"]) == (data.encode() if isinstance(data, str) else data)
    assert record["meta"]["datacontenttype"] == kind


def test_a_batch_of_events_is_stored_whole_or_not_at_all(daemon: Daemon, topic: str) -> None:
    bodies = [
        to_structured_event(event({"n": n}, id=f"A-{n}", datacontenttype="application/json")).body
        for n in range(3)
    ]
    path = f"/v0/hooks/{topic}"
    bad = b"[" + b",".join([*bodies, b'{"specversion":"1.0","id":"1","source":"s"}']) + b"]"
    refused = daemon.ask("POST", path, bad, content_type=BATCH)
    assert refused.status == 400 and refused.json["error"]["detail"]["record"] == 3
    whole = b"[" + b",".join(bodies) + b"]"
    assert daemon.ask("POST", path, whole, content_type=BATCH).json["count"] == 3
    assert daemon.ask("POST", path, whole, content_type=BATCH).json["deduped"] is True
    assert [each["data"]["n"] for each in daemon.read_all(topic)] == [0, 1, 2]


RECORDS: list[dict[str, Any]] = [
    {"data": {"n": 1}, "key": "ü 1", "tag": "t%", "node": "n\"1", "meta": {"é": [1]}, "ts": 1_000},
    {"data": "text", "ts": 2_001},
    {"data_b64": "AP8=", "key": "", "ts": 3_000},
    {"data": None, "key": "k", "ts": 4_000},
]  # fmt: skip


@pytest.mark.parametrize("form", ["binary", "structured", "batch"])
def test_what_headgate_pushes_to_headgate_is_the_record_that_it_was(
    daemon: Daemon, topic: str, form: str
) -> None:
    copy = f"copy.of.{form}"
    asked = {"hook": {"scheme": "standard", "secrets": [SECRET]}}
    assert daemon.json("PUT", f"/v0/topics/{copy}", asked).status == 201
    produced = daemon.json("POST", f"/v0/topics/{topic}", {"records": RECORDS})
    assert produced.status == 200, produced.body
    push = {
        "endpoint": f"{daemon.url}/v0/hooks/{copy}", "format": form, "secrets": [SECRET],
        "rate_start": 100.0,
    }  # fmt: skip
    path = f"/v0/topics/{topic}/subscriptions/s"
    made = daemon.json("PUT", path, {"push": push, "start": "earliest"})
    assert made.status == 201, made.body
    wait_until(lambda: len(daemon.read_all(copy)) == len(RECORDS), "all records to come")
    came = [{name: each[name] for name in each if name != "seq"} for each in daemon.read_all(copy)]
    assert sorted(came, key=lambda each: int(each["ts"])) == RECORDS
    unsigned = daemon.ask("POST", f"/v0/hooks/{copy}", b"[]", content_type=BATCH)
    assert unsigned.code == "bad_signature"
