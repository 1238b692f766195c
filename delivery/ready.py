"""What the dispatcher and a ready set agree on.

A *ready set* holds the work that commits left behind: entries, each at most once, and says which
comes next. An *entry* is one topic's work of one kind. A *turn* is a piece of an entry's work: the
ready set gives it out, the dispatcher has it served and says what it cost and whether more is left.

    mark -> take -> finish(more) -> (the end of its queue) -> take -> finish(no more) -> gone

``scheduler/`` is the ready set. It decides only when work is done, never what.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, Protocol

from msgspec import Struct


class Kind(IntEnum):
    """The kinds of work that a topic can have, each an entry of its own."""

    WATCH = 0  # records to watchers
    ROUTE = 1  # records to other topics
    CONSUME = 2  # records to consumers of subscriptions


EntryKey = tuple[int, Kind]  # topic id


class PriorityInputs(Struct, frozen=True):
    """What a topic's priority follows from. ``priority`` is the manual one, if any, ``auto``
    whether recency counts without one; ``consumed_ns`` is when the topic was last consumed, 0 for
    never."""

    priority: int | None = None
    auto: bool = True
    consumed_ns: int = 0


class Turn(NamedTuple):
    """Work to do now, within ``budget_bytes`` of cost. ``published_ns`` is when the oldest commit
    that the entry is ready for was published, ``enqueued_ns`` since when the entry has waited.

    ``waited_ns`` is how long it waited for this turn, without deliberate delays; None if its topic
    may be deferred, so that its wait says nothing about the load."""

    key: EntryKey
    budget_bytes: int
    published_ns: int
    enqueued_ns: int
    waited_ns: int | None


class EntryView(NamedTuple):
    """An entry that waits, as ``status`` shows it. ``band`` is where its next turn comes from."""

    band: int
    enqueued_ns: int
    deferred: bool


class ReadySet(Protocol):
    """Entries that are ready, in an order of its own. Times are monotonic nanoseconds."""

    def mark(self, key: EntryKey, inputs: PriorityInputs, published_ns: int, now_ns: int) -> bool:
        """Puts an entry in, unless it is there; returns whether it was not."""

    def take(self, now_ns: int) -> Turn | None:
        """The next turn; None if nothing may be done now. ``finish`` must follow."""

    def finish(self, turn: Turn, cost_bytes: int, more: bool, now_ns: int) -> None:
        """The turn is over. With ``more``, the entry waits for another one."""

    def next_due_ns(self) -> int | None:
        """When ``take`` will have a turn; None if no entry waits."""

    def set_pressure(self, coalesce_ns: int, deferring: bool, now_ns: int) -> None:
        """How long work waits deliberately, so that more comes together, and whether the least
        urgent work is put off."""

    def forget(self, key: EntryKey) -> None:
        """Takes an entry out, if it is there: nobody wants its work any more."""

    def oldest_wait_ns(self, now_ns: int) -> int:
        """How long the oldest entry has waited, without deliberate delays; 0 for none. Entries
        that pressure may defer do not count, deferred or not: after a deferral they would look
        like a new overload, and bring the next deferral."""

    def depths(self) -> list[int]:
        """How many entries are ready in each band, deferred ones too."""

    def deferred(self) -> int:
        """How many entries are deferred."""

    def view(self, key: EntryKey) -> EntryView | None:
        """What ``status`` shows of an entry that waits; None for others."""
