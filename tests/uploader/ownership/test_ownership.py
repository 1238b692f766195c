"""Ownership under random fates of its entries: how often it sends, what its age counts from."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shards import layout as at
from shards.layout import Layout
from tests.long import examples
from uploader.ownership.ownership import (
    ANSWER_NS,
    ASK_NS,
    GAP_NS,
    LISTEN_NS,
    OWNED_NS,
    PERIOD_NS,
    RETRY_NS,
    SECOND_NS,
    STANDBY_LISTEN_NS,
    TAKE_OVER_NS,
    Moment,
    OwnerAction,
    Ownership,
    OwnerStep,
    may_commit,
    sent_of,
    should_ask,
    tell_sent,
)


def moment(boot_ns: int, gap_ns: int = 0) -> Moment:
    """Both clocks of a machine whose wall clock was set, or stood still, by so much."""
    return Moment(boot_ns, 1_700_000_000 * SECOND_NS + boot_ns + gap_ns)


class OwnershipMachine(RuleBasedStateMachine):
    """Keeps by itself when each entry was sent, and when it must have got into the log."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 10**12
        self.ownership = Ownership()
        self.sendings: list[int] = []  # of the number in flight or unsure
        self.in_flight = False
        self.last_put_ns: int | None = None
        self.last_ns: int | None = None  # when an attempt began, or when it failed
        self.numbers: list[int] = []

    @rule(passed_ns=st.sampled_from([1, RETRY_NS // 2, RETRY_NS, PERIOD_NS // 2, PERIOD_NS,
                                     OWNED_NS]))  # fmt: skip
    def wait(self, passed_ns: int) -> None:
        self.now_ns += passed_ns

    @rule(news=st.booleans(), again_ns=st.sampled_from([None, LISTEN_NS, STANDBY_LISTEN_NS, 10**8]))
    def look(self, news: bool, again_ns: int | None) -> None:
        step = self.ownership.decide(self.now_ns, news)
        if self.ownership.superseded:
            assert step == OwnerStep(OwnerAction.STOP)
            return
        if step.do is OwnerAction.WAIT:
            assert step.at_ns > self.now_ns
            return
        if step.do is OwnerAction.LISTEN:
            if news:  # only between two entries, or two attempts of one
                waits_ns = RETRY_NS if self.sendings else PERIOD_NS
                assert self.now_ns - (self.last_ns or 0) < waits_ns
            if again_ns is None:
                self.ownership.not_listened(self.now_ns)
            else:
                self.ownership.listened(self.now_ns, again_ns)
            return
        assert news, "an idle owner puts nothing"
        assert not self.in_flight
        if self.sendings:
            assert self.last_put_ns is not None and self.now_ns - self.last_put_ns >= RETRY_NS
        elif self.numbers:
            assert self.now_ns - self.ownership.sent.boot_ns >= PERIOD_NS
        self.ownership.putting(moment(self.now_ns))
        self.sendings.append(self.now_ns)
        self.last_put_ns = self.last_ns = self.now_ns
        self.in_flight = True

    @precondition(lambda self: self.in_flight)
    @rule()
    def accepted(self) -> None:
        self.ownership.accepted()
        assert self.ownership.sent.boot_ns == self.sendings[0]
        self._stands()

    @precondition(lambda self: self.in_flight)
    @rule()
    def failed(self) -> None:
        sent_ns = self.ownership.sent.boot_ns
        self.ownership.failed(self.now_ns)
        # What is not known to be accepted makes nobody younger.
        assert self.ownership.sent.boot_ns == sent_ns
        self.last_ns = self.now_ns
        self.in_flight = False

    @precondition(lambda self: self.in_flight)
    @rule()
    def taken_by_an_earlier_sending_of_ours(self) -> None:
        self.ownership.taken(is_ours=True)
        assert self.ownership.sent.boot_ns == self.sendings[0]
        self._stands()

    @precondition(lambda self: self.in_flight)
    @rule()
    def taken_by_another(self) -> None:
        self.ownership.taken(is_ours=False)
        assert self.ownership.superseded
        self.in_flight = False

    def _stands(self) -> None:
        self.numbers.append(self.ownership.number)
        self.sendings.clear()
        self.in_flight = False

    @invariant()
    def it_agrees_with_itself(self) -> None:
        self.ownership.check_invariants()
        assert self.numbers == list(range(2, len(self.numbers) + 2))


TestOwnership = OwnershipMachine.TestCase
TestOwnership.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)


def test_nothing_is_sent_without_news_and_the_first_is_sent_immediately() -> None:
    ownership = Ownership()
    assert ownership.decide(7, news=False).do is OwnerAction.LISTEN
    ownership.listened(7)
    assert ownership.decide(8, news=False).do is OwnerAction.WAIT
    assert ownership.decide(7, news=True) == OwnerStep(OwnerAction.PUT)


def test_an_entry_after_an_idle_time_is_sent_immediately_and_the_next_waits_for_the_period() -> (
    None
):
    ownership = Ownership()
    ownership.putting(moment(0))
    ownership.accepted()
    assert ownership.decide(SECOND_NS, news=True) == OwnerStep(OwnerAction.WAIT, PERIOD_NS)
    assert ownership.decide(PERIOD_NS, news=True) == OwnerStep(OwnerAction.PUT)
    assert ownership.decide(100 * PERIOD_NS, news=True) == OwnerStep(OwnerAction.PUT)


def test_an_owner_without_news_puts_nothing_and_looks_whether_a_start_asks() -> None:
    ownership = Ownership()
    ownership.putting(moment(0))
    ownership.accepted()
    assert ownership.decide(LISTEN_NS - 1, news=False) == OwnerStep(OwnerAction.WAIT, LISTEN_NS)
    assert ownership.decide(LISTEN_NS, news=False) == OwnerStep(OwnerAction.LISTEN)
    ownership.listened(LISTEN_NS + 1)
    assert ownership.decide(LISTEN_NS + 2, news=False) == OwnerStep(
        OwnerAction.WAIT, 2 * LISTEN_NS + 1
    )
    assert ownership.decide(LISTEN_NS + 2, news=True) == OwnerStep(OwnerAction.PUT), "the answer"
    # Also with a GET and a PUT that fail after 5 s each the answer comes in time.
    assert LISTEN_NS + PERIOD_NS + PERIOD_NS + RETRY_NS + PERIOD_NS < ANSWER_NS


def test_a_repeated_entry_counts_from_when_it_was_first_sent_even_if_its_number_is_free() -> None:
    # A new owner sealed after the entry that was kept, and removed it after an image.
    ownership = Ownership()
    ownership.putting(moment(0))
    ownership.failed(RETRY_NS)
    late_ns = 3600 * SECOND_NS
    ownership.putting(moment(late_ns))
    ownership.accepted()
    assert not may_commit(moment(late_ns), ownership.sent)
    # The next number, which the seal has, is tried immediately.
    assert ownership.decide(late_ns, news=True) == OwnerStep(OwnerAction.PUT)


@pytest.mark.parametrize(
    ("age_ns", "commit", "ask"),
    [
        (0, True, False),
        (ASK_NS, True, False),
        (ASK_NS + 1, True, True),
        (OWNED_NS, True, True),
        (OWNED_NS + 1, False, True),
    ],
)
def test_an_upload_asks_before_its_commit_would_have_to_wait(
    age_ns: int, commit: bool, ask: bool
) -> None:
    sent_ns = 5 * 10**9
    assert may_commit(moment(sent_ns + age_ns), moment(sent_ns)) is commit
    assert should_ask(moment(sent_ns + age_ns), moment(sent_ns)) is ask


@pytest.mark.parametrize("gap_ns", [30 * SECOND_NS, -30 * SECOND_NS, GAP_NS + 1, -GAP_NS - 1])
def test_after_a_gap_between_the_clocks_nothing_is_committed_before_an_entry(gap_ns: int) -> None:
    """A pause of the machine, a resumed snapshot, or a clock that was set: nobody knows which."""
    ownership = Ownership()
    ownership.putting(moment(0))
    ownership.accepted()
    now = moment(SECOND_NS, gap_ns)
    assert not may_commit(now, ownership.sent) and should_ask(now, ownership.sent)
    ownership.putting(moment(PERIOD_NS, gap_ns))
    assert not may_commit(now, ownership.sent), "it is sent, and not accepted"
    ownership.accepted()
    later = moment(PERIOD_NS + OWNED_NS, gap_ns)
    assert may_commit(later, ownership.sent)


def test_an_entry_that_was_sent_before_a_gap_confirms_nothing_after_it() -> None:
    ownership = Ownership()
    ownership.putting(moment(0))
    ownership.accepted()
    ownership.putting(moment(PERIOD_NS))
    ownership.accepted()  # its answer came after the gap
    assert not may_commit(moment(PERIOD_NS + SECOND_NS, 60 * SECOND_NS), ownership.sent)


@pytest.mark.parametrize("gap_ns", [0, 1_000_000_000, -1_000_000_000, GAP_NS, -GAP_NS])
def test_a_leap_second_asks_for_no_entry(gap_ns: int) -> None:
    assert may_commit(moment(SECOND_NS, gap_ns), moment(0))
    assert not should_ask(moment(SECOND_NS, gap_ns), moment(0))


def test_a_gap_too_small_to_be_seen_leaves_a_new_owner_time() -> None:
    assert (OWNED_NS + GAP_NS) / 0.99 < TAKE_OVER_NS / 1.01


def test_a_machine_that_starts_in_1970_can_store_its_clocks() -> None:
    words = [0] * Layout(1, 4096).words
    early = Moment(20 * SECOND_NS, 5 * SECOND_NS)
    tell_sent(words, early)
    assert sent_of(words) == early and min(words) >= 0


def test_a_moment_read_during_a_write_allows_no_more_than_the_old_or_the_new_one() -> None:
    words = [0] * Layout(1, 4096).words
    old, new = moment(0), moment(20 * SECOND_NS, 60 * SECOND_NS)
    tell_sent(words, old)
    assert sent_of(words) == old
    half = list(words)
    tell_sent(words, new)
    half[at.G_OWNED_CLOCKS_NS] = words[at.G_OWNED_CLOCKS_NS]  # the first store of the two
    for now in (moment(21 * SECOND_NS), moment(21 * SECOND_NS, 60 * SECOND_NS)):
        assert may_commit(now, sent_of(half)) <= may_commit(now, new)


def test_a_new_owner_waits_longer_than_an_old_one_commits_by_a_clock_one_percent_slow() -> None:
    # The old owner counts OWNED_NS on a slow clock, the new one waits on a fast one.
    assert OWNED_NS / 0.99 < TAKE_OVER_NS / 1.01
    assert ASK_NS < OWNED_NS and PERIOD_NS < ASK_NS
