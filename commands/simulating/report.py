"""The result of a simulation: JSON as it is, a table for people, a chart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec import Struct

from commands.simulating.chart import Axis, Line, Panel, draw
from daemon.simulation.strategies import Strategy, StrategyFigures
from uploader.stores.prices import Prices

BUDGET_KEPT = 1.05  # of the budget; what is more is not kept


class LoadFigures(Struct, frozen=True):
    """All strategies under one load, which is of all daemons; a curve's is its mean.

    ``resolution_ms``: requests that reached a shard within this time were published together.
    """

    load_bytes_per_s: float
    requests_per_s: float
    resolution_ms: float
    strategies: list[StrategyFigures]


class SimulationReport(Struct, frozen=True):
    """What was simulated, and what came out."""

    cores: int
    brokers: int
    commit_window_min_ms: float
    commit_window_max_ms: float
    object_bytes_target: int
    uploads_in_flight_max: int
    governor: str
    put_budget_usd_per_month: float | None
    store_class: str
    prices: Prices
    put_p50_ms: float
    put_p99_ms: float
    put_bytes_per_s: float | None
    commit_ms: float
    seed: int
    seconds: float
    warm_up_seconds: float
    loads: list[LoadFigures]


def dollars(value: float | None) -> str:
    """``$0.0012``, ``$64.80``, ``$124,416``."""
    if value is None:
        return "-"
    if value and value < 0.995:
        return f"${value:.2g}"
    return f"${value:,.2f}" if value < 999.995 else f"${value:,.0f}"


def short_dollars(value: float) -> str:
    """``$65``, ``$2k``, ``$1.2M``, for the ticks of an axis."""
    for factor, letter in ((1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"${value / factor:g}{letter}"
    return f"${value:g}"


class ReportTable(NamedTuple):
    """A table: the names of its columns, and its lines."""

    head: Sequence[str]
    lines: list[list[str]]


def tables(report: SimulationReport, rate_text: Callable[[float], str]) -> list[ReportTable]:
    """Costs, then parallelism and latency; each fits into 80 columns. A line per load and strategy.

    ``1.5/4`` is a mean and a peak.
    """
    costs = ReportTable(("load", "strategy", "PUT/s", "$/month", "$/year", "$/GiB", "refused"), [])
    uploads = ReportTable(
        ("load", "strategy", "groups", "in flight", "fill", "p50 ms", "p99 ms", "p99.9 ms"), []
    )
    for load in report.loads:
        rate = rate_text(load.load_bytes_per_s)
        for each in load.strategies:
            latency = each.latency_ms
            costs.lines.append(
                [
                    rate, each.strategy, f"{each.put_rate:,.1f}", dollars(each.usd_per_month),
                    dollars(each.usd_per_year), dollars(each.usd_per_gib), f"{each.refused:.1%}",
                ]
            )  # fmt: skip
            uploads.lines.append(
                [
                    rate, each.strategy, f"{each.groups_mean:.3g}/{each.groups_peak}",
                    f"{each.in_flight_mean:.3g}/{each.in_flight_peak}",
                    "-" if each.fill is None else f"{each.fill:.0%}", _ms(latency.p50),
                    _ms(latency.p99), _ms(latency.p999),
                ]
            )  # fmt: skip
    return [costs, uploads]


def budget_notes(report: SimulationReport) -> list[str]:
    """What must be said of dollars that are above the PUT budget. A daemon finds the window and
    the object target that its budget allows within minutes, and most simulations are shorter."""
    budget_usd = report.put_budget_usd_per_month
    if budget_usd is None:
        return []
    all_usd = budget_usd * report.brokers
    most_usd = BUDGET_KEPT * all_usd
    above = [s for load in report.loads for s in load.strategies if s.usd_per_month > most_usd]
    notes = []
    if any(each.put_budget_holds for each in above):
        longer = "--duration" if above[0].timeline else "--warm-up"
        notes.append(
            f"dollars above the PUT budget ({dollars(all_usd)} a month) are not those of a month:"
            f" windows were still growing to keep to it; a longer {longer} shows where that ends"
        )
    if not all(each.put_budget_holds for each in above):
        notes.append(
            f"the PUT budget ({dollars(all_usd)} a month) cannot always be kept: windows and"
            " objects are as large as they may be, and more is spent"
        )
    return notes


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def chart(report: SimulationReport, rate_text: Callable[[float], str]) -> str:
    """SVG: groups, PUTs in flight and dollars over the load, or over the time of a curve."""

    def rate(bytes_per_s: float) -> str:
        return rate_text(bytes_per_s).replace(".0 ", " ")

    names = [strategy.value for strategy in Strategy]
    cluster = f"{report.brokers} x {report.cores} cores"
    window = f"window {report.commit_window_min_ms:g} ms"
    of_one = "" if report.brokers == 1 else ", of one broker"
    groups = Axis(f"upload groups{of_one}", _number, base=2)
    in_flight = Axis(f"PUTs in flight{of_one}", _number, base=4)
    month = Axis("PUT cost, US dollars a month", short_dollars, base=10)
    if len(report.loads) == 1:
        steps = [each.timeline for each in report.loads[0].strategies]
        load = Axis("load, bytes a second", rate, unit=1024)
        panels = [
            Panel(load, [Line(0, [(s.at_s, s.load_bytes_per_s) for s in steps[0]])]),
            _panel(groups, [[(s.at_s, s.groups) for s in each] for each in steps]),
            _panel(in_flight, [[(s.at_s, s.in_flight) for s in each] for each in steps]),
            _panel(month, [[(s.at_s, s.usd_per_month) for s in each] for each in steps]),
        ]
        panels[0] = panels[0]._replace(lines=[Line(len(names), panels[0].lines[0].points)])
        return draw(
            f"Upload strategies over time: {cluster}, {window}", [*names, "load"],
            Axis("time, seconds", _number), panels,
        )  # fmt: skip

    def over_load(value: Callable[[StrategyFigures], float]) -> list[list[tuple[float, float]]]:
        return [
            [(load.load_bytes_per_s, value(load.strategies[index])) for load in report.loads]
            for index in range(len(names))
        ]

    return draw(
        f"Upload strategies over load: {cluster}, {window}", names,
        Axis("load of all brokers, bytes a second", rate, base=4),
        [
            _panel(groups, over_load(lambda each: each.groups_mean)),
            _panel(in_flight, over_load(lambda each: each.in_flight_mean)),
            _panel(month, over_load(lambda each: each.usd_per_month)),
        ],
    )  # fmt: skip


def _panel(axis: Axis, lines: Sequence[Sequence[tuple[float, float]]]) -> Panel:
    return Panel(axis, [Line(number, points) for number, points in enumerate(lines)])


def _number(value: float) -> str:
    return f"{value:.3g}"
