"""Who owns a prefix: when an entry of the owner's log is due, and what its outcome means.

Pure: decisions from events and the time. Times are nanoseconds of a clock that also runs while the
machine is suspended (``shards.clock.boottime_ns``).

That clock stops while a hypervisor holds the machine, and continues from an old time if a snapshot
of the machine's memory is resumed; in both cases the wall clock is then set. So both clocks are
noted when an entry is sent. If they have since diverged, by a *gap* in either direction, the time
that has passed is unknown, and nothing is committed until an entry sent after the gap is accepted.

Vocabulary (protocol 5): the *age* of ownership counts from when the last accepted entry was sent.
Above OWNED_NS nothing is committed until another entry is accepted. A new owner waits TAKE_OVER_NS
after its seal, which is longer even if the rates of the clocks differ by 1 %. An entry is
*accepted* if its key was free, and *taken* if not. In that case the entry there is read; if it is
not ours, we are *superseded*, for good.

    waiting --news or asked, a period since the last PUT--> putting --accepted--> waiting
                                                              |  failed: again after RETRY_NS
                                                              +--taken by another--> superseded

An owner without news puts nothing. It looks periodically whether it is asked: a start
after a boot (``OwnerLog.await_silence``), whose answer is an entry, or a standby, whose answer is
that its question is removed. A busy owner looks too, between two entries.

A failed PUT may have been kept. The same entry is sent again, and the age counts from when it was
*first* sent: a new owner may have sealed immediately after that. This holds even if its number is
free, since the new owner may have removed the entry after a snapshot. The next entry, which is due
immediately, tells.
"""

from __future__ import annotations

from collections.abc import MutableSequence
from enum import Enum
from typing import NamedTuple

from msgspec import Struct

from shards import layout as at

SECOND_NS = 1_000_000_000
PERIOD_NS = 5 * SECOND_NS  # at most one entry per period: 518,400 PUTs a month, $2.60
ASK_NS = 10 * SECOND_NS  # from this age on, an upload asks for an entry with its object
OWNED_NS = 15 * SECOND_NS
TAKE_OVER_NS = 20 * SECOND_NS
RETRY_NS = SECOND_NS
# How often an owner without news looks whether a start asks for it: 259,200 GETs a month, $0.10. If
# there is no answer within ANSWER_NS, no owner lives: that is time for a slow GET and a slow PUT,
# and for one failure of each.
LISTEN_NS = 10 * SECOND_NS
# A busy owner looks less often: its entries tell that it lives.
BUSY_LISTEN_NS = 30 * SECOND_NS
# An owner that knows of a standby looks more often: 864,000 GETs a month, $0.35. It forgets a
# standby that has not asked for so long (standby.py).
STANDBY_LISTEN_NS = 3 * SECOND_NS
KNOWN_STANDBY_NS = 300 * SECOND_NS
HANDOVER_LISTEN_NS = SECOND_NS // 10
ANSWER_NS = 30 * SECOND_NS
# A leap second, and the time between reading the two clocks, stay below this. OWNED_NS + GAP_NS is
# three seconds below TAKE_OVER_NS.
GAP_NS = 2 * SECOND_NS
CLOCKS_BIAS_NS = 1 << 62  # a word has no sign, and a machine may come up in 1970
NEVER = (1 << 63) - 1


class Moment(NamedTuple):
    """Two clocks at one moment: time since boot and wall clock, in nanoseconds."""

    boot_ns: int
    wall_ns: int


def has_gap(now: Moment, before: Moment) -> bool:
    """Whether the clocks have diverged between two moments.

    Slewing, as by NTP, changes the rates of both equally. They diverge if one is stepped or stops.
    """
    return abs((now.wall_ns - before.wall_ns) - (now.boot_ns - before.boot_ns)) > GAP_NS


def may_commit(now: Moment, sent: Moment) -> bool:
    """Whether a commit is allowed; ``sent`` is when the last accepted entry was sent."""
    return now.boot_ns - sent.boot_ns <= OWNED_NS and not has_gap(now, sent)


def should_ask(now: Moment, sent: Moment) -> bool:
    """Whether an upload asks for an entry, so that its commit need not wait for one."""
    return now.boot_ns - sent.boot_ns > ASK_NS or has_gap(now, sent)


def sent_of(words: MutableSequence[int] | memoryview) -> Moment:
    """When the last accepted entry was sent, according to the segment."""
    boot_ns = int(words[at.G_OWNED_SENT_NS])
    return Moment(boot_ns, boot_ns + int(words[at.G_OWNED_CLOCKS_NS]) - CLOCKS_BIAS_NS)


def tell_sent(words: MutableSequence[int] | memoryview, sent: Moment) -> None:
    """Writes it. A read between the two stores finds an old age or a gap."""
    words[at.G_OWNED_CLOCKS_NS] = CLOCKS_BIAS_NS + sent.wall_ns - sent.boot_ns
    words[at.G_OWNED_SENT_NS] = sent.boot_ns


class OwnerAction(Enum):
    """What the owner's thread does next."""

    WAIT = "wait"
    PUT = "put"
    LISTEN = "listen"  # look whether anybody asks, then call ``listened`` or ``not_listened``
    STOP = "stop"  # superseded


class OwnerStep(Struct, frozen=True):
    """A decision: with WAIT, look again at ``at_ns`` or when rung."""

    do: OwnerAction
    at_ns: int = NEVER


class Ownership:
    """One incarnation's hold on its prefix."""

    def __init__(self) -> None:
        self.number = 1  # of the next entry
        self.sent = Moment(0, 0)
        self.first_sent: Moment | None = None  # of the next entry, while its fate is unknown
        self.superseded = False
        self._putting_ns: int | None = None
        self._next_put_ns = 0
        self._next_listen_ns = self._listened_ns = 0
        self._listen_ns = LISTEN_NS

    def decide(self, now_ns: int, news: bool) -> OwnerStep:
        """What to do now. ``news``: there is something to write, or a start asked."""
        if self.superseded:
            return OwnerStep(OwnerAction.STOP)
        if self._putting_ns is not None:
            return OwnerStep(OwnerAction.WAIT)
        if news and now_ns >= self._next_put_ns:
            return OwnerStep(OwnerAction.PUT)
        if now_ns >= self._next_listen_ns:
            return OwnerStep(OwnerAction.LISTEN)
        next_ns = self._next_listen_ns
        return OwnerStep(OwnerAction.WAIT, min(self._next_put_ns, next_ns) if news else next_ns)

    def listened(self, now_ns: int, again_ns: int = LISTEN_NS) -> None:
        """The owner looked whether anybody asks, and is to look again after ``again_ns``; a start
        that asks is news."""
        self._listened_ns, self._listen_ns = now_ns, again_ns
        self._next_listen_ns = now_ns + again_ns

    def not_listened(self, now_ns: int) -> None:
        """It could not look."""
        self._next_listen_ns = now_ns + RETRY_NS

    def putting(self, now: Moment) -> None:
        """An entry is being sent; its age counts from here."""
        self._putting_ns = now.boot_ns
        if self.first_sent is None:
            self.first_sent = now
        self._next_put_ns = now.boot_ns + PERIOD_NS

    def accepted(self) -> None:
        """The entry in flight is in the log."""
        assert self._putting_ns is not None
        self._stands()

    def failed(self, now_ns: int) -> None:
        """The outcome is unknown; the same entry is sent again."""
        self._putting_ns = None
        self._next_put_ns = now_ns + RETRY_NS

    def taken(self, is_ours: bool) -> None:
        """The number was taken; ``is_ours``: by our own entry, whose answer was lost."""
        if is_ours:
            self._stands()
        else:
            self._putting_ns = None
            self.superseded = True

    def _stands(self) -> None:
        assert self.first_sent is not None
        self.sent = self.first_sent
        self._next_put_ns = self.sent.boot_ns + PERIOD_NS
        # An entry tells that we live; but a standby wants to be known too.
        self._next_listen_ns = max(
            self._next_listen_ns,
            min(self.sent.boot_ns + self._listen_ns, self._listened_ns + BUSY_LISTEN_NS),
        )
        self.first_sent = self._putting_ns = None
        self.number += 1

    def check_invariants(self) -> None:
        """Raises AssertionError when the state contradicts itself."""
        assert self.number >= 1
        assert self._putting_ns is None or self.first_sent is not None
        assert self.first_sent is None or self.first_sent.boot_ns >= self.sent.boot_ns
        assert not (self.superseded and self._putting_ns is not None)
