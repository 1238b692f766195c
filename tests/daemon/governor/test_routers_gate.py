"""Routers pause while their own ring, memory or a disk runs out; another shard's ring is another
shard's."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from daemon.config.sensors import INDEX
from daemon.governor.gate import DRAINED_NS, Band
from daemon.governor.routers_gate import RoutersGate
from shards import layout as at
from shards.doubles import word_of
from shards.layout import Layout
from shards.segment import Segment

RING_BYTES = 65_536


class Shard:
    """A shard with routers; the test says how full its ring is, and what the sensors say."""

    def __init__(self, segment: Segment) -> None:
        self._words = segment.words
        self._gate_at = segment.layout.shard(0) + at.S_GATE
        self.used_bytes = self.in_flight_bytes = 0
        self.told: list[str] = []
        self.now_ns = 0
        self.gate = RoutersGate(
            segment, 0, Band(), lambda: self.used_bytes, lambda: self.in_flight_bytes,
            self.told.append, lambda: self.told.append("resume"),
        )  # fmt: skip

    def sense(self, name: str, pressure: float, raw: float = 0.5) -> None:
        row = at.sensor(INDEX[name])
        self._words[row + at.SENSOR_PPM] = int(pressure * 1e6)
        self._words[row + at.SENSOR_RAW] = word_of(raw)

    def look(self) -> bool:
        return self.gate.look(self.now_ns)

    @property
    def told_words(self) -> list[int]:
        """Why the gate is closed, since when, and how often it has closed."""
        return self._words[self._gate_at : self._gate_at + at.GATE_WORDS].tolist()


@pytest.fixture
def shard() -> Iterator[Shard]:
    segment = Segment.create(Layout(1, RING_BYTES))
    yield Shard(segment)
    segment.close()


@pytest.mark.parametrize("name", ["memory", "disk"])
def test_memory_and_disks_pause_routers_and_let_them_go_on(shard: Shard, name: str) -> None:
    for pressure, is_open in [(0.8, True), (0.81, False), (0.7, False), (0.64, True)]:
        shard.sense(name, pressure)
        assert shard.look() == is_open
    pause, resume = shard.told
    assert resume == "resume"
    assert pause.startswith(f"under pressure: {name} is at 0.81, the limit is 0.8 (gate_pause_ab")


def test_a_ring_that_is_almost_full_pauses_its_own_routers(shard: Shard) -> None:
    shard.sense("ring", 1.0)  # the fullest one, which is another shard's
    assert shard.look()
    shard.used_bytes = RING_BYTES
    assert not shard.look()
    shard.used_bytes = RING_BYTES // 2
    assert shard.look()


@pytest.mark.parametrize("name", ["busy", "store", "ready", "ledger"])
def test_work_that_is_slow_pauses_nobody(shard: Shard, name: str) -> None:
    shard.sense(name, 1.0)
    assert shard.look()


def test_a_broken_sensor_pauses_nobody_and_hides_no_other(shard: Shard) -> None:
    shard.sense("memory", 1.0, math.nan)
    assert shard.look()
    shard.used_bytes = RING_BYTES
    assert not shard.look()


def test_routers_that_hold_nothing_go_on_below_the_upper_threshold(shard: Shard) -> None:
    shard.sense("memory", 0.9)
    shard.in_flight_bytes = 1
    shard.look()
    shard.sense("memory", 0.7)
    shard.now_ns = 2 * DRAINED_NS
    assert not shard.look()
    shard.in_flight_bytes = 0
    assert not shard.look()
    shard.now_ns += DRAINED_NS
    assert shard.look()


def test_the_words_of_the_gate_say_why_since_when_and_how_often(shard: Shard) -> None:
    ring, memory = INDEX["ring"] + 1, INDEX["memory"] + 1
    assert shard.told_words == [0, 0, 0]
    for level, words in [(0.9, [memory, 5, 1]), (0.7, [memory, 5, 1]), (0.6, [0, 5, 1])]:
        shard.now_ns += 5
        shard.sense("memory", level)
        shard.look()
        assert shard.told_words == words
    shard.used_bytes = RING_BYTES
    shard.look()
    assert shard.told_words == [ring, shard.now_ns, 2]


def test_a_shard_that_was_replaced_begins_with_an_open_gate_and_keeps_the_count() -> None:
    segment = Segment.create(Layout(1, RING_BYTES))
    Shard(segment).sense("memory", 0.9)
    former = Shard(segment)
    former.look()
    assert former.told_words[0]
    assert Shard(segment).told_words == [0, 0, 1]
    segment.close()
