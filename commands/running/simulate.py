"""``headgate simulate``: what a load would cost, by the shipped decisions under a virtual clock.

The configuration is that of a daemon: the same keys, from a file, the environment or ``--set``.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from commands.output import bytes_text, echo, print_json, progress, say, table
from commands.quantities import Duration, duration_ms, size_bytes
from commands.shell.exits import CommandFailed
from commands.shell.options import loaded, output_option, parsed_by

if TYPE_CHECKING:
    from commands.simulating.report import LoadFigures, SimulationReport
    from daemon.config import Config
    from daemon.simulation.load import LoadCurve
    from daemon.simulation.strategies import Scenario, StrategyFigures

T = TypeVar("T")
SECONDS_DEFAULT, SECONDS_MIN, MANY_CORES = 12.0, 3.0, 64
CURVE_SECONDS_MAX = 60.0  # a longer curve is played faster, unless --duration says otherwise
SECONDS_MAX = 86_400.0
WARM_UP_S = 5.0  # most splits and merges that a new load causes are over
STORE = "s3://simulated"


@click.command()
@click.option(
    "--cores",
    type=click.IntRange(1, 512),
    default=32,
    show_default=True,
    metavar="N",
    help="Cores of a broker: each is a shard.",
)
@click.option(
    "--brokers",
    type=click.IntRange(1, 10_000),
    default=5,
    show_default=True,
    metavar="N",
    help="Daemons that share the load; they are alike, and one is simulated.",
)
@click.option(
    "--load",
    "load_text",
    default="20MiB/s",
    show_default=True,
    metavar="LOAD",
    help="Of all brokers: 20MiB/s; a range 1MiB/s..4GiB/s; a curve 0=1MiB/s,60=1GiB/s; or a trace,"
    " a CSV or NDJSON file of time, bytes_per_s and request_bytes.",
)
@click.option(
    "--points",
    type=click.IntRange(2, 50),
    default=9,
    show_default=True,
    metavar="N",
    help="How many loads of a range are simulated.",
)
@click.option(
    "--request-bytes",
    default="1KiB",
    show_default=True,
    metavar="SIZE",
    callback=parsed_by(size_bytes),
    help="The size of a request, unless a trace says it.",
)
@click.option(
    "--put-p50-ms",
    type=Duration(0.001, 600_000, "ms"),
    default="30ms",
    show_default=True,
    metavar="DURATION",
    help="The median time of a PUT, without its bytes.",
)
@click.option(
    "--put-p99-ms",
    type=Duration(0.001, 600_000, "ms"),
    metavar="DURATION",
    help="Its 99th percentile, of a lognormal distribution; by default 6 times the median.",
)
@click.option(
    "--put-bandwidth",
    default="85MiB/s",
    show_default=True,
    metavar="RATE",
    help="How fast one PUT sends its bytes; 0 for immediately.",
)
@click.option(
    "--commit-ms",
    type=Duration(0, 60_000, "ms"),
    default="0.7ms",
    show_default=True,
    metavar="DURATION",
    help="How long the ledger takes for a commit; commits of a daemon come one by one.",
)
@click.option(
    "--window-ms",
    metavar="DURATION",
    callback=parsed_by(lambda text: f"{duration_ms(text, 'ms'):g}"),
    help="The commit window (key commit_window_min_ms).",
)
@click.option(
    "--object-bytes",
    metavar="SIZE",
    help="The size of an object (key object_bytes_target).",
)
@click.option(
    "--duration",
    "duration_s",
    type=Duration(1, SECONDS_MAX),
    metavar="DURATION",
    help="How long to simulate: by default 12 (less for more than 64 cores), or as long as a curve"
    " or trace, 60 at most; these are played faster or slower to fit.",
)
@click.option(
    "--warm-up",
    "warm_up_s",
    type=Duration(0, SECONDS_MAX),
    metavar="DURATION",
    help="How long a rate lasts before it is measured: by default 5.",
)
@click.option(
    "--seed",
    type=int,
    default=1,
    show_default=True,
    metavar="N",
    help="The same seed gives the same figures.",
)
@click.option(
    "--config", "config_file", metavar="FILE", help="A TOML file (docs/configuration.md)."
)
@click.option(
    "--set", "settings", metavar="KEY=VALUE", multiple=True, help="Set any key; repeatable."
)
@click.option(
    "--chart",
    "chart_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.svg",
    help="Also draw parallelism and cost, over the loads of a range or the time of a curve.",
)
@output_option
def simulate(
    cores: int,
    brokers: int,
    load_text: str,
    points: int,
    request_bytes: int,
    put_p50_ms: float,
    put_p99_ms: float | None,
    put_bandwidth: str,
    commit_ms: float,
    window_ms: str | None,
    object_bytes: str | None,
    duration_s: float | None,
    warm_up_s: float | None,
    seed: int,
    config_file: str | None,
    settings: tuple[str, ...],
    chart_file: Path | None,
    as_json: bool,
) -> None:
    """Compute what uploads of a load would cost, by three strategies.

    Per shard, in a single stream, and adaptive as the daemon does.

    \b
    Examples:
      headgate simulate --cores 32 --brokers 5 --load 20MiB/s
      headgate simulate --load 100KiB/s..20GiB/s --chart load.svg
      headgate simulate --load yesterday.csv --set store_class=express -o json
    """
    from commands.simulating.report import SimulationReport
    from daemon.governor.costs.billing import budget_terms
    from daemon.simulation.load import (
        LoadCurve,
        Rate,
        RateRange,
        constant,
        read_load,
        read_rate,
    )
    from daemon.simulation.model import Machine, PutTimes
    from daemon.simulation.strategies import Scenario

    p99_ms = 6 * put_p50_ms if put_p99_ms is None else put_p99_ms
    if p99_ms < put_p50_ms:
        raise click.BadParameter(
            f"must be at least --put-p50-ms ({put_p50_ms:g}), got {p99_ms:g}",
            param_hint="--put-p99-ms",
        )
    config = _configuration(config_file, settings, cores, window_ms, object_bytes)
    _check_requests(request_bytes, config, "--request-bytes")
    bandwidth = None
    if put_bandwidth.strip() not in ("0", "0/s"):
        bandwidth = _parsed(read_rate, put_bandwidth, "--put-bandwidth")
    load = _parsed(lambda text: read_load(text, request_bytes), load_text, "--load")
    if chart_file is not None:
        _check_chart(chart_file, load_text, has_line=not isinstance(load, Rate))
    machine = Machine(
        cores=cores,
        window_ns=int(config.commit_window_min_ms * 1e6),
        window_max_ns=int(config.commit_window_max_ms * 1e6),
        governor=config.governor == "on",
        pressure_weights=config.pressure_weights,
        object_bytes_target=config.object_bytes_target,
        uploads=config.uploads_in_flight_max,
        ring_bytes=config.ring_bytes,
        budget=budget_terms(config, may_grow=True),
        put_usd_per_gib=config.store_prices.put_usd_per_gib,
        commit_ns=int(commit_ms * 1e6),
        put_times=PutTimes(put_p50_ms, p99_ms, bandwidth),
    )
    scenario = Scenario(machine, brokers, config.store_prices, seed)
    curve = isinstance(load, LoadCurve)
    if isinstance(load, LoadCurve):
        if warm_up_s:
            raise click.BadParameter(
                "must be left out with a curve or a trace, all of which is measured",
                param_hint="--warm-up",
            )
        _check_requests(max(piece.request_bytes for piece in load.pieces), config, "--load")
        warm_up_s = 0.0
        seconds = min(load.duration_s, CURVE_SECONDS_MAX) if duration_s is None else duration_s
        curves = [load.within(seconds)]
        if seconds != load.duration_s:
            say(f"the {load.duration_s:g} s of the load are simulated in {seconds:g} s")
    else:
        warm_up_s = WARM_UP_S if warm_up_s is None else warm_up_s
        seconds = _seconds(cores) if duration_s is None else duration_s
        rates = load.rates(points) if isinstance(load, RateRange) else [load.bytes_per_s]
        curves = [constant(rate, request_bytes, warm_up_s + seconds) for rate in rates]
    loads = _run(scenario, curves, warm_up_s, timeline=curve)
    report = SimulationReport(
        cores=cores,
        brokers=brokers,
        commit_window_min_ms=config.commit_window_min_ms,
        commit_window_max_ms=config.commit_window_max_ms,
        object_bytes_target=config.object_bytes_target,
        uploads_in_flight_max=config.uploads_in_flight_max,
        governor=config.governor,
        put_budget_usd_per_month=config.put_budget_usd_per_month,
        store_class=config.store_class,
        prices=config.store_prices,
        put_p50_ms=put_p50_ms,
        put_p99_ms=p99_ms,
        put_bytes_per_s=bandwidth,
        commit_ms=commit_ms,
        seed=seed,
        seconds=seconds,
        warm_up_seconds=warm_up_s,
        loads=loads,
    )
    _show(report, as_json, chart_file)


def _seconds(cores: int) -> float:
    """How long a rate is measured. A look takes time for each member of a group, so groups of many
    cores take long; but many cores make many requests, and figures come to rest sooner."""
    return max(SECONDS_MIN, min(SECONDS_DEFAULT, SECONDS_DEFAULT * MANY_CORES / cores))


def _configuration(
    config_file: str | None,
    settings: tuple[str, ...],
    cores: int,
    window_ms: str | None,
    object_bytes: str | None,
) -> Config:
    """The configuration of a daemon, which is on S3 by default."""
    own = [
        ("shards", str(cores), "--cores"),
        ("commit_window_min_ms", window_ms, "--window-ms"),
        ("object_bytes_target", object_bytes, "--object-bytes"),
    ]
    given = [setting.partition("=")[0].strip() for setting in settings]
    said = config_file is not None or "HEADGATE_STORE_URL" in os.environ or "store_url" in given
    return loaded(config_file, settings, None, None if said else STORE, own=own)


def _check_requests(request_bytes: int, config: Config, option: str) -> None:
    if not 1 <= request_bytes <= config.ring_bytes // 2:
        raise click.BadParameter(
            f"requests must have 1 to {config.ring_bytes // 2} bytes, half of ring_bytes; got"
            f" {request_bytes}",
            param_hint=option,
        )


def _parsed(parse: Callable[[str], T], text: str, option: str) -> T:
    try:
        return parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from error


def _check_chart(path: Path, load_text: str, *, has_line: bool) -> None:
    if not has_line:
        raise click.BadParameter(
            f"one rate ({load_text}) makes no line: let --load be a range like 100KiB/s..20GiB/s, a"
            " curve or a trace",
            param_hint="--chart",
        )
    if not path.absolute().parent.is_dir():
        raise click.BadParameter(f"the folder of {path} does not exist", param_hint="--chart")


def _run(
    scenario: Scenario, curves: Sequence[LoadCurve], warm_up_s: float, *, timeline: bool
) -> list[LoadFigures]:
    """All strategies under each load. Many runs are shared out over the machine's CPUs."""
    from commands.simulating.report import LoadFigures
    from daemon.simulation.strategies import Strategy, of_one, resolution_ns, simulate

    try:
        resolutions = [
            resolution_ns(scenario.machine, of_one(each, scenario.brokers)) for each in curves
        ]
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--load") from error
    runs = [(scenario, strategy, curve, warm_up_s) for curve in curves for strategy in Strategy]
    found: list[StrategyFigures] = []
    total_ms = int(sum(curve.duration_s for _, _, curve, _ in runs) * 1000)
    workers = min(len(runs), len(os.sched_getaffinity(0)))
    with progress(total_ms, "simulating") as advance:

        def passed(seconds: float) -> None:
            advance(int(seconds * 1000))

        if len(curves) == 1 or workers == 1:
            found = [simulate(*run, passed, timeline) for run in runs]
        else:
            # A process that is made anew has no threads and locks of this one.
            # Ctrl-C goes to all processes of a terminal; the others then end without a word.
            with ProcessPoolExecutor(
                workers,
                mp_context=get_context("spawn"),
                initializer=signal.signal,
                initargs=(signal.SIGINT, signal.SIG_DFL),
            ) as pool:
                # The highest loads take longest, so they begin.
                futures = [pool.submit(simulate, *run) for run in reversed(runs)]
                seconds_of = dict(
                    zip(futures, [run[2].duration_s for run in reversed(runs)], strict=True)
                )
                try:
                    for done in as_completed(futures):
                        done.result()
                        passed(seconds_of[done])
                except BaseException:
                    pool.shutdown(cancel_futures=True)
                    raise
                found = [future.result() for future in reversed(futures)]
    count = len(Strategy)
    return [
        LoadFigures(
            load_bytes_per_s=curve.bytes_per_s,
            requests_per_s=curve.requests / curve.duration_s,
            resolution_ms=resolutions[index] / 1e6,
            strategies=found[count * index : count * (index + 1)],
        )
        for index, curve in enumerate(curves)
    ]


def _show(report: SimulationReport, as_json: bool, chart_file: Path | None) -> None:
    from commands.simulating.report import budget_notes, chart, tables

    if chart_file is not None:
        try:
            chart_file.write_text(chart(report, _rate_text))
        except OSError as error:
            raise CommandFailed(f"cannot write {chart_file}: {error.strerror}") from error
    for note in budget_notes(report):
        say(note)
    if as_json:
        print_json(report)
    else:
        found = tables(report, _rate_text)
        echo("\n\n".join(table(each.head, each.lines) for each in found))


def _rate_text(bytes_per_s: float) -> str:
    return f"{bytes_text(bytes_per_s)}/s"
