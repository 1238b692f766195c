"""Reads what was asked of the store, keeps the bill, and obeys the budget. The supervisor's tick.

It writes the words of the bill and the object target; the window is the governor's word. Decisions
are those of ``bill.py`` and ``put_budget.py``.
"""

from __future__ import annotations

from daemon.config import Config
from daemon.governor.costs import put_budget
from daemon.governor.costs.bill import Bill, Billed, Usage
from daemon.governor.costs.put_budget import BudgetDecision, BudgetTerms, PutBudget
from shards import layout as at
from shards.alarms import AlarmBoard, AlarmKind
from shards.doubles import word_of
from shards.segment import Segment
from uploader.ownership.ownership import PERIOD_NS
from uploader.stores.counted import Requests
from uploader.stores.prices import GIB, SECONDS_PER_MONTH, Prices

TELL_AGAIN_NS = 60_000_000_000  # the alarm's text follows the spending


def budget_terms(config: Config, *, may_grow: bool) -> BudgetTerms | None:
    """The terms of the configured budget. ``may_grow``: whether objects may."""
    if config.put_budget_usd_per_month is None:
        return None
    return put_budget.terms(
        config.put_budget_usd_per_month, config.store_prices,
        window_min_ms=config.commit_window_min_ms, ack_timeout_ms=config.ack_timeout_ms,
        target_bytes=config.object_bytes_target,
        ring_bytes=config.ring_bytes if may_grow else 0, shards=config.shards,
    )  # fmt: skip


def target_max_bytes(config: Config) -> int:
    """The largest object target that this configuration can lead to."""
    if config.put_budget_usd_per_month is None:
        return config.object_bytes_target
    return put_budget.target_max_bytes(config.object_bytes_target, config.ring_bytes)


class Billing:
    """One run of the daemon. ``own``: the supervisor's requests, which other threads count."""

    def __init__(
        self, segment: Segment, config: Config, own: Requests, alarms: AlarmBoard, now_ns: int
    ) -> None:
        self._words = segment.words
        self._layout = segment.layout
        self._own = own
        self._alarms = alarms
        self._prices = config.store_prices
        # The memory bound counts with larger objects, so it must know of them at the start.
        self._may_grow = config.put_budget_usd_per_month is not None
        self._bill = Bill(config.store_prices, segment.layout.shards, now_ns)
        self._budget: PutBudget | None = None
        self._told_ns = 0  # when the alarm was raised; 0: it is not
        self.follow(config, now_ns)

    def follow(self, config: Config, now_ns: int) -> None:
        """Takes the budget and the window of a configuration."""
        self._config = config
        terms = budget_terms(config, may_grow=self._may_grow)
        if terms is None:
            self._budget = None
        elif self._budget is None:
            self._budget = PutBudget(terms, now_ns)
        else:
            self._budget.change(terms)

    def tick(self, window_ms: float, now_ns: int) -> float:
        """``window_ms`` is what pressure asks for; returns the window that the budget allows."""
        words = self._words
        used, own = self._usage()
        new, billed = self._bill.sample(
            used, own.puts, self._column(at.S_REQUEST_ID), self._column(at.S_HEAD),
            int(words[at.G_WINDOW_NS]), int(words[at.G_TARGET_BYTES]), now_ns,
            is_one_group=words[self._layout.group(0) + at.P_SIZE] == self._layout.shards,
        )  # fmt: skip
        self._store(own, billed)
        if self._budget is None:
            self._follow_decision(None, billed, now_ns)
            words[at.G_TARGET_BYTES] = self._config.object_bytes_target
            return window_ms
        prices = self._prices
        lists = new.lists * prices.list_usd_per_1000 / prices.put_usd_per_1000
        bytes_usd = new.put_bytes * prices.put_usd_per_gib / GIB
        decision = self._budget.step(new.puts + lists, bytes_usd, now_ns)
        self._follow_decision(decision, billed, now_ns)
        words[at.G_TARGET_BYTES] = decision.target_bytes
        return max(window_ms, decision.window_ms)

    def _column(self, word: int) -> list[int]:
        """One word of each shard."""
        first, stop = self._layout.shard(0), self._layout.shard(self._layout.shards)
        return list(self._words[first + word : stop : at.SHARD_WORDS])

    def _usage(self) -> tuple[Usage, Usage]:
        """All requests, and the supervisor's own among them."""
        own = self._own
        mine = Usage(own.puts, own.put_bytes, own.gets, own.get_bytes, own.lists)
        shards = (
            sum(self._column(word))
            for word in (at.S_PUTS, at.S_PUT_BYTES, at.S_GETS, at.S_GET_BYTES, at.S_LISTS)
        )
        return mine + Usage(*shards), mine

    def _store(self, own: Usage, billed: Billed) -> None:
        words = self._words
        words[at.G_OWN_PUTS] = own.puts
        words[at.G_OWN_PUT_BYTES] = own.put_bytes
        words[at.G_OWN_GETS] = own.gets
        words[at.G_OWN_GET_BYTES] = own.get_bytes
        words[at.G_OWN_LISTS] = own.lists
        words[at.G_PUT_RATE] = word_of(billed.put_rate)
        words[at.G_OPTIMUM_PUT_RATE] = word_of(billed.optimum_put_rate)
        words[at.G_USD_PER_MONTH] = word_of(billed.usd_per_month)
        words[at.G_PER_SHARD_PUTS] = billed.per_shard_puts
        words[at.G_SINGLE_STREAM_PUTS] = billed.single_stream_puts
        words[at.G_PER_SHARD_USD_PER_MONTH] = word_of(billed.per_shard_usd_per_month)
        words[at.G_SINGLE_STREAM_USD_PER_MONTH] = word_of(billed.single_stream_usd_per_month)

    def _follow_decision(
        self, decision: BudgetDecision | None, billed: Billed, now_ns: int
    ) -> None:
        words, budget_usd = self._words, self._config.put_budget_usd_per_month or 0.0
        words[at.G_BUDGET_USD] = word_of(budget_usd)
        words[at.G_BUDGET_WINDOW_NS] = 0 if decision is None else int(decision.window_ms * 1e6)
        words[at.G_BUDGET_HOLDS] = decision is None or decision.holds
        if decision is None or decision.holds:
            if self._told_ns:
                self._alarms.clear(AlarmKind.BUDGET_EXCEEDED)
            self._told_ns = 0
        elif not self._told_ns or now_ns - self._told_ns >= TELL_AGAIN_NS:
            self._told_ns = now_ns
            self._alarms.raise_(
                AlarmKind.BUDGET_EXCEEDED,
                exceeded_text(billed, budget_usd, self._prices, decision),
                now_ns,
            )


def exceeded_text(
    billed: Billed, budget_usd: float, prices: Prices, decision: BudgetDecision
) -> str:
    """What is spent, what may be spent, and what to do; at most 224 bytes (shards/alarms.py)."""
    spent = (
        f"PUTs cost {_usd(billed.put_class_usd_per_month)} a month now, the budget is"
        f" {_usd(budget_usd)}; "
    )
    entries_usd = prices.put_class_usd(SECONDS_PER_MONTH * 1e9 / PERIOD_NS, 0, 0)
    if budget_usd <= entries_usd:
        return (
            f"{spent}the owner's log alone needs up to {_usd(entries_usd)}: raise"
            " put_budget_usd_per_month"
        )
    return (
        f"{spent}windows of {decision.window_ms / 1e3:.1f} s and objects of"
        f" {decision.target_bytes / 2**20:.1f} MiB are the limit: raise put_budget_usd_per_month,"
        " ack_timeout_ms or ring_bytes"
    )


def _usd(dollars: float) -> str:
    return f"${dollars:,.2f}" if dollars >= 0.1 else f"${dollars:.2g}"
