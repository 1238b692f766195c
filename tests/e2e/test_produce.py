"""Producing: what is sent in any form is what is read, in the partition of its key."""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from collections import Counter
from typing import Any

import msgspec
import pytest
import zstandard

from delivery.partitioner import partition_of
from shards.clock import wall_ms
from tests.e2e.daemon import Answer, Daemon
from tests.e2e.wire import Wire, chunked, request, wire_of_each_shard
from uploader.l0.records import TIMESTAMP_MS_MAX

ZLIB, GZIP, ZSTD = zlib.compress, gzip.compress, zstandard.ZstdCompressor().compress


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


def test_meta_is_kept_as_the_text_received(shared_daemon: Daemon) -> None:
    body = b'{"records":[{"data":0,"meta":{"n": 1.0e5, "n":2}}]}'
    shared_daemon.ask("POST", "/v0/topics/meta", body, content_type="application/json")

    assert b'"meta":{"n": 1.0e5, "n":2}' in raw_diff(shared_daemon, "meta")


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


def test_keys_that_share_a_partition_are_answered_in_one_piece(shared_daemon: Daemon) -> None:
    shared_daemon.json("PUT", "/v0/topics/one-key", {"partitions": 5})
    records = [{"data": n, "key": "same"} for n in range(3)]
    answer = shared_daemon.json("POST", "/v0/topics/one-key", {"records": records})

    stored(answer, 1, 3)
    assert answer.json["partition"] == partition_of("same", 5)


def test_records_without_keys_stay_together_next_to_those_with_keys(shared_daemon: Daemon) -> None:
    shared_daemon.json("PUT", "/v0/topics/mixed", {"partitions": 4})
    records = [{"data": n} | ({"key": str(n)} if n % 2 else {}) for n in range(20)]
    shared_daemon.json("POST", "/v0/topics/mixed", {"records": records})

    keyless = set()
    for partition in range(4):
        for record in shared_daemon.read_all("mixed", partition):
            if "key" in record:
                assert partition == partition_of(record["key"], 4)
            else:
                keyless.add(partition)
    assert len(keyless) == 1


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


def test_a_partition_that_is_named_takes_everything(shared_daemon: Daemon) -> None:
    shared_daemon.json("PUT", "/v0/topics/named", {"partitions": 3})
    records = [{"data": n, "key": str(n)} for n in range(10)]
    stored(
        shared_daemon.json("POST", "/v0/topics/named", {"records": records, "partition": 2}), 1, 10
    )
    lines = b"1\n2\n"
    path = "/v0/topics/named?partition=2"
    stored(shared_daemon.ask("POST", path, lines, content_type="application/x-ndjson"), 11, 2)

    assert [len(shared_daemon.read_all("named", p)) for p in range(3)] == [0, 0, 12]


@pytest.mark.parametrize("form", ["array", "lines"])
def test_a_field_of_the_data_can_be_the_key(shared_daemon: Daemon, form: str) -> None:
    topic = f"field.{form}"
    shared_daemon.json("PUT", f"/v0/topics/{topic}", {"partitions": 4})
    values = [{"user": f"u{n % 5}", "n": n} for n in range(20)] + [{"user": 7, "n": 20}]
    texts = [json.dumps(value).encode() for value in values]
    if form == "array":
        content_type, body = "application/json", b"[%s]" % b",".join(texts)
    else:
        content_type, body = "application/x-ndjson", b"\n".join(texts)
    path = f"/v0/topics/{topic}?key=user"
    assert shared_daemon.ask("POST", path, body, content_type=content_type).status == 200

    count = 0
    for partition in range(4):
        for record in shared_daemon.read_all(topic, partition):
            assert record["key"] == str(record["data"]["user"])
            assert partition_of(record["key"], 4) == partition
            count += 1
    assert count == 21


@pytest.mark.parametrize(
    ("encoding", "compress"),
    [("gzip", GZIP), ("x-gzip", GZIP), ("deflate", ZLIB), ("zstd", ZSTD), ("identity", bytes)],
)
@pytest.mark.parametrize("is_chunked", [False, True])
def test_bodies_may_be_compressed_and_chunked(
    shared_daemon: Daemon, encoding: str, compress: type[bytes], is_chunked: bool
) -> None:
    topic = f"packed.{encoding}.{is_chunked}"
    body = compress(json.dumps([{"n": n} for n in range(500)]).encode())
    with Wire(shared_daemon.port) as wire:
        headers = {"Content_Type": "application/json", "Content_Encoding": encoding}
        path = f"/v0/topics/{topic}"
        if is_chunked:
            head = request("POST", path, Transfer_Encoding="chunked", **headers)
            wire.send(head)
            answer = wire.ask(chunked(body, 1, 2, 100))
        else:
            head = request("POST", path, Content_Length=str(len(body)), **headers)
            answer = wire.ask(head + body)
        stored(answer, 1, 500)
    assert [r["data"]["n"] for r in shared_daemon.read_all(topic)] == list(range(500))


def test_a_body_may_come_byte_by_byte(shared_daemon: Daemon) -> None:
    with Wire(shared_daemon.port) as wire:
        whole = request("POST", "/v0/topics/bytewise", b'[1,"two"]')
        for byte in whole[:-1]:
            wire.send(bytes([byte]))
        stored(wire.ask(whole[-1:]), 1, 2)


def test_expect_100_continue_is_answered_before_the_body(shared_daemon: Daemon) -> None:
    with Wire(shared_daemon.port) as wire:
        for first in (1, 2):
            head = request(
                "POST", "/v0/topics/expect", Content_Length="3", Expect="100-continue",
                Content_Type="application/json",
            )  # fmt: skip
            assert wire.ask(head).status == 100
            stored(wire.ask(b"[1]"), first, 1)


def test_pipelined_requests_are_answered_in_order(shared_daemon: Daemon) -> None:
    count = 300  # more than a connection may have outstanding
    with wire_of_each_shard(shared_daemon, "warm") as wires:
        for number, wire in enumerate(wires):
            topic = f"pipelined.{number}"  # the first request creates it, the others wait for that
            sent = b"".join(
                request("POST", f"/v0/topics/{topic}", b"[%d]" % n) for n in range(count)
            )
            wire.send(sent)
            for n in range(count):
                answer = wire.answer()
                assert answer is not None
                stored(answer, n + 1, 1)
            read = shared_daemon.read_all(topic)
            assert [(r["seq"], r["data"]) for r in read] == [(n + 1, n) for n in range(count)]


def test_a_refused_request_leaves_its_neighbors_alone(shared_daemon: Daemon) -> None:
    path = "/v0/topics/neighbors"
    bodies = [b"[1]", b"[oops]", b"[2]", b"[]", b"[3]"]
    shared_daemon.json("PUT", path, {})
    with Wire(shared_daemon.port) as wire:
        wire.send(b"".join(request("POST", path, body) for body in bodies))
        wire.send(request("GET", path) + request("POST", path, b"[4]"))
        answers = [wire.answer() for _ in range(7)]
    assert [a.status for a in answers if a] == [200, 400, 200, 400, 200, 200, 200]
    assert [r["data"] for r in shared_daemon.read_all("neighbors")] == [1, 2, 3, 4]


def test_http_1_0_and_connection_close_are_honored(shared_daemon: Daemon) -> None:
    body = (
        b"POST /v0/topics/closing HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: 3"
    )
    for data in (
        body + b"\r\n\r\n[1]",
        request("POST", "/v0/topics/closing", b"[1]", Connection="close"),
    ):
        with Wire(shared_daemon.port) as wire:
            wire.send(data)
            (answer,) = wire.answers()
            assert (answer.status, answer.headers["connection"]) == (200, "close")


def test_many_connections_lose_nothing_and_double_nothing(shared_daemon: Daemon) -> None:
    wires = [Wire(shared_daemon.port) for _ in range(16)]
    try:
        offsets: list[int] = []
        for turn in range(20):
            for number, wire in enumerate(wires):
                wire.send(request("POST", "/v0/topics/crowd", b"[%d]" % (turn * 16 + number)))
            for wire in wires:
                answer = wire.answer()
                assert answer is not None and answer.status == 200
                offsets.append(answer.json["first_seq"])
    finally:
        for wire in wires:
            wire.close()
    assert sorted(offsets) == list(range(1, 321))
    read = shared_daemon.read_all("crowd")
    assert [r["seq"] for r in read] == list(range(1, 321))
    by_offset = {r["seq"]: r["data"] for r in read}
    assert sorted(by_offset.values()) == list(range(320))
    for number in range(16):
        mine = [o for o in offsets if by_offset[o] % 16 == number]
        assert mine == sorted(mine), "a connection's requests keep their order"
        assert [by_offset[o] for o in mine] == [turn * 16 + number for turn in range(20)]
