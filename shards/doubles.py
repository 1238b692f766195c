"""Doubles in words of shared memory: a word holds the bits of one.

A word is stored and loaded whole, so a reader never sees half of a number.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

_DOUBLE = struct.Struct("d")
_WORD = struct.Struct("Q")


def word_of(value: float) -> int:
    """The word that holds ``value``, which may be anything that a double can be."""
    word: int = _WORD.unpack(_DOUBLE.pack(value))[0]
    return word


def double_of(word: int) -> float:
    """The double in a word."""
    value: float = _DOUBLE.unpack(_WORD.pack(word))[0]
    return value


def doubles_of(words: Sequence[int]) -> tuple[float, ...]:
    """The doubles in some words."""
    return struct.unpack(f"{len(words)}d", struct.pack(f"{len(words)}Q", *words))
