"""What the supervisor reads of shards that serve, start, are silent, or sense nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.config.sensors import BY_NAME, INDEX, SENSORS, Reading
from daemon.governor.cgroup import CgroupMemory
from daemon.governor.disk import DiskSensor, spoken_for
from daemon.governor.memory import MachineMemory, MemorySensor, allocated_bytes
from daemon.governor.producers_gate import ClosedBy, Disk, DiskSpace
from daemon.governor.readings import STALE_AFTER, Readings, Sample
from shards import layout as at
from shards.doubles import word_of
from shards.layout import Layout
from shards.segment import Segment
from tests.daemon.governor.cgroups import FakeMachine

MIB, GIB = 1 << 20, 1 << 30
TICK_NS = 100_000_000
RING = 1 << 16
SENSED = {
    "ready": at.S_READY_MS, "scheduling": at.S_SCHEDULING_MS, "uploads": at.S_SLOTS_USED,
    "store": at.S_STORE_SLOWDOWN, "ledger": at.S_COMMIT_MS,
}  # fmt: skip


class World:
    """A segment with the words of three shards, each on a CPU of its own."""

    def __init__(self, root: Path) -> None:
        self.segment = Segment.create(Layout(3, RING))
        self.words = self.segment.words
        self.machine = FakeMachine(root)
        self.machine.v2("/h")
        self.memory = MemorySensor(
            0, lambda: self.readings.allocated_bytes(), CgroupMemory(root),
            lambda: MachineMemory(1000 * GIB, 1000 * GIB),  # little of it is of these tests
        )  # fmt: skip
        self.space: DiskSpace | None = DiskSpace(100 << 30, 200 << 30)
        disk = Disk(ClosedBy.STORE_DISK, "the disk", root, takes_objects=True)
        self.readings = Readings(
            self.segment, DiskSensor([disk], lambda _: self.space), self.memory
        )
        self.now_ns = 10**12
        for shard in range(3):
            self.store(shard, at.S_READY, 1)
            self.store(shard, at.S_CPU, shard)
            self.store(shard, at.S_PID, 100 + shard)

    def store(self, shard: int, word: int, value: int) -> None:
        self.words[self.segment.layout.shard(shard) + word] = value

    def sense(self, shard: int, word: int, value: float) -> None:
        self.store(shard, word, word_of(value))

    def sample(self, *, silent: tuple[int, ...] = (), cpu: float = 0.0) -> Sample:
        """The next tick, after a heartbeat of all shards but the silent ones."""
        self.now_ns += TICK_NS
        base = self.segment.layout.shard
        for shard in range(3):
            if shard not in silent:
                self.words[base(shard) + at.S_HEARTBEAT] += 1
                self.words[base(shard) + at.S_HEARTBEAT_NS] = self.now_ns
                self.words[base(shard) + at.S_CPU_NS] += int(cpu * TICK_NS)
        return self.readings.take(self.now_ns)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.segment.close()


def reading(sample: Sample, name: str) -> Reading:
    return sample.readings[INDEX[name]]


def test_an_idle_daemon_reads_nothing(world: World) -> None:
    sample = world.sample()
    assert len(sample.readings) == len(SENSORS)
    for sensor, found in zip(SENSORS, sample.readings, strict=True):
        assert sensor.pressure(found.raw) == 0, sensor.name
    assert sample.stale == [] and sample.broken == []


@pytest.mark.parametrize("name", SENSED)
def test_of_each_sensor_of_shards_the_largest_counts_and_is_named(world: World, name: str) -> None:
    for shard, share in enumerate((0.2, 0.9, 0.4)):
        world.sense(shard, SENSED[name], share * BY_NAME[name].full)
    found = reading(world.sample(), name)
    assert found.raw == pytest.approx(0.9 * BY_NAME[name].full) and found.shard == 1
    world.sense(2, SENSED[name], 2 * BY_NAME[name].full)
    found = reading(world.sample(), name)
    assert BY_NAME[name].pressure(found.raw) == 1 and found.shard == 2


def test_a_shard_that_does_not_serve_does_not_count(world: World) -> None:
    world.store(1, at.S_READY, 0)
    world.store(1, at.S_HEAD, RING)
    for word in SENSED.values():
        world.sense(1, word, math.nan)
    sample = world.sample()
    assert sample.broken == []
    assert all(s.pressure(r.raw) == 0 for s, r in zip(SENSORS, sample.readings, strict=True))


@pytest.mark.parametrize("name", SENSED)
def test_a_value_that_is_not_a_number_is_worse_than_any_and_named(world: World, name: str) -> None:
    world.sense(0, SENSED[name], 10**9)
    world.sense(2, SENSED[name], math.nan)
    sample = world.sample()
    assert sample.broken == [f"{name} of shard 2"]
    assert BY_NAME[name].pressure(reading(sample, name).raw) == 1


def test_busy_is_cpu_over_the_time_between_heartbeats(world: World) -> None:
    world.sample()
    assert reading(world.sample(cpu=0.7), "busy").raw == pytest.approx(0.7)
    assert reading(world.sample(silent=(0, 1, 2)), "busy").raw == pytest.approx(0.7), "as before"


def test_shards_that_share_a_cpu_are_busy_together(world: World) -> None:
    world.store(2, at.S_CPU, 1)
    world.sample()
    found = reading(world.sample(cpu=0.45), "busy")
    assert found.raw == pytest.approx(0.9) and found.shard == 1
    world.store(2, at.S_READY, 0)
    assert reading(world.sample(cpu=0.45), "busy").raw == pytest.approx(0.45)


def test_a_new_process_whose_cpu_clock_begins_again_is_not_busy(world: World) -> None:
    world.sample(cpu=50)
    world.sample(cpu=50)
    world.store(0, at.S_CPU_NS, 0)
    for shard in (1, 2):
        world.store(shard, at.S_READY, 0)
    assert reading(world.sample(), "busy").raw == 0


def test_the_ring_is_what_is_not_durable_yet_or_full_if_a_request_found_no_space(
    world: World,
) -> None:
    world.store(1, at.S_COMMITTED, 5 * RING)
    world.store(1, at.S_HEAD, 5 * RING + RING // 2)
    assert reading(world.sample(), "ring") == Reading(0.5, 1)
    world.sense(1, at.S_PROMISED_BYTES, RING / 4)
    assert reading(world.sample(), "ring") == Reading(0.75, 1), "bodies on their way take space too"
    world.sense(1, at.S_PROMISED_BYTES, 0)
    world.store(2, at.S_RING_FULL, 1)
    assert reading(world.sample(), "ring") == Reading(1.0, 2)
    assert reading(world.sample(), "ring") == Reading(0.5, 1), "only in the sample after it"


def test_a_silent_shard_is_stale_after_five_samples_and_never_refuses(world: World) -> None:
    world.store(1, at.S_HEAD, RING // 2)
    world.sample()
    for _ in range(STALE_AFTER - 1):
        assert world.sample(silent=(1,)).stale == []
    sample = world.sample(silent=(1,))
    assert sample.stale == [1]
    for sensor, found in zip(SENSORS, sample.readings, strict=True):
        if sensor.hard:
            assert sensor.pressure(found.raw) < 0.5, "as it was"
        else:
            assert sensor.pressure(found.raw) == 1 and found.shard == 1
    assert world.sample().stale == [], "it is there again"


def test_a_shard_that_starts_is_not_stale(world: World) -> None:
    world.store(1, at.S_READY, 0)
    for _ in range(3 * STALE_AFTER):
        assert world.sample(silent=(1,)).stale == []


def test_memory_of_the_machine_is_compared_with_what_all_processes_have(world: World) -> None:
    for shard in range(3):
        world.sense(shard, at.S_ALLOCATED_BYTES, 100 * GIB)
    world.store(2, at.S_PID, 0)  # it ended, and its memory is free
    own = allocated_bytes()
    assert abs(world.readings.allocated_bytes() - 200 * GIB - own) < 50 * MIB
    expected = world.readings.allocated_bytes() / GIB
    found = reading(world.sample(), "memory").raw
    assert found == pytest.approx(expected / (expected + 950), rel=0.05)


def test_memory_that_cannot_be_read_is_broken(world: World) -> None:
    (world.machine.root / "proc/self/cgroup").unlink()
    assert world.sample().broken == ["memory"]


@pytest.mark.parametrize(
    ("free_mib", "pending_mib", "pressure"),
    [(640, 0, 0), (128, 0, 0), (96, 0, 1 / 3), (64, 0, 1), (0, 0, 1), (256, 64, 0), (128, 64, 1)],
)
def test_the_disk_presses_when_less_than_twice_what_is_needed_is_free(
    free_mib: int, pending_mib: int, pressure: float
) -> None:
    """The reserve of a large disk is 64 MiB."""
    share = spoken_for(DiskSpace(free_mib * MIB, 100 << 30), pending_mib * MIB)
    assert BY_NAME["disk"].pressure(share) == pytest.approx(pressure)


def test_what_is_pending_counts_for_the_disk_of_objects(world: World) -> None:
    world.space = DiskSpace(64 * MIB + RING, 100 << 30)
    assert reading(world.sample(), "disk").raw < 1
    world.store(0, at.S_HEAD, RING)
    assert reading(world.sample(), "disk").raw == 1


def test_a_disk_that_does_not_say_how_full_it_is_is_a_broken_sensor(world: World) -> None:
    """As every sensor: what cannot be read counts as full, and is named by an alarm."""
    world.space = None
    assert math.isnan(reading(world.sample(), "disk").raw)
    assert BY_NAME["disk"].pressure(math.nan) == 1
