"""Lines of the screen of `top`, as pieces of text with a style."""

from __future__ import annotations

from typing import NamedTuple


class Span(NamedTuple):
    """Text in a style of rich; plain output has the text alone."""

    text: str
    style: str = ""


Line = list[Span]


def rate_text(value: float) -> str:
    """``0``, ``0.25``, ``12.3``, ``123``, ``12.3k``, ``1.23M``: three digits."""
    if value <= 0:
        return "0"
    for unit in ("", "k", "M"):
        if value < 999.5:
            digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
            text = f"{value:.{digits}f}"
            return (text.rstrip("0").rstrip(".") if "." in text else text or "0") + unit
        value /= 1000
    return f"{value:.3g}G"
