"""The clock of ages: what it sees of both clocks, and what it keeps of them."""

from __future__ import annotations

from contextlib import closing, nullcontext
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger import epochs, notes, topics
from ledger.ages import (
    NOTE,
    NOTE_MS,
    STEP_MS,
    Aged,
    Clocks,
    age_ms,
    aged_of,
    is_due,
    note_of,
    of_wall_time,
)
from ledger.ledger import Ledger
from ledger.log import recovery
from ledger.types import TopicConfig
from tests.ledger.requests import Request, draft_of, lease

HOUR_MS = 3_600_000
WALL_MS = 1_000 * HOUR_MS


def at(boot_ms: int, off_ms: int = 0, boot_id: str = "b") -> Clocks:
    """A moment of a machine whose wall clock is off by so much."""
    return Clocks(boot_id, WALL_MS + boot_ms + off_ms, boot_ms)


def noted(now: Clocks, aged: Aged | None = None) -> Aged:
    return Aged(now.boot_id, now.wall_ms, now.boot_ms, age_ms(aged, now))


def test_it_begins_as_the_wall_clock() -> None:
    assert age_ms(None, at(5)) == WALL_MS + 5


@pytest.mark.parametrize("off_ms", [120_000, HOUR_MS, 400 * 24 * HOUR_MS, -120_000, -HOUR_MS])
def test_within_a_boot_a_step_of_the_wall_clock_is_not_seen(off_ms: int) -> None:
    aged = noted(at(0))
    assert age_ms(aged, at(1_000, off_ms)) == WALL_MS + 1_000
    stepped = noted(at(1_000, off_ms), aged)
    assert age_ms(stepped, at(2_000, off_ms)) == age_ms(stepped, at(2_000)) == WALL_MS + 2_000


def test_across_a_boot_it_goes_on_by_the_wall_clock_and_never_back() -> None:
    stepped = noted(at(1_000, HOUR_MS), noted(at(0)))
    off = Clocks("next", stepped.wall_ms + 30_000, 7)
    assert age_ms(stepped, off) == WALL_MS + 31_000
    assert age_ms(stepped, Clocks("next", stepped.wall_ms - HOUR_MS, 7)) == WALL_MS + 1_000


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(-(10**7), 10**7), st.booleans())))
def test_it_never_goes_back_whatever_the_clocks_do(moves: list[tuple[int, int, bool]]) -> None:
    boots, wall_ms, boot_ms = 0, WALL_MS, 0
    aged = noted(Clocks("0", wall_ms, boot_ms))
    for passed_ms, step_ms, reboots in moves:
        wall_ms, boot_ms = wall_ms + passed_ms + step_ms, boot_ms + passed_ms
        if reboots:
            boots, boot_ms = boots + 1, 0
        now = Clocks(str(boots), wall_ms, boot_ms)
        assert age_ms(aged, now) >= aged.age_ms
        if is_due(aged, now):
            aged = noted(now, aged)


def test_it_is_noted_after_a_boot_after_a_step_and_now_and_then() -> None:
    aged = noted(at(0))
    assert is_due(None, at(0)) and is_due(aged, at(0, boot_id="next"))
    assert is_due(aged, at(10, STEP_MS + 1)) and is_due(aged, at(10, -STEP_MS - 1))
    assert is_due(aged, at(NOTE_MS)) and not is_due(aged, at(NOTE_MS - 1, STEP_MS))


def test_a_note_is_read_back_and_one_that_cannot_be_read_is_none() -> None:
    aged = noted(at(5))
    assert aged_of(note_of(aged)) == aged
    assert aged_of(None) is aged_of("") is aged_of("{") is None


def test_a_wall_time_near_the_note_becomes_an_age_time() -> None:
    stepped = noted(at(1_000, HOUR_MS), noted(at(0)))
    assert of_wall_time(stepped, stepped.wall_ms - 10) == stepped.age_ms - 10
    assert of_wall_time(None, 7) == 7


def test_an_unlisted_repeat_is_known_though_the_wall_clock_stepped_before_it(
    tmp_path: Path,
) -> None:
    with closing(Ledger(tmp_path / "ledger.db", nullcontext())) as ledger:
        ledger.write(epochs.begin_incarnation, 1)
        request = Request(ledger.write(topics.create, "a", TopicConfig(), 1)[0].topic_id, key="k")
        aged = noted(at(1_000, HOUR_MS), noted(at(0)))
        ledger.write(notes.put, NOTE, note_of(aged))
        ledger.commit(draft_of(lease(1), [request]), aged.age_ms, lambda _: None)
        repeat = msgspec.structs.replace(
            draft_of(lease(2), [request]), created_ms=aged.wall_ms + 10_000
        )
        found: list[object] = []
        ledger.write(recovery.take, [repeat], found.append, ledger.dedupe_limits)
        assert "deduped" in str(found)
