"""Delivery after the commit: how long it takes to a watcher's socket, and what it costs.

The daemon has the last CPU, the clients and the generator the others. The embedded store is used
throughout. A commit's publication is read from the daemon's commit log (commit_times.py), the
arrival in a socket from the kernel (stamps.py).
"""

from __future__ import annotations

import contextlib
import gc
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from bench import bodies, fairness, routed, wakeups
from bench.commit_times import CommitTimes
from bench.delivery_results import (
    DeliveryResults,
    FloodResult,
    LatencyResult,
    Spread,
    StreamMemoryResult,
)
from bench.figures import MIB
from bench.load import Generator, Load, Pace, Request
from bench.others import Others
from bench.processes import Daemon, Server, pinned, start_daemon, start_null_fan
from bench.stamps import StampedAsker, wall_minus_monotonic_ns
from bench.stream_clients import RECORD, Arrival, StreamClients
from shards.clock import monotonic_ns

WATCHERS = (1, 100, 1000)
ROUNDS = {1: 400, 100: 200, 1000: 60}
LOADED_ROUNDS_MAX = 1000
LOADED_S = 9
PAUSE_S = (0.004, 0.024)  # at random, so that no round is in step with a timer
FLOODED = (1, 100)
FLOOD_S = 6
ALONE_S = 4
LOAD_S = LOADED_S + 2
TOPIC = "watched"
OTHER_TOPIC = "other"
SIZE = bodies.size_named("1KiB")
LARGE = bodies.size_named("64KiB")
SMALL = bodies.size_named("200B")
IDLE_STREAMS = 10_000
WAKEUPS = 10_000
SEED = 11


class Produced(msgspec.Struct):
    """What is needed of an answer to a producer."""

    first_seq: int


class Began(msgspec.Struct):
    """The null fan-out's answer."""

    began_ns: int


class DeliveryBench:
    """One daemon per measurement; fills ``results``."""

    def __init__(
        self, generator: Generator, work: Path, daemon_cpus: set[int], client_cpus: set[int],
        results: DeliveryResults,
    ) -> None:  # fmt: skip
        self._generator = generator
        self._work = work
        self._daemon_cpus = daemon_cpus
        self._client_cpus = client_cpus
        self._results = results
        self._rng = random.Random(SEED)

    def run(self, kind: str) -> None:
        """Measures one of ``plan.DELIVERIES``."""
        kinds: dict[str, Callable[[], None]] = {
            "floor": self._floor,
            "idle": self._idle,
            "saturated": self._saturated,
            "flood": self._flood,
            "fairness": self._fairness,
            "memory": self._memory,
            "routed": self._routed,
            "wakeups": self._wakeups,
        }
        kinds[kind.removeprefix("delivery/")]()

    def _floor(self) -> None:
        """The null fan-out."""
        server = start_null_fan(self._work / "null-fan", self._daemon_cpus)
        asker = StampedAsker(server.port, b"POST / HTTP/1.1\r\n\r\n")
        decoder = msgspec.json.Decoder(Began)
        try:
            for watchers in WATCHERS:
                with (
                    self._alone_here(server),
                    StreamClients(server.port, "/watch", watchers) as clients,
                ):
                    result = self._latency(
                        "floor", clients, asker, ROUNDS[watchers] // 2, 60,
                        lambda body: decoder.decode(body).began_ns,
                    )  # fmt: skip
                self._results.latencies.append(result)
        finally:
            asker.close()
            server.stop()

    def _idle(self) -> None:
        """A record at a time, and nothing else."""
        with self._daemon("idle") as daemon:
            for watchers in WATCHERS:
                with self._alone_here(daemon):
                    result = self._watched(daemon, "none", watchers, ROUNDS[watchers])
                self._results.latencies.append(result)

    def _saturated(self) -> None:
        """The same while producers of another topic saturate the shard, and what they get."""
        with self._daemon("saturated") as daemon:
            self._alone(daemon)
            for watchers in WATCHERS:
                daemon.wait_until_quiet()
                with self._load(daemon, OTHER_TOPIC, Pace(SIZE.connections, LOAD_S)) as load:
                    threading.Event().wait(1)  # the load's own start
                    result = self._watched(
                        daemon, "saturated", watchers, LOADED_ROUNDS_MAX, LOADED_S
                    )
                    acked_per_s = load()
                self._results.latencies.append(
                    msgspec.structs.replace(result, acked_per_s=acked_per_s)
                )
            daemon.wait_until_quiet()
            self._alone(daemon)

    def _alone(self, daemon: Daemon) -> None:
        """The same producers without watchers, before and after, because machines drift."""
        with self._load(daemon, OTHER_TOPIC, Pace(SIZE.connections, ALONE_S)) as load:
            self._results.acked_alone_per_s.append(load())

    def _flood(self) -> None:
        """Watchers of the saturated topic itself."""
        for watchers in FLOODED:
            with self._daemon(f"flood-{watchers}") as daemon:
                self._results.floods.append(self._flooded(daemon, watchers))

    def _fairness(self) -> None:
        """Five bands with more to deliver than a core can."""
        seconds = int(fairness.WARM_UP_S + fairness.MEASURED_S) + 2
        pace = Pace(1, seconds, fairness.PAUSE_MS)
        # Under this load the governor would defer the band of negative priorities.
        settings = {"ring_bytes": fairness.RING_BYTES, "governor": "off"}
        with self._daemon("fairness", settings) as daemon:
            self._results.fairness = fairness.measure(
                daemon, lambda topic: self._load(daemon, topic, pace, LARGE)
            )

    def _memory(self) -> None:
        """Ten thousand streams that get nothing."""
        with self._daemon("memory", {"streams_max": IDLE_STREAMS}) as daemon:
            before = _memory_bytes(daemon)
            path = f"/v0/topics/{TOPIC}/watch?tail=true"
            with StreamClients(daemon.port, path, IDLE_STREAMS):
                after = _memory_bytes(daemon)
        self._results.stream_memory = StreamMemoryResult(
            IDLE_STREAMS, (after - before) / IDLE_STREAMS
        )

    def _routed(self) -> None:
        """A router of one partition."""
        pace = Pace(LARGE.connections, routed.LOAD_S)
        with self._daemon("routed") as daemon:
            self._results.routed = routed.measure(
                daemon, lambda topic: self._load(daemon, topic, pace, LARGE)
            )

    def _wakeups(self) -> None:
        """Appends at random phases."""
        with self._daemon("wakeups") as daemon:
            self._results.wakeups = wakeups.measure(daemon, 1, WAKEUPS)

    @contextlib.contextmanager
    def _daemon(self, name: str, settings: dict[str, object] | None = None) -> Iterator[Daemon]:
        daemon = start_daemon(self._work / name, self._daemon_cpus, 1, None, settings)
        try:
            for topic in (TOPIC, OTHER_TOPIC):
                daemon.ask("PUT", f"/v0/topics/{topic}", b"{}")
            yield daemon
        finally:
            daemon.stop()

    @contextlib.contextmanager
    def _alone_here(self, server: Server) -> Iterator[None]:
        """Notes how much other programs use meanwhile."""
        with Others(server.cpu_s) as others:
            yield
        self._results.others_share = max(self._results.others_share, others.share(0))

    def _watched(
        self, daemon: Daemon, load: str, watchers: int, rounds_max: int, seconds: float = 60
    ) -> LatencyResult:
        request = _request(TOPIC, SMALL).encoded(f"127.0.0.1:{daemon.port}")
        topic_id = daemon.ask("GET", f"/v0/topics/{TOPIC}")["topic_id"]
        decoder = msgspec.json.Decoder(Produced)
        path = f"/v0/topics/{TOPIC}/watch?tail=true"
        asker = StampedAsker(daemon.port, request)
        try:
            with (
                CommitTimes(daemon, 1) as times,
                StreamClients(daemon.port, path, watchers) as clients,
            ):
                result = self._latency(
                    load, clients, asker, rounds_max, seconds,
                    lambda body: times.published_ns(topic_id, decoder.decode(body).first_seq),
                )  # fmt: skip
                return msgspec.structs.replace(
                    result,
                    daemon_p50_ms=times.written_within_ms(0.5),
                    daemon_p99_ms=times.written_within_ms(0.99),
                )
        finally:
            asker.close()

    def _latency(
        self, load: str, clients: StreamClients, asker: StampedAsker, rounds_max: int,
        seconds: float, began_ns: Callable[[bytes], int],
    ) -> LatencyResult:  # fmt: skip
        commit_to_socket: list[int] = []
        ack_to_socket: list[int] = []
        commit_to_read: list[int] = []
        pause = threading.Event()  # only its timeouts are used
        end_ns = monotonic_ns() + int(seconds * 1e9)
        gc.disable()
        try:
            for _ in range(rounds_max):
                if monotonic_ns() > end_ns:
                    break
                pause.wait(self._rng.uniform(*PAUSE_S))
                asker.send()
                arrivals: list[Arrival] = clients.wait_for(RECORD)
                stamp_ns, body = asker.answer()
                acked_ns = stamp_ns - wall_minus_monotonic_ns()
                published_ns = began_ns(body)
                commit_to_socket += [each.socket_ns - published_ns for each in arrivals]
                ack_to_socket += [each.socket_ns - acked_ns for each in arrivals]
                commit_to_read += [each.read_ns - published_ns for each in arrivals]
        finally:
            gc.enable()
        return LatencyResult(
            load, clients.count, Spread.of_ns(commit_to_socket), Spread.of_ns(ack_to_socket),
            Spread.of_ns(commit_to_read),
        )  # fmt: skip

    @contextlib.contextmanager
    def _load(
        self, daemon: Daemon, topic: str, pace: Pace, size: bodies.Size = SIZE
    ) -> Iterator[Callable[[], float]]:
        """A saturating load in the background; the function waits for it and says acked/s."""
        found: list[Load] = []

        def run() -> None:
            with pinned(self._client_cpus):
                found.append(
                    self._generator.run(daemon.port, _request(topic, size), pace, self._client_cpus)
                )

        thread = threading.Thread(target=run, name="load")
        thread.start()

        def wait() -> float:
            thread.join()
            return found[0].acked_per_s

        try:
            yield wait
        finally:
            thread.join()

    def _flooded(self, daemon: Daemon, watchers: int) -> FloodResult:
        path = f"/v0/topics/{TOPIC}/watch?tail=true"
        asker = StampedAsker(daemon.port, _request(TOPIC, SIZE).encoded(f"127.0.0.1:{daemon.port}"))
        with self._load(daemon, OTHER_TOPIC, Pace(SIZE.connections, ALONE_S)) as load:
            alone_per_s = load()
        daemon.wait_until_quiet()
        with StreamClients(daemon.port, path, watchers) as clients:
            asker.send()
            clients.wait_for(RECORD)
            asker.answer()
            record_bytes = clients.record_bytes
            before_bytes, cpu_before_s = clients.read_bytes, daemon.cpu_s()
            began_ns = monotonic_ns()
            with self._load(daemon, TOPIC, Pace(SIZE.connections, FLOOD_S)) as load:
                clients.discard(began_ns + int(FLOOD_S * 1e9))
                seconds = (monotonic_ns() - began_ns) / 1e9
                read_bytes = clients.read_bytes - before_bytes
                cpu_s = daemon.cpu_s() - cpu_before_s
                acked_per_s = load()
        asker.close()
        deliveries = read_bytes / record_bytes
        return FloodResult(
            watchers, seconds, deliveries / seconds, deliveries / cpu_s,
            read_bytes / seconds / MIB, acked_per_s, alone_per_s,
        )  # fmt: skip


def _request(topic: str, size: bodies.Size) -> Request:
    body = bodies.of(size, bodies.NDJSON)
    return Request(f"/v0/topics/{topic}", (("Content-Type", body.content_type),), body.data)


def _memory_bytes(daemon: Daemon) -> int:
    return sum(process.memory_full_info().pss for process in daemon.processes())
