"""The requests of POSTs are CloudEvents, in three formats that say the same."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.push.events import EventSource, batch_id, percent_encoded, request_of
from delivery.push.secrets import PushSecrets, SecretMissing
from delivery.push.signatures import signature
from delivery.subscriptions.handing import PushedMessage
from ledger.delivery.push_settings import PushSettings
from uploader.l0.records import Record

SOURCE = EventSource("shop:orders", 12, 1_700_000_000_000, "")
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
NOW_MS = 1_800_000_000_500
TS_MAX = 253_402_300_799_999

# Text as records have it: of JSON, so without lone surrogates.
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
MESSAGES = st.builds(
    PushedMessage, st.integers(0, 9_999), st.just(1), st.integers(1, 1_001),
    st.integers(1, 2**53), st.integers(0, TS_MAX),
    st.builds(
        Record,
        st.one_of(
            JSON.map(lambda value: json.dumps(value, indent=1)),
            JSON.map(lambda value: json.dumps(value, ensure_ascii=False)),
            st.binary(),
        ),
        st.none(), *[st.none() | TEXT] * 3, st.none() | JSON.map(json.dumps),
    ),
)  # fmt: skip


def settings(**fields: object) -> PushSettings:
    return msgspec.convert({"endpoint": "https://example.com/in", **fields}, PushSettings)


def message(
    partition: int = 3, epoch: int = 1, attempt: int = 2, seq: int = 57,
    ts: int = 1_700_000_000_123, data: object = '{"a":1}', **fields: Any,
) -> PushedMessage:  # fmt: skip
    return PushedMessage(partition, epoch, attempt, seq, ts, Record(data, **fields))


def attributes_of(headers: dict[str, str]) -> dict[str, str]:
    """As a receiver decodes them."""
    return {
        name.removeprefix("ce-"): unquote(value, errors="strict")
        for name, value in headers.items()
        if name.startswith("ce-")
    }


def test_a_record_in_binary_mode_is_the_body_and_its_attributes_are_headers() -> None:
    sent = message(key="Euro € \U0001f600", tag='"100%"', node="", meta='{"a": 1}')
    assert request_of(settings(), SOURCE, [sent], None, NOW_MS) == (
        {
            "content-type": "application/json",
            "ce-specversion": "1.0",
            "ce-id": "12-18bcfe56800-0-3-57",
            "ce-source": "/topics/shop:orders",
            "ce-type": "headgate.record",
            "ce-time": "2023-11-14T22:13:20.123Z",
            "ce-partition": "3",
            "ce-seq": "57",
            "ce-attempt": "2",
            "ce-key": "Euro%20%E2%82%AC%20%F0%9F%98%80",
            "ce-tag": "%22100%25%22",
            "ce-node": "",
            "ce-meta": "{%22a%22:%201}",
        },
        b'{"a":1}',
    )


def test_the_request_in_the_guide_is_one_that_is_sent() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "push.md").read_text()
    shown = guide.partition("```\nPOST /orders HTTP/1.1\n")[2].partition("\n```")[0]
    head, _, body = shown.partition("\n\n")
    source = EventSource("orders", 12, 1_700_000_000_000, "")
    sent = message(attempt=1, key="customer-17", data=body)
    headers, _ = request_of(settings(), source, [sent], None, NOW_MS)
    assert head.split("\n") == [f"{name}: {value}" for name, value in headers.items()]


def test_bytes_are_sent_as_they_are() -> None:
    headers, body = request_of(settings(), SOURCE, [message(data=b"\x00\xff")], None, NOW_MS)
    assert (headers["content-type"], body) == ("application/octet-stream", b"\x00\xff")


def test_a_record_in_structured_mode_is_one_document() -> None:
    headers, body = request_of(
        settings(format="structured"), SOURCE, [message(key="k")], None, NOW_MS
    )
    assert headers == {"content-type": "application/cloudevents+json; charset=utf-8"}
    assert body == (
        b'{"specversion":"1.0","id":"12-18bcfe56800-0-3-57","source":"/topics/shop:orders",'
        b'"type":"headgate.record","time":"2023-11-14T22:13:20.123Z",'
        b'"datacontenttype":"application/json","partition":3,"seq":"57","attempt":2,"key":"k",'
        b'"data":{"a":1}}'
    )


def test_a_document_has_everything_that_a_record_has_as_text_that_json_allows() -> None:
    sent = message(
        key='"\\/\n\x00\x7f€',
        tag="",
        node="n",
        meta='{"a": 1}',
        data='{ "n": 1e999, "s": "\\u00e9" }',
    )
    _, body = request_of(settings(format="structured"), SOURCE, [sent], None, NOW_MS)
    assert body.decode().partition('"attempt":2')[2] == (
        ',"key":"\\"\\\\/\\n\\u0000\x7f€","tag":"","node":"n","meta":"{\\"a\\": 1}",'
        '"data":{ "n": 1e999, "s": "\\u00e9" }}'
    )
    _, body = request_of(settings(format="structured"), SOURCE, [message(data=b"ab")], None, NOW_MS)
    assert body.endswith(b'"attempt":2,"data_base64":"YWI="}')


def test_a_batch_is_a_list_of_documents() -> None:
    sent = [message(), message(seq=58, data=b"ab")]
    headers, body = request_of(settings(format="batch"), SOURCE, sent, None, NOW_MS)
    assert headers == {"content-type": "application/cloudevents-batch+json; charset=utf-8"}
    first, second = json.loads(body)
    assert first["data"] == {"a": 1} and first["datacontenttype"] == "application/json"
    assert b64decode(second["data_base64"]) == b"ab" and "data" not in second
    assert second["datacontenttype"] == "application/octet-stream"


@pytest.mark.parametrize(
    ("type_from", "record", "expected"),
    [
        (None, {"tag": "order.paid"}, "headgate.record"),
        ("tag", {"tag": "order.paid"}, "order.paid"),
        ("tag", {"tag": "é %"}, "é %"),
        ("tag", {}, "headgate.record"),
        ("tag", {"tag": ""}, "headgate.record"),
        ("tag", {"tag": "a\nb"}, "headgate.record"),
        ("data.kind", {"data": '{"kind":"paid","n":1e999}'}, "paid"),
        ("data.a.b", {"data": '{"a":{"b":7}}'}, "7"),
        ("data.kind", {"data": '{"kind":["paid"]}'}, "headgate.record"),
        ("data.kind", {"data": '{"kind":"%s"}' % ("x" * 1_025)}, "headgate.record"),
        ("data.kind", {"data": b'{"kind":"paid"}'}, "headgate.record"),
        ("data.kind", {"data": '"paid"', "tag": "order.paid"}, "headgate.record"),
    ],
)
def test_a_type_comes_from_where_the_settings_say_if_there_is_one(
    type_from: str | None, record: dict[str, Any], expected: str
) -> None:
    sent = [message(**record)]
    headers, _ = request_of(settings(type_from=type_from), SOURCE, sent, None, NOW_MS)
    assert attributes_of(headers)["type"] == expected and headers["ce-type"].isascii()
    wanted = settings(type_from=type_from, format="batch")
    (document,) = json.loads(
        request_of(wanted, SOURCE, sent, None, NOW_MS)[1].replace(b"1e999", b"1")
    )
    assert document["type"] == expected


@given(st.lists(MESSAGES, min_size=1, max_size=4))
def test_the_three_formats_say_the_same_of_any_record(sent: list[PushedMessage]) -> None:
    documents = json.loads(request_of(settings(format="batch"), SOURCE, sent, None, NOW_MS)[1])
    for told, document in zip(sent, documents, strict=True):
        _, body = request_of(settings(format="structured"), SOURCE, [told], None, NOW_MS)
        assert json.loads(body) == document
        headers, body = request_of(settings(), SOURCE, [told], None, NOW_MS)
        for value in headers.values():
            assert re.fullmatch(r"[!-~]*", value)  # nothing that ends a header, or begins one
        assert [*attributes_of(headers).items()] == [
            (name, str(value))
            for name, value in document.items()
            if name not in ("data", "data_base64", "datacontenttype")
        ]
        if isinstance(told.record.data, str):
            assert body == told.record.data.encode()
            assert json.loads(body) == document["data"]
        else:
            assert body == told.record.data == b64decode(document["data_base64"])
        assert (
            document["key"] == told.record.key
            if told.record.key is not None
            else "key" not in document
        )
        assert document.get("meta") == told.record.meta
        at = datetime.strptime(document["time"], "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
        assert (at - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() == told.ts / 1_000


@given(TEXT)
def test_percent_encoding_leaves_what_the_binding_leaves(value: str) -> None:
    expected = "".join(
        char if "!" <= char <= "~" and char not in '"%'
        else "".join(f"%{byte:02X}" for byte in char.encode())
        for char in value
    )  # fmt: skip
    assert percent_encoded(value) == expected


def test_the_id_of_an_event_is_the_same_in_all_attempts() -> None:
    assert SOURCE.id_of(message(attempt=1)) == SOURCE.id_of(message(attempt=9, epoch=5))


def test_ids_differ_between_records_topics_and_histories() -> None:
    sources = [
        SOURCE,
        EventSource("shop:orders", 13, 1_700_000_000_000, ""),
        EventSource("shop:orders", 12, 1_700_000_000_001, ""),
        EventSource("shop:orders", 12, 1_700_000_000_000, "8f14e45fceea167a"),
    ]
    sent = [message(), message(seq=58), message(partition=4), message(partition=35, seq=7)]
    ids = {source.id_of(each) for source in sources for each in sent}
    ids |= {batch_id(source, [each]) for source in sources for each in sent}
    assert len(ids) == 2 * len(sources) * len(sent)
    assert not any("." in each for each in ids)


def test_a_batch_has_the_same_id_again_only_with_the_same_records() -> None:
    first, second, third = message(), message(seq=58), message(seq=59)
    ids = {
        batch_id(SOURCE, batch)
        for batch in ([first], [first, second], [first, third], [first, second, third])
    }
    assert len(ids) == 4
    assert batch_id(SOURCE, [first, second]) in ids


@pytest.mark.parametrize("format_", ["binary", "structured", "batch"])
def test_a_signed_request_can_be_verified_by_its_headers_and_body(format_: str) -> None:
    secrets = PushSecrets((SECRET,), {"authorization": "Bearer x"})
    signed = settings(format=format_, signed=True, headers=["Authorization"])
    headers, body = request_of(signed, SOURCE, [message()], secrets, NOW_MS)
    expected = signature(SECRET, headers["webhook-id"], NOW_MS // 1_000, body)
    assert headers["webhook-signature"] == expected
    assert headers["webhook-timestamp"] == str(NOW_MS // 1_000)
    assert headers["authorization"] == "Bearer x"
    if format_ == "binary":
        assert headers["webhook-id"] == headers["ce-id"]


@pytest.mark.parametrize(
    ("fields", "secrets"),
    [
        ({"signed": True}, None),
        ({"signed": True}, PushSecrets(headers={"x-token": "1"})),
        ({"headers": ["X-Token"]}, None),
        ({"headers": ["X-Token", "Authorization"]}, PushSecrets(headers={"x-token": "1"})),
    ],
)
def test_nothing_is_sent_without_the_secrets_that_belong_to_it(
    fields: dict[str, object], secrets: PushSecrets | None
) -> None:
    with pytest.raises(SecretMissing, match=r"push-secrets\.json"):
        request_of(settings(**fields), SOURCE, [message()], secrets, NOW_MS)


def test_secrets_that_settings_do_not_name_are_not_sent() -> None:
    secrets = PushSecrets((SECRET,), {"authorization": "Bearer x"})
    headers, _ = request_of(settings(), SOURCE, [message()], secrets, NOW_MS)
    assert not {"authorization", "webhook-signature"} & set(headers)
