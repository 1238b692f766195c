"""The bodies that the benchmark sends have the sizes and record counts of the table."""

from __future__ import annotations

import json

import msgspec
import pytest

from bench import bodies
from bench.bodies import SIZES, Size

sizes = pytest.mark.parametrize("size", SIZES, ids=lambda size: size.name)


@sizes
@pytest.mark.parametrize("body_format", bodies.FORMATS)
def test_a_body_has_exactly_its_size(size: Size, body_format: str) -> None:
    assert len(bodies.of(size, body_format).data) == size.size_bytes


@sizes
def test_the_peers_body_has_exactly_the_same_size(size: Size) -> None:
    assert len(bodies.s2(size.size_bytes, size.records).data) == size.size_bytes


@sizes
def test_an_ndjson_body_is_one_object_a_line(size: Size) -> None:
    body = bodies.of(size, bodies.NDJSON)
    assert body.data.endswith(b"\n")
    events = [json.loads(line) for line in body.data.splitlines()]
    assert len(events) == body.records == size.records
    assert all(isinstance(event, dict) for event in events)


@sizes
def test_a_msgpack_body_is_the_documented_map(size: Size) -> None:
    body = bodies.of(size, bodies.MSGPACK)
    decoded = msgspec.msgpack.decode(body.data)
    assert list(decoded) == ["records"]
    assert len(decoded["records"]) == body.records == size.records
    assert all(list(record) == ["data"] for record in decoded["records"])


@sizes
def test_all_formats_carry_records_of_the_same_fields(size: Size) -> None:
    line = json.loads(bodies.of(size, bodies.NDJSON).data.splitlines()[0])
    item = msgspec.msgpack.decode(bodies.of(size, bodies.MSGPACK).data)["records"][0]["data"]
    peer = json.loads(bodies.s2(size.size_bytes, size.records).data)["records"][0]["body"]
    assert list(line) == list(item) == list(json.loads(peer))


def test_records_differ_from_each_other() -> None:
    lines = bodies.ndjson(64 * 1024, 320).data.splitlines()
    assert len(set(lines)) == 320


def test_the_same_arguments_give_the_same_bytes() -> None:
    assert bodies.ndjson(1024, 2) == bodies.ndjson(1024, 2)


def test_a_size_too_small_for_a_record_is_refused_with_what_is_too_much() -> None:
    with pytest.raises(ValueError, match="does not fit into 19 bytes"):
        bodies.ndjson(20, 1)
