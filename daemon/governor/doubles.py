"""Real numbers in shared words, which are integers: the bits of a double."""

from __future__ import annotations

import struct

_DOUBLE = struct.Struct("=d")
_BITS = struct.Struct("=Q")


def bits_of(value: float) -> int:
    """A number as a word."""
    bits: int = _BITS.unpack(_DOUBLE.pack(value))[0]
    return bits


def value_of(bits: int) -> float:
    """The number of a word."""
    value: float = _DOUBLE.unpack(_BITS.pack(bits))[0]
    return value
