"""A subscription that stands still says at which message, since when, and why; others do not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from delivery.standstill import UNKNOWN
from delivery.subscriptions.requests import Resend
from ledger.delivery import subscriptions
from ledger.delivery.push_settings import PushSettings
from ledger.delivery.subscriptions import Subscription
from shards.boards.rowboard import SubscriptionRow
from tests.delivery.node import ARRIVAL_MS, node_in
from tests.delivery.subscriptions.owning import MS, Owner, S, data, messages, record, started_owner


@asynccontextmanager
async def owner_in(directory: Path) -> AsyncIterator[Owner]:
    with node_in(directory, shards=1, ring_bytes=1 << 16) as node:
        async with started_owner(node) as owner:
            yield owner


async def made_in(owner: Owner, **config: Any) -> Subscription:
    made = owner.create(**config)
    owner.subscriptions.look()
    await owner.rest()
    return made


async def row_after(owner: Owner, made: Subscription, seconds: int) -> SubscriptionRow:
    """What is told after this time, with a look each second."""
    for _ in range(seconds):
        await owner.later(1)
    row = owner.board.read(made.slot, made.subscription_id)
    assert row is not None
    return row


async def test_a_blocked_message_is_named_with_its_key_and_the_reason(tmp_path: Path) -> None:
    async with owner_in(tmp_path) as owner:
        made = await made_in(owner, redeliveries_max=0)
        client = await owner.consume(made, "c")
        owner.produce(record(1, "a"), record(2, "b"))
        await owner.rest()
        await owner.nack(made, "c", messages(client)[0])
        await owner.ack(made, "c", messages(client)[1])
        await owner.later(1)
        began_ns = owner.now_ns
        row = await row_after(owner, made, 5)
        assert row.stands == "message 0:1 of the key 'a' is blocked after 1 failed deliveries: no"
        assert abs(row.stands_since_ns - began_ns) <= 2 * S
        running = owner.subscriptions._running[made.subscription_id]
        assert running.window.retry(0, 1)
        running.consumers.wake()
        await owner.rest()
        await owner.ack(made, "c", messages(client)[-1])
        assert (await row_after(owner, made, 2)).stands_since_ns == 0


async def test_what_waits_for_a_blocked_message_that_was_sent_once_more_stands(
    tmp_path: Path,
) -> None:
    async with owner_in(tmp_path) as owner:
        made = await made_in(owner, redeliveries_max=0)
        client = await owner.consume(made, "c")
        owner.produce(record(1, "k"))
        await owner.rest()
        await owner.ack(made, "c", messages(client)[0])
        await owner.ask(Resend(made.subscription_id, (0, 1)))
        await owner.rest()
        await owner.nack(made, "c", messages(client)[-1])
        owner.produce(record(2, "k"))
        await owner.rest()
        assert (await row_after(owner, made, 5)).stands == (
            "message 0:2 of the key 'k' waits for 0:1, which was sent once more and is blocked"
            " after 1 failed deliveries: no"
        )
        running = owner.subscriptions._running[made.subscription_id]
        assert running.window.retry(0, 1)
        running.consumers.wake()
        await owner.rest()
        await owner.ack(made, "c", messages(client)[-1])
        await owner.ack(made, "c", messages(client)[-1])
        assert data(client) == [1, 1, 1, 2]
        assert (await row_after(owner, made, 2)).stands_since_ns == 0


async def test_what_a_consumer_has_in_time_does_not_stand_and_its_followers_neither(
    tmp_path: Path,
) -> None:
    async with owner_in(tmp_path) as owner:
        made = await made_in(owner, ack_timeout_ms=600_000)
        await owner.consume(made, "c")
        await owner.consume(made, "d")
        owner.produce(*(record(n, "a") for n in range(5)))
        await owner.rest()
        row = await row_after(owner, made, 10)
        assert (row.lag, row.stands_since_ns) == (5, 0)


async def test_without_a_consumer_or_while_it_is_paused_nothing_stands(tmp_path: Path) -> None:
    async with owner_in(tmp_path) as owner:
        made = await made_in(owner)
        owner.produce(record(1, "a"))
        row = await row_after(owner, made, 5)
        assert (row.lag, row.stands_since_ns) == (1, 0)
        alter(owner, made, paused=True)
        await owner.rest()
        await owner.consume(made, "c")
        row = await row_after(owner, made, 5)
        assert (row.lag, row.stands_since_ns) == (1, 0)


def alter(owner: Owner, made: Subscription, **config: object) -> None:
    owner.node.ledger.write(subscriptions.alter, owner.node.topic.name, made.name, config)
    owner.changes += 1
    owner.subscriptions.look()


async def test_a_key_that_no_consumer_accepts_says_so(tmp_path: Path) -> None:
    async with owner_in(tmp_path) as owner:
        made = await made_in(owner, unmatched="hold")
        await owner.consume(made, "c", "x*")
        owner.produce(record(1, "a"))
        row = await row_after(owner, made, 5)
        assert row.stands == (
            "message 0:1 of the key 'a' waits: no consumer that is present accepts its key"
        )


async def test_a_lost_wake_up_is_found_by_the_invariant_although_no_path_says_anything(
    tmp_path: Path,
) -> None:
    async with owner_in(tmp_path) as owner:
        made = await made_in(owner)
        await owner.consume(made, "c")
        owner.produce(record(1, "a"), tell=False)
        for commit in owner.node.commits[owner.seen :]:  # the head moves, and nobody is woken
            owner.seen = commit.number
            owner.partitions.followed.apply(commit)
        await owner.later(1)
        began_ns = owner.now_ns
        row = await row_after(owner, made, 5)
        assert row.phase == 0 and row.reason == "", "no path says it"
        assert row.stands == f"message 0:1 of the key 'a' {UNKNOWN}"
        assert abs(row.stands_since_ns - began_ns) <= S
        owner.subscriptions.committed([owner.node.key()], owner.now_ns)
        await owner.rest()
        assert (await row_after(owner, made, 2)).stands_since_ns == 0


async def test_a_push_subscription_whose_sender_is_not_there_stands(tmp_path: Path) -> None:
    async with owner_in(tmp_path) as owner:
        made = await made_in(owner, push=PushSettings("http://127.0.0.1:9/x"))
        owner.produce(record(1, "a"))
        row = await row_after(owner, made, 5)
        assert (
            row.is_pushed == 1
            and row.stands == "message 0:1 of the key 'a' waits for a sender, and none is connected"
        )


async def test_the_age_of_the_oldest_unfinished_record_is_told_whoever_has_it(
    tmp_path: Path,
) -> None:
    async with owner_in(tmp_path) as owner:
        owner.now_ns = (ARRIVAL_MS + 60_000) * MS
        owner.produce(record(1, "a"))
        made = await made_in(owner, redeliveries_max=0)
        row = await row_after(owner, made, 5)
        age_ms = owner.now_ns // MS - ARRIVAL_MS
        assert 60_000 <= row.oldest_unfinished_ms <= age_ms, "although nobody has it"
        client = await owner.consume(made, "c")
        owner.produce(record(2, "b"))
        await owner.rest()
        await owner.ack(made, "c", messages(client)[1])
        assert (await row_after(owner, made, 3)).oldest_unfinished_ms >= 62_000
        await owner.ack(made, "c", messages(client)[0])
        assert (await row_after(owner, made, 3)).oldest_unfinished_ms == 0
