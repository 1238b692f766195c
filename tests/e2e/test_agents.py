"""The daemon accepts what Vector and Fluent Bit send, with the settings of docs/producers.md.

What the agents do with an answer depends on its status alone.
"""

from __future__ import annotations

import gzip
import json
from typing import Any

import msgspec
import pytest

from delivery.partitioner import partition_of
from tests.e2e.agents import (
    EVENTS,
    VECTOR_AGENT,
    VECTOR_COMPRESSIONS,
    fluent_bit,
    lines_of,
    vector,
)
from tests.e2e.daemon import Daemon
from tests.e2e.wire import Wire


@pytest.mark.parametrize("compression", VECTOR_COMPRESSIONS)
@pytest.mark.parametrize("framing", ["array", "newline_delimited"])
def test_vectors_events_come_back(shared_daemon: Daemon, framing: str, compression: str) -> None:
    topic = f"vector.{framing}.{compression}"
    shared_daemon.json("PUT", f"/v0/topics/{topic}", {"partitions": 3})
    encoding, compress = VECTOR_COMPRESSIONS[compression]
    texts = lines_of(EVENTS)
    if framing == "array":
        content_type, body = "application/json", b"[" + b",".join(texts) + b"]"
    else:
        content_type, body = "application/x-ndjson", b"\n".join(texts) + b"\n"
    with Wire(shared_daemon.port) as wire:
        for _ in range(2):  # batches follow each other on one connection
            answer = wire.ask(
                vector(f"/v0/topics/{topic}?key=host", compress(body), content_type, encoding)
            )
            assert (answer.status, answer.json["count"]) == (200, len(EVENTS))

    for partition in range(3):
        mine = [event for event in EVENTS if partition_of(event["host"], 3) == partition]
        read = shared_daemon.read_all(topic, partition)
        assert [r["data"] for r in read] == mine * 2
        assert [r["key"] for r in read] == [event["host"] for event in mine] * 2


def test_vectors_healthcheck_is_answered(shared_daemon: Daemon) -> None:
    """A HEAD of healthcheck.uri; the connection then serves on."""
    head = f"HEAD /readyz HTTP/1.1\r\nuser-agent: {VECTOR_AGENT}\r\nhost: 127.0.0.1:7440\r\n\r\n"
    with Wire(shared_daemon.port) as wire:
        for _ in range(2):
            wire.send(head.encode())
            answer = wire.answer(bodiless=True)
            assert answer is not None and answer.status == 200
        body = b'[{"message":"m"}]'
        assert wire.ask(vector("/v0/topics/health", body, "application/json")).status == 200


def test_what_vector_must_not_send_is_dropped_with_a_reason(shared_daemon: Daemon) -> None:
    with Wire(shared_daemon.port) as wire:
        text = wire.ask(vector("/v0/topics/text", b"a\nb\n", "text/plain"))
        assert (text.status, text.code) == (415, "unsupported_media_type")
        assert "application/x-ndjson" in text.json["error"]["message"]
        snappy = wire.ask(vector("/v0/topics/text", b"\x03\x08[1]", "application/json", "snappy"))
        assert (snappy.status, snappy.code) == (415, "unsupported_encoding")


def dated(date: object) -> list[dict[str, Any]]:
    """Events as Fluent Bit writes them: the date first."""
    return [{"date": date, "log": event["message"], "host": event["host"]} for event in EVENTS]


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("form", ["json", "json_lines"])
def test_fluent_bits_events_come_back(shared_daemon: Daemon, form: str, compress: bool) -> None:
    topic = f"fluent-bit.{form}.{compress}"
    texts = lines_of(dated("2025-11-02T10:15:00.123456Z")) + lines_of(dated(1762078500.123456))
    if form == "json":
        content_type, body = "application/json", b"[" + b",".join(texts) + b"]"
    else:
        content_type, body = "application/x-ndjson", b"\n".join(texts) + b"\n"
    encoding = "gzip" if compress else ""
    body = gzip.compress(body) if compress else body
    with Wire(shared_daemon.port) as wire:
        for first_seq in (1, 41):
            answer = wire.ask(fluent_bit(f"/v0/topics/{topic}", body, content_type, encoding))
            assert (answer.status, answer.json["first_seq"]) == (200, first_seq)

    read = [r["data"] for r in shared_daemon.read_all(topic)]
    assert read == [json.loads(text) for text in texts] * 2


def test_what_fluent_bit_must_not_send_is_refused_with_a_hint(shared_daemon: Daemon) -> None:
    stream = b"".join(lines_of(dated(1.5)))
    lines = b"\n".join(lines_of(dated(1.5))) + b"\n"
    events = b"".join(
        msgspec.msgpack.encode([msgspec.msgpack.Ext(0, bytes(8)), event]) for event in EVENTS
    )
    with Wire(shared_daemon.port) as wire:
        for body, content_type in (
            (stream, "application/json"),  # json_stream
            (lines, "application/json"),  # json_lines before 3.1
            (events, "application/msgpack"),  # the default format
        ):
            answer = wire.ask(fluent_bit("/v0/topics/refused", body, content_type))
            assert (answer.status, answer.code) == (400, "invalid")
        assert shared_daemon.get("/v0/topics/refused").status == 404
        hint = wire.ask(fluent_bit("/v0/topics/refused", lines, "application/json"))
        assert "application/x-ndjson" in hint.json["error"]["message"]


def test_a_chunk_with_too_many_events_is_413(shared_daemon: Daemon) -> None:
    """docs/producers.md warns of it: Fluent Bit sends whole chunks of 2 MB."""
    body = b"[" + b",".join([b'{"date":1.5,"log":"x"}'] * 10_001) + b"]"
    with Wire(shared_daemon.port) as wire:
        answer = wire.ask(fluent_bit("/v0/topics/chunk", body, "application/json"))
    assert (answer.status, answer.code) == (413, "too_large")
    assert answer.json["error"]["detail"]["limit_records"] == 10_000
