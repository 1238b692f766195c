"""A cache within bounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from uploader.lru import LruCache


def test_the_least_recently_used_value_is_dropped() -> None:
    kept: LruCache[str, str] = LruCache(2)
    kept.keep("a", "1")
    kept.keep("b", "2")
    assert kept.get("a") == "1"
    kept.keep("c", "3")
    assert ["a" in kept, "b" in kept, "c" in kept] == [True, False, True]


def test_a_value_too_large_to_be_kept_drops_nothing() -> None:
    kept: LruCache[str, str] = LruCache(9, 10, len)
    kept.keep("a", "12345")
    kept.keep("b", "12345678901")
    assert (kept.get("a"), kept.get("b"), kept.size) == ("12345", None, 5)


@given(st.lists(st.tuples(st.sampled_from("kdgc"), st.integers(0, 9), st.text(max_size=6))))
def test_bounds_hold_and_the_size_is_that_of_the_values(steps: list[tuple[str, int, str]]) -> None:
    kept: LruCache[int, str] = LruCache(4, 12, len)
    for action, key, value in steps:
        if action == "k":
            kept.keep(key, value)
            assert kept.get(key) == value
        elif action == "d":
            kept.drop(key)
            assert key not in kept
        elif action == "g":
            assert (kept.get(key) is not None) == (key in kept)
        else:
            kept.clear()
        assert kept.size == sum(map(len, kept.values())) <= 12
        assert len(kept) == len(kept.values()) <= 4
