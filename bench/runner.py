"""Runs cases one after the other and fills a Results.

The daemon gets the last CPUs; the generator, MinIO and this process get the others. Each daemon
starts with an empty folder.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from bench import access, bodies, hot, kafka, neighbor, plan, put_cost, scale, standby
from bench.delivery import DeliveryBench
from bench.figures import pause_ms, share_cpus
from bench.governor import GovernorBench
from bench.load import Generator, Load, Pace, Request
from bench.others import Others
from bench.plan import Case, Times
from bench.processes import (
    Daemon,
    Minio,
    Server,
    pinned,
    start_daemon,
    start_null,
    start_s2_lite,
)
from bench.pushes import PushBench
from bench.results import DaemonResult, LeftOut, LoadResult, OtherResult, Results, TailResult
from bench.sampler import Sampler
from bench.subscriptions import SubscriptionsBench
from bench.tail import TailReader
from shards.clock import monotonic_ns

TOPIC = "bench"
STANDBY_ROUNDS = 2
HALF = 0.5
PROBE_S = 1
# At light load a request finds its group idle for a window, so it is uploaded immediately.
LIGHT_PAUSE_WINDOWS = 1.3
LIGHT_PAUSE_MIN_MS = 2.0
LIGHT_PAUSE_SPREAD = 0.1
TAIL_CONNECTIONS = 128  # enough for the rate with a window of 200 ms
TAIL_RATE_PER_S = 500.0


class Runner:
    """Runs cases; holds what they share."""

    def __init__(
        self, generator: Generator, times: Times, work: Path, s2_lite: str | None, results: Results
    ) -> None:
        self._generator = generator
        self._times = times
        self._work = work
        self._s2_lite = s2_lite
        self._results = results
        self._cpus = sorted(os.sched_getaffinity(0))
        self._minio: Minio | None = None

    def run(self, cases: list[Case], limit_s: float) -> None:
        """Runs the cases that fit into ``limit_s``; the results name those left out."""
        started_ns = monotonic_ns()
        for case in cases:
            before_ns = monotonic_ns()
            passed_s = (before_ns - started_ns) / 1e9
            if passed_s + case.seconds(self._times) > limit_s:
                self._leave_out(case, f"the limit of {limit_s:g} s for the whole run")
                continue
            if case.kind in plan.COMPACTIONS:
                self._compaction(case)
            else:
                with pinned(share_cpus(self._cpus, case.shards or 1)[1]):
                    self._run_one(case)
            spent_s = (monotonic_ns() - before_ns) / 1e9
            self._results.case_seconds[case.name] = round(spent_s, 1)
            print(f"bench: {case.name} took {spent_s:.1f} s", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Stops what the cases shared."""
        if self._minio is not None:
            self._minio.stop()
            self._minio = None

    def _run_one(self, case: Case) -> None:
        if case.kind == "ceiling":
            self._ceiling(case)
        elif case.kind == "s2-lite":
            self._peer(case)
        elif case.kind == "put-cost":
            daemon_cpus, _, _ = share_cpus(self._cpus, 1)
            self._results.put_cost = put_cost.measure(self._store(), daemon_cpus, self._times.puts)
        elif case.kind in plan.DELIVERIES:
            daemon_cpus, cpus, _ = share_cpus(self._cpus, 1)
            results = self._results.delivery
            delivery = DeliveryBench(self._generator, self._work, daemon_cpus, cpus, results)
            delivery.run(case.kind)
        elif case.kind in plan.SUBSCRIBED:
            daemon_cpus, _, _ = share_cpus(self._cpus, 1)
            subscribed = SubscriptionsBench(
                self._work, daemon_cpus, self._results.subscriptions, set(self._cpus)
            )
            subscribed.run(case.kind)
        elif case.kind in plan.PUSHED:
            daemon_cpus, _, _ = share_cpus(self._cpus, 1)
            pushed = PushBench(self._work, daemon_cpus, self._results.push, set(self._cpus))
            pushed.run(case.kind)
        elif case.kind in plan.GOVERNED:
            daemon_cpus, cpus, _ = share_cpus(self._cpus, 1)
            governed = self._results.governor
            GovernorBench(self._generator, self._work, daemon_cpus, cpus, governed).run(case.kind)
        elif case.kind == plan.ACCESS:
            assert case.size is not None
            daemon_cpus, cpus, _ = share_cpus(self._cpus, 1)
            turn_s = self._times.ceiling_s
            self._results.access += access.measure(
                self._generator, case.size, self._work, daemon_cpus, cpus, turn_s
            )
        elif case.kind == plan.NEIGHBOR:
            self._results.neighbor = neighbor.measure(
                self._generator, self._work, self._cpus, self._cpus
            )
        elif case.kind == plan.STANDBY:
            folder = self._work / "standby"
            folder.mkdir()
            self._results.standby = standby.measure(folder, STANDBY_ROUNDS, 0)
        elif case.kind == plan.HOT:
            assert case.size is not None
            self._results.hot += hot.measure(case.size, self._work)
        elif case.kind == plan.KAFKA:
            daemon_cpus, cpus, _ = share_cpus(self._cpus, 1)
            self._results.kafka = kafka.measure(self._work, daemon_cpus, cpus)
        elif case.kind == plan.SCALE:
            self._results.scale = scale.measure(self._work)
        else:
            self._daemon(case)

    def _compaction(self, case: Case) -> None:
        # The only case that needs Spark.
        from bench import compaction

        result = compaction.measure(compaction.SHAPES[case.name], compaction.L0_BYTES, self._work)
        self._results.compactions.append(result)

    def _leave_out(self, case: Case, why: str) -> None:
        self._results.left_out.append(LeftOut(case.name, why))
        print(f"bench: {case.name} is left out: {why}", file=sys.stderr, flush=True)

    def _store(self) -> Minio:
        """The MinIO of this run, started when first needed."""
        if self._minio is None:
            _, cpus, _ = share_cpus(self._cpus, 1)
            self._minio = Minio(self._work / "minio", cpus)
        return self._minio

    def _ceiling(self, case: Case) -> None:
        assert case.size is not None
        request = produce_request(bodies.of(case.size, bodies.NDJSON))
        daemon_cpus, _, _ = share_cpus(self._cpus, 1)
        server = start_null(self._work / "null", daemon_cpus)
        try:
            result = self._other(case, server, request, self._times.ceiling_s)
        finally:
            server.stop()
        self._results.ceilings.append(result)

    def _peer(self, case: Case) -> None:
        assert case.size is not None
        if self._s2_lite is None:
            self._leave_out(case, "no s2-lite binary: give one with --s2-lite PATH")
            return
        body = bodies.s2(case.size.size_bytes, case.size.records)
        headers = (("Content-Type", body.content_type), ("s2-basin", "bench-basin"))
        request = Request("/v1/streams/bench/records", headers, body.data)
        daemon_cpus, _, _ = share_cpus(self._cpus, 1)
        server = start_s2_lite(self._s2_lite, self._work / "s2-lite", daemon_cpus)
        try:
            # The first appends create the stream; the figures do not include them.
            self._load(server, request, Pace(1, PROBE_S))
            result = self._other(case, server, request, case.saturated_s(self._times))
        finally:
            server.stop()
        self._results.peers.append(result)

    def _other(self, case: Case, server: Server, request: Request, seconds: float) -> OtherResult:
        assert case.size is not None
        cpu_before_s = server.cpu_s()
        with Others(server.cpu_s) as others:
            load = self._load(server, request, Pace(case.size.connections, seconds))
        return OtherResult(
            name=case.name,
            size=case.size.name,
            body_bytes=len(request.body),
            load=load,
            cpu_s=server.cpu_s() - cpu_before_s,
            generator_busy=self._busy(load, 1),
            others_share=others.share(load.generator_cpu_s),
        )

    def _daemon(self, case: Case) -> None:
        assert case.size is not None
        store = self._store() if case.kind == plan.MINIO else None
        daemon_cpus, _, shared = share_cpus(self._cpus, case.shards)
        folder = self._work / case.name.replace("/", "-")
        daemon = start_daemon(folder, daemon_cpus, case.shards, store)
        try:
            daemon.ask("PUT", f"/v0/topics/{TOPIC}", b"{}")
            self._results.daemons.append(self._loads(case, daemon, shared))
        finally:
            daemon.stop()

    def _loads(self, case: Case, daemon: Daemon, shared: bool) -> DaemonResult:
        assert case.size is not None
        body = bodies.of(case.size, case.body_format)
        request = produce_request(body)
        connections = case.size.connections
        light = half = tail = None
        samplers: list[Sampler] = []

        def measured(pace: Pace) -> LoadResult:
            daemon.wait_until_quiet()
            others = Others(lambda: daemon.cpu_s() + self._minio_cpu_s())
            with others, Sampler(daemon) as sampler:
                load = self._load(daemon, request, pace, case.shards)
            samplers.append(sampler)
            share = others.share(load.generator_cpu_s)
            return self._load_result(load, sampler, case.shards, share)

        if case.has_light_loads:
            window_ms = float(daemon.ask("GET", "/v0/status")["window_ms"])
            pause = max(LIGHT_PAUSE_WINDOWS * window_ms, LIGHT_PAUSE_MIN_MS)
            light = measured(Pace(1, self._times.light_s, pause, LIGHT_PAUSE_SPREAD))
        saturated = measured(Pace(connections, case.saturated_s(self._times)))
        if case.has_light_loads and saturated.load.acked:
            rate_per_s = saturated.load.acked_per_s * HALF
            # A probe measures the latency at this rate, which the pause depends on.
            period_ms = pause_ms(rate_per_s, connections, 0)
            probe = self._load(daemon, request, Pace(connections, PROBE_S, period_ms))
            pause = pause_ms(rate_per_s, connections, probe.mean_ms)
            half = measured(Pace(connections, self._times.half_s, pause))
        if case.has_tail:
            tail = self._tail(daemon, request)
        return DaemonResult(
            name=case.name,
            store=case.kind,
            shards=case.shards,
            size=case.size.name,
            body_format=case.body_format,
            body_bytes=len(body.data),
            records_a_body=body.records,
            cpus_shared=shared,
            saturated=saturated,
            light=light,
            half=half,
            tail=tail,
            memory_peak_bytes=max(sampler.memory_peak_bytes for sampler in samplers),
            memory_bound_bytes=samplers[-1].memory_bound_bytes,
        )

    def _tail(self, daemon: Daemon, request: Request) -> TailResult:
        daemon.wait_until_quiet()
        head_seq = _head_seq(daemon)
        pause = pause_ms(TAIL_RATE_PER_S, TAIL_CONNECTIONS, 0)
        pace = Pace(TAIL_CONNECTIONS, self._times.tail_s, pause)
        with Sampler(daemon) as sampler, TailReader(daemon.port, TOPIC, head_seq) as reader:
            self._load(daemon, request, pace)
            daemon.wait_until_quiet()
            written = _head_seq(daemon) - head_seq
        return TailResult(sampler.store("gets"), written, reader.records,
                          reader.lag_max)  # fmt: skip

    def _minio_cpu_s(self) -> float:
        return self._minio.cpu_s() if self._minio is not None else 0.0

    def _load_result(
        self, load: Load, sampler: Sampler, shards: int, others_share: float
    ) -> LoadResult:
        puts = sampler.store("puts")
        optimum_per_s = sampler.put_optimum_per_s
        return LoadResult(
            load=load,
            cpu_s=sampler.cpu_s,
            generator_busy=self._busy(load, shards),
            others_share=others_share,
            puts_per_s=sampler.puts_per_s,
            put_optimum_per_s=optimum_per_s,
            put_ratio=sampler.puts_per_s / optimum_per_s,
            side_cpu_ms_per_put=1e3 * sampler.side_threads_cpu_s / puts if puts else None,
        )

    def _load(self, server: Server, request: Request, pace: Pace, shards: int = 1) -> Load:
        _, cpus, _ = share_cpus(self._cpus, shards)
        return self._generator.run(server.port, request, pace, cpus)

    def _busy(self, load: Load, shards: int) -> float:
        """The share of its CPUs that the generator used."""
        _, cpus, _ = share_cpus(self._cpus, shards)
        return load.generator_cpu_s / load.seconds / len(cpus)


def _head_seq(daemon: Daemon) -> int:
    state = daemon.ask("GET", f"/v0/topics/{TOPIC}")
    return int(state["partitions"][0]["head_seq"])


def produce_request(body: bodies.Body) -> Request:
    """A produce request with this body."""
    return Request(f"/v0/topics/{TOPIC}", (("Content-Type", body.content_type),), body.data)
