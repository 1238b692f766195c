"""Decisions: when a group is due, what its members do, when it splits and merges."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from uploader.groups.upload_turn import (
    GRACE_NS_MIN,
    HYSTERESIS_NS_MIN,
    NEVER,
    BuddyView,
    GroupView,
    Policy,
    UploadAction,
    UploadDecision,
    decide,
    due_ns,
    merge_at_ns,
    wants_split,
)

MS = 1_000_000
TARGET = 4 << 20
WINDOW = 200 * MS
POLICY = Policy()

BASE = GroupView(
    me=0,
    leader=0,
    members=4,
    upload_turn=0,
    backlog_bytes=1000,
    oldest_arrival_ns=10_000 * MS,
    last_pull_ns=9_900 * MS,
    last_change_ns=0,
    window_ns=WINDOW,
    free_slots=4,
    can_split=True,
)


def view(**changes: int | bool) -> GroupView:
    return msgspec.structs.replace(BASE, **changes)


DUE = BASE.oldest_arrival_ns + WINDOW


@pytest.mark.parametrize(
    ("backlog", "last_pull_ms", "due_ms"),
    [
        (1, 9_900, 10_200),  # pulled 100 ms before it came: its own window
        (1, 9_801, 10_200),
        (1, 9_800, 10_000),  # idle for a whole window: immediately
        (1, 0, 10_000),
        (1, 10_050, 10_200),  # after a pull that did not take it
        (TARGET - 1, 9_900, 10_200),
        (TARGET, 9_900, 10_000),  # the size trigger
        (TARGET * 9, 10_050, 10_000),
    ],
)
def test_a_group_is_due_by_size_immediately_if_idle_or_a_window_after_its_oldest_request(
    backlog: int, last_pull_ms: int, due_ms: int
) -> None:
    seen = view(backlog_bytes=backlog, last_pull_ns=last_pull_ms * MS)
    assert due_ns(seen, POLICY) == due_ms * MS


@pytest.mark.parametrize(
    ("urgent_ms", "oldest_ms", "due_ms"),
    [
        (10_050, 10_000, 10_050),  # before the window is over
        (10_300, 10_000, 10_200),  # after it
        (10_050, 9_000, 9_200),
    ],
)
def test_an_urgent_request_makes_its_group_due_before_the_window_is_over(
    urgent_ms: int, oldest_ms: int, due_ms: int
) -> None:
    seen = view(urgent_ns=urgent_ms * MS, oldest_arrival_ns=oldest_ms * MS)
    assert due_ns(seen, POLICY) == due_ms * MS


@pytest.mark.parametrize(
    ("oldest_ms", "waits_ms", "last_pull_ms", "due_ms"),
    [
        (None, 10_000, 9_900, 10_200),
        (None, 10_000, 0, 10_200),  # idle: it waits all the same
        (10_150, 10_000, 0, 10_150),  # a request that does not wait takes it along
        (10_150, 10_000, 9_949, 10_150),
        (10_150, 10_000, 9_951, 10_200),  # not idle: a window after the oldest of all
        (10_000, 10_100, 9_900, 10_200),
        (10_300, 10_000, 0, 10_200),
    ],
)
def test_a_request_that_waits_makes_no_group_due_before_it_has_waited_a_window(
    oldest_ms: int | None, waits_ms: int, last_pull_ms: int, due_ms: int
) -> None:
    seen = view(
        oldest_arrival_ns=NEVER if oldest_ms is None else oldest_ms * MS,
        oldest_waits_ns=waits_ms * MS,
        last_pull_ns=last_pull_ms * MS,
    )
    assert due_ns(seen, POLICY) == due_ms * MS
    full = msgspec.structs.replace(seen, backlog_bytes=TARGET)
    assert due_ns(full, POLICY) == min(seen.oldest_arrival_ns, seen.oldest_waits_ns)


@pytest.mark.parametrize(
    ("changes", "now_ns", "wanted"),
    [
        ({"backlog_bytes": 0}, DUE, UploadDecision(UploadAction.IDLE)),
        (
            {"backlog_bytes": 0, "upload_turn": 3},
            DUE + WINDOW * 9,
            UploadDecision(UploadAction.IDLE),
        ),
        # It is my turn.
        ({}, DUE - 1, UploadDecision(UploadAction.WAIT, DUE)),
        ({}, DUE, UploadDecision(UploadAction.PULL)),
        ({"free_slots": 0}, DUE - 1, UploadDecision(UploadAction.WAIT, DUE)),
        ({"free_slots": 0}, DUE, UploadDecision(UploadAction.PASS_TURN)),
        ({"free_slots": 1}, DUE, UploadDecision(UploadAction.PULL)),
        ({"backlog_bytes": TARGET}, 10_000 * MS, UploadDecision(UploadAction.PULL)),
        ({"backlog_bytes": 8 * TARGET + 1}, DUE, UploadDecision(UploadAction.SPLIT)),
        (
            {"backlog_bytes": 8 * TARGET + 1, "free_slots": 0},
            DUE,
            UploadDecision(UploadAction.PASS_TURN),
        ),
        # It is another member's.
        ({"upload_turn": 2}, DUE - 1, UploadDecision(UploadAction.WAIT, DUE)),
        ({"upload_turn": 2}, DUE, UploadDecision(UploadAction.WAKE, DUE + WINDOW)),
        ({"upload_turn": 2}, DUE + WINDOW - 1, UploadDecision(UploadAction.WAKE, DUE + WINDOW)),
        ({"upload_turn": 2}, DUE + WINDOW, UploadDecision(UploadAction.TAKE_TURN)),
        (
            {"upload_turn": 2, "free_slots": 0},
            DUE + WINDOW,
            UploadDecision(UploadAction.WAIT, DUE + WINDOW + GRACE_NS_MIN),
        ),
        # A pull since then: the holder is alive, what is left waits for the next.
        (
            {"upload_turn": 2, "last_pull_ns": DUE + 5 * MS},
            DUE + WINDOW,
            UploadDecision(UploadAction.WAKE, DUE + 5 * MS + WINDOW),
        ),
        (
            {"upload_turn": 2, "last_pull_ns": DUE + 5 * MS},
            DUE + 5 * MS + WINDOW,
            UploadDecision(UploadAction.TAKE_TURN),
        ),
        # Windows below the grace.
        (
            {"upload_turn": 2, "window_ns": MS, "last_pull_ns": 0},
            10_000 * MS,
            UploadDecision(UploadAction.WAKE, 10_000 * MS + GRACE_NS_MIN),
        ),
    ],
)
def test_what_a_member_does(
    changes: dict[str, int | bool], now_ns: int, wanted: UploadDecision
) -> None:
    assert decide(view(**changes), now_ns, POLICY) == wanted


views = st.builds(
    GroupView,
    me=st.integers(0, 3),
    leader=st.just(0),
    members=st.integers(1, 4),
    upload_turn=st.integers(0, 3),
    backlog_bytes=st.one_of(st.integers(0, 3), st.integers(TARGET - 1, 20 * TARGET)),
    oldest_arrival_ns=st.integers(0, 2000 * MS),
    last_pull_ns=st.integers(0, 2000 * MS),
    last_change_ns=st.integers(0, 2000 * MS),
    window_ns=st.integers(MS // 2, 1000 * MS),
    free_slots=st.integers(0, 4),
    can_split=st.booleans(),
    oldest_waits_ns=st.one_of(st.just(NEVER), st.integers(0, 2000 * MS)),
)


@given(seen=views, now_ns=st.integers(0, 6000 * MS))
def test_every_decision_with_pending_requests_acts_or_names_the_next_look(
    seen: GroupView, now_ns: int
) -> None:
    decision = decide(seen, now_ns, POLICY)
    if decision.do in (UploadAction.WAIT, UploadAction.WAKE):
        assert now_ns < decision.at_ns < NEVER
    if decision.do is UploadAction.IDLE:
        assert not seen.backlog_bytes
    if decision.do in (UploadAction.PULL, UploadAction.SPLIT, UploadAction.TAKE_TURN):
        assert seen.free_slots
        assert now_ns >= due_ns(seen, POLICY)
        assert (seen.upload_turn == seen.me) == (decision.do is not UploadAction.TAKE_TURN)


@given(seen=views)
def test_a_stalled_turn_holder_is_skipped_within_a_window_and_a_grace_of_being_due(
    seen: GroupView,
) -> None:
    seen = msgspec.structs.replace(seen, me=1, upload_turn=0, free_slots=1, backlog_bytes=1)
    last_sign_ns = max(due_ns(seen, POLICY), seen.last_pull_ns)
    at_ns = last_sign_ns + max(seen.window_ns, GRACE_NS_MIN)
    assert decide(seen, at_ns, POLICY) == UploadDecision(UploadAction.TAKE_TURN)
    assert decide(seen, at_ns - 1, POLICY).do is not UploadAction.TAKE_TURN


@pytest.mark.parametrize("members", [2, 3, 4, 8])
def test_a_group_splits_above_two_targets_per_member_and_not_at_them(members: int) -> None:
    at_bytes = 2 * TARGET * members
    for backlog, wanted in ((at_bytes, False), (at_bytes + 1, True)):
        seen = view(backlog_bytes=backlog, members=members)
        assert wants_split(seen, DUE, POLICY) is wanted


def test_only_the_leader_splits_on_its_own_turn_where_both_halves_have_a_shard() -> None:
    full = 8 * TARGET + 1
    assert decide(view(backlog_bytes=full), DUE, POLICY).do is UploadAction.SPLIT
    assert (
        decide(view(backlog_bytes=full, me=1, upload_turn=1), DUE, POLICY).do is UploadAction.PULL
    )
    arrived_ns = BASE.oldest_arrival_ns
    assert (
        decide(view(backlog_bytes=full, upload_turn=1), arrived_ns, POLICY).do is UploadAction.WAKE
    )
    # The leader that takes a stalled holder's turn only pulls.
    assert (
        decide(view(backlog_bytes=full, upload_turn=1), DUE + 2 * WINDOW, POLICY).do
        is UploadAction.TAKE_TURN
    )
    assert decide(view(backlog_bytes=full, can_split=False), DUE, POLICY).do is UploadAction.PULL


@pytest.mark.parametrize(
    ("window_ns", "hysteresis_ns"),
    [(200 * MS, 400 * MS), (1000 * MS, 2000 * MS), (50 * MS, 100 * MS), (MS, HYSTERESIS_NS_MIN)],
)
def test_two_changes_of_a_group_are_at_least_two_windows_apart(
    window_ns: int, hysteresis_ns: int
) -> None:
    assert POLICY.hysteresis_ns(window_ns) == hysteresis_ns
    changed_ns = 20_000 * MS
    seen = view(backlog_bytes=8 * TARGET + 1, window_ns=window_ns, last_change_ns=changed_ns)
    assert not wants_split(seen, changed_ns + hysteresis_ns - 1, POLICY)
    assert wants_split(seen, changed_ns + hysteresis_ns, POLICY)
    for low, high in ((changed_ns, 0), (0, changed_ns)):
        views_ = BuddyView(0, 0, low), BuddyView(0, 0, high)
        assert merge_at_ns(*views_, window_ns, POLICY) == changed_ns + hysteresis_ns


@pytest.mark.parametrize(
    ("low", "high", "merges_at"),
    [
        (BuddyView(0, 0, 0), BuddyView(0, 0, 0), 400 * MS),
        # A pull that found a whole object, in either one: not empty for the hysteresis.
        (BuddyView(0, 1000 * MS, 0), BuddyView(0, 0, 0), 1400 * MS),
        (BuddyView(0, 0, 0), BuddyView(0, 1000 * MS, 0), 1400 * MS),
        (BuddyView(0, 1000 * MS, 1300 * MS), BuddyView(0, 900 * MS, 0), 1700 * MS),
        # What goes out by age leaves a group empty.
        (BuddyView(TARGET - 1, 0, 0), BuddyView(TARGET - 1, 0, 0), 400 * MS),
        # A whole object is pending now.
        (BuddyView(TARGET, 0, 0), BuddyView(0, 0, 0), NEVER),
        (BuddyView(0, 0, 0), BuddyView(TARGET, 0, 0), NEVER),
    ],
)
def test_buddies_merge_when_both_were_empty_for_the_whole_hysteresis(
    low: BuddyView, high: BuddyView, merges_at: int
) -> None:
    assert merge_at_ns(low, high, WINDOW, POLICY) == merges_at
