"""A push subscription that is deleted and created again under its name, in the slot that it had."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from daemon.process.push_balance import PushBalance
from delivery.push.rates.balancer import BalancerSettings
from ledger import topics
from ledger.delivery import subscriptions
from ledger.delivery.subscriptions import Subscription
from shards.boards.pushboard import PushBoard
from shards.boards.rowboard import SubscriptionRow
from shards.clock import monotonic_ns
from tests.delivery.node import Node
from tests.delivery.push.sending import Sending, started_senders
from tests.delivery.subscriptions.owning import record


def balance(them: Sending) -> None:
    """The supervisor's own balancer grants."""
    balanced = PushBalance(them.owner.node.segment, BalancerSettings())
    them.grant = lambda *_: balanced.tick(monotonic_ns())  # type: ignore[method-assign]


def delete(them: Sending) -> None:
    node = them.owner.node
    node.ledger.write(subscriptions.delete, node.topic.name, "s", 1)
    them.owner.changes += 1


def granted(board: PushBoard, made: Subscription, rate: float) -> bool:
    """Whether its sender is there, and obeys a grant of this rate."""
    (row,) = board.senders(made.slot, made.subscription_id)
    return (row.is_present, row.granted, row.in_use) == (True, rate, rate)


@pytest.mark.parametrize("is_under_way", [False, True])
async def test_what_is_created_again_is_delivered_within_its_limit_whatever_is_under_way(
    node: Node, tmp_path: Path, is_under_way: bool
) -> None:
    async with started_senders(node, tmp_path) as them:
        balance(them)
        if is_under_way:
            them.receiver.gate.clear()
        former = them.create({"connections_max": 1})
        them.owner.produce(record(1, "a"))
        await them.until(lambda: len(them.receiver.posts) == 1, former)
        delete(them)
        made = them.create()
        assert made.slot == former.slot
        await them.until(lambda: len(them.receiver.posts) == 2, made)
        them.receiver.gate.set()
        them.owner.produce(record(2, "a"))
        await them.until_finished(made, 2)
        assert them.receiver.seqs() == [1, 1, 2]
        await them.until(lambda: not them.senders._ending, made)  # the former one has left
        board = PushBoard(node.segment)
        for rate in (50.0, 2.0):
            them.alter({"rate_max": rate})
            await them.until(partial(granted, board, made, rate), made)


async def test_an_offer_that_another_shard_took_away_by_mistake_comes_back(
    node: Node, tmp_path: Path
) -> None:
    """The former owner's process withdrew at the moment at which the later one offered."""

    async with started_senders(node, tmp_path) as them:
        balance(them)
        made = them.create()
        them.owner.produce(record(1, "a"))
        await them.until_finished(made, 1)
        PushBoard(node.segment).withdraw(made.slot, made.subscription_id)
        them.owner.produce(record(2, "a"))
        await them.until_finished(made, 2)
        assert PushBoard(node.segment).offer_of(made.slot, made.subscription_id) is not None


async def test_a_row_that_a_former_owner_wrote_over_is_written_again(
    node: Node, tmp_path: Path
) -> None:
    async with started_senders(node, tmp_path) as them:
        made = them.create()
        them.owner.produce(record(1, "a"))
        await them.until_finished(made, 1)
        board, place = them.owner.board, (made.slot, made.subscription_id)
        running = them.owner.subscriptions._running[made.subscription_id]
        for _ in range(2):  # nothing changes any more
            await them.owner.later(2)
            await them.until(lambda: running not in them.owner.subscriptions.rows.touched, made)
        assert board.read(*place) is not None
        board.free(*place)
        board.write(made.slot, made.subscription_id - 1, SubscriptionRow())
        await them.owner.later(2)
        await them.until(lambda: board.read(*place) is not None, made)


async def test_senders_of_a_deleted_topic_end(node: Node, tmp_path: Path) -> None:
    """No change of subscriptions tells of them: they are deleted with their topic."""

    async with started_senders(node, tmp_path) as them:
        made = them.create()
        them.owner.produce(record(1, "a"))
        await them.until_finished(made, 1)
        deleted = node.ledger.write(topics.delete, node.topic.name, 1)
        them.owner.subscriptions.topic_changed(deleted)
        them.senders.topic_changed(deleted)
        await them.until(lambda: not len(them.senders) and not them.senders._ending, made)
