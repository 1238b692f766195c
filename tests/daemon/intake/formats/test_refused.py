"""Bodies from which a part would be lost, or that are meant for another way in, are refused."""

from __future__ import annotations

import io
import json

import msgspec
import pytest

from commands.client.records import BadLine, RecordFields, records
from daemon.intake.formats import BodyLimits, check_charset, parse
from daemon.intake.formats.keys import key_field
from daemon.schemas.errors import ApiError

LIMITS = BodyLimits()
JSON, NDJSON, MSGPACK = "application/json", "application/x-ndjson", "application/msgpack"
RECORDS = msgspec.msgpack.encode("records") + msgspec.msgpack.encode([{"data": 1}])


def refused(kind: str, body: bytes) -> str:
    with pytest.raises(ApiError) as error:
        parse(kind, {}, body, LIMITS, 0)
    assert error.value.status == 400
    return error.value.message


@pytest.mark.parametrize("kind", [JSON, MSGPACK, "application/octet-stream"])
def test_an_empty_body_is_called_that(kind: str) -> None:
    assert "the body is empty" in refused(kind, b"")


def test_a_plain_object_is_told_the_way_for_it() -> None:
    said = refused(JSON, b'{"status":"placed"}')
    assert "unknown field `status`" in said and "/v0/hooks/TOPIC" in said
    assert "/v0/hooks/TOPIC" in refused(JSON, b"{}")


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (JSON, b'{"records":[{"data":1}],"records":[{"data":2}]}'),
        (JSON, b'{ "records" : [{"data":{"records":1}}], "partition":0, "records":[{"data":2}] }'),
        (MSGPACK, b"\x82" + 2 * RECORDS),
        (MSGPACK, b"\xde\x00\x02" + 2 * RECORDS),
        (MSGPACK, b"\xdf\x00\x00\x00\x02" + 2 * RECORDS),
    ],
    ids=["json", "more", "map", "map16", "map32"],
)
def test_two_lists_of_records_are_refused_and_not_half_stored(kind: str, body: bytes) -> None:
    assert "two fields of one name" in refused(kind, body)


@pytest.mark.parametrize(
    "record",
    [
        b'{"data":1,"data":2}',
        b'{ "data" : {"data":1}, "key":"k", "data" : 2 }',
        b'{"data_b64":"AA==","data_b64":"AQ=="}',
        b'{"data":null,"data":2}',
    ],
)
def test_a_record_with_its_data_twice_is_refused_and_not_half_stored(record: bytes) -> None:
    said = refused(JSON, b'{"records":[{"data":{"data":"data"}},%b]}' % record)
    assert "record 1 has the field data" in said and "twice" in said


def test_data_may_have_fields_called_data() -> None:
    data = {"data": {"data": [1, "data"]}, "data_b64": "data_b64", 'x"data"': "data"}
    record = {"data": data, "key": "data", "tag": '"data"', "node": "data_b64"}
    body = json.dumps({"records": [record, record]}).encode()
    assert parse(JSON, {}, body, LIMITS, 0).record_count == 2


def test_data_may_have_fields_called_records() -> None:
    data = {"records": [{"records": 1}], "a,b": '"records"'}
    body = {"records": [{"data": data}, {"data": data}], "partition": 0}
    assert parse(JSON, {}, json.dumps(body).encode(), LIMITS, 0).record_count == 2
    assert parse(MSGPACK, {}, msgspec.msgpack.encode(body), LIMITS, 0).record_count == 2


@pytest.mark.parametrize("kind", [JSON, NDJSON])
def test_a_charset_that_is_not_utf8_is_refused_by_name(kind: str) -> None:
    for charset in ("utf-8", "UTF-8", '"utf-8"', "utf8; x=y", "us-ascii"):
        check_charset(f"{kind}; charset={charset}")
    with pytest.raises(ApiError, match="charset 'iso-8859-1' is not supported") as error:
        check_charset(f"{kind}; Charset=ISO-8859-1")
    assert error.value.status == 415
    check_charset("application/octet-stream; charset=iso-8859-1")


@pytest.mark.parametrize(
    ("data", "key"),
    [
        ('{"a":{"b":"inside"}}', "inside"),
        ('{"a":{"b":7}}', "7"),
        ('{"a":{"b":1.50}}', "1.50"),
        ('{"a.b":"flat","a":{"b":"inside"}}', "flat"),
        ('{"a.b":null,"a":{"b":"inside"}}', None),
        ('{"a":{}}', None),
        ('{"a":"b"}', None),
        ('{"a":null}', None),
        ('"a.b"', None),
    ],
)
def test_a_dotted_key_is_a_field_or_the_way_to_one_in_queries_and_commands_alike(
    data: str, key: str | None
) -> None:
    assert key_field("a.b").of(data, {}) == key
    (read,) = records(io.BytesIO(data.encode()), "ndjson", RecordFields("a.b"))
    assert read is not None and read.record.key == key


def test_a_key_that_is_no_text_is_refused_in_queries_and_commands_alike() -> None:
    for data in ('{"a":{"b":[]}}', '{"a":{"b":true}}', '{"a.b":{}}'):
        with pytest.raises(ApiError, match=r"'a\.b' of the body is the key: it must be"):
            key_field("a.b").of(data, {})
        with pytest.raises(BadLine, match=r"line 1: the field 'a\.b' is the key"):
            list(records(io.BytesIO(data.encode()), "ndjson", RecordFields("a.b")))
    with pytest.raises(ApiError, match="the field 'k' of record 1 is the key") as error:
        parse(JSON, {"key": "k"}, b'[{"k":1},{"k":{}}]', LIMITS, 0)
    assert (error.value.status, error.value.detail["record"]) == (400, 1)
