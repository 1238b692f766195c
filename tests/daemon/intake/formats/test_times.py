"""A record's own time: milliseconds up to the end of the year 9999, in every format."""

from __future__ import annotations

import json

import msgspec
import pytest

from tests.daemon.intake.formats.sent import BYTES, JSON, MSGPACK, parsed, refused, stored
from uploader.l0.records import TIMESTAMP_MS_MAX

MISTAKEN = [
    (1_700_000_000_000_000, "looks like microseconds; ts is in milliseconds"),
    (TIMESTAMP_MS_MAX + 1, "looks like microseconds; ts is in milliseconds"),
    (1_700_000_000_000_000_000, "looks like nanoseconds; ts is in milliseconds"),
    (2**63 + 5, "looks like nanoseconds; ts is in milliseconds"),
]


@pytest.mark.parametrize(("ts", "words"), MISTAKEN)
def test_a_time_in_another_unit_is_refused_by_name_in_every_format(ts: int, words: str) -> None:
    records = {"records": [{"data": 1, "ts": 5}, {"data": 2, "ts": ts}]}
    errors = [
        refused(JSON, json.dumps(records).encode()),
        refused(MSGPACK, msgspec.msgpack.encode(records)),
    ]
    assert [error.detail["record"] for error in errors] == [1, 1]
    errors.append(refused(BYTES, b"x", ts=str(ts)))
    for error in errors:
        assert (error.status, error.code, error.detail["field"]) == (400, "invalid", "ts")
        assert error.detail["limit_ms"] == TIMESTAMP_MS_MAX
        assert f"is {ts}, which {words}" in error.message and str(TIMESTAMP_MS_MAX) in error.message


@pytest.mark.parametrize("ts", [-1, -(2**63), 10**300])
def test_a_time_that_is_none_in_any_unit_names_the_limits(ts: int) -> None:
    error = refused(JSON, json.dumps({"records": [{"data": 1, "ts": ts}]}).encode())
    assert error.status == 400 and "in milliseconds, from 0 to 253402300799999" in error.message
    assert "looks like" not in error.message and len(error.message) < 200


def test_the_last_millisecond_of_the_year_9999_is_taken() -> None:
    records = {"records": [{"data": 1, "ts": TIMESTAMP_MS_MAX}]}
    taken = parsed(JSON, json.dumps(records).encode())
    assert [record.ts for record in stored(taken)] == [TIMESTAMP_MS_MAX]
