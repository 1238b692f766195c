"""What a shard stores of itself with each heartbeat."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from daemon.governor.memory import allocated_bytes
from daemon.governor.shard_sensors import ShardSensors
from delivery.dispatch import Dispatcher
from delivery.ready import Kind, PriorityInputs
from delivery.scheduler.scheduler import BandedReadySet
from ledger.types import LeaseId
from shards import layout as at
from shards.doubles import double_of
from shards.layout import Layout
from shards.leases import LeaseTable
from shards.segment import Segment
from uploader.pipeline.health import UploadHealth

MS = 1_000_000
NOW = 10**12


class World:
    """Shard 1 of two, whose parts a test can press."""

    def __init__(self, promised_bytes: Callable[[], int] = lambda: 0) -> None:
        self.segment = Segment.create(Layout(2, 1 << 16))
        self.ready = BandedReadySet()
        self.leases = LeaseTable(self.segment.words, self.segment.layout)
        self.health = UploadHealth()
        dispatcher = Dispatcher(self.ready, lambda _: PriorityInputs(), lambda: NOW)
        self.sensors = ShardSensors(
            self.segment, 1, dispatcher, self.leases, self.health, promised_bytes
        )

    def sensed(self, word: int) -> float:
        self.sensors.store(NOW)
        return double_of(int(self.segment.words[self.segment.layout.shard(1) + word]))


def test_the_words_are_what_the_parts_of_the_shard_say() -> None:
    world = World(lambda: 12_345)
    assert world.sensed(at.S_READY_MS) == 0
    world.ready.mark((7, Kind.WATCH), PriorityInputs(), NOW - 250 * MS, NOW)
    assert world.sensed(at.S_READY_MS) == 250
    assert world.sensed(at.S_SLOTS_USED) == 0
    world.leases.fill(1, 0, LeaseId(1, 1, 1, 1), 0, ())
    world.leases.fill(0, 1, LeaseId(1, 1, 0, 1), 0, ())
    assert world.sensed(at.S_SLOTS_USED) == 0.25, "of four slots of its own"
    world.health.put_begins(1_000, NOW - 1_000 * MS)
    assert world.sensed(at.S_STORE_SLOWDOWN) == 10
    assert world.sensed(at.S_COMMIT_MS) == 0
    assert world.sensed(at.S_PROMISED_BYTES) == 12_345
    assert abs(world.sensed(at.S_ALLOCATED_BYTES) - allocated_bytes()) < 50 << 20
    world.segment.close()


def test_a_part_that_fails_is_not_a_number_and_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails() -> int:
        raise ZeroDivisionError

    world = World(fails)
    assert math.isnan(world.sensed(at.S_PROMISED_BYTES))
    assert math.isnan(world.sensed(at.S_PROMISED_BYTES))
    assert world.sensed(at.S_READY_MS) == 0, "the others go on"
    assert caplog.messages == ["a sensor cannot be read"]
    world.segment.close()
