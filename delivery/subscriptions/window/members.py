"""The consumers of a subscription, and which of them a key belongs to: consistent hashing over
those that accept it.

Each member has NODES *nodes* on a ring of 2^32 places: the hashes of ``{consumer}-0`` to
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
from delivery.subscriptions.window.messages import KeyQueue, Member
from ledger.delivery.subscriptions import CONSUMERS_MAX

# Of all members together: their characters, and 16 for each. A character takes up to 280 bytes when
# it is compiled (delivery/filters.py), so this is 18 MB; and a key of 1,024 characters is matched
# with all of them in at most 60 ms. It counts for the budget of consumers (budget.py).
PATTERNS_SIZE_MAX = 65_536
# Characters of patterns times those of a key, and 16 for each: at most 2 us, as long as other work
# for a message takes.
MATCHED_AS_ONE = 2_000

MEMBER_BYTES = 6_400  # with its nodes and the longest name; a character of a pattern takes 280
PATTERN_CHARACTER_BYTES = 280
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


class TooManyPatterns(ValueError):
    """The patterns of all members would take too much."""


def size_of(patterns: Sequence[str]) -> int:
    """What patterns take of PATTERNS_SIZE_MAX."""
    return sum(len(pattern) + 16 for pattern in patterns)


class Members:
    """All members; ``version`` changes with them."""

    def __init__(self) -> None:
        self._ring = HashRing()
        self.by_name: dict[str, Member] = {}
        self.version = 0
        self.without_patterns = 0
        self._patterns_size = 0

    @property
    def memory_bytes(self) -> int:
        """What members and their patterns take."""
        return len(self.by_name) * MEMBER_BYTES + self._patterns_size * PATTERN_CHARACTER_BYTES

    def more_bytes(self, name: str, patterns: Sequence[str]) -> int:
        """What it would take more if a member, new or not, had these patterns."""
        former = self.by_name.get(name)
        size = size_of(patterns) * PATTERN_CHARACTER_BYTES
        if former is None:
            return MEMBER_BYTES + size
        return size - size_of(former.patterns) * PATTERN_CHARACTER_BYTES

    def check(self, name: str, patterns: Sequence[str]) -> None:
        """Raises TooManyPatterns if a member, new or not, cannot have these."""
        former = self.by_name.get(name)
        taken = self._patterns_size - (0 if former is None else size_of(former.patterns))
        if taken + size_of(patterns) > PATTERNS_SIZE_MAX:
            raise TooManyPatterns(
                f"the filters of all consumers take {taken} of {PATTERNS_SIZE_MAX} (their"
                f" characters, and 16 for each), these {len(patterns)} take {size_of(patterns)};"
                f" use fewer or shorter ones",
            )

    def join(self, name: str, patterns: Sequence[str]) -> Member:
        """Adds a member; the pattern ``*`` is as none, so it takes messages without a key, too.
        Raises ValueError if there are CONSUMERS_MAX, or one of this name."""
        if len(self.by_name) >= CONSUMERS_MAX:
            raise ValueError(f"a subscription has at most {CONSUMERS_MAX} consumers")
        if any(pattern and not pattern.strip("*") for pattern in patterns):
            patterns = ()
        self._ring.join(name, patterns)
        member = self.by_name[name] = Member(name, patterns)
        self.version += 1
        self.without_patterns += not member.patterns
        self._patterns_size += size_of(member.patterns)
        return member

    def leave(self, name: str) -> Member:
        """Removes a member."""
        self._ring.leave(name)
        self.version += 1
        member = self.by_name.pop(name)
        self.without_patterns -= not member.patterns
        self._patterns_size -= size_of(member.patterns)
        return member

    def owner_of(self, key: str) -> str | None:
        """The name of the member that a key belongs to; None if none accepts it."""
        return self._ring.owner(key)

    def matching(self, queue: KeyQueue) -> int:
        """What finding the owner of a queue takes, in messages whose other work takes as long; 0 if
        it is known."""
        return 0 if queue.version == self.version else self.matching_of(queue.key)

    def matching_of(self, key: str) -> int:
        """As ``matching``, of a key."""
        return (len(key) + 16) * self._patterns_size // MATCHED_AS_ONE

    def matched_together(self, keys: Sequence[str | None], most: int) -> tuple[int, int]:
        """How many of these keys, one at least, take no more work than ``most`` messages do; and
        for how many messages that is."""
        work = 0
        for count, key in enumerate(keys, 1):
            work += 1 + (0 if key is None else self.matching_of(key))
            if work >= most:
                return count, work
        return len(keys), work

    def shares(self) -> dict[str, float]:
        """The part of all keys of each member, without regard to patterns."""
        return self._ring.shares()

    def owner(self, queue: KeyQueue) -> Member | None:
        """The member that a queue belongs to; None if none accepts its key."""
        if queue.version != self.version:
            name = self._ring.owner(queue.key)
            queue.owner = None if name is None else self.by_name[name]
            queue.version = self.version
        return queue.owner
