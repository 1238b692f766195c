"""Structs of figures as text for people: each figure by its name, in the unit that its name has.

So a figure that is declared is shown wherever its Struct is. What is zero, empty or null is left
out. Lists and dicts of Structs are for tables.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from commands.output import bytes_text, count_text, duration_text, table, usd_text

WIDTH = 100
_GLUE = "\N{NO-BREAK SPACE}"  # textwrap breaks no line here


def figure_lines(row: Struct, label: str, names: Sequence[str] | None = None) -> list[str]:
    """``label     lag 1,200, in flight 3``, on as many lines as it takes; none if nothing is left.
    ``names``: of fields, if not all are to be shown."""
    names = row.__struct_fields__ if names is None else names
    texts = [name for name in names if isinstance(getattr(row, name), str)]
    items = [*_items(row, texts, ""), *_items(row, [n for n in names if n not in texts], "")]
    found = textwrap.wrap(
        ", ".join(item.replace(" ", _GLUE) for item in items),
        WIDTH,
        initial_indent=label,
        subsequent_indent=" " * len(label),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_GLUE, " ") for line in found]


def figure_table(rows: Sequence[Struct], columns: Sequence[str]) -> str:
    """A row for each Struct, a column for each of these fields."""
    cells = [[_value(name, getattr(row, name)) for name in columns] for row in rows]
    return table([_words(name) for name in columns], cells)


def rate_text(rate: float | None) -> str:
    """``0.0167``, ``12.5``, ``1,234``."""
    if rate is None:
        return "-"
    return f"{rate:,.0f}" if rate >= 1_000 else f"{rate:.3g}"


def _items(row: Struct, names: Sequence[str], before: str) -> Iterator[str]:
    for name in names:
        value, words = getattr(row, name), before + _words(name)
        if isinstance(value, Struct):
            yield from _items(value, value.__struct_fields__, f"{words} ")
        elif isinstance(value, dict):
            parts = [f"{key} {_value('', each)}" for key, each in value.items() if _shown(each)]
            if parts:
                yield f"{words}: {' '.join(parts)}"
        elif isinstance(value, list):
            if any(map(_shown, value)):
                yield f"{words} {' '.join(_value('', each) for each in value)}"
        elif _shown(value):
            yield f"{words} {_value(name, value)}"


def _shown(value: Any) -> bool:
    return isinstance(value, bool | str | int | float) and (value is False or bool(value))


def _words(name: str) -> str:
    """A field's name, without a unit that the value will have."""
    return name.removesuffix("_ms").removesuffix("_s").removesuffix("_bytes").replace("_", " ")


def _value(name: str, value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.endswith(("_ms", "_s")):
        return duration_text(value if name.endswith("_ms") else value * 1000)
    if "bytes" in name:
        return bytes_text(value)
    if name.startswith("usd"):
        return usd_text(value)
    return rate_text(value) if isinstance(value, float) else count_text(value)
