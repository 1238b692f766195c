"""What an ``Accept`` field of a request asks for. Pure (RFC 9110, 12.5.1)."""

from __future__ import annotations

import re
from collections.abc import Sequence

_QUALITY = re.compile(r"q=(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)", re.IGNORECASE)


def accepted(accept: str, offered: Sequence[str]) -> str | None:
    """The offered content type of the highest quality, then the one that is named most exactly,
    then the first. An empty field accepts everything. None: it accepts none."""
    if not accept.strip():
        return offered[0]
    ranges = [_media_range(text) for text in accept.split(",")]
    best: tuple[float, int] = (0, 0)
    chosen: str | None = None
    for each in offered:
        kind = each.partition("/")[0]
        exactness = {each: 3, f"{kind}/*": 2, "*/*": 1}
        # The most exact range that names a type says how much it is wanted.
        fitting = [(exactness[name], quality) for name, quality in ranges if name in exactness]
        exact, quality = max(fitting, default=(0, 0.0))
        if quality > 0 and (quality, exact) > best:
            best, chosen = (quality, exact), each
    return chosen


def _media_range(text: str) -> tuple[str, float]:
    name, *parameters = (part.strip() for part in text.split(";"))
    for parameter in parameters:
        found = _QUALITY.fullmatch(parameter)
        if found is not None:
            return name.lower(), float(found[1])
    return name.lower(), 1.0
