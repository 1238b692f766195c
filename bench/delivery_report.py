"""The printed tables and the targets of delivery. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from bench.delivery_results import DeliveryResults, FairnessResult, Spread
from bench.figures import MIB, NONE, Target, number

Table = tuple[Sequence[str], Sequence[Sequence[str]]]

P50_MS_MAX = 1.0  # from the commit to the socket of 100 watchers, on a free core
P99_MS_MAX = 5.0
TARGET_WATCHERS = 100
ACKED_RATIO_MIN = 0.9  # acknowledged/s with 100 watchers over without
WEIGHTS = (8, 4, 2, 1, 1)  # of the bands, from the top
SHARE_ERROR_MAX = 0.02
LATE_MAX = 0
# What the seed's authors report on a laptop: p50 and p99 by watchers.
SEED_MS = {100: (0.70, 1.28), 1000: (2.2, 4.9)}


def sections(results: DeliveryResults) -> Iterator[tuple[str, Table]]:
    """Titles and tables of what was measured."""
    if results.latencies:
        yield (
            "Delivery: a record to all watchers, ms from the commit or the answer",
            _latency(results),
        )
    if results.floods:
        yield "Delivery: watchers of a saturated topic of 1 KiB records", _floods(results)
    if results.fairness is not None:
        yield "Delivery: five saturated bands", _fairness(results.fairness)
    others = list(_others(results))
    if others:
        yield "Delivery: streams, routers, wake-ups", (("what", "measured"), others)


def targets(results: DeliveryResults) -> Iterator[Target]:
    """All targets that were measured."""
    for each in results.latencies:
        if (each.load, each.watchers) == ("none", TARGET_WATCHERS):
            spread = each.commit_to_socket
            yield Target("commit to 100 sockets, idle: p50", P50_MS_MAX, spread.p50_ms,
                         at_least=False, unit=" ms")  # fmt: skip
            yield Target("commit to 100 sockets, idle: p99", P99_MS_MAX, spread.p99_ms,
                         at_least=False, unit=" ms")  # fmt: skip
    ratio = acked_ratio(results, TARGET_WATCHERS)
    if ratio is not None:
        yield Target("acknowledged/s with 100 watchers over without", ACKED_RATIO_MIN, ratio,
                     unit=" x")  # fmt: skip
    if results.fairness is not None:
        yield Target("bytes delivered of the bands, off 8:4:2:1:1 at most", SHARE_ERROR_MAX,
                     share_error(results.fairness), at_least=False)  # fmt: skip
    if results.wakeups is not None:
        name = f"of {results.wakeups.appends:,} appends, delivered after more than 50 ms"
        yield Target(name, LATE_MAX, results.wakeups.late, at_least=False)


def acked_ratio(results: DeliveryResults, watchers: int) -> float | None:
    """What producers got with watchers of another topic, over what they got alone."""
    alone = results.acked_alone_per_s
    for each in results.latencies:
        if each.watchers == watchers and each.acked_per_s is not None and alone:
            return each.acked_per_s / statistics.mean(alone)
    return None


def share_error(fairness: FairnessResult) -> float:
    """The largest difference of a band's share from its weight's, relative to the latter."""
    total_bytes = sum(fairness.delivered_bytes)
    shares = [each / total_bytes for each in fairness.delivered_bytes]
    wanted = [weight / sum(WEIGHTS) for weight in WEIGHTS]
    return max(abs(share - due) / due for share, due in zip(shares, wanted, strict=True))


def _latency(results: DeliveryResults) -> Table:
    heads = ("other load", "watchers", "commit to socket p50", "p99", "max", "seed's p50", "p99",
             "answer to socket p50", "p99", "commit to our read p50", "p99",
             "daemon's p50 <", "p99 <", "acked/s meanwhile", "of alone")  # fmt: skip
    rows = []
    for each in results.latencies:
        seed = SEED_MS.get(each.watchers, (None, None)) if each.load != "floor" else (None, None)
        ratio = acked_ratio(results, each.watchers) if each.acked_per_s is not None else None
        rows.append((
            each.load,
            str(each.watchers),
            *_p50_p99(each.commit_to_socket),
            number(each.commit_to_socket.max_ms),
            *(number(value) for value in seed),
            *_p50_p99(each.ack_to_socket),
            *_p50_p99(each.commit_to_read),
            number(each.daemon_p50_ms),
            number(each.daemon_p99_ms),
            number(each.acked_per_s),
            f"{ratio:.0%}" if ratio is not None else NONE,
        ))  # fmt: skip
    return heads, rows


def _floods(results: DeliveryResults) -> Table:
    heads = ("watchers", "deliveries/s", "deliveries/CPU s", "MiB/s", "acked/s", "of alone")
    rows = [
        (str(each.watchers), number(each.deliveries_per_s), number(each.deliveries_per_cpu_s),
         number(each.mib_per_s), number(each.acked_per_s),
         f"{each.acked_per_s / each.acked_alone_per_s:.0%}")
        for each in results.floods
    ]  # fmt: skip
    return heads, rows


def _fairness(fairness: FairnessResult) -> Table:
    total_bytes = sum(fairness.delivered_bytes)
    rows = [
        (f"B{4 - index}", str(weight), number(size_bytes / MIB),
         number(16 * size_bytes / total_bytes))
        for index, (weight, size_bytes) in enumerate(
            zip(WEIGHTS, fairness.delivered_bytes, strict=True)
        )
    ]  # fmt: skip
    return ("band", "weight", "MiB delivered", "of 16 parts"), rows


def _others(results: DeliveryResults) -> Iterator[tuple[str, str]]:
    memory = results.stream_memory
    if memory is not None:
        yield (
            f"KiB of memory per idle stream, of {memory.streams:,}",
            number(memory.bytes_each / 1024),
        )
    routed = results.routed
    if routed is not None:
        yield "records/s acknowledged in a router's source", number(routed.acked_records_per_s)
        yield "records/s copied meanwhile", number(routed.followed_records_per_s)
        yield (
            f"records/s of a back-fill of {routed.backfilled_records:,}",
            number(routed.backfilled_records_per_s),
        )
        yield "records per CPU second of a back-fill", number(routed.backfilled_per_cpu_s)
    wakeups = results.wakeups
    if wakeups is not None:
        spread = wakeups.commit_to_socket
        times = ", ".join(number(ms) for ms in (spread.p50_ms, spread.p99_ms, spread.max_ms))
        what = f"{wakeups.appends:,} appends at random phases: p50, p99, max ms; late"
        yield what, f"{times}; {wakeups.late}"


def _p50_p99(spread: Spread) -> tuple[str, str]:
    return number(spread.p50_ms), number(spread.p99_ms)
