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
_SLOT_BITS = 20
_SLOTS = (1 << _SLOT_BITS) - 1
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

    A node is one integer: its place, then the slot of its consumer. So 100,000 of them are sorted
    and searched without comparing names; nodes at one place are the exception.
    """

    def __init__(self) -> None:
        self._nodes: list[int] = []
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
        self._nodes += nodes
        self._nodes.sort()

    def leave(self, consumer: str) -> None:
        """Removes a consumer."""
        del self._filters[consumer]
        self._any_filter = any(self._filters.values())
        nodes = self._nodes_of.pop(consumer)
        for node in nodes:
            del self._nodes[bisect_left(self._nodes, node)]
        slot = nodes[0] & _SLOTS
        self._names[slot] = None
        self._free.append(slot)

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
        first = bisect_left(nodes, place << _SLOT_BITS)
        if not self._any_filter:
            return self._consumers_at(first if first < len(nodes) else 0)[0]
        # As on a ring of only those that accept the key.
        refused: set[str] = set()
        index = first
        while index < first + len(nodes):
            consumers = self._consumers_at(index % len(nodes))
            for consumer in consumers:
                if consumer in refused:
                    continue
                if self.accepts(consumer, key):
                    return consumer
                refused.add(consumer)
                if len(refused) == len(self._filters):
                    return None
            index += len(consumers)
        raise AssertionError("unreachable: each consumer has nodes")

    def _consumers_at(self, index: int) -> Sequence[str]:
        """The consumers of the nodes at the place of this one, which is the first there."""
        nodes, names, node = self._nodes, self._names, self._nodes[index]
        found = names[node & _SLOTS]
        assert found is not None
        if index + 1 == len(nodes) or nodes[index + 1] >> _SLOT_BITS != node >> _SLOT_BITS:
            return (found,)
        end = index + 2
        while end < len(nodes) and nodes[end] >> _SLOT_BITS == node >> _SLOT_BITS:
            end += 1
        there = (names[each & _SLOTS] for each in nodes[index:end])
        return sorted(name for name in there if name is not None)

    def shares(self) -> dict[str, float]:
        """The part of the ring of each consumer, without regard to filters."""
        found = dict.fromkeys(self._filters, 0)
        before = (self._nodes[-1] >> _SLOT_BITS) - (1 << 32) if self._nodes else 0
        for node in self._nodes:
            consumer = self._names[node & _SLOTS]
            assert consumer is not None
            found[consumer] += (node >> _SLOT_BITS) - before
            before = node >> _SLOT_BITS
        return {consumer: places / (1 << 32) for consumer, places in found.items()}

    def check_invariants(self) -> None:
        """Raises AssertionError unless each consumer has its nodes, in order."""
        assert self._nodes == sorted(node for nodes in self._nodes_of.values() for node in nodes)
        assert len(self._nodes) == NODES * len(self._filters)
        assert self._nodes_of.keys() == self._filters.keys()
        for consumer, nodes in self._nodes_of.items():
            assert {self._names[node & _SLOTS] for node in nodes} == {consumer}
        assert all(self._names[slot] is None for slot in self._free)
