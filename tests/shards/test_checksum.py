"""CRC32C without the package is CRC32C, and says once that it is slow."""

from __future__ import annotations

import subprocess
import sys

import crc32c as package
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shards import checksum
from shards.checksum import LANE_BYTES, LANES_MAX, LANES_MIN, crc32c_in_python

LONG = bytes(range(256)) * (LANES_MIN * LANE_BYTES // 256)

# RFC 3720, appendix B.4, with the bytes of each CRC in the order in which they are sent.
ISCSI_READ = bytes.fromhex(
    "01c00000 00000000 00000000 00000000 14000000 00000400 00000014 00000018"
    "28000000 00000000 02000000 00000000"
)


@pytest.mark.parametrize("compute", [crc32c_in_python, checksum.crc32c])
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (bytes(32), "aa36918a"),
        (b"\xff" * 32, "43aba862"),
        (bytes(range(32)), "4e79dd46"),
        (bytes(range(31, -1, -1)), "5cdb3f11"),
        (ISCSI_READ, "563a96d9"),
        (b"123456789", (0xE3069283).to_bytes(4, "little").hex()),
    ],
)
def test_the_vectors_of_rfc_3720(compute: object, data: bytes, expected: str) -> None:
    assert callable(compute)
    assert compute(data).to_bytes(4, "little").hex() == expected


@given(st.binary(max_size=200), st.integers(0, 0xFFFFFFFF))
@example(b"", 0)
def test_short_inputs_get_the_same_checksum_as_from_the_package(data: bytes, value: int) -> None:
    assert crc32c_in_python(data, value) == package.crc32c(data, value)


@given(st.integers(-9, 9), st.binary(min_size=1, max_size=64), st.integers(0, 0xFFFFFFFF))
def test_inputs_around_the_lanes_get_the_same_checksum(more: int, piece: bytes, value: int) -> None:
    data = (piece * (len(LONG) // len(piece) + 2))[: len(LONG) + more]
    assert crc32c_in_python(data, value) == package.crc32c(data, value)


def test_an_input_beyond_one_round_of_lanes_gets_the_same_checksum() -> None:
    data = LONG * (LANES_MAX * LANE_BYTES // len(LONG)) + LONG + b"rest"
    assert crc32c_in_python(data) == package.crc32c(data)


@given(st.binary(max_size=99), st.binary(max_size=99))
def test_a_checksum_continues_another(one: bytes, two: bytes) -> None:
    assert crc32c_in_python(two, crc32c_in_python(one)) == crc32c_in_python(one + two)


@pytest.mark.parametrize("kind", [bytearray, memoryview, lambda d: memoryview(d).cast("Q")])
def test_every_kind_of_buffer_is_accepted(kind: object) -> None:
    assert callable(kind)
    assert crc32c_in_python(kind(LONG)) == package.crc32c(LONG)


def test_the_package_is_used_where_it_is_installed() -> None:
    assert checksum.crc32c is package.crc32c


def test_without_the_package_the_checksum_is_right_and_a_warning_is_logged_once() -> None:
    program = (
        "import sys, logging; sys.modules['crc32c'] = None\n"
        "logging.basicConfig(stream=sys.stderr)\n"
        "from shards.checksum import crc32c\n"
        "import shards.frame, uploader.l0\n"
        "print(hex(crc32c(b'123456789')))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.stdout == "0xe3069283\n", found.stderr
    assert found.stderr.count("WARNING") == 1
    assert "pip install crc32c" in found.stderr
