"""How deep JSON is nested, and how many elements it has at a level, without building it.

For bodies that attack by being built: 16 MiB of ``0,0,0`` are 8 million objects. The text is taken
in windows: strings are cut out by splitting at quotes, everything but brackets and commas is
deleted, and the rest is summed up (+1, -1). This needs the memory of a few windows. For text that
is not JSON the result is right up to the first error, where the parser will stop too.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

_WINDOW_BYTES = 256 * 1024
_DELETED = bytes(each for each in range(256) if each not in b"[]{},")
_STEP = bytes.maketrans(b"[{]},", b"\x01\x01\xff\xff\x00")
_DELETED_COMMA = _DELETED + b","


def nested_deeper(data: bytes, limit: int) -> bool:
    """Whether arrays and objects in ``data`` are nested deeper than ``limit`` levels."""
    if data.count(b"[") + data.count(b"{") <= limit:
        return False
    depth = 0
    for marks in _marks(data, _DELETED_COMMA):
        steps = accumulate(memoryview(marks).cast("b"), initial=depth)
        for depth in steps:
            if depth > limit:
                return True
    return False


def more_elements(data: bytes, level: int, limit: int) -> bool:
    """Whether the containers at nesting ``level`` (1: the outermost) have more than ``limit``
    elements, by their commas."""
    depth = 0
    commas = 0
    for marks in _marks(data, _DELETED):
        for step in memoryview(marks).cast("b"):
            if step:
                depth += step
            elif depth == level:
                commas += 1
        if commas >= limit:
            return True
    return False


def _marks(data: bytes, deleted: bytes) -> Iterator[bytes]:
    """Windows of +1 (opens), -1 (closes) and 0 (comma) as signed bytes, strings left out."""
    in_string = 0
    start = 0
    size = len(data)
    while start < size:
        end = min(size, start + _WINDOW_BYTES)
        while end < size and data[end - 1] == 0x5C:  # never cut after a backslash
            end += 1
        window = data[start:end]
        if b"\\" in window:
            window = window.replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = window.split(b'"')
        yield b"".join(parts[in_string::2]).translate(_STEP, deleted)
        in_string ^= (len(parts) - 1) & 1
        start = end
