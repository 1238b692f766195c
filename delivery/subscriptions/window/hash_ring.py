"""Which consumer a key belongs to: consistent hashing over those that accept it.

Each consumer has NODES *nodes* on a ring of 2^32 places: the hashes of ``{consumer}-0`` to
``{consumer}-99``. A key belongs to the consumer of the first node at or after its own hash, among
those consumers that accept the key. So a join moves keys to the joiner only, and a leave moves the
leaver's keys only. Which consumers there are decides, not the order in which they came.

The hash is FNV-1a with 64 bits, folded to 32 by xor, then the 32-bit finalizer of MurmurHash3
(Fowler, Noll and Vo; Appleby): FNV alone spreads names that differ in their last digit badly.
Of a long key, its digest is hashed (``partitioner.py``).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from functools import lru_cache

from delivery.filters import Matcher, compiled
from delivery.partitioner import hashed_bytes

NODES = 100
# A hash takes 0.1 us per byte, and the queue of a key ends with each lull. So the hashes of keys
# are kept, once per shard: 32,768 x (200 bytes + a key, 128 characters at most) = 10 MB, or 23 MB
# at worst.
HASHES_KEPT = 32_768
KEPT_CHARACTERS_MAX = 128
HASHES_KEPT_BYTES = HASHES_KEPT * (200 + 4 * KEPT_CHARACTERS_MAX)
_SLOT_BITS = 20
_SLOTS = (1 << _SLOT_BITS) - 1
_ARCS = 32
_ARC_BITS = _SLOT_BITS + 27  # below the number of an arc
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
    """The nodes of all consumers. Nodes at one place are in the order of their consumers' names.

    A node is one integer: its place, then the slot of its consumer. So they are sorted and searched
    without comparing names; nodes at one place are the exception. They are kept by arcs of the
    ring: of 100,000 nodes a join moves some hundred in each of the joiner's arcs, not all.
    """

    def __init__(self) -> None:
        self._arcs: list[list[int]] = [[] for _ in range(_ARCS)]
        self._nodes_of: dict[str, list[int]] = {}
        self._names: list[str | None] = []  # by slot
        self._free: list[int] = []  # slots
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
        if self._free:
            slot = self._free.pop()
            self._names[slot] = consumer
        else:
            slot = len(self._names)
            self._names.append(consumer)
        places = (hash_of(f"{consumer}-{n}".encode()) for n in range(NODES))
        nodes = self._nodes_of[consumer] = [place << _SLOT_BITS | slot for place in places]
        for node in nodes:
            insort(self._arcs[node >> _ARC_BITS], node)

    def leave(self, consumer: str) -> None:
        """Removes a consumer."""
        del self._filters[consumer]
        self._any_filter = any(self._filters.values())
        nodes = self._nodes_of.pop(consumer)
        for node in nodes:
            arc = self._arcs[node >> _ARC_BITS]
            del arc[bisect_left(arc, node)]
        slot = nodes[0] & _SLOTS
        self._names[slot] = None
        self._free.append(slot)

    def accepts(self, consumer: str, key: str) -> bool:
        """Whether a consumer takes messages of a key."""
        matchers = self._filters[consumer]
        return not matchers or any(matches(key) for matches in matchers)

    def owner(self, key: str) -> str | None:
        """The consumer of a key; None if no consumer accepts it."""
        if not self._filters:
            return None
        place = _kept_hash(key) if len(key) <= KEPT_CHARACTERS_MAX else hash_of(hashed_bytes(key))
        if not self._any_filter:
            start = place << _SLOT_BITS
            arc = self._arcs[start >> _ARC_BITS]
            index = bisect_left(arc, start)
            if index + 1 < len(arc) and arc[index] >> _SLOT_BITS != arc[index + 1] >> _SLOT_BITS:
                return self._names[arc[index] & _SLOTS]
            return next(self._consumers_from(place))
        # As on a ring of only those that accept the key.
        refused: set[str] = set()
        for consumer in self._consumers_from(place):
            if consumer in refused:
                continue
            if self.accepts(consumer, key):
                return consumer
            refused.add(consumer)
            if len(refused) == len(self._filters):
                return None
        raise AssertionError("unreachable: each consumer has nodes")

    def _consumers_from(self, place: int) -> Iterator[str]:
        """The consumers of all nodes, those at or after a place first."""
        start = place << _SLOT_BITS
        number = start >> _ARC_BITS
        arc = self._arcs[number]
        first = bisect_left(arc, start)
        yield from self._consumers_of(arc, first, len(arc))
        for other in self._arcs[number + 1 :]:
            yield from self._consumers_of(other, 0, len(other))
        for other in self._arcs[:number]:
            yield from self._consumers_of(other, 0, len(other))
        yield from self._consumers_of(arc, 0, first)

    def _consumers_of(self, arc: list[int], index: int, end: int) -> Iterator[str]:
        """The consumers of some nodes of an arc, by place, then by name."""
        names = self._names
        while index < end:
            node = arc[index]
            index += 1
            if index == end or arc[index] >> _SLOT_BITS != node >> _SLOT_BITS:
                name = names[node & _SLOTS]
                assert name is not None
                yield name
                continue
            there = [node]
            while index < end and arc[index] >> _SLOT_BITS == node >> _SLOT_BITS:
                there.append(arc[index])
                index += 1
            found = (names[each & _SLOTS] for each in there)
            yield from sorted(name for name in found if name is not None)

    def shares(self) -> dict[str, float]:
        """The part of the ring of each consumer, without regard to filters."""
        found = dict.fromkeys(self._filters, 0)
        nodes = [node for arc in self._arcs for node in arc]
        before = (nodes[-1] >> _SLOT_BITS) - (1 << 32) if nodes else 0
        for node in nodes:
            consumer = self._names[node & _SLOTS]
            assert consumer is not None
            found[consumer] += (node >> _SLOT_BITS) - before
            before = node >> _SLOT_BITS
        return {consumer: places / (1 << 32) for consumer, places in found.items()}

    def check_invariants(self) -> None:
        """Raises AssertionError unless each consumer has its nodes, in order."""
        there = [node for arc in self._arcs for node in arc]
        assert there == sorted(node for nodes in self._nodes_of.values() for node in nodes)
        assert len(there) == NODES * len(self._filters)
        assert all(node >> _ARC_BITS == n for n, arc in enumerate(self._arcs) for node in arc)
        assert self._nodes_of.keys() == self._filters.keys()
        for consumer, nodes in self._nodes_of.items():
            assert {self._names[node & _SLOTS] for node in nodes} == {consumer}
        assert all(self._names[slot] is None for slot in self._free)
