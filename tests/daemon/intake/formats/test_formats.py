"""Produce bodies become rows, and payloads that decode to what was sent."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.intake.formats import BodyLimits, payloads
from daemon.schemas.errors import ApiError
from delivery.partitioner import partition_of
from tests.daemon.intake.formats.sent import (
    BYTES,
    JSON,
    MSGPACK,
    NDJSON,
    NOW_MS,
    json_values,
    parsed,
    refused,
    spelled,
    stored,
)
from uploader.l0.records import TIMESTAMP_MS_MAX, Record, decode

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
maybe_text = st.none() | texts


class TestObject:
    fields = st.fixed_dictionaries(
        {},
        optional={
            "key": maybe_text,
            "tag": maybe_text,
            "node": maybe_text,
            "meta": st.none() | st.dictionaries(texts, json_values, max_size=3),
            "ts": st.none() | st.integers(0, TIMESTAMP_MS_MAX),
        },
    )

    @given(
        st.lists(st.tuples(json_values | st.binary(max_size=20), fields), min_size=1, max_size=8),
        st.data(),
    )
    def test_what_is_sent_is_what_is_stored(
        self, sent: list[tuple[Any, dict[str, Any]]], data: st.DataObject
    ) -> None:
        parts, wanted = [], []
        for value, fields in sent:
            body = {name: json.dumps(each) for name, each in fields.items()}
            meta = fields.get("meta")
            if meta is not None:
                body["meta"] = data.draw(spelled(meta))
            if isinstance(value, bytes):
                body["data_b64"] = json.dumps(base64.b64encode(value).decode())
                kept: str | bytes = value
            else:
                kept = body["data"] = data.draw(spelled(value))
            names = data.draw(st.permutations(list(body)))
            parts.append("{" + ", ".join(f'"{name}" : {body[name]}' for name in names) + "}")
            wanted.append(
                Record(
                    kept,
                    fields.get("ts"),
                    fields.get("key"),
                    fields.get("tag"),
                    fields.get("node"),
                    None if meta is None else body["meta"],
                )
            )
        text = '\n{"records": [' + ",".join(parts) + "]}\n"
        produce = parsed(JSON, text.encode())
        assert stored(produce) == wanted
        assert produce.keyed == any(r.key is not None for r in wanted)
        ((_, _, _, first, last),) = payloads(produce, 1, lambda: 0)
        stamps = [NOW_MS if r.ts is None else r.ts for r in wanted]
        assert (first, last) == (min(stamps), max(stamps))

    def test_repeated_keys_and_number_spellings_inside_data_stay(self) -> None:
        data = '{"a":1,"a":2.50,"b":1e400,"c":"\\u0041"}'
        records = stored(parsed(JSON, f'{{"records":[{{"data":{data}}}]}}'.encode()))
        assert records == [Record(data)]

    def test_null_is_data_and_an_empty_key_is_a_key(self) -> None:
        produce = parsed(JSON, b'{"records":[{"data":null,"key":""}]}')
        assert stored(produce) == [Record("null", key="")]
        assert produce.keyed

    def test_the_envelope_says_the_rest(self) -> None:
        body = (
            b'{"records":[{"data":1}],"partition":3,"idempotency_key":"k","expected_seq":9,'
            b'"disable_backpressure":true,"ack_timeout_ms":100,"dedupe":"none"}'
        )
        produce = parsed(JSON, body)
        assert produce.dedupe == "none"
        assert produce.ack_timeout_ms == 100
        asked = (produce.partition, produce.idempotency_key, produce.expected_seq)
        assert asked == (3, "k", 9)
        assert produce.disable_backpressure

    @pytest.mark.parametrize(
        ("record", "words"),
        [
            ('{"foo":1}', "unknown field `foo`"),
            ('{"key":"a"}', "neither data nor data_b64"),
            ('{"data":1,"data_b64":"AA=="}', "both data and data_b64"),
            ('{"data_b64":"A"}', "not base64"),
            ('{"data_b64":"A\\n=="}', "not base64"),
            ('{"data_b64":"YWJj$ZGVm"}', "not base64"),
            ('{"data_b64":"YWJj\\n"}', "not base64"),
            ('{"data":1,"meta":[1]}', "meta of record 1 must be a JSON object"),
            ('{"data":1,"meta":"x"}', "meta of record 1 must be a JSON object"),
            ('{"data":1,"ts":-1}', "ts"),
            ('{"data":1,"ts":1.5}', "ts"),
            ('{"data":1,"ts":"1"}', "ts"),
            ('{"data":1,"ts":9007199254740993}', "ts"),
            ('{"data":1,"key":7}', "key"),
            ("7", "records[1]"),
        ],
    )
    def test_a_bad_record_is_named_by_its_index(self, record: str, words: str) -> None:
        error = refused(JSON, f'{{"records":[{{"data":1}},{record}]}}'.encode())
        assert (error.status, error.detail["record"]) == (400, 1)
        assert words in error.message

    @pytest.mark.parametrize(
        ("body", "words"),
        [
            (b"", "the body is empty"),
            (b"{}", "misses the required field `records`"),
            (b'{"records":[]}', "with at least 1 element"),
            (b'{"records":{}}', "must be an array"),
            (b'{"records":[{"data":1}],"partitoin":1}', "unknown field `partitoin`"),
            (b'{"records":[{"data":1}],"partition":-1}', "partition"),
            (b'{"records":[{"data":1}],"partition":1000}', "partition"),
            (b'{"records":[{"data":1}],"idempotency_key":""}', "idempotency_key"),
            (b'{"records":[{"data":1}],"idempotency_key":5}', "idempotency_key"),
            (b'{"records":[{"data":1}],"idempotency_key":"%s"}' % (b"x" * 257), "idempotency_key"),
            (b'{"records":[{"data":1}],"partition":"0"}', "partition"),
            (b'{"records":[{"data":1}],"expected_seq":-1}', "expected_seq"),
            (b'{"records":[{"data":1}],"expected_seq":1.5}', "expected_seq"),
            (b'{"records":[{"data":1}],"expected_seq":"1"}', "expected_seq"),
            (b'{"records":[{"data":1}],"expected_seq":%d}' % (2**53 + 1), "expected_seq"),
            (b'{"records":[{"data":1}]', "ends too early"),
            (b'{"records":[{"data":1}]}{}', "trailing characters"),
            (b'{"records":[{"data":NaN}]}', "invalid character"),
            (b'{"records":[{"data":"\\ud800"}]}', "surrogate"),
            (b'{"log":"a"}\n{"log":"b"}\n', "application/x-ndjson"),
            (b"7", "a JSON object"),
            (b"\xff\xfe", "invalid character"),
        ],
    )
    def test_a_bad_body_is_refused_with_a_sentence(self, body: bytes, words: str) -> None:
        error = refused(JSON, body)
        assert error.status == 400
        assert words in error.message

    @pytest.mark.parametrize(
        "record",
        [b'{"data":"\xff"}', b'{"data":1,"key":"\xff"}', b'{"data":1,"meta":{"a":"\xc3"}}'],
    )
    def test_text_that_is_not_utf8_is_refused_wherever_it_stands(self, record: bytes) -> None:
        error = refused(JSON, b'{"records":[' + record + b"]}")
        assert error.status == 400
        assert "not UTF-8" in error.message

    def test_the_byte_and_line_of_a_syntax_error_are_named(self) -> None:
        error = refused(JSON, b'{\n"records":[\n{"data":1,}]}')
        assert error.detail == {"byte": 24, "line": 3}

    @pytest.mark.parametrize("name", ["partition", "idempotency_key", "expected_seq", "key"])
    def test_parameters_of_batches_are_refused_by_name(self, name: str) -> None:
        error = refused(JSON, b'{"records":[{"data":1}]}', **{name: "1"})
        assert error.detail == {"parameter": name}
        assert "send it in the body" in error.message


class TestArray:
    @given(st.lists(json_values.flatmap(spelled), min_size=1, max_size=20))
    def test_each_element_is_kept_as_it_was_sent(self, elements: list[str]) -> None:
        body = " \n[" + " , ".join(elements) + "]\n"
        assert [r.data for r in stored(parsed(JSON, body.encode()))] == elements

    def test_a_record_over_a_limit_is_named_by_its_index(self) -> None:
        text = '"' + "é" * 600 + '"'
        limits = BodyLimits(record_bytes_max=len(text.encode()))
        assert len(stored(parsed(JSON, f"[{text},1,{text}]".encode(), limits))) == 3
        error = refused(JSON, f'[{text},1,{text[:-1]}x"]'.encode(), limits)
        assert (error.status, error.detail["record"]) == (413, 2)
        error = refused(JSON, b"[1," + b"[" * 513 + b"]" * 513 + b"]")
        assert (error.status, error.detail) == (400, {"limit_levels": 512, "record": 1})

    def test_the_query_says_the_rest(self) -> None:
        produce = parsed(
            JSON,
            b'[{"host":"a"},{"host":"b"}]',
            key="host",
            partition="2",
            idempotency_key="i",
            expected_seq="0",
            create="false",
            disable_backpressure="true",
            ack_timeout_ms="600000",
            dedupe="body",
        )
        assert produce.dedupe == "body"
        assert produce.ack_timeout_ms == 600_000
        assert [r[2] for r in produce.rows] == ["a", "b"]
        assert (produce.partition, produce.idempotency_key, produce.expected_seq) == (2, "i", 0)
        assert produce.disable_backpressure

    @pytest.mark.parametrize(
        ("query", "words"),
        [
            ({"partition": "x"}, "an integer from 0 to 999"),
            ({"partition": "-1"}, "an integer from 0 to 999"),
            ({"partition": "1000"}, "an integer from 0 to 999"),
            ({"partition": "\u0661"}, "an integer from 0 to 999"),
            ({"expected_seq": "1.0"}, "an integer"),
            ({"idempotency_key": ""}, "1 to 256 characters"),
            ({"idempotency_key": "x" * 257}, "1 to 256 characters"),
            ({"key": "x" * 1025}, "1024 characters"),
            ({"disable_backpressure": "yes"}, "true or false"),
            ({"dedupe": "yes"}, 'one of "body", "none"'),
            ({"ack_timeout_ms": "99"}, "an integer from 100 to 600000"),
            ({"ack_timeout_ms": "600001"}, "an integer from 100 to 600000"),
            ({"parttion": "1"}, "does not take the query parameter"),
        ],
    )
    def test_a_bad_parameter_is_refused_by_name(self, query: dict[str, str], words: str) -> None:
        error = refused(JSON, b"[1]", **query)
        assert (error.status, error.detail) == (400, {"parameter": next(iter(query))})
        assert words in error.message

    @pytest.mark.parametrize("body", [b"[]", b"[1", b"[1,]", b"[1]]", b"[1] 2", b'["\xff"]'])
    def test_a_bad_array_is_refused(self, body: bytes) -> None:
        assert refused(JSON, body).status == 400


class TestMsgpack:
    @given(
        st.lists(
            st.fixed_dictionaries(
                {"data": json_values.filter(lambda v: not _holds_big_integer(v)) | st.binary()},
                optional={
                    "key": maybe_text,
                    "tag": maybe_text,
                    "node": maybe_text,
                    "meta": st.none() | st.dictionaries(texts, texts, max_size=3),
                    "ts": st.none() | st.integers(0, TIMESTAMP_MS_MAX),
                },
            ),
            min_size=1,
            max_size=8,
        )
    )
    def test_values_come_back_as_json_and_bin_as_bytes(self, records: list[dict[str, Any]]) -> None:
        got = stored(parsed(MSGPACK, msgspec.msgpack.encode({"records": records})))
        for record, sent in zip(got, records, strict=True):
            data = sent["data"]
            if isinstance(data, bytes):
                assert record.data == data
            else:
                assert isinstance(record.data, str)
                assert json.loads(record.data) == data
            meta = None if record.meta is None else json.loads(record.meta)
            assert meta == sent.get("meta")
            assert (record.ts, record.key) == (sent.get("ts"), sent.get("key"))
            assert (record.tag, record.node) == (sent.get("tag"), sent.get("node"))

    @pytest.mark.parametrize(
        ("value", "words"),
        [
            (float("nan"), "NaN"),
            ({"a": [None, {"b": float("inf")}]}, "NaN or an infinity"),
            (msgspec.msgpack.Ext(5, b"x"), "cannot be kept as JSON"),
            ({None: 1}, "cannot be kept as JSON"),
        ],
    )
    def test_what_json_cannot_say_is_refused(self, value: object, words: str) -> None:
        body = msgspec.msgpack.encode({"records": [{"data": 1}, {"data": value}]})
        error = refused(MSGPACK, body)
        assert (error.status, error.detail["record"]) == (400, 1)
        assert words in error.message

    def test_null_beside_finite_numbers_is_taken(self) -> None:
        body = msgspec.msgpack.encode({"records": [{"data": [None, 1.5, {"a": None}]}]})
        assert stored(parsed(MSGPACK, body)) == [Record('[null,1.5,{"a":null}]')]

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"\xc1",
            b"\x80",
            b"\x93\x01\x02\x03",
            msgspec.msgpack.encode({"records": 1}),
            msgspec.msgpack.encode({"records": []}),
            msgspec.msgpack.encode({"records": [1]}),
            msgspec.msgpack.encode({"records": [{"dat": 1}]}),
            msgspec.msgpack.encode({"records": [{"data": 1}, {}]}),
            msgspec.msgpack.encode({"records": [{"data": 1, "meta": [1]}]}),
            msgspec.msgpack.encode({"records": [{"data": 1, "data_b64": "AA=="}]}),
            msgspec.msgpack.encode({"records": [{"data": 1}]}) + b"\x01",
            msgspec.msgpack.encode({"records": [{"data": 1}]})[:-1],
            b"\x81\xa7records\xdd\xff\xff\xff\xff",
            b"\x81\xa7records\x91\x81\xa4data\xa1\xff",
            b"\x81\xa7records\x91\x81\xa4data\x81\x80\x01",
        ],
    )
    def test_a_bad_body_is_refused(self, body: bytes) -> None:
        assert refused(MSGPACK, body).status == 400

    def test_a_value_that_grows_over_the_record_limit_as_json_is_refused(self) -> None:
        limits = BodyLimits(record_bytes_max=1000)
        body = msgspec.msgpack.encode({"records": [{"data": [None] * 300}]})
        assert len(body) < 1000
        assert refused(MSGPACK, body, limits).status == 413

    def test_records_that_grow_over_the_body_limit_as_json_are_refused(self) -> None:
        limits = BodyLimits(record_bytes_max=1000, body_bytes_max=4000)
        body = msgspec.msgpack.encode({"records": [{"data": [None] * 150}] * 10})
        assert len(body) < 4000
        assert refused(MSGPACK, body, limits).status == 413


class TestBytes:
    @given(st.binary(min_size=1), st.data())
    def test_the_body_is_one_record(self, body: bytes, data: st.DataObject) -> None:
        query = data.draw(
            st.fixed_dictionaries({}, optional={"key": texts, "tag": texts, "node": texts})
        )
        (record,) = stored(parsed(BYTES, body, **query))
        assert record == Record(body, None, query.get("key"), query.get("tag"), query.get("node"))

    def test_its_time_stands_in_the_query(self) -> None:
        assert stored(parsed(BYTES, b"x", ts="12")) == [Record(b"x", 12)]

    def test_an_empty_body_is_refused(self) -> None:
        assert refused(BYTES, b"").status == 400


class TestLimits:
    @pytest.mark.parametrize("content_type", ["", "text/plain", "application/xml"])
    def test_a_missing_or_unknown_content_type_is_415_and_lists_the_known(
        self, content_type: str
    ) -> None:
        error = refused(content_type, b"{}")
        assert error.status == 415
        assert NDJSON in error.detail["supported"]

    @pytest.mark.parametrize(
        ("content_type", "body"),
        [
            (JSON, b'{"records":[' + b",".join([b'{"data":1}'] * 11) + b"]}"),
            (JSON, b"[" + b",".join([b"1"] * 11) + b"]"),
            (NDJSON, b"1\n" * 11),
            (MSGPACK, msgspec.msgpack.encode({"records": [{"data": 1}] * 11})),
        ],
    )
    def test_one_record_over_the_count_is_413(self, content_type: str, body: bytes) -> None:
        eleven = BodyLimits(records_max=11)
        assert parsed(content_type, body, eleven).record_count == 11
        error = refused(content_type, body, BodyLimits(records_max=10))
        assert (error.status, error.code) == (413, "too_large")
        assert "10 records" in error.message

    @pytest.mark.parametrize(
        ("content_type", "body"),
        [
            (JSON, json.dumps({"records": [{"data": "x" * 40}]}).encode()),
            (MSGPACK, msgspec.msgpack.encode({"records": [{"data": "x" * 40}]})),
            (BYTES, b"x" * 42),
        ],
    )
    def test_a_record_over_its_limit_is_413(self, content_type: str, body: bytes) -> None:
        assert parsed(content_type, body, BodyLimits(record_bytes_max=42)).record_count == 1
        error = refused(content_type, body, BodyLimits(record_bytes_max=41))
        assert (error.status, error.code) == (413, "too_large")

    @pytest.mark.parametrize("content_type", [JSON, NDJSON, MSGPACK, BYTES])
    def test_a_body_over_its_limit_is_413(self, content_type: str) -> None:
        error = refused(content_type, b"x" * 11, BodyLimits(body_bytes_max=10))
        assert (error.status, error.detail) == (413, {"limit_bytes": 10})

    @pytest.mark.parametrize(
        ("content_type", "template"),
        [
            (JSON, '{"records":[{"data":1},{"data":%s}]}'),
            (JSON, '{"records":[{"data":1},{"data":1,"meta":{"a":%s}}]}'),
            (JSON, "[1,%s]"),
            (NDJSON, "1\n%s\n"),
        ],
    )
    def test_512_levels_are_taken_and_more_are_refused(
        self, content_type: str, template: str
    ) -> None:
        meta = 1 if '"meta"' in template else 0
        noise = '"]]]]\\"\\\\",' + '"[{",'
        deepest = 512 - meta
        nested = "[" * (deepest - 1) + "[" + noise + "1]" + "]" * (deepest - 1)
        assert parsed(content_type, (template % nested).encode()).record_count == 2
        error = refused(content_type, (template % f"[{nested}]").encode())
        assert error.status == 400
        assert "nested deeper than 512" in error.message
        assert error.detail.get("record", error.detail.get("line", 0) - 1) == 1

    @pytest.mark.parametrize("depth", [600, 2000, 200_000])
    def test_any_depth_is_refused_without_harm(self, depth: int) -> None:
        nested = b"[" * depth + b"]" * depth
        for content_type, body in (
            (JSON, b'{"records":[{"data":' + nested + b"}]}"),
            (JSON, nested),
            (NDJSON, nested),
            (MSGPACK, b"\x81\xa7records\x91\x81\xa4data" + b"\x91" * depth + b"\x01"),
        ):
            error = refused(content_type, body)
            assert error.status == 400
            assert "nested deeper" in error.message


class TestPayloads:
    def test_records_with_keys_go_by_key_and_the_others_together(self) -> None:
        body = b'{"k":"a"}\n{"n":1}\n{"k":"b"}\n{"k":"a"}\n{"n":2}'
        turns = iter([5])
        got = payloads(parsed(NDJSON, body, key="k"), 8, lambda: next(turns))
        keys = {
            partition: [(r.data, r.key) for r in decode(payload)]
            for partition, _, payload, _, _ in got
        }
        wanted: dict[int, list[tuple[str, str | None]]] = {}
        for text, key in (
            ('{"k":"a"}', "a"),
            ('{"n":1}', None),
            ('{"k":"b"}', "b"),
            ('{"k":"a"}', "a"),
            ('{"n":2}', None),
        ):
            wanted.setdefault(5 if key is None else partition_of(key, 8), []).append((text, key))
        assert keys == wanted
        assert [each[0] for each in got] == sorted(keys)

    def test_a_request_without_keys_goes_whole_to_the_next_partition(self) -> None:
        got = payloads(parsed(NDJSON, b"1\n2\n3"), 8, lambda: 6)
        assert [(partition, count) for partition, count, *_ in got] == [(6, 3)]

    def test_a_named_partition_takes_all_keys_notwithstanding(self) -> None:
        produce = parsed(NDJSON, b'{"k":"a"}\n{"k":"b"}', key="k", partition="3")
        assert [each[:2] for each in payloads(produce, 4, lambda: 0)] == [(3, 2)]

    def test_a_partition_that_is_not_there_is_400(self) -> None:
        with pytest.raises(ApiError) as caught:
            payloads(parsed(JSON, b"[1]", partition="4"), 4, lambda: 0)
        assert (caught.value.status, caught.value.detail["partitions"]) == (400, 4)

    @pytest.mark.parametrize("body", [b"1", b'{"k":"a"}\n{"k":"b"}\n{"k":"c"}\n{"k":"d"}'])
    def test_an_expectation_needs_one_partition(self, body: bytes) -> None:
        with pytest.raises(ApiError) as caught:
            payloads(parsed(NDJSON, body, key="k", expected_seq="1"), 8, lambda: 0)
        assert caught.value.status == 400
        one = payloads(parsed(NDJSON, body, key="k", expected_seq="1"), 1, lambda: 0)
        assert len(one) == 1


def _holds_big_integer(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_holds_big_integer(each) for each in value.values())
    if isinstance(value, list):
        return any(_holds_big_integer(each) for each in value)
    return isinstance(value, int) and not -(2**63) <= value < 2**64


@pytest.mark.parametrize("name", ["\\", 'a"b', '"', "\\=\\", "", "é", "a.b", "key"])
def test_a_field_of_any_name_can_be_the_key(name: str) -> None:
    lines = [{name: "k", "other": 1}, {"other": 2}, {name: 7}, {"other": name, name: None}]
    body = "\n".join(json.dumps(line) for line in lines).encode()
    keys = [record.key for record in stored(parsed(NDJSON, body, key=name))]
    assert keys == ["k", None, "7", None]
    error = refused(NDJSON, json.dumps({name: {}}).encode(), key=name)
    assert (error.status, error.detail["line"]) == (400, 1)
