"""The messages of one key that are not finished, in order, and what its first one waits for.

A queue exists while its key has such messages. Its first message, the *head*, is the only one that
may be with a consumer: all others wait for it. A key may occur in several partitions; then the
queue has a run for each, and one of them is current until it is empty.

States of a queue::

    READY (a consumer may take its head) -> SENT -> READY with the next head, or gone
                                            SENT -> RESTING (until a time) -> READY
                                            SENT -> STUCK (until an operator acts) -> READY
    UNMATCHED: no consumer accepts the key  <-> READY
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from delivery.subscriptions.window.batches import text_bytes

if TYPE_CHECKING:
    from delivery.subscriptions.window.look_ahead import LookAhead
    from delivery.subscriptions.window.members import Member

QUEUE_BYTES = 240  # as measured, with its place among the keys, without its key


class QueueState(Enum):
    """What the head of a queue waits for."""

    READY = "ready"
    SENT = "sent"
    RESTING = "resting"
    STUCK = "stuck"
    UNMATCHED = "held"  # as clients know it


class KeyQueue:
    """One key's messages."""

    __slots__ = (
        "key", "state", "look_ahead", "head", "tail", "others", "owner", "version", "attempts",
        "waiting",
    )  # fmt: skip

    def __init__(self, key: str, look_ahead: LookAhead, offset: int) -> None:
        self.key = key
        self.state = QueueState.UNMATCHED
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
