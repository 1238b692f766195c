"""The consumers of a subscription and the queues of its keys: who owns which, and has how much.

A *member* is a consumer that is present. Members share the keys by consistent hashing
(``hash_ring.py``). Each has the queues that wait for it, and the batches that it has.

A *queue* has the messages of one key that are not finished, in order. It exists while its key has
such messages. Its first message, the *head*, is the only one that may be with a consumer: all
others wait for it. A key may occur in several partitions; then the queue has a run for each, and
one of them is current until it is empty. STATES has its states and what changes them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum, auto

from delivery.subscriptions.window.hash_ring import HashRing
from delivery.subscriptions.window.look_ahead import LookAhead

QUEUE_BYTES = 240  # as measured, with its place among the keys, without its key


def text_bytes(text: str | None) -> int:
    """What a text takes at most, the same each time: one that is not of ASCII grows by its UTF-8
    when it is encoded."""
    if text is None:
        return 0
    return 49 + len(text) if text.isascii() else 80 + 8 * len(text)


class QueueState(Enum):
    """What the head of a queue waits for."""

    READY = "ready"  # a consumer may take it
    SENT = "sent"
    RESTING = "resting"  # until a time
    STUCK = "stuck"  # until an operator acts, or its dead letter is stored
    UNMATCHED = "held"  # as clients know it; no consumer accepts the key


class QueueEvent(Enum):
    """What changes the state of a queue. It may end in any: once its messages are finished."""

    FREED = auto()  # a head, the same or the next one, may be sent, and looks for its owner
    UNOWNED = auto()  # no consumer accepts the key
    TAKEN = auto()
    FAILED = auto()
    GIVEN_UP = auto()  # it has failed too often


STATES = {
    (QueueState.READY, QueueEvent.TAKEN): QueueState.SENT,
    (QueueState.READY, QueueEvent.UNOWNED): QueueState.UNMATCHED,
    (QueueState.READY, QueueEvent.FREED): QueueState.READY,
    (QueueState.SENT, QueueEvent.FREED): QueueState.READY,
    (QueueState.SENT, QueueEvent.FAILED): QueueState.RESTING,
    (QueueState.SENT, QueueEvent.GIVEN_UP): QueueState.STUCK,
    (QueueState.RESTING, QueueEvent.FREED): QueueState.READY,
    (QueueState.STUCK, QueueEvent.FREED): QueueState.READY,
    (QueueState.UNMATCHED, QueueEvent.FREED): QueueState.READY,
}
# As STATES says, for loops over many queues.
TAKEN = STATES[QueueState.READY, QueueEvent.TAKEN]
FREED = STATES[QueueState.SENT, QueueEvent.FREED]


class KeyQueue:
    """One key's messages."""

    __slots__ = (
        "key", "state", "look_ahead", "head", "tail", "others", "owner", "version", "attempts",
        "waiting",
    )  # fmt: skip

    def __init__(self, key: str, look_ahead: LookAhead, offset: int) -> None:
        self.key = key
        self.state = QueueState.READY
        self.look_ahead = look_ahead
        self.head = self.tail = offset
        self.others: list[tuple[LookAhead, int, int]] | None = None  # runs: look-ahead, head, tail
        self.owner: Member | None = None
        self.version = -1  # of the members, when the owner was found
        self.attempts = 0  # failed deliveries of the head
        self.waiting = 1  # messages, with the head

    @property
    def bytes(self) -> int:
        """What it takes. A key of 1,024 characters may take 8 KB."""
        return QUEUE_BYTES + text_bytes(self.key)

    def change(self, event: QueueEvent) -> None:
        """Something has become of the head. Raises KeyError if nothing of the kind can."""
        self.state = STATES[self.state, event]

    def append(self, look_ahead: LookAhead, offset: int) -> None:
        """A further message of the key, in another partition than the current run's."""
        self.waiting += 1
        runs = self.others = self.others or []
        for index, (other, head, tail) in enumerate(runs):
            if other is look_ahead:
                look_ahead.link(tail, offset)
                runs[index] = (look_ahead, head, offset)
                return
        runs.append((look_ahead, offset, offset))

    def advance(self, following: int) -> bool:
        """The head is finished, ``following`` is the one after it in its partition; returns whether
        there is another one."""
        return self.skip(1, following)

    def skip(self, count: int, following: int) -> bool:
        """As ``advance``, of the first ``count`` messages."""
        if not count:
            return True
        self.attempts = 0
        self.waiting -= count
        if following:
            self.head = following
            return True
        if self.others:
            self.look_ahead, self.head, self.tail = self.others.pop(0)
            return True
        return False


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
