"""The byte budget: no collapse under backlog, whatever the window; fair; bounded; recovers."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from commands.importing.budget_leases import InFlightBudget, Leases
from commands.importing.byte_budget import (
    CEILING_BYTES,
    CUT,
    FLOOR_BYTES,
    LESS,
    STEP_BYTES,
    ByteBudget,
    Phase,
)
from tests.cli.importing.daemon_model import (
    DIRECTORY,
    MIB,
    S3,
    STEADY,
    WIDE,
    Conditions,
    IntervalLaw,
    Sender,
    SimulatedDaemon,
    Site,
    SmallestLatencyLaw,
)
from tests.cli.importing.fixed_budget import FixedBudget
from tests.long import examples


def goodput(law: InFlightBudget, site: Site, how: Conditions) -> float:
    sender = Sender(law)
    SimulatedDaemon(site, [sender], 1, how).run(40)
    assert sender.leases.peak <= CEILING_BYTES
    return sender.goodput(20, 40)


def pinned(now_s: float) -> float:
    return 1.0


def flipping(now_s: float) -> float:
    return float(int(now_s) // 5 % 2)


SITES = {
    "s3": (S3, STEADY),
    "directory": (DIRECTORY, STEADY),
    "64 uploads side by side": (WIDE, STEADY),
    "window always at its maximum": (WIDE, Conditions(pressure=pinned)),
    "window that jumps every 5 s": (WIDE, Conditions(pressure=flipping)),
    "slow cpu": (Site(cpu_bytes_per_s=10e6), STEADY),
    "puts of any length": (Site(put_spread=1.0), STEADY),
    "capacity as a sine": (S3, Conditions(speed=lambda now_s: 1 + 0.8 * math.sin(now_s / 5))),
}


@pytest.mark.parametrize("name", SITES)
def test_at_saturation_the_budget_costs_at_most_a_tenth_of_the_goodput(name: str) -> None:
    site, how = SITES[name]
    ours = goodput(ByteBudget(), site, how)
    assert ours >= 0.9 * goodput(FixedBudget(CEILING_BYTES), site, how)


@pytest.mark.parametrize("name", SITES)
def test_the_law_on_processing_over_interval_is_pinned_to_its_floor(name: str) -> None:
    site, how = SITES[name]
    law = IntervalLaw(CEILING_BYTES, interval_s=0.0005)  # 1 MiB from a disk that reads 2 GB/s
    found = goodput(law, site, how)
    assert law.bytes == IntervalLaw.FLOOR_BYTES
    assert found < 0.5 * goodput(FixedBudget(CEILING_BYTES), site, how)


@pytest.mark.parametrize("name", ["s3", "window always at its maximum"])
def test_a_law_on_the_smallest_latency_takes_the_window_for_a_queue(name: str) -> None:
    site, how = SITES[name]
    found = goodput(SmallestLatencyLaw(CEILING_BYTES), site, how)
    assert found < 0.1 * goodput(FixedBudget(CEILING_BYTES), site, how)


def test_what_does_not_pay_is_not_in_flight() -> None:
    budget = ByteBudget()
    sender = Sender(budget)
    SimulatedDaemon(Site(cpu_bytes_per_s=10e6), [sender], 1).run(120)
    assert budget.bytes < CEILING_BYTES / 2
    assert sender.refusals == 0


def test_it_recovers_when_the_daemon_gets_ten_times_slower_and_faster_again() -> None:
    def speed(now_s: float) -> float:
        return 0.1 if 30 < now_s < 60 else 1.0

    spans = ((35, 60), (70, 100))
    ours, all_in = Sender(ByteBudget()), Sender(FixedBudget(CEILING_BYTES))
    for sender in (ours, all_in):
        SimulatedDaemon(S3, [sender], 1, Conditions(speed=speed)).run(100)
    for span in spans:
        assert ours.goodput(*span) >= 0.9 * all_in.goodput(*span)


def test_after_an_outage_it_is_back_within_seconds() -> None:
    budget = ByteBudget()
    sender = Sender(budget)
    SimulatedDaemon(S3, [sender], 1, Conditions(store_up=lambda now_s: not 20 < now_s < 50)).run(80)
    assert sender.goodput(15, 20) * 0.9 <= sender.goodput(53, 80)
    assert sum(size for _, size in sender.acked) % MIB == 0


@pytest.mark.parametrize("clients", [2, 3, 8])
def test_clients_that_come_one_after_the_other_share_fairly(clients: int) -> None:
    senders = [Sender(ByteBudget(), begin_s=5.0 * each) for each in range(clients)]
    SimulatedDaemon(S3, senders, 1).run(120)
    shares = [sender.goodput(60, 120) for sender in senders]
    jain = sum(shares) ** 2 / clients / sum(share * share for share in shares)
    assert jain >= 0.9
    assert sum(shares) >= 0.9 * 134e6  # what one alone gets


def test_a_source_slower_than_the_daemon_leaves_the_budget_alone() -> None:
    budget = ByteBudget()
    sender = Sender(budget, pace_bytes_per_s=2e6)
    SimulatedDaemon(S3, [sender], 1).run(60)
    assert budget.bytes <= 4 * MIB
    assert sender.goodput(20, 60) == pytest.approx(2e6, rel=0.1)


def test_one_burst_of_refusals_lowers_it_once() -> None:
    budget = ByteBudget(ceiling_bytes=100 * MIB)
    now_s = grow(budget, 60 * MIB)
    before = fill(budget, now_s, 0.1, answered=False)
    for _ in range(20):
        budget.refused(1.0, 1_000.0)
    assert budget.bytes == int(CUT * before)
    budget.refused(1.0, 1_001.5)
    assert budget.bytes == int(CUT * int(CUT * before))


def test_a_refusal_lowers_what_was_used_and_not_what_was_allowed() -> None:
    budget = ByteBudget(ceiling_bytes=100 * MIB)
    now_s = grow(budget, 60 * MIB)
    for _ in range(40):
        now_s = fill(budget, now_s, 0.1, up_to=8 * MIB)
    assert budget.bytes >= 40 * MIB
    budget.refused(1.0, now_s)
    assert budget.bytes == int(CUT * 8 * MIB)


def test_it_begins_by_doubling_until_two_laps_brought_little_and_returns_to_the_best() -> None:
    budget = ByteBudget()
    now, seen = 0.0, []
    while budget.phase is Phase.START:
        seen.append(budget.bytes // MIB)
        now = fill(budget, now, max(0.1, queued_s(budget)))  # 10 MiB are enough
    assert seen == [4, 8, 16, 32, 64] and budget.bytes == 16 * MIB
    assert budget.phase is Phase.HOLD


def test_less_that_costs_its_share_of_the_rate_is_not_kept() -> None:
    budget = ByteBudget()
    now = grow(budget, CEILING_BYTES)
    seen = []
    for _ in range(60):
        now = fill(budget, now, 0.1)
        seen.append(budget.bytes)
    assert set(seen) == {CEILING_BYTES, int(LESS * CEILING_BYTES)}
    assert all(CEILING_BYTES in pair for pair in pairwise(seen))


def test_less_that_costs_nothing_is_kept_and_tried_again() -> None:
    budget = ByteBudget()
    now = grow(budget, CEILING_BYTES)
    for _ in range(200):  # a queue: the latency is the budget over the capacity
        now = fill(budget, now, queued_s(budget))
    assert budget.bytes <= 16 * MIB


def test_a_source_that_became_slow_leaves_the_budget_as_it_was() -> None:
    budget = ByteBudget()
    now = grow(budget, CEILING_BYTES)
    for _ in range(1_000):
        now = fill(budget, now, 0.1, up_to=4 * MIB)
    assert budget.bytes >= int(LESS * CEILING_BYTES)


def test_answers_to_what_was_sent_before_the_budget_changed_decide_nothing() -> None:
    budget = ByteBudget()
    now = 0.0
    while budget.phase is not Phase.TRY_MORE:
        now = fill(budget, now, 0.1 if budget.phase is Phase.TRY_LESS else queued_s(budget))
    tried = budget.bytes
    for _ in range(100):
        budget.acked(MIB, 60.0, now)
    assert (budget.phase, budget.bytes) == (Phase.TRY_MORE, tried)
    while budget.bytes == tried:
        now = fill(budget, now, 0.01)
    assert budget.bytes > tried


def test_after_an_outage_it_doubles_up_to_what_was_taken_before_and_then_goes_by_steps() -> None:
    budget = ByteBudget(ceiling_bytes=100 * MIB)
    now = grow(budget, 60 * MIB)
    before = fill(budget, now, 0.1, answered=False)
    for _ in range(30):
        now += 2
        budget.refused(1.0, now)
    assert budget.bytes == FLOOR_BYTES
    laps = 0
    while budget.bytes < int(CUT * before):
        now = fill(budget, now, 0.1)
        laps += 1
    assert laps <= 40  # most of them at the floor: a lap has at least four answers
    at = budget.bytes
    for _ in range(5):
        now = fill(budget, now, 0.1)
    assert budget.bytes == at + 5 * STEP_BYTES
    while now < 1_000 and budget.phase is Phase.REFUSED:
        now = fill(budget, now, 0.1)
    assert budget.phase is not Phase.REFUSED


@pytest.mark.parametrize(("floor", "ceiling"), [(0, 1), (-1, 5), (6, 5)])
def test_bounds_out_of_order_are_refused_with_their_values(floor: int, ceiling: int) -> None:
    with pytest.raises(ValueError, match=f"floor_bytes {floor} and ceiling_bytes {ceiling}"):
        ByteBudget(floor, ceiling)


def fill(
    budget: ByteBudget, now: float, latency_s: float, *, up_to: int = 1 << 60, answered: bool = True
) -> float:
    """Sends what fits. Returns the time after the answers, or without them the bytes in flight."""
    leases = Leases(budget)
    while leases.leased < up_to and leases.take(MIB):
        pass
    if not answered:
        return leases.leased
    now += latency_s
    for _ in range(leases.leased // MIB):
        budget.acked(MIB, latency_s, now)
        leases.give_back(MIB)
    return now


def queued_s(budget: ByteBudget) -> float:
    """The latency of a daemon that takes 100 MiB/s, however much is in flight."""
    return budget.bytes // MIB / 100


def grow(budget: ByteBudget, to_bytes: int) -> float:
    """A daemon whose latency never changes: all that is tried pays. Returns the time."""
    now_s = 0.0
    while budget.bytes < to_bytes:
        now_s = fill(budget, now_s, 0.1)
    budget.check_invariants()
    return now_s


def test_a_latency_that_does_not_depend_on_the_budget_takes_it_to_the_ceiling() -> None:
    budget = ByteBudget()
    grow(budget, CEILING_BYTES)
    assert budget.bytes == CEILING_BYTES


@settings(max_examples=examples(25))
@given(st.floats(0.001, 10), st.floats(0.001, 10))
def test_a_window_that_changes_once_never_lowers_it_by_more_than_one_trial(
    first_s: float, second_s: float
) -> None:
    budget = ByteBudget()
    now_s = 0.0
    for _ in range(60):
        now_s = fill(budget, now_s, first_s)
    least = budget.bytes
    for _ in range(60):
        now_s = fill(budget, now_s, second_s)
        least = min(least, budget.bytes)
    assert least >= int(LESS * LESS * CEILING_BYTES)
    assert budget.bytes >= int(LESS * CEILING_BYTES)


class AnyDaemon(RuleBasedStateMachine):
    """Acknowledges, refuses and delays in any order; the bounds hold after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.budget = ByteBudget(1000, 100_000)
        self.leases = Leases(self.budget)
        self.now = 0.0
        self.sent: list[tuple[int, float]] = []

    @rule(size=st.integers(1, 5_000))
    def send(self, size: int) -> None:
        while len(self.sent) < 200 and self.leases.take(size):
            self.sent.append((size, self.now))

    @rule(wait_s=st.floats(0, 5), share=st.floats(0, 1))
    def answer(self, wait_s: float, share: float) -> None:
        self.now += wait_s
        for _ in range(int(share * len(self.sent))):
            size, sent = self.sent.pop(0)
            self.budget.acked(size, self.now - sent, self.now)
            self.leases.give_back(size)

    @rule(retry_after_s=st.floats(0, 60))
    def refuse(self, retry_after_s: float) -> None:
        before = self.budget.bytes
        self.budget.refused(retry_after_s, self.now)
        assert self.budget.bytes <= before

    @rule()
    def give_up(self) -> None:
        if self.sent:
            self.leases.give_back(self.sent.pop()[0])

    @invariant()
    def bounded(self) -> None:
        self.budget.check_invariants()
        assert self.leases.leased == sum(size for size, _ in self.sent)
        assert self.leases.peak <= 100_000  # the ceiling; no request is larger


TestAnyDaemon = AnyDaemon.TestCase
