"""Which consumer a key belongs to: consistent hashing over those that accept it.

Each consumer has NODES *nodes* on a ring of 2^32 places: the hashes of ``{consumer}-0`` to
``{consumer}-99``. A key belongs to the consumer of the first node at or after its own hash, among
those consumers that accept the key. So a join moves keys to the joiner only, and a leave moves the
leaver's keys only. Which consumers there are decides, not the order in which they came.

The hash is FNV-1a with 64 bits, folded to 32 by xor, then the 32-bit finalizer of MurmurHash3
(Fowler, Noll and Vo; Appleby): FNV alone spreads names that differ in their last digit badly.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache

from delivery.filters import Matcher, compiled

NODES = 100
# A hash takes 0.1 us per byte, and the queue of a key ends with each lull. So the hashes of keys
# are kept, once per shard: 32,768 x (200 bytes + a key, 128 characters at most) = 10 MB, or 23 MB
# at worst.
HASHES_KEPT = 32_768
KEPT_CHARACTERS_MAX = 128
HASHES_KEPT_BYTES = HASHES_KEPT * (200 + 4 * KEPT_CHARACTERS_MAX)
_FNV_OFFSET = 0xCBF29CE484222325
_FNV_PRIME = 0x100000001B3
_64_BITS = (1 << 64) - 1
_32_BITS = (1 << 32) - 1


def hash_of(data: bytes) -> int:
    """The place of a key or a node on the ring."""
    folded = _FNV_OFFSET
    for byte in data:
        folded = ((folded ^ byte) * _FNV_PRIME) & _64_BITS
    mixed = (folded ^ (folded >> 32)) & _32_BITS
    mixed = ((mixed ^ (mixed >> 16)) * 0x85EBCA6B) & _32_BITS
    mixed = ((mixed ^ (mixed >> 13)) * 0xC2B2AE35) & _32_BITS
    return mixed ^ (mixed >> 16)


@lru_cache(maxsize=HASHES_KEPT)
def _kept_hash(key: str) -> int:
    return hash_of(key.encode())


class HashRing:
    """The nodes of all consumers. Nodes at one place are in the order of their consumers' names."""

    def __init__(self) -> None:
        self._nodes: list[tuple[int, str]] = []
        self._places: list[int] = []  # of the nodes: integers are found faster than pairs
        self._filters: dict[str, tuple[Matcher, ...]] = {}
        self._any_filter = False

    def __len__(self) -> int:
        """How many consumers there are."""
        return len(self._filters)

    def __contains__(self, consumer: str) -> bool:
        return consumer in self._filters

    def join(self, consumer: str, patterns: Sequence[str] = ()) -> None:
        """Adds a consumer that accepts keys that match one of ``patterns``; without any, all."""
        if consumer in self._filters:
            raise ValueError(f"consumer {consumer!r} is on the ring")
        self._filters[consumer] = tuple(compiled(pattern) for pattern in patterns)
        self._any_filter = any(self._filters.values())
        # One run after another: Timsort merges them without comparing all.
        self._nodes += sorted((hash_of(f"{consumer}-{n}".encode()), consumer) for n in range(NODES))
        self._nodes.sort()
        self._places = [place for place, _ in self._nodes]

    def leave(self, consumer: str) -> None:
        """Removes a consumer."""
        del self._filters[consumer]
        self._any_filter = any(self._filters.values())
        self._nodes = [node for node in self._nodes if node[1] != consumer]
        self._places = [place for place, _ in self._nodes]

    def accepts(self, consumer: str, key: str) -> bool:
        """Whether a consumer takes messages of a key."""
        matchers = self._filters[consumer]
        return not matchers or any(matches(key) for matches in matchers)

    def owner(self, key: str) -> str | None:
        """The consumer of a key; None if no consumer accepts it."""
        nodes = self._nodes
        if not nodes:
            return None
        place = _kept_hash(key) if len(key) <= KEPT_CHARACTERS_MAX else hash_of(key.encode())
        first = bisect_left(self._places, place)
        if not self._any_filter:
            return nodes[first if first < len(nodes) else 0][1]
        # As on a ring of only those that accept the key.
        refused: set[str] = set()
        for index in range(first - len(nodes), first):
            consumer = nodes[index][1]
            if consumer in refused:
                continue
            if self.accepts(consumer, key):
                return consumer
            refused.add(consumer)
            if len(refused) == len(self._filters):
                return None
        raise AssertionError("unreachable: each consumer has nodes")

    def shares(self) -> dict[str, float]:
        """The part of the ring of each consumer, without regard to filters."""
        found = dict.fromkeys(self._filters, 0)
        before = self._nodes[-1][0] - (1 << 32) if self._nodes else 0
        for place, consumer in self._nodes:
            found[consumer] += place - before
            before = place
        return {consumer: places / (1 << 32) for consumer, places in found.items()}

    def check_invariants(self) -> None:
        """Raises AssertionError unless each consumer has its nodes, in order."""
        assert self._nodes == sorted(self._nodes)
        assert self._places == [place for place, _ in self._nodes]
        assert len(self._nodes) == NODES * len(self._filters)
        assert {consumer for _, consumer in self._nodes} == set(self._filters)
