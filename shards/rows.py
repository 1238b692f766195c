"""Rows of words: how one is written and read whole, and sums of one for each shard.

A row has one writer at a time, and a *version*, which is odd while it is written. A reader copies
it and checks that the version was even and is the same afterwards. If the writer died in between,
the row is taken as it is; the next one makes the version even again.

A sum is made of rows as large numbers, so over 64 shards it takes as many additions, not thousands.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from shards.barrier import keep_order
from shards.layout import WORD_BYTES
from shards.segment import Segment

_WORD_BITS = 8 * WORD_BYTES
_READS_MAX = 100  # of a row that is being written; then it is taken as it is
Copy = TypeVar("Copy")


@contextmanager
def writing(words: memoryview, version: int) -> Iterator[None]:
    """While its row is written; ``version`` is the index of that word."""
    words[version] |= 1
    keep_order()
    yield
    keep_order()
    words[version] += 1


def whole(words: memoryview, version: int, copy: Callable[[], Copy]) -> Copy:
    """A copy of a row that was not written meanwhile."""
    for _ in range(_READS_MAX):
        before = words[version]
        keep_order()
        found = copy()
        keep_order()
        if not before & 1 and words[version] == before:
            break
    return found


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
