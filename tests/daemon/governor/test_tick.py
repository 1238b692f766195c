"""The supervisor's tick: from the words of shards to the words that shards follow, with alarms."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from daemon.config import Config, Override, load
from daemon.config.sensors import BY_NAME
from daemon.governor.cgroup import CgroupMemory
from daemon.governor.disk import DiskSensor
from daemon.governor.memory import MachineMemory, MemorySensor
from daemon.governor.readings import STALE_AFTER, Readings
from daemon.governor.tick import GovernorTick
from daemon.memory import bodies_bytes
from shards import layout as at
from shards.alarms import AlarmBoard, AlarmKind, raised
from shards.doubles import word_of
from shards.layout import Layout
from shards.segment import Segment
from tests.daemon.governor.cgroups import FakeMachine

TICK_NS = 100_000_000
SHARDS = 2


class Supervised:
    """A supervisor's governor over a segment whose shards are made by hand."""

    def __init__(self, directory: Path, **settings: object) -> None:
        self.segment = Segment.create(Layout(SHARDS, 1 << 16))
        self.words = self.segment.words
        given = {"data_dir": directory, "shards": SHARDS, **settings}
        self.config: Config = load(None, {}, [Override(k, str(v)) for k, v in given.items()])
        self.tick = GovernorTick(
            self.segment, self.config, AlarmBoard(self.segment, SHARDS), bodies_bytes
        )
        machine = FakeMachine(directory / "machine")
        machine.v2("/h")
        memory = MemorySensor(
            0, lambda: 0, CgroupMemory(machine.root), lambda: MachineMemory(1 << 30, 1 << 30)
        )
        # The memory and the disk of the machine that runs the tests are not the subject.
        self.tick.memory = memory
        self.tick._readings = Readings(self.segment, DiskSensor([], lambda _: None), memory)
        self.now_ns = 10**12
        for shard in range(SHARDS):
            self.store(shard, at.S_READY, 1)
            self.store(shard, at.S_CPU, shard)

    def store(self, shard: int, word: int, value: int) -> None:
        self.words[self.segment.layout.shard(shard) + word] = value

    def pass_(self, ticks: int, *, silent: tuple[int, ...] = ()) -> None:
        for _ in range(ticks):
            self.now_ns += TICK_NS
            for shard in range(SHARDS):
                if shard not in silent:
                    base = self.segment.layout.shard(shard)
                    self.words[base + at.S_HEARTBEAT] += 1
                    self.words[base + at.S_HEARTBEAT_NS] = self.now_ns
            self.tick.tick(self.config, self.now_ns, lambda window_ms, _: window_ms)

    def word(self, index: int) -> int:
        return int(self.words[index])

    def alarms(self) -> dict[AlarmKind, str]:
        return {alarm.kind: alarm.text for alarm in raised(self.segment)}


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Supervised]:
    made = Supervised(tmp_path)
    yield made
    made.segment.close()


def test_an_idle_daemon_has_its_shortest_window_and_no_delay(supervised: Supervised) -> None:
    supervised.pass_(20)
    assert supervised.word(at.G_PRESSURE_PPM) == 0
    assert supervised.word(at.G_WINDOW_NS) == 500_000
    assert supervised.word(at.G_COALESCE_NS) == supervised.word(at.G_DEFERRING) == 0
    assert supervised.word(at.G_MEMORY_LEFT_BYTES) == int(0.95 * (1 << 30)) + 1
    assert supervised.alarms() == {}


@pytest.mark.parametrize(
    ("sensor", "word"),
    [
        ("ready", at.S_READY_MS), ("scheduling", at.S_SCHEDULING_MS), ("uploads", at.S_SLOTS_USED),
        ("store", at.S_STORE_SLOWDOWN), ("ledger", at.S_COMMIT_MS), ("ring", at.S_PROMISED_BYTES),
    ],
)  # fmt: skip
def test_each_word_of_one_shard_alone_drives_the_daemon_to_the_top_of_the_ladder(
    supervised: Supervised, sensor: str, word: int
) -> None:
    full = BY_NAME[sensor].full * (1 << 16 if sensor == "ring" else 1)
    supervised.store(1, word, word_of(full))
    supervised.pass_(120)
    assert supervised.word(at.G_PRESSURE_PPM) > 990_000
    assert supervised.word(at.G_WINDOW_NS) > 9_800_000
    assert supervised.word(at.G_COALESCE_NS) > 19_500_000
    assert supervised.word(at.G_DEFERRING) == 1
    supervised.store(1, word, word_of(0.0))
    supervised.pass_(120)
    assert supervised.word(at.G_PRESSURE_PPM) < 10_000
    assert supervised.word(at.G_WINDOW_NS) == 500_000
    assert supervised.word(at.G_COALESCE_NS) == supervised.word(at.G_DEFERRING) == 0


def test_a_broken_sensor_is_full_pressure_and_an_alarm_until_it_is_whole(
    supervised: Supervised,
) -> None:
    supervised.store(1, at.S_COMMIT_MS, word_of(math.nan))
    supervised.pass_(1)
    assert supervised.word(at.G_PRESSURE_PPM) == 1_000_000
    assert supervised.word(at.G_HARD_PPM) == 0, "a soft sensor refuses nothing"
    assert supervised.alarms() == {AlarmKind.SENSOR_BROKEN: "ledger of shard 1"}
    supervised.store(1, at.S_COMMIT_MS, word_of(1.0))
    supervised.pass_(1)
    assert supervised.word(at.G_PRESSURE_PPM) == 0 and supervised.alarms() == {}


def test_a_silent_shard_raises_the_ladder_and_an_alarm_and_refuses_nothing(
    supervised: Supervised,
) -> None:
    supervised.pass_(2)
    supervised.pass_(STALE_AFTER + 15, silent=(0,))
    assert supervised.word(at.G_PRESSURE_PPM) == 1_000_000
    assert supervised.word(at.G_HARD_PPM) == 0 and supervised.word(at.G_DEFERRING) == 1
    assert list(supervised.alarms()) == [AlarmKind.SENSOR_STALE]
    assert supervised.alarms()[AlarmKind.SENSOR_STALE].startswith(
        "no report for 5 samples from shards 0;"
    )
    supervised.pass_(1)
    assert supervised.alarms() == {}


def test_each_edge_is_one_line_with_level_cause_and_effect(
    supervised: Supervised, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "headgate.governor"):
        supervised.store(1, at.S_READY_MS, word_of(503.0))
        supervised.pass_(30)
        supervised.store(1, at.S_READY_MS, word_of(0.0))
        supervised.pass_(70)
    assert {record.levelname for record in caplog.records} == {"INFO"}
    assert caplog.messages == [
        "pressure 0.50 (ready 0.50 of shard 1): coalesce begins: pushes wait up to 20 ms",
        "pressure 0.50 (ready 0.50 of shard 1): widen begins: wider windows, fewer PUTs",
        "pressure 0.00 (no sensor presses): coalesce ends",
        "pressure 0.00 (no sensor presses): widen ends",
    ]


def test_an_operator_is_warned_of_rungs_that_put_some_clients_off(
    supervised: Supervised, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "headgate.governor"):
        supervised.store(1, at.S_READY_MS, word_of(1_000.0))
        supervised.pass_(30)
    assert [line.split(": ")[1] for line in caplog.messages] == ["defer begins"]


def test_weights_of_a_reloaded_configuration_count_from_the_next_sample(
    supervised: Supervised,
) -> None:
    supervised.store(1, at.S_READY_MS, word_of(10_000.0))
    supervised.pass_(1)
    assert supervised.word(at.G_PRESSURE_PPM) == 1_000_000
    supervised.config = msgspec.structs.replace(supervised.config, pressure_weights={"ready": 0.25})
    supervised.pass_(1)
    assert supervised.word(at.G_PRESSURE_PPM) == 250_000


def test_a_governor_that_is_off_shows_pressure_and_changes_nothing(tmp_path: Path) -> None:
    supervised = Supervised(tmp_path, governor="off")
    supervised.store(1, at.S_READY_MS, word_of(10_000.0))
    supervised.pass_(60)
    assert supervised.word(at.G_PRESSURE_PPM) == 1_000_000
    assert supervised.word(at.G_WINDOW_NS) == 500_000
    assert supervised.word(at.G_COALESCE_NS) == supervised.word(at.G_DEFERRING) == 0
    supervised.segment.close()
