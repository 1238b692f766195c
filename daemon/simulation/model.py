"""A simulated daemon: producers, rings and a store around the shipped pullers.

Producers send without waiting for answers, at random times (a Poisson process per core), so a
daemon that is too slow fills its rings and refuses. All strategies get the same requests.

Requests that reach a shard within ``resolution_ns`` are published together, as they are when they
arrive in one turn of its loop. So the number of events has a bound whatever the rate is; the
latency of each request still counts from its own arrival.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from msgspec import Struct

from daemon.config.sensors import SENSORS, Reading
from daemon.governor import board
from daemon.governor.costs.put_budget import BudgetTerms, PutBudget
from daemon.governor.governor import Governed, Governor
from daemon.simulation.engine import S, VirtualShards
from daemon.simulation.load import LoadCurve
from daemon.simulation.meter import Meter, PutBegun
from shards import layout as at
from shards.layout import Layout
from shards.leases import Lease
from shards.ring import Arrival, RequestAt
from uploader.groups.puller import Pulled
from uploader.groups.upload_turn import NEVER, Policy
from uploader.stores.prices import GIB

_RING_BYTES_MIN = 4096  # the segment's rings hold nothing here
_P99 = 2.3263478740408408  # standard deviations
_NORMAL_FROM = 15.0  # above this mean, a Poisson number is drawn as a normal one
_DRAIN_STEPS_MAX = 100_000
SAMPLE_NS = 100_000_000  # of the governor


class PutTimes(Struct, frozen=True):
    """How long a PUT takes: a lognormal time, and the bytes at the rate of one connection."""

    p50_ms: float
    p99_ms: float
    bytes_per_s: float | None = None

    def draw_ns(self, rng: random.Random, size_bytes: int) -> int:
        """The time of one PUT."""
        sigma = math.log(self.p99_ms / self.p50_ms) / _P99
        base_ns = self.p50_ms * 1e6 * (math.exp(rng.gauss(0.0, sigma)) if sigma else 1.0)
        return int(base_ns + (size_bytes / self.bytes_per_s * S if self.bytes_per_s else 0.0))


def poisson(rng: random.Random, mean: float) -> int:
    """A Poisson number (Knuth's product of uniform numbers; a normal one for a large mean)."""
    if mean > _NORMAL_FROM:
        return max(0, round(rng.gauss(mean, math.sqrt(mean))))
    limit, count, product = math.exp(-mean), 0, rng.random()
    while product > limit:
        count += 1
        product *= rng.random()
    return count


class VirtualGovernor:
    """The shipped governor and PUT budget over what the model has: samples it, and stores what
    follows in the words that the pullers read.

    Only the sensors of the rings, the lease slots and the ledger are modeled. The others read 0:
    nobody reads, there is no CPU, no memory and no disk, and the store is as fast as its
    distribution says.
    """

    def __init__(
        self,
        words: memoryview,
        measured: Mapping[str, Callable[[], float]],
        window_min_ms: float,
        window_max_ms: float,
        budget: PutBudget | None,
        weights: Mapping[str, float],
        *,
        reacts: bool,
    ) -> None:
        self._words = words
        self._sensors = [measured.get(sensor.name, lambda: 0.0) for sensor in SENSORS]
        self._window_min_ms = window_min_ms
        self._window_max_ms = window_max_ms
        self._budget = budget
        self._governor = Governor(weights, reacts=reacts)

    @property
    def budget_holds(self) -> bool | None:
        """Whether a lever is left to keep to the budget; None: there is none."""
        return None if self._budget is None else self._budget.decision().holds

    def sample(self, puts: int, bytes_usd: float, now_ns: int) -> Governed:
        """One sample; ``puts`` were begun since the last, and their bytes cost ``bytes_usd``."""
        readings = [Reading(measure()) for measure in self._sensors]
        governed = self._governor.sample(readings, self._window_min_ms, self._window_max_ms, now_ns)
        window_ms = governed.window_ms
        if self._budget is not None:
            decision = self._budget.step(puts, bytes_usd, now_ns)
            self._words[at.G_TARGET_BYTES] = decision.target_bytes
            window_ms = max(window_ms, decision.window_ms)
        board.store(self._words, governed, window_ms)
        return governed


class Bundle(NamedTuple):
    """Requests that were published together."""

    requests: int
    first_ns: int
    mean_ns: float  # of their arrivals


class VirtualRing:
    """The requests of a shard that are not pulled yet; its words are those of the segment."""

    def __init__(self, words: memoryview, base: int, capacity: int) -> None:
        self._words = words
        self._base = base
        self._capacity = capacity
        self.head = 0
        self._requests: deque[RequestAt] = deque()
        self._bundles: deque[Bundle] = deque()

    def append(self, size_bytes: int, bundle: Bundle) -> bool:
        """Publishes requests; False if there is no space for them."""
        end = self.head + size_bytes
        if end > self._words[self._base + at.S_COMMITTED] + self._capacity:
            return False
        self._requests.append(RequestAt(self.head, end, bundle.first_ns, b"", ()))
        self._bundles.append(bundle)
        self._words[self._base + at.S_RESERVED] = end
        self._words[self._base + at.S_HEAD] = end
        self.head = end
        return True

    def arrivals(self, start: int, end: int) -> Iterator[Arrival]:
        """When the requests in [start, end) arrived, in order."""
        for request in self._requests:
            if start <= request.position < end:
                yield Arrival(request.end, request.arrival_ns, False)

    def requests(self, start: int, end: int) -> Iterator[RequestAt]:
        """The requests in [start, end), in order."""
        for request in self._requests:
            if start <= request.position < end:
                yield request

    def take(self, pulled: RequestAt) -> Bundle:
        """Removes the oldest request, which is the one that was pulled."""
        oldest = self._requests.popleft()
        assert oldest is pulled, f"pulled [{pulled.position}, {pulled.end}) out of order"
        return self._bundles.popleft()

    @property
    def used(self) -> float:
        """The share that is not committed yet."""
        return (self.head - int(self._words[self._base + at.S_COMMITTED])) / self._capacity

    @property
    def is_committed(self) -> bool:
        """Whether everything that was published is committed."""
        return bool(self._words[self._base + at.S_COMMITTED] == self.head)


class _Stream:
    """The requests of one core's producers."""

    def __init__(self, shard: int, rng: random.Random) -> None:
        self.shard = shard
        self.rng = rng
        self.passed = 0.0  # how many were expected until the last bundle's end


class Machine(Struct, frozen=True):
    """The daemon that is simulated."""

    cores: int
    window_ns: int
    window_max_ns: int
    governor: bool
    pressure_weights: Mapping[str, float]
    object_bytes_target: int
    uploads: int
    ring_bytes: int
    budget: BudgetTerms | None
    put_usd_per_gib: float
    commit_ns: int
    put_times: PutTimes


class SimulatedDaemon(VirtualShards):
    """One daemon with its producers and its store.

    ``shards`` is 1 if one shard uploads for all cores: then it has the rings of all.
    """

    def __init__(
        self,
        machine: Machine,
        shards: int,
        policy: Policy,
        curve: LoadCurve,
        resolution_ns: int,
        seed: str,
    ) -> None:
        layout = Layout(
            shards, _RING_BYTES_MIN, lease_slots=machine.uploads, commit_slots=4,
            commit_log_bytes=128, commit_bytes_max=64,
        )  # fmt: skip
        capacity = machine.ring_bytes * machine.cores // shards
        self.rings: list[VirtualRing] = []
        super().__init__(
            layout,
            policy,
            machine.window_ns,
            commit_ns=machine.commit_ns,
            sources=lambda segment: self._make_rings(segment.words, capacity),
        )
        self._machine = machine
        self._curve = curve
        self._merges = policy.hysteresis_ns(machine.window_ns) < NEVER
        self._resolution_ns = resolution_ns
        self._put_rng = random.Random(f"{seed} puts")
        self._begun_ns = self.now_ns
        self._bundles_of: dict[tuple[int, int], list[Bundle]] = {}  # by lease slot
        self._streams = [
            _Stream(core % shards, random.Random(f"{seed} core {core}"))
            for core in range(machine.cores)
        ]
        first, stop = layout.group(0) + at.P_SIZE, layout.group(shards)
        self._sizes_at = slice(first, stop, at.GROUP_WORDS)
        self._sizes = self._size_words()
        self.meter = Meter(self.now_ns, 1, machine.window_ns, machine.object_bytes_target)
        measured = {
            "ring": self._fullest_ring,
            "uploads": self._slots_in_use,
            "ledger": lambda: self.commit_took_ns / 1e6,
        }
        self._refused = self._sampled_refused = 0
        self._begun = self._sampled = (0, 0)  # PUTs and their bytes; as of the last sample
        self._governor = VirtualGovernor(
            self.words, measured, machine.window_ns / 1e6, machine.window_max_ns / 1e6,
            None if machine.budget is None else PutBudget(machine.budget, self.now_ns),
            machine.pressure_weights, reacts=machine.governor,
        )  # fmt: skip

    def _make_rings(self, words: memoryview, capacity: int) -> list[VirtualRing]:
        for shard in range(self.layout.shards):
            self.rings.append(VirtualRing(words, self.layout.shard(shard), capacity))
        return self.rings

    def split_all(self) -> None:
        """Makes each shard a group of its own."""
        buddies = self.table.map
        while whole := [group for group in buddies.groups() if buddies.can_split(group)]:
            for group in whole:
                buddies.split(group)
        self._looked(0)

    def start(self) -> None:
        """Lets the producers begin."""
        self._begun_ns = self.now_ns
        self._govern()
        for stream in self._streams:
            self._next(stream)

    def drain(self) -> None:
        """Lets time pass until everything that was accepted is committed."""
        for _ in range(_DRAIN_STEPS_MAX):
            if all(ring.is_committed for ring in self.rings):
                return
            self.run(S)
        raise AssertionError("requests stay that are never committed")

    # The governor

    @property
    def budget_holds(self) -> bool | None:
        """Whether a lever is left to keep to the PUT budget; None: there is none."""
        return self._governor.budget_holds

    def _govern(self) -> None:
        puts, put_bytes = self._begun
        before_puts, before_bytes = self._sampled
        self._sampled = self._begun
        bytes_usd = (put_bytes - before_bytes) / GIB * self._machine.put_usd_per_gib
        governed = self._governor.sample(puts - before_puts, bytes_usd, self.now_ns)
        self.meter.governed(
            self.now_ns, governed.level, self.words[at.G_WINDOW_NS], self.words[at.G_TARGET_BYTES]
        )
        self.at(self.now_ns + SAMPLE_NS, self._govern)

    def _fullest_ring(self) -> float:
        before, self._sampled_refused = self._sampled_refused, self._refused
        if self._refused != before:
            return 1.0
        return max(ring.used for ring in self.rings)

    def _slots_in_use(self) -> float:
        free = min(len(self.leases.free_slots(shard)) for shard in range(self.layout.shards))
        return 1 - free / self.layout.lease_slots

    # Producers

    def _next(self, stream: _Stream) -> None:
        """Schedules the next requests of a stream."""
        curve, share = self._curve, self._machine.cores
        at_s, size = curve.when((stream.passed + stream.rng.expovariate(1.0)) * share)
        if at_s == math.inf:
            return
        first_ns = self._begun_ns + int(at_s * S)
        passed = curve.requests_until(at_s) / share
        more = 0
        stream.passed = passed
        if self._resolution_ns:
            stream.passed = curve.requests_until(at_s + self._resolution_ns / S) / share
            more = poisson(stream.rng, stream.passed - passed)
        published_ns = first_ns + (self._resolution_ns if more else 0)
        mean_ns = first_ns + self._resolution_ns / 2 * more / (more + 1)
        bundle = Bundle(1 + more, first_ns, mean_ns)
        self.at(published_ns, self._arrived, stream, bundle, size * bundle.requests)

    def _arrived(self, stream: _Stream, bundle: Bundle, size_bytes: int) -> None:
        self.meter.requests += bundle.requests
        if self.rings[stream.shard].append(size_bytes, bundle):
            self.published(stream.shard)
        else:
            self._refused += bundle.requests
            self.meter.refused += bundle.requests
        self._next(stream)

    # What happens to them

    def _started(self, pulled: Pulled) -> int:
        lease = pulled.lease
        rings = self.rings
        self._bundles_of[lease.shard, lease.slot] = [
            rings[shard].take(request) for shard, request in pulled.requests
        ]
        size_bytes = sum([leased.end - leased.start for leased in lease.ranges])
        self._begun = (self._begun[0] + 1, self._begun[1] + size_bytes)
        self.meter.put(PutBegun(self.now_ns, size_bytes))
        self.meter.in_flight.set(self.now_ns, self.in_flight)
        return self._machine.put_times.draw_ns(self._put_rng, size_bytes)

    def _put_done(self, lease: Lease) -> None:
        super()._put_done(lease)
        self.meter.in_flight.set(self.now_ns, self.in_flight)

    def _committed(self, lease: Lease) -> None:
        since_ns, latencies = self.meter.since_ns, self.meter.latencies
        for requests, first_ns, mean_ns in self._bundles_of.pop((lease.shard, lease.slot)):
            if first_ns >= since_ns:
                latencies.add(self.now_ns - mean_ns, requests)

    def _looked(self, shard: int) -> None:
        sizes = self._size_words()
        if sizes != self._sizes:
            self._sizes = sizes
            self.table.map.check_invariants()
            groups = self.table.map.groups()
            self.meter.groups.set(self.now_ns, len(groups))
            self.listeners = [
                shard
                for group in groups
                if group.size > 1 or (self._merges and group.group % 2 == 0)
                for shard in self.table.map.members(group)
            ]

    def _size_words(self) -> list[int]:
        return list(self.words[self._sizes_at])
