"""The balancer in the supervisor: over the real words, with senders that notice things late."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from daemon.config import Override, load
from daemon.process.push_balance import PushBalance, balancer_settings
from delivery.push.rates.balancer import BalancerSettings
from shards.boards.pushboard import PushBoard, SenderWords
from shards.layout import Layout
from shards.segment import Segment

SHARDS = 4
SLOT, ID = 5, 9
TICK_NS = 100_000_000
SETTINGS = BalancerSettings(balance_interval_s=2.0)


class World:
    """Senders of one subscription, and a clock that only ``ticks`` moves."""

    def __init__(self) -> None:
        layout = Layout(SHARDS, 4096, commit_log_bytes=64, commit_bytes_max=32)
        self.segment = Segment.create(layout)
        self.board = PushBoard(self.segment)
        self.balance = PushBalance(self.segment, SETTINGS)
        self.now_ns = 1
        self.senders: dict[int, SenderWords] = {}
        self.using: dict[int, float] = {}
        self.rate = 0.0

    def offer(self, rate: float, senders: int = SHARDS) -> None:
        self.rate = rate
        self.board.offer(SLOT, ID, rate, senders)

    def join(self, *shards: int) -> None:
        for shard in shards:
            self.senders[shard] = SenderWords(self.segment, shard, SLOT)
            self.senders[shard].join(ID)

    def follow(self, shard: int) -> None:
        self.using[shard] = self.senders[shard].follow()
        assert sum(self.using.values()) <= self.rate + 1e-9

    def ticks(self, count: int = 1, *stopped: int) -> None:
        for _ in range(count):
            self.now_ns += TICK_NS
            self.balance.tick(self.now_ns)
            for shard in self.senders:
                if shard not in stopped:
                    self.follow(shard)

    def die(self, shard: int) -> None:
        del self.senders[shard], self.using[shard]
        self.balance.died(shard)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.segment.close()


def test_one_sender_has_the_whole_rate_by_the_first_tick(world: World) -> None:
    world.offer(100)
    world.join(1)
    world.ticks()
    assert world.using == {1: 100}


@pytest.mark.parametrize("rate", [50, 200])
def test_another_rate_is_granted_by_the_next_tick(world: World, rate: float) -> None:
    world.offer(100)
    world.join(1)
    world.ticks(5)
    world.offer(rate)
    world.ticks()
    assert world.using == {1: rate}


def test_nothing_is_granted_before_there_is_an_offer_or_after_it_is_withdrawn(world: World) -> None:
    world.join(1)
    world.ticks(2)
    assert world.using == {1: 0}
    world.offer(100)
    world.ticks()
    assert world.using == {1: 100}
    world.board.withdraw(SLOT, ID)
    world.ticks()
    assert world.using == {1: 0}
    world.offer(50)
    world.join(1)
    world.ticks()
    assert world.using == {1: 50}


def test_those_that_join_get_their_share_when_the_others_have_given_it_back(world: World) -> None:
    world.offer(100)
    world.join(0)
    world.ticks()
    world.join(1)
    world.ticks(3, 0)  # it is stopped, and may be using 100
    assert world.using == {0: 100, 1: 0}
    world.ticks(3)
    assert world.using == pytest.approx({0: 50, 1: 50}, abs=1e-5)


def test_the_share_of_a_process_that_died_is_used_by_the_others(world: World) -> None:
    world.offer(100)
    world.join(0, 1)
    world.ticks(3)
    world.die(0)
    world.ticks(2)
    assert world.using == pytest.approx({1: 100}, abs=1e-5)
    world.join(0)
    world.ticks(3)
    assert world.using == pytest.approx({0: 50, 1: 50}, abs=1e-5)


def test_a_process_that_dies_after_the_offer_is_withdrawn_leaves_no_share(world: World) -> None:
    world.offer(100)
    world.join(0)
    world.ticks()
    world.board.withdraw(SLOT, ID)
    world.ticks()
    world.die(0)
    world.offer(100)
    world.join(1)
    world.ticks(2)
    assert world.using == {1: 100}


def test_another_subscription_in_the_slot_shares_nothing_with_the_former_one(world: World) -> None:
    world.offer(100)
    world.join(0)
    world.ticks()
    world.board.withdraw(SLOT, ID)
    world.board.offer(SLOT, ID + 1, 10, 1)
    other = SenderWords(world.segment, 1, SLOT)
    other.join(ID + 1)
    world.ticks()
    assert world.using == {0: 0}
    assert other.follow() == 10


def test_a_negotiation_comes_when_it_is_due_and_moves_a_share_to_who_needs_it(
    world: World,
) -> None:
    world.offer(100)
    world.join(0, 1)
    world.ticks(3)
    world.senders[0].use(1.0)
    world.senders[1].use(0.2)
    world.ticks(10)
    assert world.using == pytest.approx({0: 50, 1: 50}, abs=1e-5)
    world.ticks(15)
    assert world.using[0] > 60


def test_the_sum_never_exceeds_the_rate_whatever_happens(world: World) -> None:
    """Joins, leaves, deaths, changes of the rate, and senders that look when they happen to."""
    chance = random.Random(14)
    world.offer(100)

    def joins(shard: int) -> None:
        world.join(shard)
        world.using[shard] = 0.0

    def leaves(shard: int) -> None:
        if shard in world.senders:
            world.senders.pop(shard).leave()
            del world.using[shard]

    def dies(shard: int) -> None:
        if shard in world.senders and shard in world.using:
            world.die(shard)

    def looks(shard: int) -> None:
        if shard in world.senders:
            world.follow(shard)

    def uses(shard: int) -> None:
        if shard in world.senders:
            world.senders[shard].use(chance.random())

    def ticks(_: int) -> None:
        world.now_ns += TICK_NS
        world.balance.tick(world.now_ns)

    acts: list[Callable[[int], None]] = [joins, leaves, dies, uses, *[looks] * 4, *[ticks] * 4]
    for _ in range(4_000):
        chance.choice(acts)(chance.randrange(SHARDS))
    for rate in (7.0, 300.0):
        world.rate = max(world.rate, rate)  # what was granted is in force until it is noticed
        world.board.offer(SLOT, ID, rate, SHARDS)
        world.join(*range(SHARDS))
        world.ticks(10)
        world.rate = rate
        world.ticks(3)
        assert sum(world.using.values()) == pytest.approx(rate, abs=1e-4)


def test_a_tick_does_a_part_and_the_next_ones_the_rest(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daemon.process.push_balance.WORK_MAX", 4)
    others = [SenderWords(world.segment, 0, slot) for slot in range(10, 20)]
    for slot, words in enumerate(others, 10):
        world.board.offer(slot, slot, 1.0, 1)
        words.join(slot)
    served = []
    for _ in range(5):
        world.ticks()
        served.append(sum(words.follow() for words in others))
    assert served == [2, 4, 6, 8, 10]


def test_the_interval_is_that_of_the_configuration() -> None:
    given = [Override("push_balance_interval_s", "3")]
    assert balancer_settings(load(None, {}, given)) == BalancerSettings(3.0)
    assert balancer_settings(load(None, {})) == BalancerSettings()
