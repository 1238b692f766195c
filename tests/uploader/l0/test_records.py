"""Records of texts have the payload that records of rows have, whatever the sizes and counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from uploader.l0.records import Record, decode, encode, encode_texts, texts_of


def check(texts: list[str]) -> None:
    records = texts_of([Raw(text.encode()) for text in texts])
    assert records.bytes_max >= max(len(text.encode()) for text in texts)
    payload = encode_texts(records)
    assert payload == encode([(text,) for text in texts])
    assert decode(payload) == [Record(text) for text in texts]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1))
def test_texts_are_encoded_as_rows_are(texts: list[str]) -> None:
    check(texts)


@pytest.mark.parametrize(
    "size", [0, 1, 31, 32, 255, 256, 1023, 1024, 1025, (1 << 16) - 1, 1 << 16, 1 << 20]
)
def test_the_head_of_a_text_is_that_of_its_size(size: int) -> None:
    check(["x" * size])
    check(["1", "é" * (size // 2) + "x" * (size % 2), "2"])


@pytest.mark.parametrize("count", [1, 15, 16, (1 << 16) - 1, 1 << 16])
def test_the_head_of_a_payload_is_that_of_its_count(count: int) -> None:
    check(["1"] * count)
