"""A word and a double are the same bits."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from shards.doubles import double_of, doubles_of, word_of


@given(st.floats())
def test_a_double_comes_back_as_it_was_also_if_it_is_not_a_number(value: float) -> None:
    back = double_of(word_of(value))
    assert back == value or (math.isnan(back) and math.isnan(value))


@given(st.lists(st.floats(allow_nan=False), max_size=8))
def test_many_words_are_read_like_single_ones(values: list[float]) -> None:
    assert list(doubles_of([word_of(value) for value in values])) == values


def test_a_word_that_was_never_stored_is_0() -> None:
    assert double_of(0) == 0.0
