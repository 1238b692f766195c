"""CRC32C (Castagnoli): the only place that chooses an implementation.

The PyPI package ``crc32c`` is used where it is installed (the daemon requires it); it uses the
CPU's instruction. A Spark executor is only promised pyarrow, boto3 and msgspec, so without the
package an implementation in pure Python takes over: correct, much slower, and logged once.

It has two parts. Short inputs go through tables, 8 bytes per step ("slicing-by-8", Kounavis and
Berry, "A Systematic Approach to Building High Performance, Software-based, CRC generators", 2005;
indexed by 16 bits here, since in Python a look-up costs the same for any width). Long inputs are
cut into lanes of LANE_BYTES that advance together: the states of all lanes are in four planes of
bytes, and one ``bytes.translate`` per plane does the look-up of all lanes in C. The CRC is linear,
so the lanes are then combined as in zlib's ``crc32_combine`` (Mark Adler).

docs/decisions/0002-store-client.md has the measurements. The tables are the only state.
"""

from __future__ import annotations

import functools
import logging
import struct
from collections.abc import Callable

log = logging.getLogger("headgate.checksum")

POLYNOMIAL = 0x82F63B78  # reflected
LANE_BYTES = 256
LANES_MIN = 32  # with fewer lanes, the planes cost more than the tables
LANES_MAX = 1 << 14  # 4 MiB, which bounds the size of the planes

_WORDS = struct.Struct("<4H")

Buffer = bytes | bytearray | memoryview


class _Tables:
    """The tables: 10 MB and 10 ms, made at the first use."""

    def __init__(self) -> None:
        self.byte = _byte_table()
        self.words = tuple(self._word_table(position) for position in (6, 4, 2, 0))
        self.planes = tuple(bytes(v >> shift & 0xFF for v in self.byte) for shift in _SHIFTS)
        zeros = [self._behind_zeros(1 << bit, LANE_BYTES) for bit in range(32)]
        self.behind_lane = tuple(_combinations(zeros[shift : shift + 8]) for shift in _SHIFTS)

    def _behind_zeros(self, state: int, count: int) -> int:
        """The state after ``count`` zero bytes."""
        for _ in range(count):
            state = self.byte[state & 0xFF] ^ state >> 8
        return state

    def _word_table(self, position: int) -> tuple[int, ...]:
        """The effect of 16 bits on the state if ``position`` bytes follow them in the step."""
        ones = [self._behind_zeros(1 << bit, position + 2) for bit in range(16)]
        return _combinations(ones)


_SHIFTS = (0, 8, 16, 24)


def _byte_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return tuple(table)


def _combinations(ones: list[int]) -> tuple[int, ...]:
    """For every number of ``len(ones)`` bits, the combined values of its bits."""
    table = [0]
    for value in ones:
        table += [value ^ other for other in table]
    return tuple(table)


_tables = functools.cache(_Tables)


def crc32c_in_python(data: Buffer, value: int = 0) -> int:
    """CRC32C of ``data`` after bytes whose CRC32C is ``value``, without the package."""
    view = memoryview(data).cast("B")
    tables = _tables()
    state = value ^ 0xFFFFFFFF
    position = 0
    while (lanes := min((len(view) - position) // LANE_BYTES, LANES_MAX)) >= LANES_MIN:
        end = position + lanes * LANE_BYTES
        state = _lanes(bytes(view[position:end]), lanes, state, tables)
        position = end
    words_end = position + (len(view) - position & ~7)
    word_0, word_1, word_2, word_3 = tables.words
    for first, second, third, fourth in _WORDS.iter_unpack(view[position:words_end]):
        state = (
            word_0[first ^ state & 0xFFFF]
            ^ word_1[second ^ state >> 16]
            ^ word_2[third]
            ^ word_3[fourth]
        )
    for byte in view[words_end:]:
        state = tables.byte[(state ^ byte) & 0xFF] ^ state >> 8
    return state ^ 0xFFFFFFFF


def _lanes(data: bytes, lanes: int, state: int, tables: _Tables) -> int:
    byte_0, byte_1, byte_2, byte_3 = tables.planes
    shift_0, shift_1, shift_2, shift_3 = tables.behind_lane
    number = int.from_bytes
    plane_0 = plane_1 = plane_2 = plane_3 = 0
    for column in range(LANE_BYTES):
        index = (plane_0 ^ number(data[column::LANE_BYTES], "little")).to_bytes(lanes, "little")
        plane_0 = plane_1 ^ number(index.translate(byte_0), "little")
        plane_1 = plane_2 ^ number(index.translate(byte_1), "little")
        plane_2 = plane_3 ^ number(index.translate(byte_2), "little")
        plane_3 = number(index.translate(byte_3), "little")
    for low, second, third, high in zip(
        *(plane.to_bytes(lanes, "little") for plane in (plane_0, plane_1, plane_2, plane_3)),
        strict=True,
    ):
        state = (
            shift_0[state & 0xFF]
            ^ shift_1[state >> 8 & 0xFF]
            ^ shift_2[state >> 16 & 0xFF]
            ^ shift_3[state >> 24]
            ^ (low | second << 8 | third << 16 | high << 24)
        )
    return state


def _slow_but_said() -> Callable[..., int]:
    log.warning(
        "the package crc32c is not installed here: checksums are computed in Python, at 40 to"
        " 200 MB/s instead of GB/s; to make them fast, `pip install crc32c` in this environment"
    )
    return crc32c_in_python


def _best() -> Callable[..., int]:
    try:
        import crc32c as package
    except ImportError:
        return _slow_but_said()
    return package.crc32c


crc32c: Callable[..., int] = _best()
"""``crc32c(data, value=0) -> int``."""
