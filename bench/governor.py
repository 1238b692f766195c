"""The governor: PUTs and latency by pressure, budget, goodput, memory, and what measuring costs.

One shard on the last CPU, the generator on the others, the embedded store throughout. Where two
daemons are compared, both are on that CPU, and loaded in turns, because machines drift.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from bench import bodies, imports
from bench.figures import pause_ms
from bench.governor_results import (
    BudgetResult,
    ComparedResult,
    GovernorResults,
    PressedResult,
    SideResult,
)
from bench.load import Generator, Load, Pace, Request
from bench.overload import measure
from bench.overload_clients import Crowd
from bench.processes import ROOT, Daemon, ServerError, start_daemon
from bench.sampler import Sampler
from shards.clock import monotonic_ns
from tools.cgroups import memory_group

TOPIC = "governed"
MIB = 1 << 20
# Sizes with their connections and windows. Small requests: those of the embedded store. Large ones:
# long windows, as on S3, so that objects of 4 MiB are often full before.
PRESSED: tuple[tuple[bodies.Size, int, dict[str, object]], ...] = (
    (bodies.size_named("1KiB"), 1024, {}),
    (
        bodies.size_named("64KiB"), 256,
        {"commit_window_min_ms": 20, "commit_window_max_ms": 200},
    ),
)  # fmt: skip
SHARES = {"5 %": 0.05, "25 %": 0.25, "50 %": 0.5}
IDLE, SATURATED = "idle", "saturated"
PRESSED_S = 4
PRESSED_SAMPLE_S = 0.1
IDLE_WINDOWS = 1.3
PROBE_S = 1
CALM_WITHIN_S = 60

BUDGET_USD = 100.0
BUDGET_PUTS_PER_S = 4.0
SECONDS_PER_MONTH = 30 * 86_400
SETTLE_S = 20
BUDGET_S = 40
BUDGET_PACE = Pace(16, SETTLE_S + BUDGET_S + 4, 5.0)

TURNS = 4
TURN_S = 5
COST_TURNS = 8
IMPORT_TURNS = 3
IMPORT_FILE_BYTES = 12_000_000
SCRAPE_S = 2.5  # Prometheus' default is 15
UNMETERED = ROOT / "bench" / "unmetered"

OVERLOAD_LIMIT_BYTES = 320 * MIB
OVERLOAD = Crowd(seconds=120, large=90, small=20, waiting=20, stalled=10)


class GovernorBench:
    """One or two daemons per measurement; fills ``results``."""

    def __init__(
        self, generator: Generator, work: Path, daemon_cpus: set[int], client_cpus: set[int],
        results: GovernorResults,
    ) -> None:  # fmt: skip
        self._generator = generator
        self._work = work
        self._daemon_cpus = daemon_cpus
        self._client_cpus = client_cpus
        self._results = results

    def run(self, kind: str) -> None:
        """Measures one of ``plan.GOVERNED``."""
        kinds: dict[str, Callable[[], None]] = {
            "loads": self._loads,
            "budget": self._budget,
            "goodput": self._goodput,
            "import": self._import,
            "memory": self._memory,
            "cost": self._cost,
        }
        kinds[kind.removeprefix("governor/")]()

    def _loads(self) -> None:
        """Five loads from idle to saturation, with two sizes."""
        for size, connections, settings in PRESSED:
            with self._daemon(f"loads-{size.name}", settings) as daemon:
                full = self._pressed(daemon, size, SATURATED, Pace(connections, PRESSED_S))
                _wait_until_calm(daemon)
                window_ms = float(daemon.ask("GET", "/v0/status")["window_ms"])
                pause = max(2.0, IDLE_WINDOWS * window_ms)
                self._results.loads.append(
                    self._pressed(daemon, size, IDLE, Pace(1, PRESSED_S, pause, 0.1))
                )
                for name, share in SHARES.items():
                    rate_per_s = share * full.load.acked_per_s
                    # A probe measures the latency at this rate, which the pause depends on.
                    pace = Pace(connections, PROBE_S, pause_ms(rate_per_s, connections, 0))
                    probe = self._load(daemon, size, pace)
                    pause = pause_ms(rate_per_s, connections, probe.mean_ms)
                    pace = Pace(connections, PRESSED_S, pause)
                    self._results.loads.append(self._pressed(daemon, size, name, pace))
                self._results.loads.append(full)

    def _budget(self) -> None:
        """A budget of a few PUTs a second for a load that would make many more."""
        size = bodies.size_named("1KiB")
        usd_per_put = BUDGET_USD / SECONDS_PER_MONTH / BUDGET_PUTS_PER_S
        prices = {
            "put_usd_per_1000": 1_000 * usd_per_put, "get_usd_per_1000": 0.0,
            "list_usd_per_1000": 0.0,
        }  # fmt: skip
        settings: dict[str, object] = {
            "prices": json.dumps({"scaled": prices}), "store_class": "scaled",
        }  # fmt: skip
        with self._daemon("no-budget", settings) as daemon, Sampler(daemon) as free:
            self._load(daemon, size, Pace(BUDGET_PACE.connections, PRESSED_S, BUDGET_PACE.pause_ms))
        settings["put_budget_usd_per_month"] = BUDGET_USD
        with self._daemon("budget", settings) as daemon:
            found: list[Load] = []
            load = threading.Thread(
                target=lambda: found.append(self._load(daemon, size, BUDGET_PACE)), name="load"
            )
            load.start()
            pause = threading.Event()  # only its timeouts are used
            pause.wait(SETTLE_S)
            began_ns, before = monotonic_ns(), daemon.ask("GET", "/v0/status")["bill"]
            pause.wait(BUDGET_S)
            seconds = (monotonic_ns() - began_ns) / 1e9
            after = daemon.ask("GET", "/v0/status")["bill"]
            load.join()
        self._results.budget = BudgetResult(
            budget_usd_per_month=BUDGET_USD,
            spent_usd_per_month=(after["usd"] - before["usd"]) / seconds * SECONDS_PER_MONTH,
            seconds=seconds,
            puts_per_s=(after["puts"] - before["puts"]) / seconds,
            free_puts_per_s=free.puts_per_s,
            window_ms=after["budget"]["window_ms"],
            target_bytes=after["budget"]["target_bytes"],
            acked_per_s=found[0].acked_per_s,
        )

    def _goodput(self) -> None:
        """Saturation with the governor and without."""
        for name in ("1KiB", "64KiB"):
            size = bodies.size_named(name)
            with (
                self._daemon(f"on-{name}", {"governor": "on"}) as governed,
                self._daemon(f"off-{name}", {"governor": "off"}) as free,
            ):
                self._results.goodput.append(
                    self._compared("governor on over off", size, governed, free, TURNS)
                )

    def _import(self) -> None:
        """An import with its byte budget, and with everything in flight."""
        with self._daemon("import", imports.SLOW_STORE, chaos=imports.SLOW_STORE_CHAOS) as daemon:
            url = f"http://127.0.0.1:{daemon.port}"
            self._results.imports = imports.compare(
                url, self._work / "imported", IMPORT_FILE_BYTES, IMPORT_TURNS, self._client_cpus
            )

    def _memory(self) -> None:
        """Ten times the load, in a cgroup."""
        cpus = (self._daemon_cpus, self._client_cpus)
        with memory_group(OVERLOAD_LIMIT_BYTES) as group:
            self._results.overload = measure(group, self._work / "overload", OVERLOAD, 1, cpus)

    def _cost(self) -> None:
        """With all sensors and histograms and a scraper, and without any (bench/unmetered)."""
        size = bodies.size_named("1KiB")
        settings: dict[str, object] = {"governor": "off"}
        with (
            self._daemon("metered", settings) as metered,
            self._daemon("unmetered", settings, UNMETERED) as unmetered,
            _scraped(metered),
        ):
            self._results.cost = self._compared("metered", size, metered, unmetered, COST_TURNS)

    def _compared(
        self, name: str, size: bodies.Size, one: Daemon, other: Daemon, turns: int
    ) -> ComparedResult:
        """Turns of both; who is first changes."""
        pairs = []
        for turn in range(turns):
            if turn % 2:
                second, first = self._side(other, size), self._side(one, size)
            else:
                first, second = self._side(one, size), self._side(other, size)
            pairs.append((first, second))
        return ComparedResult(name, size.name, pairs)

    def _side(self, daemon: Daemon, size: bodies.Size) -> SideResult:
        daemon.wait_until_quiet()
        with Sampler(daemon) as sampler:
            load = self._load(daemon, size, Pace(size.connections, TURN_S))
        return SideResult(
            load.acked_per_s, load.acked / sampler.cpu_s, sampler.memory_peak_bytes,
            sampler.memory_bound_bytes,
        )  # fmt: skip

    def _pressed(self, daemon: Daemon, size: bodies.Size, name: str, pace: Pace) -> PressedResult:
        daemon.wait_until_quiet()
        with Sampler(daemon, PRESSED_SAMPLE_S) as sampler:
            load = self._load(daemon, size, pace)
        return PressedResult(
            size=size.name,
            load_name=name,
            load=load,
            level=statistics.mean(sampler.levels),
            window_ms=statistics.mean(sampler.windows_ms),
            rungs=sorted(sampler.rungs),
            puts_per_s=sampler.puts_per_s,
            put_optimum_per_s=sampler.put_optimum_per_s,
            put_ratio=sampler.puts_per_s / sampler.put_optimum_per_s,
        )

    @contextlib.contextmanager
    def _daemon(
        self, name: str, settings: dict[str, object], path: Path | None = None, chaos: str = ""
    ) -> Iterator[Daemon]:
        daemon = start_daemon(
            self._work / name, self._daemon_cpus, 1, None, settings, chaos, path=path
        )  # fmt: skip
        try:
            daemon.ask("PUT", f"/v0/topics/{TOPIC}", b"{}")
            yield daemon
        finally:
            daemon.stop()

    def _load(self, daemon: Daemon, size: bodies.Size, pace: Pace) -> Load:
        body = bodies.of(size, bodies.NDJSON)
        request = Request(f"/v0/topics/{TOPIC}", (("Content-Type", body.content_type),), body.data)
        return self._generator.run(daemon.port, request, pace, self._client_cpus)


def _wait_until_calm(daemon: Daemon) -> None:
    """Returns when no reaction to pressure is in force any more. Raises ServerError."""
    pause = threading.Event()  # only its timeouts are used
    deadline_ns = monotonic_ns() + CALM_WITHIN_S * 1_000_000_000
    while rungs := daemon.ask("GET", "/v0/status")["pressure"]["rungs"]:
        if monotonic_ns() > deadline_ns:
            raise ServerError(f"{', '.join(rungs)} in force {CALM_WITHIN_S} s after a load")
        pause.wait(PRESSED_SAMPLE_S)


@contextlib.contextmanager
def _scraped(daemon: Daemon) -> Iterator[None]:
    """Asks for the metrics again and again meanwhile."""
    over = threading.Event()
    failures: list[ServerError] = []

    def scrape() -> None:
        try:
            while not over.wait(SCRAPE_S):
                daemon.ask_bytes("GET", "/metrics")
        except ServerError as error:
            failures.append(error)

    thread = threading.Thread(target=scrape, name="scraper")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if failures:
        raise failures[0]
