"""The ``bill`` of ``/v0/status``. Pure: segment and configuration in, a Struct out.

The counts are the words', the dollars are computed here from the configured prices. The supervisor
computes what needs a past: rates and alternatives (``daemon/governor/costs/billing.py``).
"""

from __future__ import annotations

from daemon.config import Config
from daemon.governor.costs.bill import Usage
from daemon.schemas.bill import BillStatus, BudgetStatus, StoreCost
from shards import layout as at
from shards.doubles import double_of
from shards.segment import Segment
from uploader.stores.prices import GIB

_OWN = (at.G_OWN_PUTS, at.G_OWN_PUT_BYTES, at.G_OWN_GETS, at.G_OWN_GET_BYTES, at.G_OWN_LISTS)
_SHARDS = (at.S_PUTS, at.S_PUT_BYTES, at.S_GETS, at.S_GET_BYTES, at.S_LISTS)


# Less says nothing about a month, or about a GiB.
ENOUGH_NS = 60_000_000_000  # the time of the mean (daemon/governor/costs/bill.py)
ENOUGH_BYTES = 16 << 20


def bill_of(segment: Segment, config: Config, now_ns: int) -> BillStatus:
    """What the store was asked for so far, and what that costs."""
    words, layout, prices = segment.words, segment.layout, config.store_prices
    first, stop = layout.shard(0), layout.shard(layout.shards)

    def total(word: int) -> int:
        return sum(words[first + word : stop : at.SHARD_WORDS])

    own = Usage(*(words[word] for word in _OWN))
    used = own + Usage(*map(total, _SHARDS))
    acked_bytes = total(at.S_BYTES_ACKED)

    def instead(uploads: int) -> StoreCost:
        """The same with another number of uploads."""
        puts = own.puts + uploads
        usd = prices.usd(puts, used.gets, used.lists, used.put_bytes, used.get_bytes)
        return StoreCost(puts, usd)

    usd = used.usd(prices)
    is_long_enough = now_ns - words[at.G_STARTED_NS] >= ENOUGH_NS
    return BillStatus(
        store_class=config.store_class,
        puts=used.puts,
        gets=used.gets,
        lists=used.lists,
        put_bytes=used.put_bytes,
        get_bytes=used.get_bytes,
        usd=usd,
        usd_per_month=double_of(words[at.G_USD_PER_MONTH]) if is_long_enough else None,
        usd_per_gib=usd * GIB / acked_bytes if acked_bytes >= ENOUGH_BYTES else None,
        put_rate=double_of(words[at.G_PUT_RATE]),
        optimum_put_rate=double_of(words[at.G_OPTIMUM_PUT_RATE]),
        per_shard=instead(words[at.G_PER_SHARD_PUTS]),
        single_stream=instead(words[at.G_SINGLE_STREAM_PUTS]),
        budget=_budget(segment),
    )


def _budget(segment: Segment) -> BudgetStatus | None:
    words = segment.words
    budget_usd = double_of(words[at.G_BUDGET_USD])
    if not budget_usd:
        return None
    return BudgetStatus(
        usd_per_month=budget_usd,
        window_ms=words[at.G_BUDGET_WINDOW_NS] / 1e6,
        target_bytes=words[at.G_TARGET_BYTES],
        holds=bool(words[at.G_BUDGET_HOLDS]),
    )
