"""Nesting and elements of JSON are counted without building it."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.intake.formats import BodyLimits, nesting, parse
from daemon.schemas.errors import ApiError

values = st.recursive(
    st.integers() | st.text() | st.sampled_from(['"', "\\", '\\"', "[{,", "]},", "\\\\"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def depth(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return 1 + max(map(depth, value), default=0)
    return 0


@given(values, st.integers(1, 9))
def test_nesting_is_what_the_built_value_has(value: Any, window: int) -> None:
    text = json.dumps(value).encode()
    with patch.object(nesting, "_WINDOW_BYTES", window):
        found = [limit for limit in range(12) if not nesting.nested_deeper(text, limit)]
    assert min(found, default=12) == depth(value)


@given(st.lists(values, max_size=12), st.integers(1, 9), st.integers(1, 12))
def test_elements_are_counted_at_their_level_only(
    value: list[Any], window: int, limit: int
) -> None:
    array = json.dumps(value).encode()
    inside = json.dumps({"records": value}).encode()
    with patch.object(nesting, "_WINDOW_BYTES", window):
        assert nesting.more_elements(array, 1, limit) == (len(value) > limit)
        assert nesting.more_elements(inside, 2, limit) == (len(value) > limit)


LIMITS = BodyLimits(body_bytes_max=4 << 20, records_max=10_000)
HOSTILE = {
    "array of numbers": ("application/json", b"[" + b"0," * (2 << 20)),
    "array of empty arrays": ("application/json", b"[" + b"[]," * (1 << 20)),
    "empty records": ("application/json", b'{"records":[' + b"{}," * (1 << 20)),
    "short records": ("application/json", b'{"records":[' + b'{"data":0},' * 380_000),
    "values on one line": ("application/x-ndjson", b"0 " * (2 << 20)),
    "short lines": ("application/x-ndjson", b"0\n" * (2 << 20)),
    "empty lines": ("application/x-ndjson", b"\n" * (4 << 20)),
    "msgpack nils": (
        "application/msgpack",
        b"\x81\xa7records\xdd\x00\x3f\xff\x00" + b"\xc0" * 0x3FFF00,
    ),
    "one wide msgpack record": (
        "application/msgpack",
        msgspec.msgpack.encode({"records": [{"data": [[]] * 1_000_000}]}),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_a_dense_body_is_refused_within_bounded_memory(name: str) -> None:
    content_type, body = HOSTILE[name]
    body = body[: LIMITS.body_bytes_max]
    tracemalloc.start()
    with pytest.raises(ApiError) as caught:
        parse(content_type, {}, body, LIMITS, 0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert caught.value.status in (400, 413)
    assert peak < 100 << 20, f"{peak / (1 << 20):.0f} MiB"


def test_a_dense_body_within_the_limits_is_taken() -> None:
    record = b'{"data":[' + b",".join([b"0"] * 190) + b"]}"
    body = b'{"records":[' + b",".join([record] * 10_000) + b"]}"
    assert parse("application/json", {}, body, LIMITS, 0).record_count == 10_000
    one_more = body[:-2] + b"," + record + b"]}"
    with pytest.raises(ApiError) as caught:
        parse("application/json", {}, one_more, LIMITS, 0)
    assert caught.value.status == 413
