"""Sums of rows of words: one row for each shard, column by column.

A row is read as one large number, so a sum over 64 shards takes as many additions, not thousands.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from shards.layout import WORD_BYTES
from shards.segment import Segment

_WORD_BITS = 8 * WORD_BYTES


def sum_of(segment: Segment, starts: Iterable[int], words: int) -> list[int]:
    """The sum of the rows of ``words`` words that begin at ``starts``. No column but the last one
    may exceed 2^64; that is for counts, and not for sums of nanoseconds."""
    data, total = segment.data, 0
    for start in starts:
        at_byte = start * WORD_BYTES
        total += int.from_bytes(data[at_byte : at_byte + words * WORD_BYTES], "little")
    shift = (words - 1) * _WORD_BITS
    last = total >> shift
    rest = (total - (last << shift)).to_bytes(words * WORD_BYTES, "little")
    return [*struct.unpack_from(f"<{words - 1}Q", rest), last]
