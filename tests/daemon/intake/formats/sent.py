"""What the tests of formats share: bodies that are parsed, and records as they are stored."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import strategies as st

from daemon.intake.formats import BodyLimits, Produce, parse, payloads
from daemon.schemas.errors import ApiError
from uploader.l0.records import Record, decode

LIMITS = BodyLimits()
NOW_MS = 1_700_000_000_000
NDJSON = "application/x-ndjson"
JSON = "application/json"
MSGPACK = "application/msgpack"
BYTES = "application/octet-stream"


def stored(produce: Produce) -> list[Record]:
    ((_, count, payload, _, _),) = payloads(produce, 1, lambda: 0)
    records = decode(payload)
    assert count == len(records) == produce.record_count
    return records


def parsed(content_type: str, body: bytes, limits: BodyLimits = LIMITS, /, **query: str) -> Produce:
    return parse(content_type, query, body, limits, NOW_MS)


def refused(
    content_type: str, body: bytes, limits: BodyLimits = LIMITS, /, **query: str
) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parsed(content_type, body, limits, **query)
    return caught.value


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=12,
)


@st.composite
def spelled(draw: st.DrawFn, value: Any) -> str:
    """JSON text of ``value`` in one of the ways that producers spell it."""
    return json.dumps(
        value,
        ensure_ascii=draw(st.booleans()),
        separators=draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", " :  ")])),
    )
