"""What a PromQL expression names: metrics, labels, and values of labels. A tokenizer, no parser.

Enough to find a name that no metric has. It refuses what it does not know: a character, a word
before a parenthesis that is not a known function, a parenthesis that is not closed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_TOKEN = re.compile(
    r"""
    (?P<space>\s+)
    | (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<duration>\[[0-9]+[smhdw](?::[0-9]*[smhdw]?)?\])
    | (?P<number>[0-9]+(?:\.[0-9]+)?(?![A-Za-z_]))
    | (?P<name>[A-Za-z_:][A-Za-z0-9_:]*)
    | (?P<operator>=~|!~|==|!=|<=|>=|[-+*/%<>=(){},])
    """,
    re.VERBOSE,
)
_PAIRS = {"(": ")", "{": "}"}
AGGREGATIONS = frozenset(("sum", "min", "max", "avg", "count", "topk"))
FUNCTIONS = frozenset(
    ("rate", "increase", "max_over_time", "histogram_quantile", "label_values", "time")
)
LISTS = frozenset(("by", "without", "on", "ignoring", "group_left", "group_right"))
OPERATORS = frozenset(("and", "or", "unless"))


class Matcher(NamedTuple):
    """A condition on a label."""

    label: str
    operator: str
    value: str


class Selector(NamedTuple):
    """A metric and the conditions on its labels."""

    metric: str
    matchers: tuple[Matcher, ...]


class Named(NamedTuple):
    """What an expression names. ``labels`` are those of its lists: by, on, group_left."""

    selectors: list[Selector]
    labels: list[str]


class PromqlError(ValueError):
    """This is not an expression, or not one that is understood here."""


def tokens(text: str) -> Iterator[tuple[str, str]]:
    """Kind and text of each token. Raises PromqlError."""
    position = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise PromqlError(f"at {position} of {text!r}: {text[position : position + 20]!r}")
        position = found.end()
        if found.lastgroup != "space":
            yield str(found.lastgroup), found[0]


def named_in(text: str) -> Named:
    """What an expression names. Raises PromqlError."""
    found = [*tokens(text), ("end", "")]
    open_: list[str] = []
    selectors: list[Selector] = []
    labels: list[str] = []
    index = 0
    while found[index][0] != "end":
        kind, word = found[index]
        after = found[index + 1][1]
        index += 1
        if word in _PAIRS:
            open_.append(_PAIRS[word])
        elif word in ")}":
            if not open_ or open_.pop() != word:
                raise PromqlError(f"{text!r} has a {word} too many")
        elif kind == "name" and word in LISTS:
            index, names = _list(found, index)
            labels += names
        elif kind == "name" and not _is_word(word, after):
            if after == "(":
                raise PromqlError(f"{text!r}: {word} is not a known function")
            index, matchers = _matchers(found, index)
            selectors.append(Selector(word, tuple(matchers)))
    if open_:
        raise PromqlError(f"{text!r} misses a {open_[-1]}")
    return Named(selectors, labels)


def _is_word(name: str, after: str) -> bool:
    """Whether it is a word of the language, and no metric."""
    if after == "(":
        return name in FUNCTIONS | AGGREGATIONS
    return name in OPERATORS or (name in AGGREGATIONS and after in LISTS)


def _list(found: list[tuple[str, str]], index: int) -> tuple[int, list[str]]:
    """The labels in the parentheses that follow."""
    if found[index][1] != "(":
        raise PromqlError(f"a list of labels begins with (, not with {found[index][1]!r}")
    names = []
    while found[index][1] != ")":
        index += 1
        kind, word = found[index]
        if kind == "name":
            names.append(word)
        elif word not in {",", ")"}:
            raise PromqlError(f"{word!r} is not a label")
    return index + 1, names


def _matchers(found: list[tuple[str, str]], index: int) -> tuple[int, list[Matcher]]:
    """The conditions in the braces that may follow."""
    matchers: list[Matcher] = []
    if found[index][1] != "{":
        return index, matchers
    index += 1
    while found[index][1] != "}":
        (kind, label), (_, operator), (value_kind, value) = found[index : index + 3]
        if kind != "name" or value_kind != "string" or operator not in {"=", "!=", "=~", "!~"}:
            raise PromqlError(f"{label!r} {operator!r} {value!r} is not a condition")
        matchers.append(Matcher(label, operator, value[1:-1]))
        index += 3
        if found[index][1] == ",":
            index += 1
    return index + 1, matchers
