"""What alarms mean: one trouble per kind, and readiness."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from daemon.alarms import alarms
from daemon.api.figures.status import StatusBuilder
from daemon.config import load
from daemon.schemas.api import AlarmStatus
from shards import layout as at
from shards.alarms import AlarmBoard, AlarmKind
from shards.layout import Layout
from shards.segment import Segment
from uploader.groups.puller import GroupTable

SECOND_NS = 1_000_000_000
CONFIG = load(None, {}, [])


@pytest.fixture
def segment() -> Iterator[Segment]:
    made = Segment.create(Layout(2, 4096))
    GroupTable(made).start()
    for shard in range(2):
        made.words[made.layout.shard(shard) + at.S_READY] = 1
    yield made
    made.close()


def test_every_kind_has_a_meaning() -> None:
    assert set(alarms.MEANINGS) == set(AlarmKind)
    assert len({meaning.name for meaning in alarms.MEANINGS.values()}) == len(AlarmKind)


def test_rows_of_one_kind_are_one_trouble_as_old_as_the_oldest(segment: Segment) -> None:
    AlarmBoard(segment, 0).raise_(AlarmKind.STORE_FAILING, "younger", 9 * SECOND_NS)
    AlarmBoard(segment, 1).raise_(AlarmKind.STORE_FAILING, "No space left", 2 * SECOND_NS)
    (trouble,) = alarms.active(segment, CONFIG, 44 * SECOND_NS)
    assert (trouble.alarm, trouble.age_ms, trouble.count) == ("store_failing", 42_000, 2)
    assert trouble.message == "store failing for 42 s: No space left"


def test_an_alarm_that_has_just_begun_does_not_say_how_long_it_lasts(segment: Segment) -> None:
    AlarmBoard(segment, 0).raise_(AlarmKind.SENSOR_STALE, "memory", 2 * SECOND_NS)
    (young,) = alarms.active(segment, CONFIG, 3 * SECOND_NS - 1)
    assert young.message == "sensors without news: memory"
    (older,) = alarms.active(segment, CONFIG, 3 * SECOND_NS)
    assert older.message == "sensors without news for 1 s: memory"


def test_the_daemon_is_not_ready_once_an_alarm_has_lasted(segment: Segment) -> None:
    status = StatusBuilder(segment, CONFIG)
    AlarmBoard(segment, 0).raise_(AlarmKind.STORE_FAILING, "503", 1 * SECOND_NS)
    assert status.obstacles(30 * SECOND_NS) == []
    assert status.document(30 * SECOND_NS).ready is True
    assert status.obstacles(31 * SECOND_NS) == ["store failing for 30 s: 503"]
    document = status.document(31 * SECOND_NS)
    assert document.ready is False and document.alarms[0].not_ready is True
    AlarmBoard(segment, 0).clear(AlarmKind.STORE_FAILING)
    assert status.obstacles(32 * SECOND_NS) == []


def test_the_daemon_is_not_ready_while_its_supervisor_stands_still(segment: Segment) -> None:
    status = StatusBuilder(segment, CONFIG)
    assert status.obstacles(100 * SECOND_NS) == [], "there was no tick yet"
    segment.words[at.G_TICKED_NS] = 10 * SECOND_NS
    assert status.obstacles(25 * SECOND_NS) == []
    (obstacle,) = status.obstacles(26 * SECOND_NS)
    assert "the supervisor has not run for 16 s" in obstacle
    segment.words[at.G_TICKED_NS] = 27 * SECOND_NS
    assert status.obstacles(26 * SECOND_NS) == []


def test_a_foreign_object_is_not_ready_immediately(segment: Segment) -> None:
    AlarmBoard(segment, 2).raise_(AlarmKind.FOREIGN_OBJECT, "l0/1", 1 * SECOND_NS)
    assert len(StatusBuilder(segment, CONFIG).obstacles(1 * SECOND_NS)) == 1


def trouble(age_ms: int, count: int) -> AlarmStatus:
    message = f"store failing for {age_ms // 1000} s: No space left"
    return AlarmStatus("store_failing", age_ms, count, message, age_ms >= 30_000)


def test_the_log_tells_of_an_outage_when_it_begins_once_a_minute_and_when_it_is_over() -> None:
    told = alarms.AlarmLog()
    lines: list[tuple[int, str]] = []
    for tenth in range(20, 1_500):  # a tick each; the outage began at 0 and fails five times a s
        found = [trouble(tenth * 100, tenth // 2)] if tenth < 1_300 else []
        lines += told.lines(found, tenth * SECOND_NS // 10)
    assert [line for _, line in lines] == [
        "store failing for 2 s: No space left (docs/operations.md#store_failing)",
        "store failing for 62 s: No space left, 310 times, 300 of them new",
        "store failing for 122 s: No space left, 610 times, 300 of them new",
        "store_failing is over after 129 s, 649 times",
    ]


def test_an_alarm_that_comes_and_goes_is_one_in_the_log_and_its_counts_add_up() -> None:
    told = alarms.AlarmLog()
    lines: list[tuple[int, str]] = []
    for second in range(600):
        found = [trouble(2_000, 7)] if second % 2 else []
        lines += told.lines(found, second * SECOND_NS)
    assert len(lines) == 10
    assert lines[-1][1] == "store failing for 2 s: No space left, 1897 times, 210 of them new"
