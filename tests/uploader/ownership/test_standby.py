"""A standby under random looks, answers, stops and failures: when it takes, and what it knows then.

The model keeps true times by itself: when the owner last gave a sign, and when the standby could
see the store.
"""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.long import examples
from uploader.ownership.ownership import ANSWER_NS, SECOND_NS, TAKE_OVER_NS
from uploader.ownership.standby import (
    EAGER_LOOK_NS,
    HELLO_NS,
    KNOWN_ANSWER_NS,
    LOOK_GAP_NS,
    LOOK_NS,
    QUESTION_NS,
    SEALED_NS,
    LogEnd,
    Standby,
    StandbyAction,
)

MS = SECOND_NS // 1000
ENDS = [LogEnd.OWNED, LogEnd.OWNED, LogEnd.OWNED, LogEnd.SEALED, LogEnd.SEALED_HERE,
        LogEnd.RELEASED]  # fmt: skip
SEALS = {LogEnd.SEALED, LogEnd.SEALED_HERE}


class StandbyMachine(RuleBasedStateMachine):
    """A standby and the store that it looks at."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 10**12
        self.standby = Standby()
        self.end = LogEnd.EMPTY
        self.new: list[LogEnd] = []  # entries that it has not found yet
        self.found_ns = 0  # when it found the last one
        self.signs_ns = 0  # when it last learned of a sign of life
        self.blind_ns = self.now_ns  # when it last could not see the store for long
        self.seen_ns = self.now_ns
        self.question_ns: int | None = None
        self.answer = False

    @rule(passed_ns=st.sampled_from([1, 10 * MS, SECOND_NS, LOOK_NS, LOOK_GAP_NS + 1, TAKE_OVER_NS,
                                     SEALED_NS]))  # fmt: skip
    def passes(self, passed_ns: int) -> None:
        self.now_ns += passed_ns

    @rule(end=st.sampled_from(ENDS))
    def an_entry_is_written(self, end: LogEnd) -> None:
        self.new.append(end)

    @precondition(lambda self: self.question_ns is not None)
    @rule()
    def the_owner_answers(self) -> None:
        self.answer = True

    @rule(slow_ns=st.sampled_from([MS, MS, MS, SECOND_NS, LOOK_GAP_NS + 1]),
          fails=st.sampled_from([False, False, False, True]), hands_over=st.booleans())  # fmt: skip
    def steps(self, slow_ns: int, fails: bool, hands_over: bool) -> None:
        """Follows one instruction; a call of the store takes ``slow_ns``."""
        self.step(slow_ns, fails=fails, hands_over=hands_over)

    @rule(count=st.integers(1, 60))
    def waits_quietly(self, count: int) -> None:
        for _ in range(count):
            step = self.standby.decide(self.now_ns)
            if step.do is StandbyAction.WAIT:
                self.now_ns = step.at_ns
            self.step(MS, fails=False, hands_over=False)

    def step(self, slow_ns: int, *, fails: bool, hands_over: bool) -> None:
        standby, began_ns = self.standby, self.now_ns
        step = standby.decide(began_ns)
        if step.do is StandbyAction.WAIT:
            assert began_ns < step.at_ns <= began_ns + max(LOOK_NS, SECOND_NS)
            return
        if step.do is StandbyAction.TAKE:
            self.takes(began_ns)
            return
        self.now_ns += slow_ns
        if fails:
            standby.failed(self.now_ns)
            return
        if step.do is StandbyAction.SURVEY:
            is_new = bool(self.new)
            if is_new:
                self.question_ns = None  # who knows whose it is
                self.end, self.found_ns, self.new = self.new[-1], self.now_ns, []
            self.signs_ns = self.now_ns
            standby.surveyed(self.end, self.now_ns, is_new=is_new)
            self.seen_ns = self.now_ns
        elif step.do is StandbyAction.LOOK and self.new:
            was, self.end = self.end, self.new.pop(0)
            # After a seal comes another owner, or another start's seal.
            is_first = was is not LogEnd.OWNED and self.end not in SEALS
            if not {was, self.end} <= SEALS:
                self.found_ns = self.signs_ns = self.seen_ns = self.now_ns
            if is_first:
                self.question_ns = None  # nobody has asked the new owner
            standby.found(self.end, self.now_ns, is_first=is_first, hands_over=hands_over)
        elif step.do is StandbyAction.LOOK:
            apart_ns = max(began_ns - self.seen_ns, slow_ns)
            if apart_ns > LOOK_GAP_NS:
                self.blind_ns = self.now_ns
            self.seen_ns = began_ns
            standby.empty(began_ns, self.now_ns)
            assert standby.blind_ns == (apart_ns if apart_ns > LOOK_GAP_NS else 0)
        elif step.do is StandbyAction.ASK:
            assert self.end is LogEnd.OWNED and self.question_ns is None
            self.question_ns, self.answer = self.now_ns, False
            standby.asked(self.now_ns, is_ours=True)
        elif step.do is StandbyAction.READ_QUESTION:
            assert self.question_ns is not None
            if self.answer:
                self.question_ns = None
                self.signs_ns = self.seen_ns = self.now_ns  # an answer shows the store too
                standby.answered(self.now_ns)
            else:
                standby.stands()

    def takes(self, now_ns: int) -> None:
        """What must be true whenever it takes."""
        assert now_ns - self.seen_ns <= LOOK_GAP_NS, "it sees the store"
        if self.end is LogEnd.OWNED:
            for since_ns in (self.found_ns, self.signs_ns, self.blind_ns):
                assert now_ns - since_ns >= TAKE_OVER_NS
            assert self.question_ns is not None
            assert now_ns - self.question_ns >= KNOWN_ANSWER_NS
        elif self.end is LogEnd.SEALED:
            assert now_ns - max(self.found_ns, self.blind_ns) >= SEALED_NS
        elif self.end is LogEnd.SEALED_HERE:
            assert now_ns - max(self.found_ns, self.blind_ns) >= TAKE_OVER_NS
        if self.new:
            self.standby.not_taken(now_ns)
            assert self.standby.decide(now_ns).do is StandbyAction.SURVEY

    @invariant()
    def it_agrees_with_itself(self) -> None:
        self.standby.check_invariants()


StandbyMachine.TestCase.settings = settings(
    max_examples=examples(300), stateful_step_count=60, deadline=None
)
TestStandby = StandbyMachine.TestCase


class Quiet:
    """A standby whose store answers immediately, and whose owner is as told."""

    def __init__(self, *, answers: bool = False, entry_every_ns: int = 0) -> None:
        self.now_ns = 10**12
        self.standby = Standby()
        self.answers = answers
        self.entry_every_ns = entry_every_ns
        self.next_entry_ns = self.now_ns
        self.counts = dict.fromkeys(StandbyAction, 0)
        self.question_ns: int | None = None

    def run(self, for_ns: int) -> int | None:
        """Until it takes, or so long; when it takes, since the begin of this run."""
        began_ns = self.now_ns
        standby = self.standby
        while self.now_ns < began_ns + for_ns:
            step = standby.decide(self.now_ns)
            self.counts[step.do] += 1
            if step.do is StandbyAction.WAIT:
                assert step.at_ns > self.now_ns
                self.now_ns = step.at_ns
            elif step.do is StandbyAction.TAKE:
                return self.now_ns - began_ns
            elif step.do is StandbyAction.SURVEY:
                standby.surveyed(LogEnd.OWNED, self.now_ns, is_new=True)
            elif step.do is StandbyAction.LOOK:
                if self.entry_every_ns and self.now_ns >= self.next_entry_ns:
                    self.next_entry_ns = self.now_ns + self.entry_every_ns
                    standby.found(LogEnd.OWNED, self.now_ns, is_first=False, hands_over=False)
                else:
                    standby.empty(self.now_ns, self.now_ns)
            elif step.do is StandbyAction.ASK:
                self.question_ns = self.now_ns
                standby.asked(self.now_ns, is_ours=True)
            elif self.answers and self.question_ns is not None:
                self.question_ns = None
                standby.answered(self.now_ns)
            else:
                standby.stands()
        return None


DAY_NS = 24 * 3600 * SECOND_NS


def test_an_idle_owner_that_answers_is_left_alone_for_a_known_price() -> None:
    quiet = Quiet(answers=True)
    assert quiet.run(DAY_NS) is None
    asked, looked = quiet.counts[StandbyAction.ASK], quiet.counts[StandbyAction.LOOK]
    # The question of 7 s is read with the next look.
    assert 0.95 < asked * (QUESTION_NS + 3 * SECOND_NS) / DAY_NS < 1.05, asked
    assert 0.95 < looked * LOOK_NS / DAY_NS < 1.05, looked


def test_a_busy_owner_is_only_told_of_its_standby() -> None:
    quiet = Quiet(answers=True, entry_every_ns=5 * SECOND_NS)
    assert quiet.run(DAY_NS) is None
    assert quiet.counts[StandbyAction.ASK] <= DAY_NS / HELLO_NS + 1


def test_a_known_owner_that_falls_silent_is_taken_over_after_the_fences_time() -> None:
    for busy in (0, 5 * SECOND_NS):
        quiet = Quiet(answers=True, entry_every_ns=busy)
        assert quiet.run(300 * SECOND_NS) is None
        quiet.answers, quiet.entry_every_ns = False, 0
        took_ns = quiet.run(DAY_NS)
        assert took_ns is not None and took_ns <= TAKE_OVER_NS + LOOK_NS, took_ns


def test_an_owner_that_never_answered_is_given_as_long_as_after_a_boot() -> None:
    took_ns = Quiet().run(DAY_NS)
    assert took_ns is not None and ANSWER_NS <= took_ns <= ANSWER_NS + 2 * LOOK_NS


def test_a_free_or_released_prefix_is_taken_immediately() -> None:
    for end in (LogEnd.EMPTY, LogEnd.RELEASED):
        standby = Standby()
        assert standby.decide(10**12).do is StandbyAction.SURVEY
        standby.surveyed(end, 10**12, is_new=end is LogEnd.RELEASED)
        assert standby.decide(10**12).do is StandbyAction.TAKE


def test_a_standby_that_was_told_of_a_handover_looks_often_and_asks() -> None:
    quiet = Quiet(answers=True)
    quiet.run(20 * SECOND_NS)
    now_ns = quiet.now_ns
    quiet.standby.found(LogEnd.OWNED, now_ns, is_first=False, hands_over=True)
    quiet.standby.empty(now_ns, now_ns)
    assert quiet.standby.decide(now_ns).do is StandbyAction.ASK
    quiet.standby.asked(now_ns, is_ours=True)
    quiet.standby.stands()
    assert quiet.standby.decide(now_ns).at_ns - now_ns <= EAGER_LOOK_NS


def does(standby: Standby, slow_ns: int, now_ns: int) -> tuple[StandbyAction, int]:
    """One instruction, with a store that takes so long and an owner that is silent. Returns what it
    was, and when it is done."""
    step = standby.decide(now_ns)
    ended_ns = max(now_ns + slow_ns, step.at_ns if step.do is StandbyAction.WAIT else 0)
    if step.do is StandbyAction.ASK:
        standby.asked(ended_ns, is_ours=True)
    elif step.do is StandbyAction.READ_QUESTION:
        standby.stands()
    elif step.do is StandbyAction.LOOK:
        standby.empty(now_ns, ended_ns)
    return step.do, ended_ns


@pytest.mark.parametrize("slow_ns", [MS, EAGER_LOOK_NS, 3 * EAGER_LOOK_NS, LOOK_NS // 2, LOOK_NS])
def test_a_handover_ends_however_long_a_look_takes(slow_ns: int) -> None:
    standby, now_ns = Standby(), 10**12
    standby.surveyed(LogEnd.OWNED, now_ns, is_new=True)
    standby.found(LogEnd.OWNED, now_ns, is_first=False, hands_over=True)
    done = []
    while StandbyAction.ASK not in done:
        did, now_ns = does(standby, slow_ns, now_ns)
        done.append(did)
        assert len(done) < 5, done
    standby.found(LogEnd.RELEASED, now_ns, is_first=False, hands_over=False)
    while StandbyAction.TAKE not in done:
        did, now_ns = does(standby, slow_ns, now_ns)
        done.append(did)
        assert len(done) < 10, done


def test_an_owner_that_is_dead_is_found_dead_by_a_store_that_is_slow() -> None:
    standby, now_ns = Standby(), 10**12
    standby.surveyed(LogEnd.OWNED, now_ns, is_new=True)
    done = []
    while StandbyAction.TAKE not in done:
        did, now_ns = does(standby, LOOK_NS, now_ns)
        done.append(did)
        assert len(done) < 200, done[-20:]


def test_starts_that_seal_and_fail_again_and_again_hold_no_standby_up() -> None:
    standby, now_ns = Standby(), 10**12
    standby.surveyed(LogEnd.OWNED, now_ns, is_new=True)
    sealed_ns = next_seal_ns = now_ns + 25 * SECOND_NS
    while (step := standby.decide(now_ns)).do is not StandbyAction.TAKE:
        if step.do is StandbyAction.LOOK and now_ns >= next_seal_ns:
            next_seal_ns += 30 * SECOND_NS
            standby.found(LogEnd.SEALED, now_ns, is_first=False, hands_over=False)
        else:
            _, now_ns = does(standby, MS, now_ns)
        assert now_ns - sealed_ns <= SEALED_NS + 2 * LOOK_NS, "it is never taken"
    assert now_ns - sealed_ns >= SEALED_NS


def test_a_take_over_that_fails_is_tried_again_after_a_pause() -> None:
    standby, now_ns = Standby(), 10**12
    standby.surveyed(LogEnd.RELEASED, now_ns, is_new=True)
    tries = 0
    for _ in range(1_000):  # 10 s
        if standby.decide(now_ns).do is StandbyAction.TAKE:
            tries += 1
            standby.failed(now_ns)
        now_ns += 10 * MS
    assert 1 < tries <= 10
