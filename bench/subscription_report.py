"""The printed tables and the targets of subscriptions. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.delivery_results import Spread
from bench.figures import Target, number
from bench.subscription_results import SubscriptionResults

Table = tuple[Sequence[str], Sequence[Sequence[str]]]

DRAINED_PER_S_MIN = 100_000  # by key, on one core
WAITING_BYTES_MAX = 32
HOT_KEY_RATIO_MAX = 2  # p99 of other keys, with a hot key over without


def sections(results: SubscriptionResults) -> Iterator[tuple[str, Table]]:
    """Titles and tables of what was measured."""
    if results.drains:
        yield "Subscriptions: a backlog, acknowledged by batch, on one core", _drains(results)
    times = list(_times(results))
    if times:
        yield (
            "Subscriptions: ms on the way",
            (("what", "p50", "p99", "max", "times"), times),
        )
    others = list(_others(results))
    if others:
        yield "Subscriptions: memory, requests, the command", (("what", "measured"), others)


def targets(results: SubscriptionResults) -> Iterator[Target]:
    """All targets that were measured."""
    for each in results.drains[:1]:
        name = f"messages/s to {each.consumers} consumers, {each.keys:,} keys"
        yield Target(f"delivered and acknowledged {name}", DRAINED_PER_S_MIN, each.per_s)
    if results.waiting is not None:
        yield Target("bytes of memory per waiting message", WAITING_BYTES_MAX,
                     results.waiting.bytes_each, at_least=False)  # fmt: skip
    hot = results.hot_key
    if hot is not None:
        yield Target("p99 of other keys, with a hot key over without", HOT_KEY_RATIO_MAX,
                     hot.with_hot_key.p99_ms / hot.alone.p99_ms, at_least=False,
                     unit=" x")  # fmt: skip


def _drains(results: SubscriptionResults) -> Table:
    heads = ("mode", "partitions", "subscriptions", "messages", "keys", "consumers",
             "messages/s", "messages/CPU s", "a batch", "our clients' CPU")  # fmt: skip
    rows = [
        (each.kind.mode, str(each.kind.partitions), str(each.kind.subscriptions),
         f"{each.messages:,}", f"{each.keys:,}", str(each.consumers), number(each.per_s),
         number(each.per_cpu_s), number(each.messages_per_batch), f"{each.client_share:.0%}")
        for each in results.drains
    ]  # fmt: skip
    return heads, rows


def _times(results: SubscriptionResults) -> Iterator[tuple[str, ...]]:
    if results.arrival is not None:
        what = f"commit to one of {results.arrival.consumers} consumers, idle"
        yield _row(what, results.arrival.commit_to_socket)
    hot = results.hot_key
    if hot is not None:
        yield _row("the same, before there is a hot key", hot.alone)
        yield _row(f"with a hot key of {hot.backlog:,} messages", hot.with_hot_key)
    if results.takeover is not None:
        yield _row("kill -9 of the owner to the next message", results.takeover.elsewhere)
        yield _row("the same, the connection was at the owner", results.takeover.there)


def _others(results: SubscriptionResults) -> Iterator[tuple[str, str]]:
    waiting = results.waiting
    if waiting is not None:
        what = f"bytes for each of {waiting.messages:,} waiting messages of {waiting.keys:,} keys"
        yield what, number(waiting.bytes_each)
    if results.hot_key is not None:
        yield "messages/s of the hot key, one after the other", number(results.hot_key.hot_per_s)
    requests = results.requests
    if requests is not None:
        yield "polls/s of one consumer, each with its acknowledgment", number(requests.polls_per_s)
        yield "messages/s that they bring", number(requests.polled_per_s)
        yield "polls/s of one message", number(requests.small_polls_per_s)
        yield "messages/s of headgate consume, with its start", number(requests.command_per_s)


def _row(what: str, spread: Spread) -> tuple[str, ...]:
    return (
        what, number(spread.p50_ms), number(spread.p99_ms), number(spread.max_ms),
        str(spread.count),
    )  # fmt: skip
