"""Who owns a prefix: when an entry of the owner's log is due, and what its fate means.

Pure: events and now in, decisions out. Times are nanoseconds of a clock that runs during suspend
(``shards.clock.boottime_ns``).

Vocabulary (protocol 5): the *age* of ownership counts from the sending of the last entry that was
accepted. Over OWNED_NS nothing is committed until an entry has been accepted; a new owner waits
TAKE_OVER_NS behind its seal, which is longer, also for clocks whose rates differ by 1 %. An entry
is *accepted* when its key was free, *taken* when it was not: then the one there is read, and if
it is not ours we are *superseded*, for good.

    waiting --news or asked, a period since the last PUT--> putting --accepted--> waiting
                                                              |  failed: again after RETRY_NS
                                                              +--taken by another--> superseded

A failed PUT may have been kept. The same entry is sent again, and the age counts from its *first*
sending: a new owner may have sealed right behind that. Also when its number is free: the new owner
may have removed the entry behind a snapshot since. The next entry, due at once, tells.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

SECOND_NS = 1_000_000_000
PERIOD_NS = 5 * SECOND_NS  # at most one entry per period: 518,400 PUTs a month, $2.60
ASK_NS = 10 * SECOND_NS  # an upload asks for an entry beside its object from this age on
OWNED_NS = 15 * SECOND_NS
TAKE_OVER_NS = 20 * SECOND_NS
RETRY_NS = SECOND_NS
NEVER = (1 << 63) - 1


def may_commit(now_ns: int, sent_ns: int) -> bool:
    """Whether a commit is allowed: ``sent_ns`` is the sending of the last accepted entry."""
    return now_ns - sent_ns <= OWNED_NS


def should_ask(now_ns: int, sent_ns: int) -> bool:
    """Whether an upload asks for an entry, so that its commit need not wait for one."""
    return now_ns - sent_ns > ASK_NS


class Do(Enum):
    """What the owner's thread does next."""

    WAIT = "wait"
    PUT = "put"
    STOP = "stop"  # superseded


class Step(Struct, frozen=True):
    """A decision: with WAIT, look again at ``at_ns`` or when rung."""

    do: Do
    at_ns: int = NEVER


class Ownership:
    """One incarnation's hold on its prefix."""

    def __init__(self) -> None:
        self.number = 1  # of the next entry
        self.sent_ns = 0
        self.first_sent_ns: int | None = None  # of the next entry, while its fate is unknown
        self.superseded = False
        self._putting_ns: int | None = None
        self._next_put_ns = 0

    def decide(self, now_ns: int, news: bool) -> Step:
        """What to do now. ``news``: there is something to tell, or somebody asked."""
        if self.superseded:
            return Step(Do.STOP)
        if not news or self._putting_ns is not None:
            return Step(Do.WAIT)
        if now_ns < self._next_put_ns:
            return Step(Do.WAIT, self._next_put_ns)
        return Step(Do.PUT)

    def putting(self, now_ns: int) -> None:
        """An entry is being sent; its age counts from here."""
        self._putting_ns = now_ns
        if self.first_sent_ns is None:
            self.first_sent_ns = now_ns
        self._next_put_ns = now_ns + PERIOD_NS

    def accepted(self) -> None:
        """The entry in flight stands in the log."""
        assert self._putting_ns is not None
        self._stands()

    def failed(self, now_ns: int) -> None:
        """The store did not say; the same number is sent again."""
        self._putting_ns = None
        self._next_put_ns = now_ns + RETRY_NS

    def taken(self, is_ours: bool) -> None:
        """The number was not free; ``is_ours``: by our own entry, whose answer was lost."""
        if is_ours:
            self._stands()
        else:
            self._putting_ns = None
            self.superseded = True

    def _stands(self) -> None:
        assert self.first_sent_ns is not None
        self.sent_ns = self.first_sent_ns
        self._next_put_ns = self.sent_ns + PERIOD_NS
        self.first_sent_ns = self._putting_ns = None
        self.number += 1

    def check_invariants(self) -> None:
        """Raises AssertionError when the state contradicts itself."""
        assert self.number >= 1
        assert self._putting_ns is None or self.first_sent_ns is not None
        assert self.first_sent_ns is None or self.first_sent_ns >= self.sent_ns
        assert not (self.superseded and self._putting_ns is not None)
