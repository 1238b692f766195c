"""The consumers of a subscription: who there is, who owns which key, and who has how much.

A *member* is a consumer that is present. Members share the keys by consistent hashing
(``hash_ring.py``). Each has the queues that wait for it, and the batches that it has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from delivery.subscriptions.window.hash_ring import HashRing

if TYPE_CHECKING:
    from delivery.subscriptions.window.key_queue import KeyQueue

MEMBERS_MAX = 1_000
# Of all members together: their characters, and 16 for each. A character takes up to 280 bytes when
# it is compiled (delivery/filters.py), so this is 18 MB; and a key of 1,024 characters is matched
# with all of them in at most 60 ms. It counts for the budget of consumers (budget.py).
PATTERNS_SIZE_MAX = 65_536
# Characters of patterns times those of a key, and 16 for each: at most 2 us, as long as other work
# for a message takes.
MATCHED_AS_ONE = 2_000

MEMBER_BYTES = 6_400  # with its nodes and the longest name; a character of a pattern takes 280
PATTERN_CHARACTER_BYTES = 280


class TooManyPatterns(ValueError):
    """The patterns of all members would take too much."""


def size_of(patterns: Sequence[str]) -> int:
    """What patterns take of PATTERNS_SIZE_MAX."""
    return sum(len(pattern) + 16 for pattern in patterns)


class Member:
    """One consumer."""

    __slots__ = ("name", "patterns", "in_flight", "ready", "batches", "heard_ns")

    def __init__(self, name: str, patterns: Sequence[str]) -> None:
        self.name = name
        self.patterns = tuple(patterns)
        self.in_flight = 0
        self.ready: deque[KeyQueue] = deque()
        self.batches: set[int] = set()  # epochs
        self.heard_ns = -1  # when it last answered for a batch


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
        Raises ValueError if there are MEMBERS_MAX, or one of this name."""
        if len(self.by_name) >= MEMBERS_MAX:
            raise ValueError(f"a subscription has at most {MEMBERS_MAX} consumers")
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
