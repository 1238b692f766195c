"""The printed tables and the targets of the governor. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence

from bench.figures import MIB, NONE, Target, number
from bench.governor_results import (
    BudgetResult,
    ComparedResult,
    GovernorResults,
    ImportResult,
    PressedResult,
    SideResult,
)
from bench.overload import OverloadResult

Table = tuple[Sequence[str], Sequence[Sequence[str]]]

PUT_RATIO_MAX = 1.25  # PUTs a second over the optimum, at any load
BUDGET_ERROR_MAX = 0.05
GOODPUT_RATIO_MIN = 0.9  # at saturation, governed over not
COST_MAX = 0.01  # of acknowledged/s
OVERLOAD_MIN = 10.0


def sections(results: GovernorResults) -> Iterator[tuple[str, Table]]:
    """Titles and tables of what was measured."""
    if results.loads:
        yield "Governor: pressure, window and PUTs by load", _loads(results.loads)
    compared = [*results.goodput, *([results.cost] if results.cost else [])]
    if compared:
        yield "Governor: two daemons in turns, medians", _compared(compared)
    others = list(_others(results))
    if others:
        yield "Governor: budget and memory", (("what", "measured"), others)


def targets(results: GovernorResults) -> Iterator[Target]:
    """All targets that were measured."""
    if results.loads:
        yield Target("PUTs over the optimum, of five loads", PUT_RATIO_MAX,
                     max(each.put_ratio for each in results.loads), at_least=False,
                     unit=" x")  # fmt: skip
    if results.budget is not None:
        yield Target("PUT budget, off by", BUDGET_ERROR_MAX, abs(results.budget.error),
                     at_least=False)  # fmt: skip
    for each in results.goodput:
        yield Target(f"{each.size}, saturated: acknowledged/s governed over not",
                     GOODPUT_RATIO_MIN, rate_ratio(each), unit=" x")  # fmt: skip
    if results.imports is not None:
        yield Target("import: its byte budget over everything in flight", GOODPUT_RATIO_MIN,
                     import_ratio(results.imports), unit=" x")  # fmt: skip
    if results.cost is not None:
        yield Target("cost of metrics and sensors, of acknowledged per CPU s", COST_MAX,
                     1 - cpu_ratio(results.cost), at_least=False)  # fmt: skip
    if results.overload is not None:
        found = results.overload
        yield Target("overload in a cgroup: offered over stored", OVERLOAD_MIN, found.overload,
                     unit=" x")  # fmt: skip
        yield Target("overload in a cgroup: kills and contradictions", 0,
                     found.kills + found.deaths + len(found.contradictions),
                     at_least=False)  # fmt: skip
        yield Target("overload in a cgroup: memory over its limit", 1.0,
                     found.kept_peak_bytes / found.limit_bytes, at_least=False)  # fmt: skip


def rate_ratio(compared: ComparedResult) -> float:
    """Acknowledged a second, of the first over the second: the median of the pairs."""
    return statistics.median(one.acked_per_s / two.acked_per_s for one, two in compared.turns)


def import_ratio(imports: ImportResult) -> float:
    """Bytes a second, of the first over the second: the median of the pairs."""
    return statistics.median(one.bytes_per_s / two.bytes_per_s for one, two in imports.turns)


def cpu_ratio(compared: ComparedResult) -> float:
    """The same per CPU-second."""
    return statistics.median(
        one.acked_per_cpu_s / two.acked_per_cpu_s for one, two in compared.turns
    )


def _loads(loads: Sequence[PressedResult]) -> Table:
    heads = (
        "body", "load", "acked/s", "pressure", "window ms", "rungs", "p50 ms", "p99 ms", "PUT/s",
        "optimum", "PUT ratio",
    )  # fmt: skip
    rows = [
        (
            each.size, each.load_name, number(each.load.acked_per_s), number(each.level),
            number(each.window_ms), ", ".join(each.rungs) or NONE, number(each.load.p50_ms),
            number(each.load.p99_ms), number(each.puts_per_s), number(each.put_optimum_per_s),
            number(each.put_ratio),
        )
        for each in loads
    ]  # fmt: skip
    return heads, rows


def _compared(compared: Sequence[ComparedResult]) -> Table:
    heads = (
        "what", "body", "pairs", "acked/s", "of the other", "acked/CPU s", "of the other",
        "memory MiB", "of its bound",
    )  # fmt: skip
    rows = []
    for each in compared:
        sides = [one for one, _ in each.turns]
        peak = max(side.memory_peak_bytes for side in sides)
        rows.append((
            each.name, each.size, str(len(each.turns)), _median(sides, "acked_per_s"),
            f"{rate_ratio(each):.1%}", _median(sides, "acked_per_cpu_s"), f"{cpu_ratio(each):.1%}",
            number(peak / MIB), number(peak / sides[0].memory_bound_bytes),
        ))  # fmt: skip
    return heads, rows


def _median(sides: Sequence[SideResult], name: str) -> str:
    return number(statistics.median(getattr(side, name) for side in sides))


def _others(results: GovernorResults) -> Iterator[tuple[str, str]]:
    if results.budget is not None:
        yield from _budget(results.budget)
    if results.imports is not None:
        yield from _imports(results.imports)
    if results.overload is not None:
        yield from _overload(results.overload)


def _budget(found: BudgetResult) -> Iterator[tuple[str, str]]:
    yield (
        "budget, spent: $ a month",
        (
            f"{number(found.budget_usd_per_month)}, {number(found.spent_usd_per_month)}"
            f" ({found.error:+.1%} in {found.seconds:.0f} s)"
        ),
    )
    yield (
        "PUT/s, without a budget; window, object target",
        (
            f"{number(found.puts_per_s)}, {number(found.free_puts_per_s)};"
            f" {number(found.window_ms)} ms, {number(found.target_bytes / MIB)} MiB"
        ),
    )


def _imports(found: ImportResult) -> Iterator[tuple[str, str]]:
    rates = (statistics.median(side.bytes_per_s / MIB for side in sides)
             for sides in zip(*found.turns, strict=True))  # fmt: skip
    peaks = (max(side.peak_bytes / MIB for side in sides)
             for sides in zip(*found.turns, strict=True))  # fmt: skip
    yield "import, MiB/s: with its byte budget, with everything in flight", _numbers(rates)
    yield "most MiB in flight", _numbers(peaks)


def _numbers(values: Iterable[float]) -> str:
    return ", ".join(map(number, values))


def _overload(found: OverloadResult) -> Iterator[tuple[str, str]]:
    answers = ", ".join(f"{status} x {count:,}" for status, count in sorted(found.statuses.items()))
    yield (
        "cgroup: limit, high-water, of that shared memory, in MiB",
        (
            f"{number(found.limit_bytes / MIB)}, {number(found.kept_peak_bytes / MIB)},"
            f" {number(found.shmem_peak_bytes / MIB)}"
        ),
    )
    yield (
        "offered, stored, in MiB/s; over how many s",
        (
            f"{number(found.offered_bytes / MIB / found.seconds)},"
            f" {number(found.acked_bytes / MIB / found.seconds)}; {found.seconds:.0f}"
        ),
    )
    yield "answers", answers
    yield (
        "killed by the kernel, deaths of shards, contradictions",
        f"{found.kills}, {found.deaths}, {len(found.contradictions)}",
    )
    yield "longest wait for an answer, s", number(found.wait_ms_max / 1e3)
