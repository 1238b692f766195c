"""Keys of L0 objects, and what the package may import."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.types import Advance, Condition, ConditionPart, LeaseId, ProducerBatch
from tests.uploader.l0_samples import batch, golden
from uploader.l0 import (
    ExtentParts,
    Footer,
    L0Error,
    RingRun,
    build,
    object_key,
    parse_key,
    read_footer,
)
from uploader.l0.layout import TAIL, TAIL_BYTES
from uploader.l0.records import Record

_numbers = st.integers(0, 2**63)
_leases = st.builds(LeaseId, _numbers, st.integers(0, 10**18 - 1), _numbers, _numbers)


def test_a_key_names_the_lease_with_its_epoch_in_18_digits() -> None:
    assert object_key(LeaseId(3, 17, 1, 42)) == "l0/000000000000000017/3-1-42"


@given(_leases)
def test_a_key_parses_to_its_lease_id(lease_id: LeaseId) -> None:
    assert parse_key(object_key(lease_id)) == lease_id


@given(_leases, _leases)
def test_keys_sort_by_epoch_before_anything_else(one: LeaseId, other: LeaseId) -> None:
    if one.epoch < other.epoch:
        assert object_key(one) < object_key(other)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "l0/17/3-1-42",
        "l0/000000000000000017/3-1",
        "l0/000000000000000017/3-1-42/",
        "l0/000000000000000017/03-1-42",
        "l0/000000000000000017/3-1-٤",
        "l0/000000000000000017/3-1-42\n",
        "ledger/000000000000000017/3-1-42",
    ],
)
def test_a_key_of_no_lease_is_refused_by_name(key: str) -> None:
    with pytest.raises(L0Error) as caught:
        parse_key(key)
    assert repr(key) in str(caught.value)


def test_an_epoch_that_would_break_the_order_of_keys_is_refused() -> None:
    with pytest.raises(ValueError, match="1000000000000000000"):
        object_key(LeaseId(1, 10**18, 0, 0))


def test_an_executor_imports_nothing_but_what_travels_in_the_archive() -> None:
    program = (
        "import sys, msgspec, crc32c; before = set(sys.modules); import uploader.l0;"
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}"
        " - set(sys.stdlib_module_names)))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.stderr == ""
    roots = set(found.stdout.split())
    assert roots <= {"uploader", "ledger", "shards"}


def test_a_footer_that_ends_before_the_later_elements_is_read() -> None:
    version, lease, created_ms, extents, conditions, seen = msgspec.msgpack.decode(
        msgspec.msgpack.encode(read_footer(golden().body))
    )
    assert seen == 41
    older = msgspec.msgpack.encode([version, lease, created_ms, extents, conditions])
    assert msgspec.msgpack.decode(older, type=Footer).commits_seen == 0


def test_a_condition_has_advance_and_producer_as_last_elements_or_ends_before_them() -> None:
    """So footers without one are as they were before there were cursors and producers."""
    advance = Advance(7, 2, 10, 15, False, "sink", 3, 10)
    part = (ConditionPart(0, 0, 4),)
    conditions = [
        Condition(1, 64, 5, part, "k", None, advance),
        Condition(1, 64, 5, part, "k", None),
        Condition(1, 64, 5, part, producer=ProducerBatch(1 << 62, 2, 7, 10)),
    ]
    parts = ExtentParts(
        "t", 5, 0, 1, [batch([Record("1")], 1)], 1, 1, 1, (RingRun(1, 64, 0, 1),)
    )  # fmt: skip
    body = build(LeaseId(1, 2, 0, 3), 5, [parts], conditions).body
    _, length, _ = TAIL.unpack_from(body, len(body) - TAIL_BYTES)
    footer = msgspec.msgpack.decode(body[-TAIL_BYTES - length : -TAIL_BYTES])
    assert footer[4] == [
        [1, 64, 5, [[0, 0, 4]], "k", None, [7, 2, 10, 15, False, "sink", 3, 10]],
        [1, 64, 5, [[0, 0, 4]], "k", None],
        [1, 64, 5, [[0, 0, 4]], None, None, None, [1 << 62, 2, 7, 10]],
    ]
    assert [each.condition() for each in read_footer(body).conditions] == conditions
