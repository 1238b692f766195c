"""Maps of msgpack are found in a stream, whatever the pieces that arrive."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.maps import batch_records, msgpack_end

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text()
    | st.binary(max_size=300),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(), inner, max_size=20),
    max_leaves=30,
)  # fmt: skip


@given(VALUES, st.binary(max_size=3))
def test_a_value_ends_where_the_next_one_begins(value: Any, rest: bytes) -> None:
    data = msgspec.msgpack.encode(value)
    assert msgpack_end(data + rest) == len(data)


@given(VALUES, st.data())
def test_a_value_that_is_not_all_there_has_no_end(value: Any, data: st.DataObject) -> None:
    whole = msgspec.msgpack.encode(value)
    assert msgpack_end(whole[: data.draw(st.integers(0, len(whole) - 1))]) is None


def test_a_batch_has_its_records_after_those_that_are_skipped() -> None:
    payload = msgspec.msgpack.encode([['"a"'], ['"b"', 5], ['"c"', None, "key"]])
    batch = {"topic": "t", "partition": 2, "first_seq": 7, "count": 3, "skip": 1, "codec": 1,
             "payload": payload}  # fmt: skip
    assert [(each["seq"], each["data"]) for each in batch_records(batch)] == [(8, "b"), (9, "c")]
