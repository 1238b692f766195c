"""Grants to senders: what they use together never exceeds the rate, whoever is stopped when."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from shards.boards.pushboard import SenderWords
from shards.boards.pushgrants import SlotGrants
from shards.layout import Layout
from shards.segment import Segment
from tests.long import examples
from tests.shards.conftest import MakeSegment

SHARDS = 2
RATE = 100.0
shards = st.integers(0, SHARDS - 1)


class _Process:
    """A sender that may be stopped between reading a grant and obeying it."""

    def __init__(self, words: SenderWords) -> None:
        self.words = words
        self.words.join(9)
        self.read = 0
        self.using = 0.0


class GrantsMachine(RuleBasedStateMachine):
    """Senders, each in steps, and a balancer that grants whatever the rule allows."""

    def __init__(self) -> None:
        super().__init__()
        layout = Layout(SHARDS, 4096, commit_log_bytes=64, commit_bytes_max=32)
        self.segment = Segment.create(layout)
        self.grants = SlotGrants(self.segment, 5, 9)
        self.processes: dict[int, _Process] = {}
        for shard in range(SHARDS):
            self.joins(shard)

    def teardown(self) -> None:
        self.segment.close()

    @rule(shard=shards)
    def joins(self, shard: int) -> None:
        """Also where one is: a sender that was replaced without a word."""
        self.processes[shard] = _Process(SenderWords(self.segment, shard, 5))

    @rule(shard=shards)
    def reads(self, shard: int) -> None:
        if shard in self.processes:
            self.processes[shard].read = self.processes[shard].words.granted_word

    @rule(shard=shards)
    def obeys(self, shard: int) -> None:
        if shard in self.processes:
            process = self.processes[shard]
            process.using = process.words.obey(process.read)

    @rule(shard=shards)
    def leaves(self, shard: int) -> None:
        if shard in self.processes:
            self.processes.pop(shard).words.leave()

    @rule(shard=shards)
    def dies(self, shard: int) -> None:
        self.processes.pop(shard, None)
        self.grants.died(shard)

    @rule(wanted=st.lists(st.sampled_from([0.0, 1 / 3, RATE]), min_size=SHARDS, max_size=SHARDS))
    def balances(self, wanted: list[float]) -> None:
        self.grants.look()
        for shard, sender in self.grants.senders.items():
            others = sum(each.held for each in self.grants.senders.values()) - sender.held
            self.grants.grant(shard, max(0.0, min(wanted[shard], RATE - others)))

    @rule()
    def all_settles(self) -> None:
        for process in self.processes.values():
            process.using = process.words.follow()
        self.grants.look()
        assert set(self.grants.senders) == set(self.processes)
        for shard, sender in self.grants.senders.items():
            assert sender.held == sender.granted == self.processes[shard].using

    @invariant()
    def never_more_than_the_rate(self) -> None:
        assert sum(process.using for process in self.processes.values()) <= RATE + 1e-9
        self.grants.check_invariants()


TestGrants = GrantsMachine.TestCase
TestGrants.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)


def test_a_look_without_changes_says_so(make_segment: MakeSegment) -> None:
    segment = make_segment(Layout(2, 4096))
    grants = SlotGrants(segment, 0, 9)
    words = SenderWords(segment, 1, 0)
    words.join(9)
    assert grants.look() and not grants.look()
    assert list(grants.senders) == [1]
    words.use(0.5)
    assert grants.look() and grants.senders[1].use == 0.5
    grants.grant(1, 7)
    assert grants.look() and not grants.look()


def test_a_grant_that_was_lowered_is_held_until_the_sender_says_that_it_obeys(
    make_segment: MakeSegment,
) -> None:
    segment = make_segment(Layout(1, 4096))
    grants = SlotGrants(segment, 0, 9)
    words = SenderWords(segment, 0, 0)
    words.join(9)
    grants.look()
    grants.grant(0, 50)
    late = words.granted_word
    grants.grant(0, 10)
    grants.look()
    assert (grants.senders[0].granted, grants.senders[0].held) == (10, 50)
    assert words.obey(late) == 50
    grants.look()
    assert grants.senders[0].held == 50
    assert words.follow() == 10
    grants.look()
    assert grants.senders[0].held == 10


def test_a_sender_of_another_subscription_in_the_slot_gets_nothing(
    make_segment: MakeSegment,
) -> None:
    segment = make_segment(Layout(1, 4096))
    SenderWords(segment, 0, 0).join(8)
    grants = SlotGrants(segment, 0, 9)
    assert grants.look() and not grants.senders


def test_a_subscription_that_is_withdrawn_grants_nothing(make_segment: MakeSegment) -> None:
    segment = make_segment(Layout(2, 4096))
    grants = SlotGrants(segment, 0, 9)
    words = [SenderWords(segment, shard, 0) for shard in range(2)]
    for each in words:
        each.join(9)
    grants.look()
    for shard in range(2):
        grants.grant(shard, 10)
    assert [each.follow() for each in words] == [10, 10]
    grants.withdraw()
    assert [each.follow() for each in words] == [0, 0]
