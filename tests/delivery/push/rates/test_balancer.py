"""Shares of a subscription's rate: what is negotiated, and what is granted when."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from delivery.push.rates.balancer import BalancerSettings, ShareRow, Shares
from shards.boards.pushboard import SenderWords
from shards.boards.pushgrants import SlotGrants
from shards.layout import Layout
from shards.segment import Segment
from tests.long import examples

SECOND = 1_000_000_000
ROUND = 30 * SECOND
SETTINGS = BalancerSettings()


class Negotiation:
    """Shares whose senders obey immediately, and the time."""

    def __init__(self, targets: Mapping[int, float], rate: float | None = None) -> None:
        self.now = 0
        self.rate = sum(targets.values()) if rate is None else rate
        self.shares = Shares(SETTINGS, 0)
        self.uses: dict[int, float] = {}
        self.granted: dict[int, float] = {}
        self.are(*targets)
        self.shares.targets = dict(targets)
        self.settle()

    def are(self, *senders: int) -> None:
        """These are present."""
        self.uses = {sender: self.uses.get(sender, -1.0) for sender in senders}
        self.granted = {sender: self.granted.get(sender, 0.0) for sender in senders}
        self.settle()

    def settle(self) -> None:
        """Steps until nothing changes."""
        for _ in range(5):
            rows = {
                sender: ShareRow(granted, granted, self.uses[sender])
                for sender, granted in self.granted.items()
            }
            self.granted.update(self.shares.step(self.rate, rows, self.now))
            self.shares.check_invariants()
            self.now += SECOND // 10

    def round(self, *uses: float) -> list[float]:
        """A round in which the senders used this; their shares after it."""
        self.uses = dict(zip(self.granted, uses, strict=True))
        self.now = max(self.now, self.shares.due_ns)
        self.settle()
        assert self.granted == pytest.approx(self.shares.targets, abs=1e-5)
        return list(self.granted.values())

    def round_of(self, demand: Callable[[int], float]) -> list[float]:
        """A round in which each sends what it has to send, or what it may."""
        return self.round(
            *(min(1.0, demand(sender) / share) for sender, share in self.granted.items())
        )


@pytest.mark.parametrize(
    ("before", "uses", "after"),
    [
        ((50, 50), (1.0, 0.5), (66.667, 33.333)),
        ((70, 30), (1.0, 0.2), (90, 10)),
        ((50, 50), (0.95, 0.5), (66.667, 33.333)),  # busy is enough
        ((50, 50), (0.9, 0.5), (50, 50)),  # exactly 0.9 is not busy: nobody needs anything
        ((50, 50), (0.3, 0.1), (50, 50)),
        ((50, 50), (1.0, 1.0), (50, 50)),
        ((50, 50), (1.0, -1.0), (50, 50)),  # of a newcomer nothing is known
        ((98, 1, 1), (0.0, 1.0, 1.0), (1 / 60, 49.992, 49.992)),
        ((90, 10), (1.0, 1.0), (89.6, 10.4)),
        ((50.2, 49.8), (1.0, 1.0), (50.2, 49.8)),  # a change below 1 % is ignored
        ((52, 48), (1.0, 1.0), (51, 49)),
        ((95, 5), (1.0, 0.8), (95.556, 4.444)),  # but not what another gave for it
    ],
)
def test_what_is_not_used_goes_to_the_busy(
    before: tuple[float, ...], uses: tuple[float, ...], after: tuple[float, ...]
) -> None:
    assert Negotiation(dict(enumerate(before))).round(*uses) == pytest.approx(after, abs=1e-3)


def test_99_to_1_becomes_even_within_16_rounds_without_overshooting() -> None:
    negotiation = Negotiation({0: 99.0, 1: 1.0})
    shares = [negotiation.round(1.0, 1.0) for _ in range(16)]
    small = [share[1] for share in shares]
    assert small == sorted(small)
    assert 49 <= small[-1] <= 50
    assert negotiation.round(1.0, 1.0) == shares[-1]  # at rest


@pytest.mark.parametrize("senders", [2, 3, 8, 64])
def test_one_that_was_idle_gets_its_fair_share_of_any_number(senders: int) -> None:
    few = 1 / 60
    much = (100 - few) / (senders - 1)
    negotiation = Negotiation({0: few, **dict.fromkeys(range(1, senders), much)})
    for _ in range(16):
        shares = negotiation.round(*[1.0] * senders)
    assert shares[0] >= 0.97 * 100 / senders
    assert sum(shares) == pytest.approx(100, rel=1e-4)


@pytest.mark.parametrize(
    "demands",
    [
        (math.inf, math.inf),
        (math.inf, 25),
        (math.inf, 49),
        (math.inf, 0.5, math.inf),
        (60, 30),
        (60, 39.5),
        (10, math.inf, 20, 5, math.inf),
        (math.inf, *[2.0] * 20),
    ],
)
def test_at_rest_99_percent_of_what_can_be_used_is(demands: tuple[float, ...]) -> None:
    negotiation = Negotiation(dict.fromkeys(range(len(demands)), 100 / len(demands)))
    for _ in range(40):
        before = negotiation.round_of(demands.__getitem__)
    rest = [negotiation.round_of(demands.__getitem__) for _ in range(8)]
    used = [
        sum(min(share, demand) for share, demand in zip(shares, demands, strict=True))
        for shares in rest
    ]
    achievable = min(100.0, sum(demands))
    assert min(used) >= 0.99 * achievable, used
    for shares in rest:  # and nothing oscillates
        assert shares == pytest.approx(before, rel=0.03)


def test_a_newcomer_has_its_fair_share_immediately_and_the_others_keep_their_proportions() -> None:
    negotiation = Negotiation({0: 80.0, 1: 20.0})
    negotiation.are(0, 1, 2)
    assert list(negotiation.granted.values()) == pytest.approx([53.333, 13.333, 33.333], abs=1e-3)
    negotiation.are(0, 1)
    assert list(negotiation.granted.values()) == pytest.approx([80, 20], abs=1e-3)
    negotiation.are(1)
    assert negotiation.granted == {1: 100.0}


def test_another_rate_keeps_the_proportions() -> None:
    negotiation = Negotiation({0: 80.0, 1: 20.0})
    negotiation.rate = 10.0
    negotiation.settle()
    assert negotiation.granted == pytest.approx({0: 8.0, 1: 2.0})
    negotiation.rate = 1_000.0
    negotiation.settle()
    assert negotiation.granted == pytest.approx({0: 800.0, 1: 200.0})


def test_more_senders_than_the_minimum_allows_share_evenly() -> None:
    negotiation = Negotiation(dict.fromkeys(range(8), 1 / 480), rate=1 / 60)
    for uses in ((1.0, *[0.0] * 7), (0.5,) * 8):
        assert negotiation.round(*uses) == pytest.approx([1 / 480] * 8)


def test_after_a_join_a_negotiation_waits_until_uses_of_the_new_shares_are_known() -> None:
    negotiation = Negotiation({0: 50.0, 1: 50.0})
    negotiation.now = negotiation.shares.due_ns - SECOND
    negotiation.uses = {0: 1.0, 1: 0.0}
    negotiation.are(0, 1, 2)
    negotiation.now += 5 * SECOND
    negotiation.settle()
    assert list(negotiation.granted.values()) == pytest.approx([100 / 3] * 3)


def test_a_grant_is_lowered_immediately_and_given_away_when_its_sender_obeys() -> None:
    shares = Shares(SETTINGS, 0)
    rows = {0: ShareRow(0.0, 0.0)}
    assert shares.step(100.0, rows, 0) == {0: 100.0}
    rows = {0: ShareRow(100.0, 100.0), 1: ShareRow(0.0, 0.0)}
    assert shares.step(100.0, rows, 1) == {0: 50.0}
    rows[0] = ShareRow(50.0, 100.0)  # it may still use what it had
    assert shares.step(100.0, rows, 2) == {}
    rows[0] = ShareRow(50.0, 70.0)
    assert shares.step(100.0, rows, 3) == {1: 30.0}
    rows = {0: ShareRow(50.0, 50.0), 1: ShareRow(30.0, 0.0)}
    assert shares.step(100.0, rows, 4) == {1: 50.0}


def test_a_grant_that_nobody_obeys_yet_counts() -> None:
    shares = Shares(SETTINGS, 0)
    rows = {0: ShareRow(60.0, 0.0), 1: ShareRow(0.0, 0.0)}
    assert shares.step(100.0, rows, 0) == {0: 50.0, 1: 40.0}


def test_what_a_leaver_may_still_use_is_nobody_elses() -> None:
    shares = Shares(SETTINGS, 0)
    rows = {0: ShareRow(60.0, 60.0), 1: ShareRow(40.0, 40.0)}
    shares.step(100.0, rows, 0)
    rows = {0: ShareRow(50.0, 50.0), 1: ShareRow(40.0, 40.0, is_present=False)}
    assert shares.step(100.0, rows, 1) == {0: 60.0, 1: 0.0}
    rows = {0: ShareRow(60.0, 60.0), 1: ShareRow(0.0, 40.0, is_present=False)}
    assert shares.step(100.0, rows, 2) == {}
    assert shares.step(100.0, {0: rows[0]}, 3) == {0: 100.0}


def test_a_grant_that_was_rounded_down_is_not_granted_again() -> None:
    shares = Shares(SETTINGS, 0)
    third = 33.333333
    rows = {sender: ShareRow(third, third) for sender in range(3)}
    assert shares.step(100.0, rows, 0) == {}


def test_settings_that_make_no_sense_are_refused() -> None:
    for bad in (
        {"balance_interval_s": 0.0},
        {"busy_tolerance": 1.0},
        {"min_max_rate": 0.0},
        {"min_change": math.nan},
    ):
        with pytest.raises(ValueError, match=next(iter(bad))):
            BalancerSettings(**bad)


SENDERS = 3
numbers = st.integers(0, SENDERS - 1)


class SharesMachine(RuleBasedStateMachine):
    """The balancer over the real words; senders read and obey in two steps, and stop, leave, die
    and come back between any two."""

    def __init__(self) -> None:
        super().__init__()
        layout = Layout(SENDERS, 4096, commit_log_bytes=64, commit_bytes_max=32)
        self.segment = Segment.create(layout)
        self.grants = SlotGrants(self.segment, 5, 9)
        self.shares = Shares(SETTINGS, 0)
        self.words: dict[int, SenderWords] = {}
        self.read: dict[int, int] = {}
        self.using: dict[int, float] = {}
        self.rate = 100.0
        self.in_force = 100.0  # the highest rate that some sender may still go by
        self.now = 0

    def teardown(self) -> None:
        self.segment.close()

    @rule(sender=numbers)
    def joins(self, sender: int) -> None:
        words = SenderWords(self.segment, sender, 5)
        words.join(9)
        self.words[sender] = words
        self.read[sender] = 0
        self.using[sender] = 0.0

    @rule(sender=numbers)
    def reads(self, sender: int) -> None:
        if sender in self.words:
            self.read[sender] = self.words[sender].granted_word

    @rule(sender=numbers)
    def obeys(self, sender: int) -> None:
        if sender in self.words:
            self.using[sender] = self.words[sender].obey(self.read[sender])

    @rule(sender=numbers, use=st.sampled_from([0.0, 0.3, 0.92, 1.0]))
    def used(self, sender: int, use: float) -> None:
        if sender in self.words:
            self.words[sender].use(use)

    @rule(sender=numbers, is_killed=st.booleans())
    def ends(self, sender: int, is_killed: bool) -> None:
        words = self.words.pop(sender, None)
        self.using.pop(sender, None)
        if words is not None and not is_killed:
            words.leave()
        if is_killed:
            self.grants.died(sender)

    @rule(rate=st.sampled_from([1 / 60, 10.0, 100.0]))
    def changes_the_rate(self, rate: float) -> None:
        self.rate = rate
        self.in_force = max(self.in_force, rate)

    @rule(pause=st.sampled_from([SECOND // 10, ROUND]))
    def balances(self, pause: int) -> None:
        self.now += pause
        self.grants.look()
        rows = {
            sender: ShareRow(held.granted, held.held, held.use)
            for sender, held in self.grants.senders.items()
        }
        for sender, grant in self.shares.step(self.rate, rows, self.now).items():
            self.grants.grant(sender, grant)
        self.shares.check_invariants()
        self.grants.check_invariants()
        held_by_all = sum(held.held for held in self.grants.senders.values())
        if held_by_all <= self.rate:
            self.in_force = self.rate

    @precondition(lambda self: self.words)
    @rule()
    def everything_settles(self) -> None:
        """Within a few steps in which all obey, everybody has a share and all of the rate is
        granted."""
        for _ in range(3):
            self.balances(SECOND // 10)
            for sender in self.words:
                self.reads(sender)
                self.obeys(sender)
        assert sum(self.using.values()) == pytest.approx(self.rate, rel=0.011)
        assert min(self.using.values()) > 0

    @invariant()
    def the_sum_of_what_is_used_is_within_the_rate(self) -> None:
        assert sum(self.using.values()) <= self.in_force * (1 + 1e-9)


SharesMachine.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=30)
TestSharesOverWords = SharesMachine.TestCase
