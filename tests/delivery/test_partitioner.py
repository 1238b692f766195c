"""Keys go where Kafka's default partitioner puts them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.partitioner import LONG_KEY_CHARACTERS, hashed_bytes, murmur2, partition_of

# From org.apache.kafka.common.utils.UtilsTest, as signed 32-bit integers.
KAFKA_VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("data", "signed"), KAFKA_VECTORS.items())
def test_murmur2_gives_kafkas_own_test_values(data: bytes, signed: int) -> None:
    assert murmur2(data) == signed & 0xFFFFFFFF


@pytest.mark.parametrize(("data", "signed"), KAFKA_VECTORS.items())
def test_the_sign_bit_is_dropped_before_the_remainder(data: bytes, signed: int) -> None:
    assert partition_of(data.decode(), 1000) == (signed & 0x7FFFFFFF) % 1000


@given(st.text(max_size=LONG_KEY_CHARACTERS), st.integers(1, 1000))
def test_a_key_always_goes_to_the_same_existing_partition(key: str, partitions: int) -> None:
    first = partition_of(key, partitions)
    assert 0 <= first < partitions
    assert partition_of(key, partitions) == first
    assert first == (murmur2(key.encode()) & 0x7FFFFFFF) % partitions


def test_a_long_key_is_placed_by_its_digest_so_that_it_holds_no_loop() -> None:
    """murmur2 takes 0.1 s for 1 MB, and a request has 16 of them."""
    key = "x" * LONG_KEY_CHARACTERS
    assert hashed_bytes(key) == key.encode() and hashed_bytes("\U0001f511" * 256) != b""
    long = [f"{key}{n}" for n in range(2_000)]
    assert {len(hashed_bytes(each)) for each in [*long, key * 4_000]} == {32}
    assert partition_of(f"{key}0", 1_000) == murmur2(hashed_bytes(f"{key}0")) % (1 << 31) % 1_000
    placed = [partition_of(each, 4) for each in long]
    assert placed == [partition_of(each, 4) for each in long]
    assert all(400 < placed.count(partition) < 600 for partition in range(4))
