"""Foreign requests: what is wrong is refused as their senders understand it, the rest is stored."""

from __future__ import annotations

import asyncio
import gzip
from contextlib import closing
from typing import Any

import pytest

from daemon.governor.producers_gate import ClosedBy
from daemon.intake.foreign import requests
from daemon.intake.foreign.otlp_protobuf import groups
from daemon.intake.formats import BodyLimits
from daemon.intake.producer import outcome_unknown
from daemon.intake.topic_cache import TopicCache
from daemon.schemas.errors import ApiError
from shards import layout as at
from shards.clock import monotonic_ns
from tests.daemon.intake.serving import BODY_BYTES_MAX, RING_BYTES, Client, Intake
from tests.e2e.daemon import Answer

LINES, JSON, PROTOBUF = "application/x-ndjson", "application/json", "application/x-protobuf"
ACTION = b'{"index":{"_index":"t","_id":"1"}}\n'
BULK = ACTION + b'{"a":1}\n'
LOGS = b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":{"stringValue":"x"}}]}]}]}'


def bulk(body: bytes, kind: str = LINES, query: str = "", *fields: str) -> bytes:
    return _post(f"/v0/elastic/_bulk{query}", body, kind, *fields)


def logs(body: bytes, kind: str = JSON, *fields: str) -> bytes:
    return _post("/v0/otlp/t/v1/logs", body, kind, *fields)


def _post(path: str, body: bytes, kind: str, *fields: str) -> bytes:
    lines = [
        f"POST {path} HTTP/1.1", "Host: h", f"Content-Type: {kind}",
        f"Content-Length: {len(body)}", *fields,
    ]  # fmt: skip
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def translated(intake: Intake) -> None:
    """All that was received is handed over or refused."""
    application: Any = intake.server.application
    while tasks := application._foreign._tasks:
        await tasks.wait()
        await asyncio.sleep(0)
    intake.flow()


def answered(intake: Intake, *sent: bytes) -> list[Answer]:
    """The answers to requests of one connection, after what they store is committed."""
    client = intake.connect()
    _served(intake, client, *sent)
    return client.answers


def _served(intake: Intake, client: Client, *sent: bytes) -> None:
    async def serve() -> None:
        for each in sent:
            client.send(each)
            await translated(intake)
        intake.commit()

    asyncio.run(serve())


def statuses(answer: Answer) -> list[int]:
    """Of the items."""
    return [item["status"] for each in answer.json["items"] for item in each.values()]


GZIP = "Content-Encoding: gzip"
BOMB = gzip.compress(ACTION + b'{"a":"' + b"x" * BODY_BYTES_MAX + b'"}', mtime=0)


@pytest.mark.parametrize(
    ("request_", "status", "said"),
    [
        (bulk(BULK + ACTION), 400, "line 3 has an action, and no document follows it"),
        (bulk(BULK + b"{]\n{}\n"), 400, "line 3 must be an action"),
        (bulk(BULK + b'[{"index":{}}]\n{}\n'), 400, "line 3 must be an action"),
        (bulk(BULK + b'{"upsert":{"_index":"t"}}\n{}\n'), 400, "'upsert'"),
        (bulk(BULK + b'{"index":{},"create":{}}\n{}\n'), 400, "'index, create'"),
        (bulk(BULK + b"{}\n{}\n"), 400, "must have one of the actions"),
        (bulk(BULK + b'{"index":{"_index":5}}\n{}\n'), 400, "line 3"),
        (bulk(BULK + b'{"index":' + b"[" * 1_000 + b"\n"), 400, "line 3"),
        (bulk(BULK + b'{"index":{"_index":"\xff"}}\n{}\n'), 400, "line 3"),
        (bulk(b"\n \r\n"), 400, "no actions"),
        (bulk(BULK + b" \n" * 1_001 + BULK), 400, "more than 1000 blank lines"),
        (bulk(BULK, "text/plain"), 415, "text/plain"),
        (bulk(BULK, LINES, "", GZIP), 400, "broken"),
        (bulk(gzip.compress(BULK)[:-9], LINES, "", GZIP), 400, "truncated"),
        (bulk(BOMB, LINES, "", GZIP), 413, str(BODY_BYTES_MAX)),
        (bulk(gzip.compress(b'{"delete":{}}\n' * 10_001), LINES, "", GZIP), 413, "bytes"),
    ],
)  # fmt: skip
def test_a_bulk_request_that_cannot_be_read_is_refused_as_a_whole(
    intake: Intake, request_: bytes, status: int, said: str
) -> None:
    (answer,) = answered(intake, request_)
    assert answer.status == answer.json["status"] == status
    assert said in answer.json["error"]["reason"] and not intake.published


def test_more_actions_than_records_are_taken_are_refused(
    intake: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    intake.producer.limits = BodyLimits(body_bytes_max=BODY_BYTES_MAX, records_max=3)
    few, many = answered(intake, bulk(BULK * 3), bulk(BULK * 4))
    assert statuses(few) == [201] * 3
    assert many.status == 413 and len(intake.published) == 1
    monkeypatch.setattr(requests, "TOPICS_MAX", 1)
    (wide,) = answered(intake, bulk(BULK + BULK.replace(b'"t"', b'"u"')))
    assert wide.status == 413 and len(intake.published) == 1


@pytest.mark.parametrize(
    ("action", "status", "code"),
    [
        (b'{"delete":{"_index":"t","_id":"1"}}\n', 400, "unsupported_action"),
        (b'{"update":{"_index":"t","_id":"1"}}\n{"doc":{}}\n', 400, "unsupported_action"),
        (b'{"index":{"_index":"t","pipeline":"p"}}\n{}\n', 400, "unsupported_action"),
        (b'{"index":{"_index":"t","if_seq_no":1}}\n{}\n', 400, "unsupported_action"),
        (b'{"index":{"_index":"t","version":0}}\n{}\n', 400, "unsupported_action"),
        (b'{"index":{"_index":".t"}}\n{}\n', 400, "invalid_topic"),
        (b'{"index":{}}\n{}\n', 400, "invalid_topic"),
        (b'{"index":{"_index":"t","_id":"%b"}}\n{}\n' % (b"x" * 2_000), 400, "invalid"),
        (b'{"index":{"_index":"t"}}\n{"a":}\n', 400, "invalid"),
        (b'{"index":{"_index":"t"}}\n[1]\n', 400, "invalid"),
        (b'{"index":{"_index":"t"}}\n{"a":"\xff"}\n', 400, "invalid"),
        (b'{"index":{"_index":"t"}}\n{"a":%b}\n' % (b"[" * 600 + b"]" * 600), 400, "invalid"),
    ],
)  # fmt: skip
def test_what_a_topic_cannot_take_is_the_error_of_its_item_and_the_rest_is_stored_once(
    intake: Intake, action: bytes, status: int, code: str
) -> None:
    (answer,) = answered(intake, bulk(BULK + action + BULK))
    assert answer.status == 200 and answer.json["errors"]
    assert statuses(answer) == [201, status, 201]
    (wrong,) = answer.json["items"][1].values()
    assert wrong["error"]["type"] == code
    assert len(intake.published) == 1, "one piece"
    assert intake._seq == {(1, 0): 2}


def test_a_document_that_is_too_large_is_the_error_of_its_item(intake: Intake) -> None:
    intake.producer.limits = BodyLimits(body_bytes_max=BODY_BYTES_MAX, record_bytes_max=100)
    (answer,) = answered(intake, bulk(ACTION + b'{"a":"%b"}\n' % (b"x" * 200) + BULK))
    assert statuses(answer) == [413, 201] and intake._seq == {(1, 0): 1}


@pytest.mark.parametrize("kind", [JSON, PROTOBUF])
@pytest.mark.parametrize(
    ("body", "fields", "status", "said"),
    [
        (b"\xff\xff", (), 400, b"ExportLogsServiceRequest"),
        (b"\x0a\x05\x12", (), 400, b"ExportLogsServiceRequest"),
        (b"\x0a" + b"\xff" * 11, (), 400, b"ExportLogsServiceRequest"),
        (b'{"resourceLogs":1}', (), 400, b"ExportLogsServiceRequest"),
        (b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[1]}]}]}', (), 400, b"ExportLogs"),
        (LOGS.replace(b'{"stringValue":"x"}', b'{"intValue":"x"}'), (), 400, b"ExportLogs"),
        (LOGS.replace(b'"body"', b'"timeUnixNano":-1,"body"'), (), 400, b"ExportLogs"),
        (LOGS[:-1], (), 400, b"ExportLogsServiceRequest"),
        (LOGS, (GZIP,), 400, b"broken"),
        (BOMB, (GZIP,), 413, b"bytes"),
    ],
)  # fmt: skip
def test_a_request_that_is_no_otlp_is_refused_with_a_status_in_its_format(
    intake: Intake, kind: str, body: bytes, fields: tuple[str, ...], status: int, said: bytes
) -> None:
    (answer,) = answered(intake, logs(body, kind, *fields))[:1]
    assert answer.status == status and said in answer.body
    assert answer.headers["content-type"] == kind
    assert answer.body[:1] == (b"{" if kind == JSON else b"\x12")
    assert not intake.published


def field(number: int, content: bytes) -> bytes:
    """A field of protobuf that has a length."""
    size = len(content)
    return (
        bytes([number << 3 | 2, size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14]) + content
    )


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"\x12\x00" * 20_001, b"more than 20000 fields"),
        (field(1, b"\x1a\x00" * 20_001), b"more than 20000 fields"),
        (field(1, field(2, b"\x1a\x00" * 20_001)), b"more than 20000 fields"),
    ],
    ids=range(3),
)
def test_what_would_hold_the_loop_for_long_is_refused(
    intake: Intake, body: bytes, said: bytes
) -> None:
    """Between two records nothing else has its turn."""
    (answer,) = answered(intake, logs(body, PROTOBUF))[:1]
    assert answer.status == 413 and said in answer.body, answer.body
    assert not intake.published


def test_a_resource_that_is_given_again_counts_again() -> None:
    twice = field(1, field(1, bytes(600)) * 2)
    with pytest.raises(ApiError, match="a resource or scope has 1200 bytes"):
        list(groups(twice, 1_000))


def test_log_records_that_are_too_large_are_counted_and_the_others_stored(intake: Intake) -> None:
    intake.producer.limits = BodyLimits(body_bytes_max=BODY_BYTES_MAX, record_bytes_max=100)
    record = b'{"body":{"stringValue":"x"}}'
    large = record.replace(b"x", b"x" * 200)
    body = LOGS.replace(record, b",".join([record, large, record, large]))
    (answer,) = answered(intake, logs(body))
    assert answer.status == 200
    assert answer.json["partialSuccess"]["rejectedLogRecords"] == "2"
    assert intake._seq == {(1, 0): 2}
    (empty,) = answered(intake, logs(b"{}"))
    assert (empty.status, empty.body) == (200, b"{}")


def is_for_now(answer: Answer, status: int) -> bool:
    return answer.status == status and int(answer.headers["retry-after"]) >= 1


def test_a_closed_gate_refuses_and_takes_what_comes_again_once(intake: Intake) -> None:
    intake.shut(at.G_GATE, ClosedBy.STORE_FAILING)
    client = intake.connect()
    _served(intake, client, bulk(BULK), logs(LOGS))
    first, second = client.answers
    assert is_for_now(first, 429) and first.json["error"]["type"] == "store_failing"
    assert is_for_now(second, 503) and "message" in second.json
    assert not intake.published and intake.refused == {"store_failing": 2}
    intake.shut(at.G_GATE, 0)
    _served(intake, client, bulk(BULK), logs(LOGS))
    *_, stored, taken = client.answers
    assert statuses(stored) == [201] and taken.status == 200
    assert intake._seq == {(1, 0): 2}


@pytest.mark.parametrize(("request_", "status"), [(bulk(BULK), 429), (logs(LOGS), 503)])
async def test_a_gate_that_closes_while_a_request_is_translated_refuses_it(
    intake: Intake, request_: bytes, status: int
) -> None:
    client = intake.connect()
    client.send(request_)
    intake.shut(at.G_GATE, ClosedBy.STORE_FAILING)
    await translated(intake)
    (answer,) = client.answers
    assert is_for_now(answer, status) and not intake.published


@pytest.mark.parametrize(("request_", "status"), [(bulk(BULK), 429), (logs(LOGS), 503)])
def test_a_full_ring_refuses(intake: Intake, request_: bytes, status: int) -> None:
    filling = []
    for size in (*[40 << 10] * 8, *[4 << 10] * 8, *[256] * 16, *[1] * 16):
        filling.append(intake.connect())  # its body is promised room, and does not end
        filling[-1].send(_post("/v0/topics/t", b" " * size, JSON)[:-1])
    (answer,) = answered(intake, request_)
    assert is_for_now(answer, status) and not intake.published
    for each in filling:
        each.leave()


async def test_a_request_is_answered_after_its_commit_and_before_later_ones(intake: Intake) -> None:
    client = intake.connect()
    client.send(bulk(BULK) + _post("/v0/topics/t", b'{"b":2}\n', LINES) + logs(LOGS))
    assert client.transport.paused, "the order of a connection's records"
    await translated(intake)
    await translated(intake)
    assert not client.answers and len(intake.published) == 3
    intake.commit()
    assert client.statuses == [200, 200, 200]
    assert "items" in client.answers[0].json and "seqs" not in client.answers[2].json


@pytest.mark.parametrize("pulled", [False, True])
def test_a_deadline_says_429_or_503_if_nothing_is_stored_and_504_if_that_is_not_known(
    topics: TopicCache, pulled: bool
) -> None:
    with closing(Intake(topics, RING_BYTES, BODY_BYTES_MAX, timeout_ns=1)) as intake:
        client = intake.connect()

        async def serve() -> None:
            client.send(bulk(BULK) + logs(LOGS))
            await translated(intake)
            await translated(intake)
            head = intake.ring.head
            expired = intake.pending.expired(monotonic_ns() + 60_000_000_000, head * pulled, head)
            intake.pending.end(
                expired,
                lambda _: ApiError(503, "ack_timeout", "too late", retry_after_s=1),
                lambda _: outcome_unknown(20_000),
            )

        asyncio.run(serve())
        first, second = client.answers
        assert first.status == 200 and statuses(first) == [504 if pulled else 429]
        assert second.status == (504 if pulled else 503)
        assert ("retry-after" in second.headers) is not pulled


async def test_of_several_topics_one_is_refused_and_the_others_stored(
    intake: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake.producer, "_auto_create", False)
    client = intake.connect()
    client.send(bulk(BULK + BULK.replace(b'"t"', b'"unknown"') + BULK))
    await translated(intake)
    client.send(logs(LOGS).replace(b"/otlp/t/", b"/otlp/unknown/"))
    while len(client.answers) < 2:  # the ledger is asked for a topic
        await asyncio.sleep(0.001)
        intake.commit()
    answer, missing = client.answers
    assert statuses(answer) == [201, 404, 201] and intake._seq == {(1, 0): 2}
    assert missing.status == 404 and "auto_create_topics" in missing.json["message"]


NULLS = (
    b'{"resourceLogs":[{"resource":{"attributes":null,"droppedAttributesCount":null},'
    b'"scopeLogs":[{"scope":{"name":null,"version":null,"attributes":null},'
    b'"logRecords":[{"timeUnixNano":null,"observedTimeUnixNano":null,"severityNumber":null,'
    b'"severityText":null,"body":null,"attributes":null,"droppedAttributesCount":null,'
    b'"flags":null,"traceId":null,"spanId":null,"eventName":null},'
    b'{"body":{"stringValue":null,"arrayValue":{"values":null}},'
    b'"attributes":[{"key":null,"value":{"kvlistValue":{"values":null}}}]}]}]}]}'
)


@pytest.mark.parametrize(
    "body",
    [
        b'{"resourceLogs":null}',
        b'{"resourceLogs":[{"resource":null,"schemaUrl":null,"scopeLogs":null}]}',
        b'{"resourceLogs":[{"scopeLogs":[{"scope":null,"schemaUrl":null,"logRecords":null}]}]}',
        NULLS,
    ],
)
def test_a_field_of_otlp_that_is_null_is_not_there(intake: Intake, body: bytes) -> None:
    (answer,) = answered(intake, logs(body, JSON))
    assert (answer.status, answer.body) == (200, b"{}")
    assert len(intake.published) == body.count(b"flags")


@pytest.mark.parametrize("name", ["resourceLogs", "scopeLogs", "logRecords"])
def test_a_list_of_otlp_that_is_there_twice_is_refused_and_not_half_stored(
    intake: Intake, name: str
) -> None:
    body = LOGS.replace(b'"%b":' % name.encode(), b'"%b":[], "%b":' % (2 * (name.encode(),)))
    (answer,) = answered(intake, logs(body, JSON))
    assert answer.status == 400 and f"has the field {name} twice".encode() in answer.body
    assert not intake.published


def test_lists_of_otlp_may_be_named_in_texts_and_in_several_groups(intake: Intake) -> None:
    text = LOGS.replace(b'"x"', b'"resourceLogs"')
    body = b'{"resourceLogs":[%b,%b]}' % (2 * (text[len(b'{"resourceLogs":[') : -2],))
    assert [each.status for each in answered(intake, logs(body, JSON))] == [200]


def test_an_index_or_id_of_bulk_that_is_there_twice_is_refused(intake: Intake) -> None:
    for name in ("_index", "_id"):
        twice = b'{"index":{"%b":"a","%b":"b"}}\n{}\n' % (2 * (name.encode(),))
        (answer,) = answered(intake, bulk(BULK + twice))
        assert answer.status == 400 and f"line 3 has the field {name} twice".encode() in answer.body
    same = b'{"index":{"_index":"t","_id":"_id"}}\n{}\n'
    assert [each.status for each in answered(intake, bulk(same))] == [200]
