"""What the senders of a push subscription do together, summed over shards, for status and metrics.

The counts of a row are added as one large number (``shards/rows.py``), the rest is read by sender:
about 4 us each. So a reader of all takes them in slices.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from shards import layout as at
from shards.boards.pushboard import (
    GRANT_UNITS,
    PushBoard,
    PushOffer,
    PushOutcome,
    latency_ms,
    units_granted,
)
from shards.latency import Counted
from shards.segment import Segment

# Counts that are next to each other; the sum of latencies, which may pass 2^64, is added by itself.
_FIRST, _STOP = at.F_OUTCOMES, at.F_LATENCIES + at.PUSH_LATENCIES
_WORDS = _STOP - _FIRST
_FIRST_BYTE, _STOP_BYTE = _FIRST * at.WORD_BYTES, _STOP * at.WORD_BYTES
_MODE_MAX = 2
_SUMS = ("rate_max", "senders", "granted", "rate", "used", "in_flight", "attempts", "records")
# What comes before them: to the mode, two doubles, to the sum of latencies. And of a share: joins,
# subscription, in use, use. Native, so a word is loaded whole.
_HEAD = struct.Struct("3Q2d7Q")
_SHARE = struct.Struct("3Qd")
assert (at.F_MODE, at.F_RATE, at.F_LATENCY_SUM_NS) == (2, 3, 11) and at.V_USE == 3


class PushTotal(Struct, frozen=True, kw_only=True):
    """A push subscription, or several together. Rates are attempts a second."""

    slot: int = 0
    subscription_id: int = 0
    rate_max: float = 0.0
    senders: int = 0  # that are present
    granted: float = 0.0
    rate: float = 0.0  # in force
    used: float = 0.0  # of the grants, as the senders told last
    mode: int = 0  # of the slowest sender
    held_until_ns: int = 0  # of the sender that waits longest
    in_flight: int = 0
    attempts: int = 0
    records: int = 0
    outcomes: tuple[int, ...] = (0,) * len(PushOutcome)
    latency: Counted = Counted((0,) * at.PUSH_LATENCIES, 0)

    @property
    def use(self) -> float:
        """How much of their grants the senders need, 0 to 1."""
        return self.used / self.granted if self.granted else 0.0

    @property
    def failures(self) -> int:
        """Attempts that ended, but neither delivered nor were asked to wait."""
        return sum(self.outcomes) - self.outcomes[0] - self.outcomes[PushOutcome.HELD]

    @property
    def by_outcome(self) -> dict[str, int]:
        """How attempts ended, where not 0."""
        counts = zip(PushOutcome, self.outcomes, strict=True)
        return {outcome.name.lower(): count for outcome, count in counts if count}

    @property
    def p50_ms(self) -> float | None:
        """Half of the attempts took less."""
        return latency_ms(self.latency.buckets, 0.5)

    @property
    def p99_ms(self) -> float | None:
        """99 % of them took less."""
        return latency_ms(self.latency.buckets, 0.99)


def totals(segment: Segment) -> Iterator[PushTotal]:
    """All push subscriptions, by slot."""
    for offer in PushBoard(segment).offers():
        yield total_of(segment, offer)


def total_of(segment: Segment, offer: PushOffer) -> PushTotal:
    """One of them: also what senders did that have left, since counts only grow."""
    layout, sparse, data = segment.layout, segment.sparse, segment.data
    figures_at = layout.sparse + layout.figures(offer.slot, 0) * at.WORD_BYTES
    shares_at = layout.sparse + layout.share(offer.slot, 0) * at.WORD_BYTES
    first, stop = layout.share(offer.slot, 0), layout.share(offer.slot + 1, 0)
    ids = sparse[first + at.V_SUBSCRIPTION : stop : at.SHARE_WORDS].tolist()
    senders = in_flight = attempts = records = latency_ns = held_until_ns = counts = mode = 0
    granted = rate = used = 0.0
    for shard, subscription_id in enumerate(ids):
        if subscription_id != offer.subscription_id:
            continue
        row_at = figures_at + shard * at.FIGURES_WORDS * at.WORD_BYTES
        head = _HEAD.unpack_from(data, row_at)
        counts += int.from_bytes(data[row_at + _FIRST_BYTE : row_at + _STOP_BYTE], "little")
        attempts += head[at.F_ATTEMPTS]
        records += head[at.F_RECORDS]
        latency_ns += head[at.F_LATENCY_SUM_NS]
        share_at = shares_at + shard * at.SHARE_WORDS * at.WORD_BYTES
        joins, _, in_use, use = _SHARE.unpack_from(data, share_at)
        if joins & 1:
            maximum = units_granted(in_use) / GRANT_UNITS
            senders += 1
            in_flight += head[at.F_IN_FLIGHT]
            granted += maximum
            rate += min(maximum, head[at.F_RATE])
            used += maximum * max(0.0, use)
            mode = max(mode, min(_MODE_MAX, head[at.F_MODE]))
            held_until_ns = max(held_until_ns, head[at.F_HELD_UNTIL_NS])
    row = struct.unpack(f"<{_WORDS}Q", counts.to_bytes(_WORDS * at.WORD_BYTES, "little"))
    return PushTotal(
        slot=offer.slot,
        subscription_id=offer.subscription_id,
        rate_max=offer.rate_max,
        senders=senders,
        granted=granted,
        rate=rate,
        used=used,
        mode=mode,
        held_until_ns=held_until_ns,
        in_flight=in_flight,
        attempts=attempts,
        records=records,
        outcomes=row[: len(PushOutcome)],
        latency=Counted(row[at.F_LATENCIES - _FIRST :], latency_ns),
    )


def together(some: Iterable[PushTotal]) -> PushTotal:
    """Their sum; the mode is that of the slowest."""
    all_ = list(some)
    if not all_:
        return PushTotal()
    return PushTotal(
        mode=max(each.mode for each in all_),
        held_until_ns=max(each.held_until_ns for each in all_),
        outcomes=_columns([each.outcomes for each in all_]),
        latency=Counted(
            _columns([each.latency.buckets for each in all_]),
            sum(each.latency.sum_ns for each in all_),
        ),
        **{name: sum(getattr(each, name) for each in all_) for name in _SUMS},
    )


def _columns(rows: Sequence[Sequence[int]]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*rows, strict=True)))
