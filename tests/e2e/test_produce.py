"""Producing: what is sent in any form is what is read, in the partition of its key."""

from __future__ import annotations

import base64
import gzip
import json
from collections import Counter
from typing import Any

import msgspec
import pytest

from delivery.partitioner import partition_of
from shards.clock import wall_ms
from tests.e2e.daemon import Answer, Daemon
from tests.e2e.wire import Wire, chunked, request
from uploader.l0.records import TIMESTAMP_MS_MAX


def raw_diff(daemon: Daemon, topic: str) -> bytes:
    """The bytes of a diff's answer: decoding would hide how a number was written."""
    answer = daemon.json("POST", f"/v0/topics/{topic}/diff", {})
    assert answer.status == 200
    return answer.body


def stored(answer: Answer, first_seq: int, count: int) -> None:
    """The answer says that ``count`` records are stored, from this offset on."""
    assert answer.status == 200, answer.body
    said = answer.json
    assert (said["first_seq"], said["last_seq"]) == (first_seq, first_seq + count - 1)
    assert (said["count"], said["deduped"]) == (count, False)
    assert said["head_seq"] >= said["last_seq"]


@pytest.mark.parametrize(
    ("name", "content_type", "body"),
    [
        ("object", "application/json", b'{"records":[{"data":{"a":1}},{"data":"b"}]}'),
        ("charset", "Application/JSON; charset=utf-8",
         b'{"records":[{"data":{"a":1}},{"data":"b"}]}'),
        ("array", "application/json", b' [{"a":1}, "b"]'),
        ("x-ndjson", "application/x-ndjson", b'{"a":1}\n"b"\n'),
        ("ndjson", "application/ndjson", b'{"a":1}\r\n\r\n"b"'),
        ("jsonl", "application/jsonl", b'\n{"a":1}\n"b"'),
        ("msgpack", "application/msgpack",
         msgspec.msgpack.encode({"records": [{"data": {"a": 1}}, {"data": "b"}]})),
        ("x-msgpack", "application/x-msgpack",
         msgspec.msgpack.encode({"records": [{"data": {"a": 1}}, {"data": "b"}]})),
    ],
)  # fmt: skip
def test_every_format_gives_the_same_records(
    shared_daemon: Daemon, name: str, content_type: str, body: bytes
) -> None:
    topic = f"format.{name}"
    answer = shared_daemon.ask("POST", f"/v0/topics/{topic}", body, content_type=content_type)

    stored(answer, 1, 2)
    before = wall_ms()
    records = shared_daemon.read_all(topic)
    assert [r["data"] for r in records] == [{"a": 1}, "b"]
    for number, record in enumerate(records, 1):
        assert set(record) == {"seq", "ts", "data"}, "what is absent stays absent"
        assert record["seq"] == number
        assert before - 120_000 < record["ts"] <= before


BYTES = bytes(range(256))


@pytest.mark.parametrize(
    ("name", "content_type", "body"),
    [
        ("b64", "application/json",
         json.dumps({"records": [{"data_b64": base64.b64encode(BYTES).decode()}]}).encode()),
        ("bin", "application/msgpack", msgspec.msgpack.encode({"records": [{"data": BYTES}]})),
        ("octets", "application/octet-stream", BYTES),
    ],
)  # fmt: skip
def test_bytes_come_back_in_base64(
    shared_daemon: Daemon, name: str, content_type: str, body: bytes
) -> None:
    answer = shared_daemon.ask("POST", f"/v0/topics/bytes.{name}", body, content_type=content_type)

    stored(answer, 1, 1)
    (record,) = shared_daemon.read_all(f"bytes.{name}")
    assert "data" not in record
    assert base64.b64decode(record["data_b64"]) == BYTES


def test_fields_come_back_as_they_were_sent(shared_daemon: Daemon) -> None:
    records: list[dict[str, Any]] = [
        {"data": 1, "key": "k", "tag": "t", "node": "n", "meta": {"m": [1, {"x": None}]}, "ts": 5},
        {"data": None, "key": "", "tag": "", "node": "", "meta": {}, "ts": 0},
        {"data": False, "ts": TIMESTAMP_MS_MAX},
        {"data": "é☃😀\u0000", "key": "ключ", "tag": "\u0001", "node": "\\\"'"},
        {"data": [], "meta": None, "key": None, "tag": None, "node": None, "ts": None},
    ]
    stored(shared_daemon.json("POST", "/v0/topics/fields", {"records": records}), 1, 5)

    read = shared_daemon.read_all("fields")
    assert set(read[4]) == {"seq", "ts", "data"}, "null is absent"
    for sent, got in zip(records, read, strict=True):
        present = {name: value for name, value in sent.items() if value is not None}
        present["data"] = sent["data"]
        got.pop("seq")
        if "ts" not in present:
            got.pop("ts")
        assert got == present


def test_fields_of_bytes_are_in_the_query(shared_daemon: Daemon) -> None:
    path = "/v0/topics/query?key=a%20b&tag=&node=n%2F1&ts=77&partition=0"
    stored(shared_daemon.ask("POST", path, b"x", content_type="application/octet-stream"), 1, 1)

    assert shared_daemon.read_all("query") == [
        {"seq": 1, "ts": 77, "data_b64": "eA==", "key": "a b", "tag": "", "node": "n/1"}
    ]


TEXTS = [
    b"1.0e5", b"1E+2", b"-0", b"-0.0", b"123456789012345678901234567890", b"0.1000", b"1e-400",
    b'"\\u00e9\\/\\ud83d\\ude00"', '"é/😀"'.encode(), b'{"b":1,"a":2,"b":3}',
    b'{ "a" :\t[ 1 ,2 ] }', b'""', b"{}", b"[]", b"null", b"true",
]  # fmt: skip


@pytest.mark.parametrize("form", ["object", "array", "lines"])
def test_data_is_kept_as_the_text_received(shared_daemon: Daemon, form: str) -> None:
    if form == "object":
        content_type = "application/json"
        body = b'{"records":[%s]}' % b",".join(b'{"data":%s}' % text for text in TEXTS)
    elif form == "array":
        content_type, body = "application/json", b"[%s]" % b",".join(TEXTS)
    else:
        content_type, body = "application/x-ndjson", b"\n".join(TEXTS)
    answer = shared_daemon.ask("POST", f"/v0/topics/text.{form}", body, content_type=content_type)

    stored(answer, 1, len(TEXTS))
    read = raw_diff(shared_daemon, f"text.{form}")
    at = 0
    for text in TEXTS:
        at = read.find(b'"data":' + text + b"}", at)
        assert at >= 0, (text, read)


def test_keys_spread_over_partitions_as_kafka_does(shared_daemon: Daemon) -> None:
    shared_daemon.json("PUT", "/v0/topics/keys", {"partitions": 7})
    keys = [f"key-{n % 25}" for n in range(100)]
    head = dict.fromkeys(range(7), 0)
    for _ in range(2):
        answer = shared_daemon.json(
            "POST",
            "/v0/topics/keys",
            {"records": [{"data": n, "key": key} for n, key in enumerate(keys)]},
        )
        assert set(answer.json) == {"topic", "partitions", "count", "deduped"}
        assert (answer.json["count"], answer.json["deduped"]) == (100, False)
        expected = Counter(partition_of(key, 7) for key in keys)
        parts = answer.json["partitions"]
        assert [p["partition"] for p in parts] == sorted(expected)
        for part in parts:
            number = part["partition"]
            assert part["count"] == expected[number]
            assert part["first_seq"] == head[number] + 1
            head[number] += part["count"]
            assert part["last_seq"] == part["head_seq"] == head[number]
    for partition in range(7):
        mine = [n for n, key in enumerate(keys) if partition_of(key, 7) == partition]
        read = shared_daemon.read_all("keys", partition)
        assert [r["data"] for r in read] == mine + mine, "in the order of the request"
        assert all(r["key"] == keys[r["data"]] for r in read)
    states = shared_daemon.get("/v0/topics/keys").json["partitions"]
    assert {s["partition"]: s["head_seq"] for s in states} == head


def test_requests_without_keys_go_round(shared_daemon: Daemon) -> None:
    shared_daemon.json("PUT", "/v0/topics/round", {"partitions": 3})
    with Wire(shared_daemon.port) as wire:
        partitions = []
        for _ in range(9):
            answer = wire.json("POST", "/v0/topics/round", {"records": [{"data": 0}, {"data": 1}]})
            assert answer.json["count"] == 2
            partitions.append(answer.json["partition"])
    assert Counter(partitions) == {0: 3, 1: 3, 2: 3}
    assert partitions == partitions[:3] * 3


def test_a_body_may_be_compressed_and_chunked(shared_daemon: Daemon) -> None:
    body = gzip.compress(json.dumps([{"n": n} for n in range(500)]).encode())
    with Wire(shared_daemon.port) as wire:
        wire.send(
            request("POST", "/v0/topics/packed", Transfer_Encoding="chunked",
                    Content_Type="application/json", Content_Encoding="gzip")
        )  # fmt: skip
        stored(wire.ask(chunked(body, 1, 2, 100)), 1, 500)
    assert [r["data"]["n"] for r in shared_daemon.read_all("packed")] == list(range(500))
