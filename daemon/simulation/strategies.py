"""Three ways to upload the same load, and what each costs.

================  ===============================================================================
``per-shard``     each shard uploads what it has accepted: every shard is a group, and stays one
``single-stream`` one shard uploads what all have accepted
``adaptive``      upload groups as shipped: one at first, halved and merged as load demands
================  ===============================================================================

All three run the shipped decisions. The first two differ in the map at the start and in a
hysteresis that never ends.

The daemons of a cluster share nothing, so one is simulated with its part of the load, and its PUTs
are counted once for each. A month has 30 days and a year 12 months, as in the bill.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum

from msgspec import Struct
from msgspec.structs import replace

from daemon.simulation.load import LoadCurve, LoadPiece
from daemon.simulation.meter import Meter, over_optimum, worst_over_optimum
from daemon.simulation.model import Machine, SimulatedDaemon
from uploader.groups.upload_turn import Policy
from uploader.stores.prices import GIB, SECONDS_PER_MONTH, Prices

S = 1_000_000_000
YEAR_MONTHS = 12
TIMELINE_STEPS = 100
_NEVER_CHANGES = 1 << 60  # windows

# One event of a bundle takes about 10 us, so a run takes a few seconds. Above that the requests of
# a longer time are published together, within the limits below; EVENTS_MAX is minutes.
_BUNDLES_WANTED = 100_000
_RESOLUTION_NS_MAX = 10_000_000
EVENTS_MAX = 5_000_000
_EVENTS_OF_A_PUT = 6


class Strategy(Enum):
    """Who uploads what."""

    PER_SHARD = "per-shard"
    SINGLE_STREAM = "single-stream"
    ADAPTIVE = "adaptive"


class Scenario(Struct, frozen=True):
    """What is simulated, except the load."""

    machine: Machine
    brokers: int
    prices: Prices
    seed: int


class Percentiles(Struct, frozen=True):
    """Milliseconds from a request's arrival to its commit; null without requests."""

    p50: float | None
    p99: float | None
    p999: float | None


class TimelineStep(Struct, frozen=True):
    """A step of a curve or trace; rates are of all daemons, the means of one."""

    at_s: float
    load_bytes_per_s: float
    put_rate: float
    usd_per_month: float
    groups: float
    in_flight: float


class StrategyFigures(Struct, frozen=True):
    """One strategy under one load; PUTs, rates and dollars are of all daemons.

    ``over_optimum`` is the PUT rate over what the bytes need, ``over_optimum_10s`` the most of it
    in any ten seconds. ``window_ms`` and ``object_bytes_target`` are means of what was in force:
    pressure and a budget raise them. ``put_budget_holds``, of the end: whether a lever was left to
    keep to the budget; None: there was none. ``groups`` and ``in_flight`` (PUTs) are of one daemon.
    """

    strategy: str
    puts: int
    put_rate: float
    over_optimum: float
    over_optimum_10s: float | None
    usd_per_month: float
    usd_per_year: float
    usd_per_gib: float | None
    stored_bytes_per_s: float
    window_ms: float
    object_bytes_target: float
    put_budget_holds: bool | None
    pressure_peak: float
    fill: float | None
    groups_mean: float
    groups_peak: int
    in_flight_mean: float
    in_flight_peak: int
    latency_ms: Percentiles
    refused: float
    timeline: list[TimelineStep]


def resolution_ns(machine: Machine, curve: LoadCurve) -> int:
    """How long the requests of a shard are published together; 0: each by itself.

    Raises ValueError if the simulation would take too many events anyway.
    """
    wanted_s = machine.cores * curve.duration_s / _BUNDLES_WANTED
    gap_s = machine.cores * curve.duration_s / curve.requests
    peak = max(max(piece.first, piece.last) for piece in curve.pieces) / machine.cores
    limits = (
        wanted_s - gap_s,
        _RESOLUTION_NS_MAX / S,
        machine.window_ns / 20 / S,
        machine.object_bytes_target / 8 / peak,
    )
    resolution_s = max(0.0, min(limits))
    bundles = machine.cores * curve.duration_s / (resolution_s + gap_s)
    most_puts = curve.bytes / machine.object_bytes_target + min(
        curve.requests, machine.cores * curve.duration_s * S / machine.window_ns
    )
    events = bundles + _EVENTS_OF_A_PUT * most_puts
    if events > EVENTS_MAX:
        raise ValueError(
            f"{curve.duration_s:g} s of this load are {events:,.0f} events, and the limit is"
            f" {EVENTS_MAX:,}; lower --duration to {curve.duration_s * EVENTS_MAX / events:.2g}"
        )
    return int(resolution_s * S)


def of_one(curve: LoadCurve, brokers: int) -> LoadCurve:
    """One daemon's part of a load."""
    return LoadCurve(
        [
            LoadPiece(p.start_s, p.end_s, p.first / brokers, p.last / brokers, p.request_bytes)
            for p in curve.pieces
        ]
    )


def daemon_of(
    scenario: Scenario, strategy: Strategy, curve: LoadCurve, together_ns: int | None = None
) -> SimulatedDaemon:
    """A daemon before its load; ``curve`` is its part of it. ``together_ns`` is the resolution."""
    machine = scenario.machine
    policy = Policy(object_bytes_target=machine.object_bytes_target)
    if strategy is not Strategy.ADAPTIVE:
        policy = Policy(policy.object_bytes_target, hysteresis_windows=_NEVER_CHANGES)
    shards = 1 if strategy is Strategy.SINGLE_STREAM else machine.cores
    if together_ns is None:
        together_ns = resolution_ns(machine, curve)
    seed = f"seed {scenario.seed}"
    daemon = SimulatedDaemon(machine, shards, policy, curve, together_ns, seed)
    if strategy is Strategy.PER_SHARD:
        daemon.split_all()
    return daemon


def simulate(
    scenario: Scenario,
    strategy: Strategy,
    curve: LoadCurve,
    warm_up_s: float,
    advance: Callable[[float], None] = lambda _: None,
    timeline: bool = False,
) -> StrategyFigures:
    """Runs one strategy under a load. ``advance`` is told the seconds that have passed."""
    daemon = daemon_of(scenario, strategy, of_one(curve, scenario.brokers))
    try:
        daemon.start()
        for step_s in _steps(warm_up_s):
            daemon.run(int(step_s * S))
            advance(step_s)
        meter = daemon.meter
        meter.begin(daemon.now_ns)
        measured_s = curve.duration_s - warm_up_s
        for step_s in _steps(measured_s):
            daemon.run(int(step_s * S))
            meter.mark(daemon.now_ns)
            advance(step_s)
        end_ns = daemon.now_ns
        figures = _figures(scenario, strategy, meter, end_ns, curve if timeline else None)
        holds = daemon.budget_holds
        daemon.drain()
        latencies = Percentiles(*meter.latencies.percentiles_ms())
        return replace(figures, latency_ms=latencies, put_budget_holds=holds)
    finally:
        daemon.close()


def _steps(seconds: float) -> Iterator[float]:
    for _ in range(TIMELINE_STEPS if seconds > 0 else 0):
        yield seconds / TIMELINE_STEPS


def _figures(
    scenario: Scenario, strategy: Strategy, meter: Meter, end_ns: int, curve: LoadCurve | None
) -> StrategyFigures:
    brokers = scenario.brokers
    seconds = (end_ns - meter.since_ns) / S
    puts, put_bytes = len(meter.puts), meter.put_bytes
    window_s, target = meter.window_s(end_ns), meter.target_bytes.mean(end_ns)
    cost = scenario.prices.put_class_usd(puts, 0, put_bytes)
    month = brokers * cost * SECONDS_PER_MONTH / seconds
    return StrategyFigures(
        strategy=strategy.value,
        puts=brokers * puts,
        put_rate=brokers * puts / seconds,
        over_optimum=over_optimum(puts, put_bytes, seconds, window_s, target),
        over_optimum_10s=worst_over_optimum(meter.puts, window_s, target),
        usd_per_month=month,
        usd_per_year=YEAR_MONTHS * month,
        usd_per_gib=cost * GIB / put_bytes if put_bytes else None,
        stored_bytes_per_s=brokers * put_bytes / seconds,
        window_ms=window_s * 1e3,
        object_bytes_target=target,
        put_budget_holds=None,
        pressure_peak=meter.pressure_ppm.peak / 1e6,
        fill=put_bytes / puts / target if puts else None,
        groups_mean=meter.groups.mean(end_ns),
        groups_peak=meter.groups.peak,
        in_flight_mean=meter.in_flight.mean(end_ns),
        in_flight_peak=meter.in_flight.peak,
        latency_ms=Percentiles(None, None, None),
        refused=meter.refused / meter.requests if meter.requests else 0.0,
        timeline=[] if curve is None else list(_timeline(scenario, meter, curve)),
    )


def _timeline(scenario: Scenario, meter: Meter, curve: LoadCurve) -> Iterator[TimelineStep]:
    for before, after in zip(meter.marks, meter.marks[1:], strict=False):
        passed_ns = after.at_ns - before.at_ns
        puts, put_bytes = after.puts - before.puts, after.put_bytes - before.put_bytes
        middle_s = ((before.at_ns + after.at_ns) / 2 - meter.since_ns) / S
        rate = scenario.brokers * S / passed_ns
        cost = scenario.prices.put_class_usd(puts, 0, put_bytes)
        yield TimelineStep(
            at_s=middle_s,
            load_bytes_per_s=curve.at(middle_s)[0],
            put_rate=rate * puts,
            usd_per_month=rate * cost * SECONDS_PER_MONTH,
            groups=(after.groups - before.groups) / passed_ns,
            in_flight=(after.in_flight - before.in_flight) / passed_ns,
        )
