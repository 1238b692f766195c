"""Filters by tag, node, key and fields of the data."""

from __future__ import annotations

import re
from functools import lru_cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from delivery import filters
from delivery.filters import (
    PATTERN_CHARACTERS_MAX,
    Filter,
    FilterError,
    compiled,
    parse_condition,
    text_at,
)
from uploader.l0.records import Record

VECTORS = [
    ("payment", "payment", True),
    ("payment", "payments", False),
    ("payment", "Payment", False),
    ("", "", True),
    ("", "x", False),
    ("*", "", True),
    ("*", "anything", True),
    ("?", "", False),
    ("?", "é", True),
    ("?", "ab", False),
    ("?", "\n", True),
    ("ship*", "ship", True),
    ("ship*", "shipment", True),
    ("ship*", "a ship", False),
    ("*ment", "shipment", True),
    ("*ment", "shipments", False),
    ("eu-west-?", "eu-west-1", True),
    ("eu-west-?", "eu-west-10", False),
    ("a*b*c", "a-b-b-c", True),
    ("a*b*c", "acb", False),
    ("aa*aa", "aaa", False),
    ("*a?c*", "xxabxabcx", True),
    ("*a?c*d", "abcabd", True),
    ("*a?c*d", "abxabd", False),
    (r"\*", "*", True),
    (r"\*", "x", False),
    (r"a\?c*", "a?cd", True),
    (r"a\?c*", "abcd", False),
    (r"a\\b", r"a\b", True),
    (r"\a", "a", True),
    ("[a-z]", "b", False),
    ("[a-z]?", "[a-z].", True),
    (".*", ".x", True),
    ("?.", "ax", False),
]


@pytest.mark.parametrize(("pattern", "text", "expected"), VECTORS)
def test_a_pattern_matches_the_whole_text(pattern: str, text: str, expected: bool) -> None:
    assert compiled(pattern)(text) is expected


def slow(pattern: str, text: str) -> bool:
    """The definition, by all ways to match: fine for short texts."""
    if not pattern:
        return not text
    if pattern[0] == "*":
        return any(slow(pattern[1:], text[skipped:]) for skipped in range(len(text) + 1))
    if pattern[0] == "\\":
        return text[:1] == pattern[1] and slow(pattern[2:], text[1:])
    return bool(text) and pattern[0] in ("?", text[0]) and slow(pattern[1:], text[1:])


@given(
    st.lists(st.sampled_from(["a", "b", "*", "?", "\\*", "\\?", "\\\\"]), max_size=8).map("".join),
    st.text("ab*?\\", max_size=10),
)
@example("*a?*?b*", "aabab")
def test_patterns_match_as_they_are_defined(pattern: str, text: str) -> None:
    assert compiled(pattern)(text) is slow(pattern, text)


@pytest.mark.parametrize(
    "pattern", ["*a" * 500 + "b", "*?a" * 300 + "*b", "*" + "a?" * 500 + "b*", "a*" * 512]
)
def test_no_pattern_is_expensive(pattern: str) -> None:
    # Anything that tries again after a failure would not end here.
    text = "a" * 1_000
    for _ in range(20):
        assert compiled(pattern)(text) is (pattern == "a*" * 512)


@given(
    st.text("ab", min_size=990, max_size=1_060).map(lambda text: text * 2),
    st.lists(st.text("ab?", max_size=6), min_size=1, max_size=4).map("*".join),
)
@example("a" * 1_023 + "bab", "*?b?b*")
@example("a" * 1_024 + "bab", "*?bab")
def test_long_texts_match_as_the_same_expression_does(text: str, pattern: str) -> None:
    # Each part where it is found first; one expression for all would try all ways.
    end: int | None = 0
    for part in pattern.split("*"):
        found = None if end is None else re.compile(part.replace("?", ".")).search(text, end)
        end = None if found is None else found.end()
    assert compiled(f"*{pattern}*")(text) is (end is not None)


def test_a_text_is_read_once_for_all_patterns(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[str] = []

    class Counting(filters._Places):
        def __missing__(self, character: str) -> int:
            searched.append(character)
            return super().__missing__(character)

    monkeypatch.setattr(filters, "_places", lru_cache(1)(Counting))
    matchers = [compiled(f"*y?y{n}{m}*") for n in range(10) for m in range(10)]
    for key in ("y" * 1_010, "x" + "y" * 1_010):
        assert not any(matches(key) for matches in matchers)
        assert len(searched) <= 11, "y and ten digits"
        searched.clear()


def test_a_record_without_the_field_does_not_match() -> None:
    bare = Record("1")
    assert Filter().matches(bare)
    for kept in (Filter(tag="*"), Filter(node="*"), Filter(key="*")):
        assert not kept.matches(bare)


def test_every_pattern_must_match() -> None:
    wanted = Filter(tag="t*", node="n", key="k?")
    assert wanted.matches(Record("1", tag="tag", node="n", key="k1"))
    assert not wanted.matches(Record("1", tag="tag", node="n", key="k12"))
    assert not wanted.matches(Record("1", tag="tag", node="m", key="k1"))
    assert not wanted.matches(Record("1", tag="Tag", node="n", key="k1"))


def test_an_empty_text_is_a_value() -> None:
    assert Filter(tag="").matches(Record("1", tag=""))
    assert not Filter(tag="").matches(Record("1"))


def test_equal_filters_are_one_key() -> None:
    assert {Filter(tag="a*"): 1}[Filter(tag="a*")] == 1
    assert bool(Filter(key="")) and not Filter()


def test_a_pattern_that_is_too_long_is_refused_with_the_limit() -> None:
    Filter(node="x" * PATTERN_CHARACTERS_MAX).check()
    with pytest.raises(FilterError, match=r"^node is a pattern of 1025 characters, the limit is"):
        Filter(node="x" * (PATTERN_CHARACTERS_MAX + 1)).check()


def test_a_backslash_at_the_end_is_refused() -> None:
    Filter(key="a\\\\").check()
    with pytest.raises(FilterError, match=r"^key is a pattern that ends with a backslash") as told:
        Filter(key="a\\\\\\").check()
    assert told.value.field == "key"


DATA = """{"status":"paid","n":5,"x":1.50,"t":true,"z":null,"l":[1],"o":{"in":"deep","a.b":1},
"c.d":"whole","c":{"d":"part"},"huge":1e999,"e":1E3,"i":9007199254740993.0,"m":-0,"long":"%s","twice":1,"twice":2}"""
DATA %= "x" * 1_025
CONDITIONS = [
    ("status=paid", True),
    ("status=p*d", True),
    ("status=pai", False),
    ("status=", False),
    ("status=*=*", False),
    ("n=5", True),
    ("x=1.50", True),
    ("x=1.5", False),
    ("e=1E3", True),
    ("e=1000*", False),
    ("i=9007199254740993.0", True),
    ("m=-0", True),
    ("t=true", True),
    ("z=null", True),
    ("z=*", True),
    ("l=*", False),
    ("o=*", False),
    ("o.in=deep", True),
    ("o.none=*", False),
    ("status.in=*", False),
    ("none=*", False),
    ("c.d=whole", True),
    ("c.d=part", False),
    ("huge=1e999", True),
    ("long=x*", True),
    ("long=x*?", False),
    ("twice=2", True),
]


@pytest.mark.parametrize(("condition", "expected"), CONDITIONS)
def test_a_condition_compares_a_field_of_the_data(condition: str, expected: bool) -> None:
    """Fields that cannot be decoded do not keep others from being compared."""
    only = Filter(where=(condition,))
    only.check()
    assert only.matches(Record(DATA)) is expected
    assert Filter(where=("status=paid", condition)).matches(Record(DATA)) is expected
    assert not Filter(key="k", where=(condition,)).matches(Record(DATA)), "all must match"


@pytest.mark.parametrize("data", [b'{"status":"paid"}', b"\xff", "[1]", '"status"', "null", "7"])
def test_data_without_fields_matches_no_condition(data: str | bytes) -> None:
    assert not Filter(where=("status=*",)).matches(Record(data))
    assert text_at(data, "status") is None


@pytest.mark.parametrize(
    ("condition", "says"),
    [
        ("status", r"where\[1\] cannot be used: 'status' has no = after the field"),
        ("", r"where\[1\] cannot be used: '' has no = after the field"),
        ("=paid", r"where\[1\] cannot be used: '=paid' has no field before ="),
        (
            "a=b\\",
            r"where\[1\] cannot be used: character 4 of .* is the end of a pattern that ends",
        ),
        ("a=" + "x" * 1_025, r"where\[1\] .* has 1,025 characters, the limit is 1,024"),
    ],
)
def test_a_condition_that_is_none_is_refused_with_its_place(condition: str, says: str) -> None:
    with pytest.raises(FilterError, match=says) as told:
        Filter(where=("a=b", condition)).check()
    assert told.value.field == "where[1]"


def test_only_patterns_that_may_take_long_make_lots_small() -> None:
    quick = Filter(tag="a*b*c", where=("status=paid",))
    assert (quick.slow, quick.lot) == (0, 4_096)
    slow = Filter(tag="*" + "?a" * 500, where=("a=*?b*",))
    assert slow.lot == 4
    assert slow.cost([Record("1")]) > 20 * quick.cost([Record("1")])
    assert quick.cost([Record("x" * 51_200)]) == 101


def test_fields_are_looked_for_in_few_levels_and_each_level_is_charged() -> None:
    deep = ".".join("abcdefgh")
    assert parse_condition(f"{deep}=x").field == deep
    with pytest.raises(ValueError, match="9 levels deep, the limit is 8"):
        parse_condition(f"{deep}.i=x")
    record = Record('{"a":{"b":"' + "x" * 51_200 + '"}}')
    flat, nested = Filter(where=("a=x",)), Filter(where=("a.b=x",))
    assert nested.cost([record]) == 2 * flat.cost([record]) - 1 > 200


def test_conditions_share_the_objects_that_they_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    decode = filters._decode_fields

    def counted(text: str) -> object:
        seen.append(text)
        return decode(text)

    monkeypatch.setattr(filters, "_decode_fields", counted)
    wanted = Filter(where=("a.b.c=1", "a.b.d=2", "a.e=3"))
    assert wanted.matches(Record('{"a":{"b":{"c":1,"d":2},"e":3}}'))
    assert len(seen) == 3
