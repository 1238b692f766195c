"""What a sender POSTs: messages, units of them, and what orders them.

A *series* is the messages that must arrive one after the other: those of a key, or of a partition.
A message without such an order is a series of its own. A *unit* is what one POST carries.
``queue.py`` says what becomes of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Sequence
from typing import Generic, Protocol, TypeVar

Place = tuple[int, int]


class QueuedMessage(Protocol):
    """What a queue needs of a message."""

    epoch: int

    @property
    def partition(self) -> int: ...
    @property
    def seq(self) -> int: ...
    @property
    def key(self) -> str | None: ...
    @property
    def size_bytes(self) -> int: ...


M = TypeVar("M", bound=QueuedMessage)


class Series(Generic[M]):
    """Messages that go one after the other. ``name`` is a key or a partition; None: one message."""

    __slots__ = ("name", "waiting", "size_bytes", "unit", "parts", "nacked", "is_listed")

    def __init__(self, name: str | int | None) -> None:
        self.name = name
        self.waiting: deque[tuple[M, int]] = deque()  # with the time at which they came
        self.size_bytes = 0  # of those
        self.unit: Unit[M] | None = None  # under way
        self.parts = 0  # of a batch that was refused, with messages of this
        self.nacked: list[M] = []  # what the owner has not answered yet
        self.is_listed = False  # among those that may be sent

    @property
    def is_free(self) -> bool:
        """Whether its next message may be sent, if there is one."""
        return self.unit is None and not self.parts and not self.nacked

    def insert(self, message: M, now_ns: int) -> None:
        """A message waits: before those of its partition that follow it."""
        waiting = self.waiting
        at = len(waiting)
        if waiting and not is_after(message, waiting[-1][0]):  # it is sent again, or elsewhere
            after = (i for i, (other, _) in enumerate(waiting) if is_after(other, message))
            at = next(after, at)
        waiting.insert(at, (message, now_ns))
        self.size_bytes += message.size_bytes


def is_after(message: QueuedMessage, other: QueuedMessage) -> bool:
    """Whether a message follows another one in a partition."""
    return message.partition == other.partition and message.seq > other.seq


class Unit(Generic[M]):
    """What one POST carries. Messages of one series are next to each other."""

    __slots__ = ("messages", "size_bytes", "series")

    def __init__(self, pairs: Sequence[tuple[M, Series[M]]]) -> None:
        self.messages = [message for message, _ in pairs]
        self.series = [series for _, series in pairs]  # of each message
        self.size_bytes = sum(message.size_bytes for message in self.messages)

    @property
    def _pairs(self) -> list[tuple[M, Series[M]]]:
        return list(zip(self.messages, self.series, strict=True))

    def cut(self, count_max: int) -> list[Unit[M]]:
        """The same messages in units of at most this many."""
        pairs = self._pairs
        return [Unit(pairs[at : at + count_max]) for at in range(0, len(pairs), count_max)]

    def halves(self, left: Container[Place]) -> list[Unit[M]]:
        """The messages that are left, in two units if there are several."""
        pairs = [pair for pair in self._pairs if (pair[0].partition, pair[0].seq) in left]
        half = -(-len(self.messages) // 2)
        return [Unit(each) for each in (pairs[:half], pairs[half:]) if each]

    def without(self, series: Series[M]) -> tuple[Unit[M], list[M]]:
        """The messages of all other series, and those of this one."""
        left = Unit([pair for pair in self._pairs if pair[1] is not series])
        return left, [message for message, each in self._pairs if each is series]
