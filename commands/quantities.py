"""Sizes and durations as a command line takes them: the one place that reads their units.

A size is a number of bytes, or has a binary unit, as in a configuration: ``1GiB``, ``64M``. A
duration has units, largest first: ``1d``, ``1h30m``, ``250ms``; a number alone is in the unit that
the option has always had.
"""

from __future__ import annotations

import math
import re
from typing import Any

import click

_UNITS_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_NUMBER = r"(\d+(?:\.\d+)?)"
_DURATION = re.compile("".join(f"(?:{_NUMBER}{unit}(?![a-z]))?" for unit in _UNITS_MS))


def duration_ms(text: str, alone: str | None = None) -> float:
    """Milliseconds of ``1h30m``; ``alone`` is the unit of a number without one, where such a number
    is allowed. Raises ValueError."""
    given = text.strip()
    if alone is not None and re.fullmatch(_NUMBER, given):
        given += alone
    match = _DURATION.fullmatch(given)
    if match is None or not given:
        numbers = {"s": ", or a number of seconds", "ms": ", or a number of milliseconds"}
        raise ValueError(
            f"must be a duration like 90s, 1h30m or 2d{numbers.get(alone or '', '')}, got {text!r}"
        )
    return math.fsum(
        float(number) * factor
        for number, factor in zip(match.groups(), _UNITS_MS.values(), strict=True)
        if number
    )


def size_bytes(text: str) -> int:
    """Bytes of ``1GiB``. Raises ValueError."""
    from daemon.config.values import read_size  # with the whole configuration, which few need

    try:
        return read_size(text)
    except ValueError as error:
        raise ValueError(f"{error}, got {text!r}") from error


def whole_ms(text: str) -> int:
    """Milliseconds of ``1h30m``, or of a number of them. Raises ValueError."""
    found = duration_ms(text, "ms")
    if found != int(found):
        raise ValueError(f"must be an integer number of milliseconds, got {text!r}")
    return int(found)


class Bytes(click.IntRange):
    """An option's bytes, within limits."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Raises BadParameter."""
        try:
            return int(super().convert(size_bytes(str(value)), param, ctx))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Milliseconds(click.IntRange):
    """An option's milliseconds, within limits."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Raises BadParameter."""
        try:
            return int(super().convert(whole_ms(str(value)), param, ctx))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Duration(click.FloatRange):
    """An option's duration, in the unit that a number alone has too, within limits."""

    name = "duration"

    def __init__(self, low: float, high: float, unit: str = "s") -> None:
        super().__init__(low, high)
        self._unit = unit

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Raises BadParameter."""
        try:
            found = duration_ms(str(value), self._unit) / _UNITS_MS[self._unit]
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return float(super().convert(found, param, ctx))
