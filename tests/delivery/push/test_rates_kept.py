"""What a sender has learned outlives it: in the shared words, and over a stop in the ledger."""

from __future__ import annotations

from pathlib import Path

from delivery.push.rates.limiter import Limiter
from ledger.delivery import push_rates
from ledger.delivery.push_rates import LearnedRate
from ledger.delivery.subscriptions import Subscription
from shards.boards.pushboard import LimiterMode, PushBoard
from tests.delivery.node import Node
from tests.delivery.push.sending import Sending, started_senders
from tests.delivery.subscriptions.owning import record


def kept(them: Sending, made: Subscription) -> dict[int, LearnedRate]:
    return them.owner.node.ledger.read(push_rates.of, made.subscription_id)


def limiter(them: Sending, made: Subscription) -> Limiter | None:
    sender = them.senders._senders.get(made.subscription_id)
    return None if sender is None else sender.limiter


async def test_what_a_sender_learns_is_in_the_ledger_by_the_next_flush(
    node: Node, tmp_path: Path
) -> None:
    async with started_senders(node, tmp_path) as them:
        made = them.create()
        them.owner.produce(record(0))
        await them.until(lambda: bool(kept(them, made)), made, rate=500.0)
        assert kept(them, made) == {0: LearnedRate(0, 100.0, None)}
        (row,) = PushBoard(node.segment).senders(made.slot, made.subscription_id)
        assert row.state == (0, 100.0, None)


async def test_a_sender_begins_with_what_its_predecessor_of_another_start_learned(
    node: Node, tmp_path: Path
) -> None:
    async with started_senders(node, tmp_path) as them:
        made = them.create()
        learned = LearnedRate(1, 1 / 60, 12.5)
        node.ledger.write(push_rates.write, {(made.subscription_id, 0): learned})
        await them.until(lambda: limiter(them, made) is not None, made)
        found = limiter(them, made)
        assert found is not None
        assert found.state == LearnedRate(LimiterMode.SLOW, 1 / 60, 12.5)


async def test_a_successor_in_the_same_daemon_goes_by_the_words(node: Node, tmp_path: Path) -> None:
    async with started_senders(node, tmp_path) as them:
        made = them.create()
        await them.until(lambda: bool(kept(them, made)), made, rate=500.0)
        former = LearnedRate(2, 1 / 60, 1.0)
        node.ledger.write(push_rates.write, {(made.subscription_id, 0): former})
        them.senders.close()
        await them.senders.ended()
        them.restart()
        await them.until(lambda: limiter(them, made) is not None, made)
        found = limiter(them, made)
        assert found is not None and found.mode is LimiterMode.NORMAL and found.ceiling is None
