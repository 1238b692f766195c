"""What stands still becomes an alarm after a while; changes of state are logged once each."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import structs

from daemon.alarms import alarms
from daemon.alarms import standing as standings
from daemon.alarms.alarms import AlarmLog
from daemon.alarms.standing import HELD_AFTER_NS, OVER_AFTER_NS, StandingLog, StateLog, standing
from daemon.api.figures.status import StatusBuilder
from daemon.config import load
from daemon.schemas.status import StandingStatus
from shards.boards.rowboard import (
    RouterRow,
    RowPhase,
    SubscriptionRow,
    router_board,
    subscription_board,
)
from shards.layout import Layout
from shards.segment import Segment
from tests.standing import assert_nothing_stands, assert_stands
from uploader.groups.puller import GroupTable

S = 1_000_000_000
CONFIG = load(None, {}, [])
AFTER_NS = CONFIG.standstill_after_ms * 1_000_000
BLOCKED = SubscriptionRow(
    "orders", "billing", stands="message 0:7 of the key 'k' is blocked", stands_since_ns=5 * S
)
MIRROR = RouterRow(
    router="mirror", source="orders", dest="copies", lag=595, stands="record 0:9 waits: full",
    stands_since_ns=2 * S,
)  # fmt: skip


MIRRORS = "router mirror from topic orders to topic copies"


@pytest.fixture
def segment() -> Iterator[Segment]:
    made = Segment.create(Layout(2, 4096))
    GroupTable(made).start()
    yield made
    made.close()


def test_what_stands_for_long_enough_is_one_alarm_that_names_the_oldest(segment: Segment) -> None:
    subscription_board(segment).write(3, 9, BLOCKED)
    router_board(segment).write(0, 1, MIRROR)
    assert alarms.active(segment, CONFIG, AFTER_NS + 1 * S) == []
    now_ns = AFTER_NS + 5 * S
    (alarm,) = alarms.active(segment, CONFIG, now_ns)
    assert (alarm.alarm, alarm.count, alarm.not_ready) == ("stands_still", 2, False)
    assert alarm.age_ms == (AFTER_NS + 3 * S) // 1_000_000
    assert "router mirror of topic orders stands still: record 0:9 waits: full" in alarm.message
    assert "1 more" in alarm.message
    document = StatusBuilder(segment, CONFIG).document(now_ns)
    status = {
        "alarms": [structs.asdict(each) for each in document.alarms],
        "standing": [structs.asdict(each) for each in document.standing],
    }
    assert_stands(status, "orders", "mirror", "record 0:9", "full")
    assert_stands(status, "orders", "billing", "message 0:7", "'k'", "blocked")
    with pytest.raises(AssertionError):
        assert_nothing_stands(status)


def test_a_status_whose_alarm_is_raised_names_what_stands_though_it_goes_on_meanwhile(
    segment: Segment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner is another process: its row changes at any moment."""
    board = subscription_board(segment)
    board.write(3, 9, BLOCKED)

    def seen(*arguments: Any) -> list[StandingStatus]:
        found = standing(*arguments)
        board.free(3, 9)
        return found

    monkeypatch.setattr(alarms, "standing", seen)
    monkeypatch.setattr(standings, "standing", seen)
    document = StatusBuilder(segment, CONFIG).document(AFTER_NS + 5 * S)
    assert [each.alarm for each in document.alarms] == ["stands_still"]
    assert [each.name for each in document.standing] == ["billing"]


def test_a_freed_row_stands_for_nothing(segment: Segment) -> None:
    subscription_board(segment).write(3, 9, BLOCKED)
    subscription_board(segment).free(3, 9)
    router_board(segment).write(0, 1, MIRROR)
    router_board(segment).free(0, 1)
    assert standing(segment, CONFIG, 1000 * S) == []


def test_one_line_is_logged_when_something_begins_to_stand_and_one_when_it_goes_on(
    segment: Segment,
) -> None:
    log, board = StandingLog(), subscription_board(segment)
    board.write(3, 9, structs.replace(BLOCKED, is_pushed=1))
    now_ns = AFTER_NS + 5 * S
    lines: list[tuple[int, str]] = []
    for step in range(100):
        if step == 50:  # it flickers
            board.write(3, 9, structs.replace(BLOCKED, stands_since_ns=0))
        if step == 55:
            board.write(3, 9, structs.replace(BLOCKED, is_pushed=1))
        at_ns = now_ns + step * S // 10
        lines += log.lines(standing(segment, CONFIG, at_ns), at_ns)
    began = (
        "push subscription billing of topic orders stands still: message 0:7 of the key 'k' is"
        " blocked (30 s)"
    )
    assert lines == [(logging.ERROR, began)]
    board.write(3, 9, structs.replace(BLOCKED, stands_since_ns=0))
    for step in range(100, 150):
        at_ns = now_ns + step * S // 10
        lines += log.lines(standing(segment, CONFIG, at_ns), at_ns)
    assert lines[1:] == [
        (logging.WARNING, "push subscription billing of topic orders stood still for 39 s")
    ]


def test_alarms_of_what_stands_are_not_logged_a_second_time(segment: Segment) -> None:
    subscription_board(segment).write(3, 9, BLOCKED)
    found = alarms.active(segment, CONFIG, 1000 * S)
    assert found and AlarmLog().lines(found, 1000 * S) == []


def test_a_held_router_is_logged_once_however_often_it_looks_again(segment: Segment) -> None:
    board, log = router_board(segment), StateLog(segment)
    lines: list[tuple[int, str]] = []
    for step in range(150):  # 15 s, with half a second between two looks at its destination
        held = RowPhase.HELD if step % 5 else RowPhase.RUNNING
        board.write(0, 1, structs.replace(MIRROR, phase=held, reason=f"full, {step} records"))
        lines += log.lines(S + step * S // 10)
    assert lines == [
        (logging.WARNING, f"{MIRRORS} is held: full, 51 records"),
    ]
    board.write(0, 1, structs.replace(MIRROR, phase=RowPhase.RUNNING))
    for step in range(150, 200):
        lines += log.lines(S + step * S // 10)
    assert lines[1:] == [
        (logging.INFO, f"{MIRRORS} runs again after 14 s"),
    ]


def test_subscriptions_that_are_paused_held_or_stopped_are_logged_with_their_topic(
    segment: Segment,
) -> None:
    board, log = subscription_board(segment), StateLog(segment)
    row = SubscriptionRow("orders", "billing", reason="the store does not answer")
    assert log.lines(S) == []
    board.write(3, 9, row)
    assert log.lines(2 * S) == [], "it runs"
    told = []
    for phase in (RowPhase.PAUSED, RowPhase.HELD, RowPhase.STOPPED):
        board.write(3, 9, structs.replace(row, phase=phase, is_pushed=1))
        for now_ns in (3 * S, 3 * S + HELD_AFTER_NS):
            told += [line for _, line in log.lines(now_ns)]
    who = "push subscription billing of topic orders"
    assert told == [
        f"{who} is paused",
        f"{who} is held: the store does not answer",
        f"{who} is stopped: the store does not answer",
    ]
    board.free(3, 9)
    assert log.lines(4 * S + HELD_AFTER_NS) == []
    board.write(3, 10, structs.replace(row, phase=RowPhase.HELD, is_pushed=0))
    assert log.lines(20 * S) == []
    ((_, line),) = log.lines(20 * S + HELD_AFTER_NS)
    assert line == "subscription billing of topic orders is held: the store does not answer"


def test_a_subscription_that_is_held_for_a_moment_is_not_logged(segment: Segment) -> None:
    board, log = subscription_board(segment), StateLog(segment)
    row = SubscriptionRow("orders", "billing", reason="the numbers of the next batches")
    for at_ns in (S, 60 * S):
        board.write(3, 9, structs.replace(row, phase=RowPhase.HELD))
        assert log.lines(at_ns) == log.lines(at_ns + HELD_AFTER_NS - 1) == []
        board.write(3, 9, row)
        at_ns += HELD_AFTER_NS
        assert log.lines(at_ns) == log.lines(at_ns + OVER_AFTER_NS) == [], "nothing was told"
