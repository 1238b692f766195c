"""Push subscriptions in shared memory: what an owner offers, what each sender may use and does.

Lifecycle of an offer: the owner of a push subscription writes its rate and its senders -> changes
them -> withdraws it. Sender ``n`` of subscription ``i`` runs at shard ``(i + n) mod shards``.

Lifecycle of a share: the sender *joins* -> the balancer (in the supervisor) *grants* it a rate, and
others later -> the sender *follows*: it obeys the grant and says so in ``in_use`` -> it *leaves*.
For a process that has died, the supervisor does, after ``waitpid`` (``pushgrants.py``).

The sum of what senders use never exceeds the offered rate, although each word is read some time
after it was written, and a process may be stopped between any two steps:

- A grant is one word: its rate, its number, and the join that it is for. A sender obeys no grant
  for another join, so what a sender had is free as soon as it has left.
- A sender stores the word of a grant in ``in_use`` before its first attempt under it. So until
  ``in_use`` is the last grant, the balancer counts the highest rate since the one that is there.
- Rates are stored in millionths, rounded down.

Figures are since the daemon started. A successor of the same subscription goes on from the row that
it finds, and begins with the mode, rate and ceiling in it.

A slot is given to another subscription as soon as its former one is deleted, which may still have
POSTs under way. Ids of subscriptions only grow, so they are the generation of a slot: an offer with
a lower id than the one that is there is not written. A share and its figures belong to the sender
that joined last: whoever joined before stores nothing there any more and is granted nothing. Each
word has one writing process (``shards/layout.py``), except offers, whose owner may be another
process than that of the slot's former one: two may store at the same time, so owners offer again
regularly. This module neither logs nor decides.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from enum import IntEnum, unique

from msgspec import Struct

from ledger.delivery.push_rates import LearnedRate
from shards import layout as at
from shards.barrier import keep_order
from shards.doubles import double_of, word_of
from shards.latency import quantile_us
from shards.rows import whole, writing
from shards.segment import Segment

GRANT_UNITS = 1_000_000  # a stored 1 is this part of an attempt a second
RATE_BITS = 37  # up to 137,438 attempts a second
JOIN_BITS = 12  # joins and leaves between two looks of the balancer, a tenth of a second apart
NUMBER_BITS = 64 - RATE_BITS - JOIN_BITS  # grants that were not followed: 54 minutes of them
_JOIN_MASK = (1 << JOIN_BITS) - 1
_RATE_MASK = (1 << RATE_BITS) - 1

LATENCY_UNIT_NS = 125_000  # bucket b has what took less than 2^b of it; the last one all others
_LAST = at.PUSH_LATENCIES - 1


class LimiterMode(IntEnum):
    """What a limiter thinks of its receiver (``delivery/push/rates/limiter.py``)."""

    NORMAL = 0
    SLOW = 1
    HEARTBEAT = 2


@unique
class PushOutcome(IntEnum):
    """How an attempt ended. A number is a word's place, not a contract; the names are."""

    DELIVERED = 0  # 2xx
    HELD = 1  # asked to wait, by Retry-After
    SERVER_ERROR = 2  # 5xx
    REDIRECTED = 3  # 3xx, which are not followed
    RECEIVER_REFUSED = 4  # a 4xx that is about the request as such: 401, 404, 429 ...
    RECORD_REFUSED = 5  # a 4xx that is about the record: 400, 413, 422 ...
    GONE = 6  # 410
    TIMED_OUT = 7
    UNREACHABLE = 8  # refused, reset, no route
    TLS_FAILED = 9
    NAME_UNKNOWN = 10
    FORBIDDEN = 11  # an address that is not in push_allow
    ANSWER_BROKEN = 12  # half an answer, too long, or none at all


assert len(PushOutcome) <= at.OUTCOMES_MAX


NOTHING_LEARNED = LearnedRate(0, 0.0, None)
USE_UNKNOWN = -1.0


class PushOffer(Struct, frozen=True):
    """What a subscription's senders may do together: ``rate_max`` attempts a second."""

    slot: int
    subscription_id: int
    rate_max: float
    senders: int


class PushSenderRow(Struct, frozen=True, kw_only=True):
    """What a sender does and has done. Times are those of the monotonic clock, 0: none. ``use`` is
    USE_UNKNOWN before the first update interval has ended."""

    shard: int
    is_present: bool
    granted: float
    in_use: float
    use: float
    state: LearnedRate
    changed_ns: int
    held_until_ns: int
    next_ns: int
    in_flight: int
    attempts: int
    records: int
    outcomes: tuple[int, ...]
    latency_sum_ns: int
    latencies: tuple[int, ...]

    @property
    def failures(self) -> int:
        """Attempts that ended, but neither delivered nor were asked to wait."""
        return sum(self.outcomes) - self.outcomes[0] - self.outcomes[PushOutcome.HELD]


def latency_ms(latencies: Sequence[int], share: float) -> float | None:
    """A time that ``share`` of the attempts stayed below, to a factor of two; None: there were
    none."""
    units = quantile_us(latencies, share)
    return None if units is None else units * LATENCY_UNIT_NS / 1e6


def sender_number(subscription_id: int, shard: int, shards: int) -> int:
    """Which of a subscription's senders would run at a shard. There is one a shard at most."""
    return (shard - subscription_id) % shards


def units_of(rate: float) -> int:
    """A rate as it is stored: rounded down."""
    # A stored rate may have become less by a rounding of its double: 2e-5 for the largest.
    return max(0, min(_RATE_MASK, math.floor(rate * GRANT_UNITS + 1e-4)))


def grant_word(units: int, number: int, joins: int) -> int:
    """A grant: its rate, its number, and the join that it is for."""
    counted = number & ((1 << NUMBER_BITS) - 1)
    return (counted << JOIN_BITS | joins & _JOIN_MASK) << RATE_BITS | units


def units_granted(word: int) -> int:
    """The rate of a grant, as it is stored."""
    return word & _RATE_MASK


def rate_granted(word: int) -> float:
    """The rate of a grant, in attempts a second."""
    return (word & _RATE_MASK) / GRANT_UNITS


def is_for(word: int, joins: int) -> bool:
    """Whether a grant is for this join."""
    return (word >> RATE_BITS) & _JOIN_MASK == joins & _JOIN_MASK


class PushBoard:
    """The offers and the senders' rows: for owners, and for readers."""

    def __init__(self, segment: Segment) -> None:
        self._words = segment.words
        self._sparse = segment.sparse
        self._layout = segment.layout

    def offer(self, slot: int, subscription_id: int, rate_max: float, senders: int) -> None:
        """The owner's: what the subscription's senders may do. To be called again regularly, with
        what it is; nothing is done if the slot is a later subscription's."""
        index, words = self._layout.offer(slot), self._words
        wanted = (subscription_id, units_of(rate_max), senders)
        present = words[index + at.O_SUBSCRIPTION]
        if present > subscription_id or tuple(words[index : index + 3]) == wanted:
            return
        if present != subscription_id:
            words[index + at.O_SUBSCRIPTION] = 0
            keep_order()
            words[index + at.O_RESUMED_NS] = 0
        words[index + at.O_RATE], words[index + at.O_SENDERS] = wanted[1:]
        keep_order()
        words[index + at.O_SUBSCRIPTION] = subscription_id

    def withdraw(self, slot: int, subscription_id: int) -> None:
        """The owner's: nobody sends any more, unless the slot is another one's already."""
        index = self._layout.offer(slot)
        if self._words[index + at.O_SUBSCRIPTION] == subscription_id:
            self._words[index + at.O_SUBSCRIPTION] = 0

    def resume(self, slot: int, subscription_id: int, now_ns: int) -> None:
        """An operator's: the receiver takes something again, so its senders leave slow mode."""
        index = self._layout.offer(slot)
        if self._words[index + at.O_SUBSCRIPTION] == subscription_id:
            self._words[index + at.O_RESUMED_NS] = now_ns

    def offers(self) -> list[PushOffer]:
        """All offers, by slot."""
        first = self._layout.offer(0)
        stop = self._layout.offer(at.SUBSCRIPTION_SLOTS)
        ids = self._words[first : stop : at.OFFER_WORDS].tolist()
        found = [self._offer(slot) for slot, there in enumerate(ids) if there]
        return [offer for offer in found if offer is not None]

    def offer_of(self, slot: int, subscription_id: int) -> PushOffer | None:
        """A subscription's offer; None if its owner has not written it."""
        offer = self._offer(slot)
        return offer if offer is not None and offer.subscription_id == subscription_id else None

    def _offer(self, slot: int) -> PushOffer | None:
        index, words = self._layout.offer(slot), self._words
        subscription_id = words[index + at.O_SUBSCRIPTION]
        keep_order()
        rate, senders = words[index + at.O_RATE], words[index + at.O_SENDERS]
        keep_order()
        if not subscription_id or words[index + at.O_SUBSCRIPTION] != subscription_id:
            return None
        return PushOffer(slot, subscription_id, rate / GRANT_UNITS, senders)

    def senders(self, slot: int, subscription_id: int) -> list[PushSenderRow]:
        """The rows of a subscription that is offered, by shard: also those of senders that have
        left, for what they have done counts."""
        if self.offer_of(slot, subscription_id) is None:
            return []
        layout, sparse = self._layout, self._sparse
        shares = sparse[layout.share(slot, 0) : layout.share(slot + 1, 0)].tolist()
        return [
            self._row(slot, shard, shares[start : start + at.SHARE_WORDS])
            for shard, start in enumerate(range(0, len(shares), at.SHARE_WORDS))
            if shares[start + at.V_SUBSCRIPTION] == subscription_id
        ]

    def _row(self, slot: int, shard: int, share: list[int]) -> PushSenderRow:
        found = _figures(self._sparse, self._layout.figures(slot, shard))
        joins, granted = share[at.V_JOINS], share[at.V_GRANTED]
        is_granted = bool(joins & 1) and is_for(granted, joins)
        return PushSenderRow(
            shard=shard,
            is_present=bool(joins & 1),
            granted=rate_granted(granted) if is_granted else 0.0,
            in_use=rate_granted(share[at.V_IN_USE]),
            use=double_of(share[at.V_USE]),
            state=_state(found),
            changed_ns=found[at.F_CHANGED_NS],
            held_until_ns=found[at.F_HELD_UNTIL_NS],
            next_ns=found[at.F_NEXT_NS],
            in_flight=found[at.F_IN_FLIGHT] if joins & 1 else 0,
            attempts=found[at.F_ATTEMPTS],
            records=found[at.F_RECORDS],
            outcomes=tuple(found[at.F_OUTCOMES : at.F_OUTCOMES + len(PushOutcome)]),
            latency_sum_ns=found[at.F_LATENCY_SUM_NS],
            latencies=tuple(found[at.F_LATENCIES : at.F_LATENCIES + at.PUSH_LATENCIES]),
        )


class SenderWords:
    """The words of one sender, for the sender itself, in its shard's loop."""

    def __init__(self, segment: Segment, shard: int, slot: int) -> None:
        layout = segment.layout
        share, figures = layout.share(slot, shard), layout.figures(slot, shard)
        self._share = segment.sparse[share : share + at.SHARE_WORDS]
        self._figures = segment.sparse[figures : figures + at.FIGURES_WORDS]
        offer = layout.offer(slot)
        self._offer = segment.words[offer : offer + at.OFFER_WORDS]
        self._joins = 0
        self._followed = 0
        self._counts: list[int] = []  # all figures; nobody else changes them

    def join(self, subscription_id: int) -> LearnedRate | None:
        """The sender is there. Returns what a predecessor of this subscription at this shard has
        learned; None: since the daemon started, none has told anything."""
        share, figures = self._share, self._figures
        self._joins = self._followed = 0
        state = None
        if figures[at.F_SUBSCRIPTION] == subscription_id:
            if figures[at.F_CHANGED_NS]:
                state = _state(figures.tolist())
            figures[at.F_VERSION] += figures[at.F_VERSION] & 1  # it may have died in a row
        else:
            cleared = [0] * (at.FIGURES_WORDS - 1)
            cleared[at.F_SUBSCRIPTION - 1] = subscription_id
            cleared[at.F_CEILING - 1] = word_of(math.inf)
            with writing(figures, at.F_VERSION):
                figures[at.F_SUBSCRIPTION :] = array("Q", cleared)
        self._counts = figures.tolist()
        self._counts[at.F_IN_FLIGHT] = figures[at.F_IN_FLIGHT] = 0
        share[at.V_IN_USE] = 0
        share[at.V_USE] = word_of(USE_UNKNOWN)
        share[at.V_SUBSCRIPTION] = subscription_id
        keep_order()
        self._joins = share[at.V_JOINS] | 1
        if (
            share[at.V_JOINS] & 1
        ):  # nobody has left: what its predecessor was granted is not its own
            self._joins += 2
        share[at.V_JOINS] = self._joins
        return state

    @property
    def _is_mine(self) -> bool:
        """Whether nobody has joined here since: a sender of a later subscription in this slot."""
        return self._joins != 0 and self._share[at.V_JOINS] == self._joins

    def leave(self) -> None:
        """The sender is not there any more: it makes no further attempt."""
        is_mine = self._is_mine
        self._joins = self._followed = 0
        if not is_mine:
            return
        self._share[at.V_IN_USE] = 0
        self._figures[at.F_IN_FLIGHT] = self._figures[at.F_HELD_UNTIL_NS] = 0
        keep_order()
        self._share[at.V_JOINS] += 1

    def follow(self) -> float:
        """The rate that is granted now. The caller's next attempt must obey it; before then, it is
        noted as in use. Costs one load if nothing has changed."""
        return self.obey(self.granted_word)

    @property
    def granted_word(self) -> int:
        """The last grant; it may be for an earlier join."""
        return int(self._share[at.V_GRANTED])

    def obey(self, word: int) -> float:
        """The second step of ``follow``."""
        if not self._is_mine:
            return 0.0
        if word != self._followed:
            if not is_for(word, self._joins):
                return 0.0
            self._share[at.V_IN_USE] = self._followed = word
            keep_order()
        return rate_granted(word)

    @property
    def resumed_ns(self) -> int:
        """When slow mode was last ended by an operator; 0 for never, or if nothing is offered to
        this sender."""
        if self._offer[at.O_SUBSCRIPTION] != self._share[at.V_SUBSCRIPTION]:
            return 0
        return int(self._offer[at.O_RESUMED_NS])

    def use(self, use: float) -> None:
        """Attempts a second of the last update interval, as a share of the maximum."""
        if self._is_mine:
            self._share[at.V_USE] = word_of(use)

    def tell(self, state: LearnedRate, now_ns: int) -> None:
        """What the limiter has learned. To be called when that has changed."""
        if not self._is_mine:
            return
        figures = self._figures
        with writing(figures, at.F_VERSION):
            figures[at.F_MODE] = state.mode
            figures[at.F_RATE] = word_of(state.rate)
            figures[at.F_CEILING] = word_of(math.inf if state.ceiling is None else state.ceiling)
            figures[at.F_CHANGED_NS] = now_ns

    def tell_next(self, next_ns: int, held_until_ns: int) -> None:
        """When the next attempt may begin, and until when the receiver asked to wait."""
        if not self._is_mine:
            return
        self._figures[at.F_NEXT_NS] = next_ns
        self._figures[at.F_HELD_UNTIL_NS] = held_until_ns

    def began(self) -> None:
        """Counts an attempt."""
        self._add(at.F_ATTEMPTS, 1)
        self._add(at.F_IN_FLIGHT, 1)

    def ended(self, outcome: PushOutcome, latency_ns: int, records: int = 0) -> None:
        """Counts how it ended, how long it took, and the records that it delivered."""
        self._add(at.F_IN_FLIGHT, -1)
        self._add(at.F_OUTCOMES + outcome, 1)
        units = max(0, latency_ns) // LATENCY_UNIT_NS
        self._add(at.F_LATENCIES + min(_LAST, units.bit_length()), 1)
        self._add(at.F_LATENCY_SUM_NS, max(0, latency_ns))
        if records:
            self._add(at.F_RECORDS, records)

    def _add(self, index: int, count: int) -> None:
        if self._is_mine:
            self._figures[index] = self._counts[index] = self._counts[index] + count


def _state(figures: Sequence[int]) -> LearnedRate:
    ceiling = double_of(figures[at.F_CEILING])
    return LearnedRate(
        figures[at.F_MODE], double_of(figures[at.F_RATE]), None if ceiling == math.inf else ceiling
    )


def _figures(sparse: memoryview, index: int) -> list[int]:
    """A row of figures, whole; if its writer died in it, as it is."""
    return whole(sparse, index, lambda: sparse[index : index + at.FIGURES_WORDS].tolist())
