"""The printed tables and the targets of push. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.figures import NONE, Target, number
from bench.push_results import PushResults

Table = tuple[Sequence[str], Sequence[Sequence[str]]]

USED_MIN = 0.99  # of the rate, once it is reached
PEAK_MAX = 1.05  # a burst is 50 ms of the rate
SERVED_MIN = 0.9  # of the receiver's capacity
FAILED_MAX = 0.05


def sections(results: PushResults) -> Iterator[tuple[str, Table]]:
    """Titles and tables of what was measured."""
    if results.postings:
        yield "Push: POSTs to a receiver that answers immediately, on one core", _posts(results)
    if results.allowed:
        yield "Push: what a backlog uses of its rate", _allowed(results)
    if results.follows:
        yield "Push: following a receiver's capacity", _follows(results)


def targets(results: PushResults) -> Iterator[Target]:
    """All targets that were measured."""
    for each in results.allowed:
        name = f"push, {_senders(each.senders)}"
        yield Target(f"{name}: POSTs over those allowed", USED_MIN, each.used)
        yield Target(f"{name}: most in a second over the rate", PEAK_MAX, each.peak,
                     at_least=False)  # fmt: skip
    for follow in results.follows:
        name = f"push, capacity {follow.what}"
        yield Target(f"{name}: served over capacity", SERVED_MIN, follow.served)
        yield Target(f"{name}: failures over POSTs", FAILED_MAX, follow.failed, at_least=False)


def _posts(results: PushResults) -> Table:
    bare = results.postings[0].cpu_us_per_post
    heads = ("what", "POSTs/s", "records/s", "CPU us a POST", "over the client alone",
             "receiver's CPU")  # fmt: skip
    rows = [
        (each.what, number(each.posts_per_s), number(each.records_per_s),
         number(each.cpu_us_per_post), f"{each.cpu_us_per_post / bare:.2f} x",
         f"{each.receiver_share:.0%}")
        for each in results.postings
    ]  # fmt: skip
    return heads, rows


def _allowed(results: PushResults) -> Table:
    heads = ("senders", "rate_max", "seconds", "used", "most in a second")
    rows = [
        (_senders(each.senders), number(each.rate_max), number(each.seconds), f"{each.used:.1%}",
         f"{each.peak:.1%}")
        for each in results.allowed
    ]  # fmt: skip
    return heads, rows


def _follows(results: PushResults) -> Table:
    heads = ("capacity", "POSTs/s", "rate_max", "settled after, periods", "with periods of 30 s",
             "then served", "failed")  # fmt: skip
    rows = [
        (each.what, number(each.capacity), number(each.rate_max), number(each.periods),
         NONE if each.periods is None else f"{each.periods / 2:.1f} min", f"{each.served:.1%}",
         f"{each.failed:.1%}")
        for each in results.follows
    ]  # fmt: skip
    return heads, rows


def _senders(count: int) -> str:
    return f"{count} sender" if count == 1 else f"{count} senders on {count} shards"
