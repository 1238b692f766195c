"""What a stream watches, as a token."""

from __future__ import annotations

import re
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.filters import Filter
from delivery.watch.token import (
    WID_CHARACTERS_MAX,
    WatchPlace,
    WatchSpec,
    WidError,
    decode_wid,
    encode_wid,
)
from ledger.types import INTEGER_MAX
from shards.checksum import crc32c

NUMBERS = st.integers(0, INTEGER_MAX)
PLACES = st.builds(
    WatchPlace, st.integers(1, INTEGER_MAX), st.none() | NUMBERS, from_seq=st.none() | NUMBERS
) | st.builds(WatchPlace, st.integers(1, 9), from_ts=NUMBERS)
PATTERNS = st.none() | st.text(st.characters(exclude_characters="\\", codec="utf-8"), max_size=20)
SPECS = st.builds(
    WatchSpec, st.lists(PLACES, min_size=1, max_size=64).map(tuple), PATTERNS, PATTERNS, PATTERNS
)


@given(SPECS)
def test_a_wid_is_read_as_it_was_made(spec: WatchSpec) -> None:
    wid = encode_wid(spec)
    assert re.fullmatch(r"[A-Za-z0-9_-]+", wid) and len(wid) <= WID_CHARACTERS_MAX
    assert decode_wid(wid) == spec


def test_a_wid_stays_the_same_between_versions() -> None:
    spec = WatchSpec((WatchPlace(7), WatchPlace(9, 3, 120)), tag="a*")
    assert encode_wid(spec) == "AQy1phOUkpQHwMDAlAkDeMCiYSrAwA"
    assert spec.filter == Filter(tag="a*")


@given(SPECS, st.data())
def test_a_wid_with_another_character_is_refused(spec: WatchSpec, data: st.DataObject) -> None:
    wid = encode_wid(spec)
    at = data.draw(st.integers(0, len(wid) - 1))
    other = data.draw(st.sampled_from("Aa0_-").filter(lambda each: each != wid[at]))
    with pytest.raises(WidError):
        decode_wid(wid[:at] + other + wid[at + 1 :])


@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda b: urlsafe_b64encode(b).decode()))
def test_no_text_is_worse_than_refused(text: str) -> None:
    with pytest.raises(WidError):
        decode_wid(text)


def forged(body: bytes, version: int = 1) -> str:
    return urlsafe_b64encode(struct.pack("<BI", version, crc32c(body)) + body).decode().rstrip("=")


@pytest.mark.parametrize(
    "fields",
    [
        [[]],
        [[[0]]],
        [[[1, -1]]],
        [[[1, None, 1, 1]]],
        [[[1]] * 65],
        [[[1]], "x" * 1_025],
        [[[1]], "\\"],
        [[[1]], 5],
        {"places": 1},
        "text",
    ],
)
def test_what_a_right_checksum_protects_is_still_checked(fields: object) -> None:
    assert decode_wid(forged(msgspec.msgpack.encode([[[1]]]))) == WatchSpec((WatchPlace(1),))
    with pytest.raises(WidError):
        decode_wid(forged(msgspec.msgpack.encode(fields)))


def test_a_wid_of_another_version_says_what_to_do() -> None:
    with pytest.raises(WidError, match="of version 2, this daemon knows 1; get another one with"):
        decode_wid(forged(msgspec.msgpack.encode([[[1]]]), version=2))


def test_filters_that_make_a_wid_too_long_are_refused() -> None:
    encode_wid(WatchSpec((WatchPlace(1),), "t" * 1_000, "n" * 1_000, "k" * 1_000))
    with pytest.raises(WidError, match="shorten the filters"):
        encode_wid(WatchSpec((WatchPlace(1),), "é" * 1_000, "é" * 1_000, None))
    with pytest.raises(WidError, match="at most 4096 characters, got 5000"):
        decode_wid("A" * 5_000)


def test_padding_is_not_part_of_a_wid() -> None:
    wid = encode_wid(WatchSpec((WatchPlace(1),)))
    assert urlsafe_b64decode(wid + "=" * (-len(wid) % 4))
    with pytest.raises(WidError):
        decode_wid(wid + "=" * (-len(wid) % 4 or 4))
