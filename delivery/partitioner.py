"""Which partition a key belongs to: murmur2 as Kafka's default partitioner.

``toPositive(murmur2(utf8(key))) % partitions`` with Kafka's seed and constants
(org.apache.kafka.common.utils.Utils.murmur2), so that a producer that moves from Kafka to as
many partitions finds its keys in the same ones. Pure; the cache only saves time.

A long key is placed by its digest instead. Hashes in Python take 0.06 to 0.2 us per byte, so one
request with keys of 16 MiB would hold the loop for seconds, until its shard is killed.
"""

from __future__ import annotations

import hashlib
import struct
from functools import lru_cache

_SEED = 0x9747B28C
_M = 0x5BD1E995
_R = 24
_MASK = 0xFFFFFFFF
LONG_KEY_CHARACTERS = 256  # a longer one is placed by its digest
# A repeated key costs 60 ns instead of microseconds. Long keys are hashed each time, so that the
# cache has at most 4,096 keys of 256 characters (1 to 4 MiB).
_CACHED_KEYS = 4096


def murmur2(data: bytes) -> int:
    """Kafka's 32-bit murmur2 of ``data``, as an unsigned integer."""
    length = len(data)
    hashed = (_SEED ^ length) & _MASK
    whole = length & ~3
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        mixed = (word * _M) & _MASK
        mixed ^= mixed >> _R
        hashed = ((hashed * _M) & _MASK) ^ ((mixed * _M) & _MASK)
    if length > whole:
        hashed ^= int.from_bytes(data[whole:], "little")
        hashed = (hashed * _M) & _MASK
    hashed ^= hashed >> 13
    hashed = (hashed * _M) & _MASK
    return hashed ^ (hashed >> 15)


def hashed_bytes(key: str) -> bytes:
    """What is hashed of a key: the key, or the digest of a long one, which takes 2 ms for 1 MiB."""
    data = key.encode()
    if len(key) <= LONG_KEY_CHARACTERS:
        return data
    return hashlib.blake2b(data, digest_size=32).digest()


def partition_of(key: str, partitions: int) -> int:
    """The partition of ``key``. The sign bit is dropped, as Kafka's toPositive does."""
    if len(key) <= LONG_KEY_CHARACTERS:
        return _cached_hash(key) % partitions
    return _positive_hash(key) % partitions


def _positive_hash(key: str) -> int:
    return murmur2(hashed_bytes(key)) & 0x7FFFFFFF


_cached_hash = lru_cache(_CACHED_KEYS)(_positive_hash)
