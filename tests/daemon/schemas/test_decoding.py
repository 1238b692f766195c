"""Bodies and queries of requests: whatever the bytes, the answer is a refusal that says where."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import inspect

from daemon.api.routes import ROUTES
from daemon.schemas.api import DiffRequest, ProduceQuery, TopicSettings, TopicsQuery
from daemon.schemas.decoding import read_body, read_query
from daemon.schemas.errors import ApiError

TYPES = ("boolean", "double", "long", "string", "timestamp")
DECODERS = {
    f"{route.method} {route.path}": msgspec.json.Decoder(route.body)
    for route in ROUTES
    if route.body not in (None, msgspec.Raw) and "{operation}" not in route.path
}


def refused(decoder: msgspec.json.Decoder[Any], body: bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read_body("application/json", body, decoder)
    assert (caught.value.status, caught.value.code) == (400, "invalid")
    return caught.value


@pytest.mark.parametrize("decoder", DECODERS.values(), ids=DECODERS)
def test_a_members_name_that_is_not_utf8_is_refused_with_its_place(
    decoder: msgspec.json.Decoder[Any],
) -> None:
    error = refused(decoder, b'{"from_\x97eq": 0}')
    assert error.detail == {"byte": 7, "line": 1}
    assert "not UTF-8" in error.message


@pytest.mark.parametrize("decoder", DECODERS.values(), ids=DECODERS)
@given(body=st.binary(max_size=12) | st.binary(max_size=8).map(lambda b: b'{"%s":0}' % b))
@example(b"[" * 100_000)
@example(b'{"a":' * 100_000)
@example(b'{"\\ud800": 1}')
def test_no_bytes_of_a_body_make_a_reader_fail(
    decoder: msgspec.json.Decoder[Any], body: bytes
) -> None:
    with suppress(ApiError):
        read_body("application/json", body, decoder)


@pytest.mark.parametrize("decoder", DECODERS.values(), ids=DECODERS)
def test_a_body_of_another_type_is_refused_with_the_type_that_is_read(
    decoder: msgspec.json.Decoder[Any],
) -> None:
    with pytest.raises(ApiError) as caught:
        read_body("text/plain", b"{}", decoder)
    assert caught.value.status == 415
    assert "application/json" in caught.value.message


@pytest.mark.parametrize(
    ("type_", "body", "message"),
    [
        (DiffRequest, b'{"limit":0}', "limit must be an integer from 1 to 1000, got 0"),
        (DiffRequest, b'{"limit":"many"}', 'limit must be an integer from 1 to 1000, got "many"'),
        (DiffRequest, b'{"from_seq":-1}', "from_seq must be an integer of at least 0, got -1"),
        (DiffRequest, b'{"tag":7}', "tag must be a string or null, got 7"),
        (DiffRequest, b'{"from":7}', "the body has the unknown field `from`"),
        (DiffRequest, b"[1]", "the body must be a JSON object, got an array"),
        (TopicSettings, b'{"discard":"x"}', 'discard must be one of "old", "reject", got \'x\''),
        (
            TopicSettings,
            b'{"columns":{"a":"x"}}',
            "columns[...] must be one of " + ", ".join(f'"{name}"' for name in TYPES) + ", got 'x'",
        ),
    ],
)
def test_a_refusal_names_the_field_its_limits_and_the_value(
    type_: Any, body: bytes, message: str
) -> None:
    error = refused(msgspec.json.Decoder(type_), body)
    assert error.message == message
    if message.startswith(("limit", "discard", "columns")):
        assert error.detail == {"field": message.partition(" ")[0].partition("[")[0]}


@pytest.mark.parametrize(
    ("type_", "query", "message"),
    [
        (TopicsQuery, {"limit": "0"}, "limit must be an integer from 1 to 1000, got '0'"),
        (TopicsQuery, {"limit": "+1"}, "limit must be an integer from 1 to 1000, got '+1'"),
        (ProduceQuery, {"create": "1"}, "create must be true or false, got '1'"),
        (ProduceQuery, {"dedupe": "x"}, 'dedupe must be one of "body", "none", got \'x\''),
        (ProduceQuery, {"idempotency_key": ""}, "idempotency_key must be a string with 1 to 256"),
    ],
)
def test_a_parameter_is_refused_with_its_limits(
    type_: Any, query: dict[str, str], message: str
) -> None:
    with pytest.raises(ApiError) as caught:
        read_query(query, type_)
    assert (caught.value.status, caught.value.code) == (400, "invalid")
    assert caught.value.message.startswith(message)
    assert caught.value.detail == {"parameter": next(iter(query))}


def test_a_query_is_read_as_text_numbers_and_truth_and_other_parameters_are_left_out() -> None:
    read = read_query({"partition": "3", "key": "null", "create": "false", "x": "y"}, ProduceQuery)
    assert (read.partition, read.key, read.create, read.ts) == (3, "null", False, None)


def test_what_a_value_should_be_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Asked(msgspec.Struct):
        limit: int = 0

    calls: list[object] = []
    look_up = inspect.type_info

    def counted(type_: object) -> object:
        calls.append(type_)
        return look_up(type_)

    monkeypatch.setattr(inspect, "type_info", counted)
    for _ in range(3):
        refused(msgspec.json.Decoder(Asked), b'{"limit":"x"}')
        with pytest.raises(ApiError, match="limit must be an integer, got 'x'"):
            read_query({"limit": "x"}, Asked)
    assert calls == [Asked]
