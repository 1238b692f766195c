"""Alarms in shared memory: raised and cleared by one process, read by all."""

from __future__ import annotations

from shards import layout as at
from shards.alarms import AlarmBoard, AlarmKind, raised
from shards.layout import Layout
from shards.segment import Segment
from tests.shards.conftest import MakeSegment

SHARDS = 3


def found(segment: Segment) -> list[tuple[AlarmKind, int, int, int, str]]:
    return [(a.kind, a.process, a.since_ns, a.count, a.text) for a in raised(segment)]


def test_an_alarm_keeps_its_first_time_counts_and_has_the_last_text(
    make_segment: MakeSegment,
) -> None:
    segment = make_segment(Layout(SHARDS, 4096))
    board = AlarmBoard(segment, 1)
    assert found(segment) == []
    board.raise_(AlarmKind.STORE_FAILING, "503 Slow Down", 5)
    board.raise_(AlarmKind.STORE_FAILING, "No space left", 9)
    assert found(segment) == [(AlarmKind.STORE_FAILING, 1, 5, 2, "No space left")]
    board.clear(AlarmKind.STORE_FAILING)
    assert found(segment) == []
    board.raise_(AlarmKind.STORE_FAILING, "again", 20)
    assert found(segment) == [(AlarmKind.STORE_FAILING, 1, 20, 1, "again")]


def test_rows_of_processes_and_kinds_do_not_touch_each_other(make_segment: MakeSegment) -> None:
    segment = make_segment(Layout(SHARDS, 4096))
    full = "x" * at.A_TEXT_BYTES
    for process in range(SHARDS + 1):  # the supervisor is the last
        for kind in AlarmKind:
            AlarmBoard(segment, process).raise_(kind, full, 1 + process)
    assert found(segment) == [
        (kind, process, 1 + process, 1, full) for process in range(SHARDS + 1) for kind in AlarmKind
    ]
    AlarmBoard(segment, 0).clear_all()
    assert {alarm.process for alarm in raised(segment)} == {1, 2, 3}


def test_a_text_is_cut_to_its_row_and_may_be_cut_inside_a_character(
    make_segment: MakeSegment,
) -> None:
    segment = make_segment(Layout(1, 4096))
    AlarmBoard(segment, 0).raise_(AlarmKind.LEDGER_FAILING, "a" + "é" * at.A_TEXT_BYTES, 1)
    (alarm,) = raised(segment)
    assert alarm.text.startswith("aéé") and len(alarm.text.encode()) <= at.A_TEXT_BYTES + 2


def test_a_row_whose_writer_died_while_writing_is_still_shown(make_segment: MakeSegment) -> None:
    segment = make_segment(Layout(1, 4096))
    board = AlarmBoard(segment, 0)
    board.raise_(AlarmKind.STORE_FAILING, "first", 1)
    row = segment.layout.alarm(0, AlarmKind.STORE_FAILING)
    segment.words[row + at.A_VERSION] |= 1  # killed between the two stores of the version
    assert found(segment) == [(AlarmKind.STORE_FAILING, 0, 1, 1, "first")]
    AlarmBoard(segment, 0).raise_(AlarmKind.STORE_FAILING, "second", 2)
    assert segment.words[row + at.A_VERSION] % 2 == 0
    assert found(segment) == [(AlarmKind.STORE_FAILING, 0, 1, 2, "second")]


def test_there_is_a_row_for_every_kind() -> None:
    assert max(AlarmKind) < at.ALARM_KINDS_MAX
