"""Dead letters that wait: for room, for their topic, for a commit; and what becomes of the message
meanwhile."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from delivery.subscriptions import dead_letters
from delivery.subscriptions.requests import Describe, OwnerRefused, Resend, RetryKey, Seek, SkipKey
from ledger import topics
from ledger.delivery import subscriptions
from ledger.delivery.subscriptions import Subscription
from ledger.space import retention
from ledger.types import Topic, TopicConfig
from shards.boards.rowboard import RowPhase
from tests.delivery.node import Node
from tests.delivery.subscriptions.owning import Owner, data, messages, record, started_owner
from tests.delivery.watch.watching import Client
from uploader.l0.records import Record


@pytest.fixture
def dest(node: Node) -> Topic:
    return node.ledger.write(topics.create, "dead", TopicConfig(partitions=4), 1)[0]


async def failed(owner: Owner, *records: Record, **config: Any) -> tuple[Subscription, Client]:
    """A subscription whose consumer has refused what came first of each key."""
    settings: dict[str, Any] = {
        "poison": "dead_letter", "dead_letter_topic": "dead", "redeliveries_max": 0,
    }  # fmt: skip
    made = owner.create(**(settings | config))
    client = await owner.consume(made, "c")
    owner.produce(*records)
    await owner.rest()
    await owner.nack(made, "c", *messages(client))
    return made, client


async def committed(owner: Owner) -> None:
    """What is in the ring is stored, or void."""
    await owner.later(0.1)
    owner.node.commit(0)
    owner.tell()
    await owner.rest()


def copies(node: Node, dest: Topic) -> list[str]:
    """The data of the letters that are stored."""
    return [
        copy.data
        for partition in range(dest.config.partitions)
        for _, copy in node.records.get((dest.topic_id, partition), [])
    ]


def full(owner: Owner) -> None:
    owner.outbox.full_partitions = set(range(4))


def alter(owner: Owner, **changes: Any) -> None:
    owner.node.ledger.write(subscriptions.alter, owner.node.topic.name, "s", changes)
    owner.changes += 1


async def test_a_message_that_is_retried_while_its_letter_waits_is_not_moved_away(
    node: Node, dest: Topic
) -> None:
    async with started_owner(node) as owner:
        full(owner)
        made, client = await failed(owner, record(1, "k"))
        await owner.ask(RetryKey(made.subscription_id, "k"))
        await owner.rest()
        assert data(client) == [1, 1]
        owner.outbox.full_partitions.clear()
        await committed(owner)
        assert copies(node, dest) == []
        assert (await owner.ack(made, "c", messages(client)[-1]))["accepted"] == 1
        state = await owner.ask(Describe(made.subscription_id))
        assert (state["dead_lettered"], state["lag"]) == (0, 0)


async def test_a_letter_that_waits_at_a_seek_settles_nothing_of_what_follows(
    node: Node, dest: Topic
) -> None:
    async with started_owner(node) as owner:
        full(owner)
        made, client = await failed(owner, record(1, "k"), record(2, "k"))
        await owner.ask(Seek(made.subscription_id, {0: 0}))
        owner.outbox.full_partitions.clear()
        await committed(owner)
        assert copies(node, dest) == []
        assert data(client) == [1, 1], "it is delivered again"
        await owner.ack(made, "c", messages(client)[-1])
        assert data(client) == [1, 1, 2]


async def test_a_copy_that_is_void_because_of_a_seek_is_not_sent_again(
    node: Node, dest: Topic
) -> None:
    async with started_owner(node) as owner:
        made, client = await failed(owner, record(1, "k"))
        assert owner.outbox.appended == 1
        await owner.ask(Seek(made.subscription_id, {0: 0}))
        await owner.rest()
        assert data(client) == [1, 1]
        for _ in range(2):
            await committed(owner)
        assert (owner.outbox.appended, copies(node, dest)) == (1, [])
        state = await owner.ask(Describe(made.subscription_id))
        assert (state["lag"], state["in_flight"], state["dead_lettered"]) == (1, 1, 0)


async def test_a_letter_whose_record_was_evicted_waits_no_more(node: Node, dest: Topic) -> None:
    async with started_owner(node) as owner:
        full(owner)
        made, client = await failed(owner, record(1, "k"), record(2, "k"))
        assert (await owner.ask(Describe(made.subscription_id)))["blocked_keys"] == 1
        capped = msgspec.structs.replace(node.topic.config, cap_records=1)
        topic = node.ledger.write(topics.alter, node.topic.name, capped)
        due = node.ledger.read(retention.due_evictions, topic, None)
        node.ledger.write(retention.evict, due.evictions)
        owner.evictions += 1
        await owner.later(0.1)
        await owner.later(0.1)
        state = await owner.ask(Describe(made.subscription_id))
        assert (state["blocked_keys"], state["held"], state["evicted"]) == (0, "", 1)
        assert data(client) == [1, 2]
        owner.outbox.full_partitions.clear()
        await committed(owner)
        assert copies(node, dest) == []


async def test_a_full_partition_of_the_destination_holds_its_own_letters_only(
    node: Node, dest: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "UNSENT_MAX", 3)

    async with started_owner(node) as owner:
        owner.outbox.full_partitions = {1}
        made, _ = await failed(owner, *(record(n, f"k{n}") for n in range(40)))
        for _ in range(40):
            await committed(owner)
        assert not node.records.get((dest.topic_id, 1))
        left = 40 - len(copies(node, dest))
        state = await owner.ask(Describe(made.subscription_id))
        assert (state["blocked_keys"], state["lag"]) == (left, left)
        assert 3 < left < 20, "so each attempt meets more of them than it takes"
        owner.outbox.full_partitions.clear()
        for _ in range(10):
            await committed(owner)
        assert sorted(map(int, copies(node, dest))) == list(range(40))


async def test_a_letter_to_a_deleted_topic_is_not_moved(node: Node, dest: Topic) -> None:
    async with started_owner(node) as owner:
        made, client = await failed(owner, record(1, "k"), record(2, "k"))
        assert owner.outbox.appended == 1
        owner.subscriptions.topic_changed(node.ledger.write(topics.delete, "dead", 2, force=True))
        for _ in range(3):
            await committed(owner)
        state = await owner.ask(Describe(made.subscription_id))
        assert (state["dead_lettered"], state["lag"], state["blocked_keys"]) == (0, 2, 1)
        assert data(client) == [1], "its key waits for it"
        assert copies(node, dest) == []
        alter(owner, redeliveries_max=9)
        await owner.later(0.1)
        assert data(client) == [1, 1], "and nothing of it is lost"


async def test_letters_wait_for_a_deleted_topic_until_one_of_its_name_is_created(
    node: Node, dest: Topic
) -> None:
    async with started_owner(node) as owner:
        full(owner)
        made, client = await failed(owner, record(1, "k"), record(2, "k"))
        deleted = node.ledger.write(topics.delete, "dead", 2, force=True)
        owner.subscriptions.topic_changed(deleted)
        owner.outbox.full_partitions.clear()
        for _ in range(2):
            await committed(owner)
        state = await owner.ask(Describe(made.subscription_id))
        assert "create it again" in state["blocked_letters"]
        again, _ = node.ledger.write(topics.create, "dead", TopicConfig(), 3)
        owner.subscriptions.topic_changed(again)
        await committed(owner)
        await committed(owner)
        assert (copies(node, again), data(client)) == (["1"], [1, 2])
        state = await owner.ask(Describe(made.subscription_id))
        assert (state["dead_lettered"], state["blocked_letters"], state["held"]) == (1, "", "")


async def test_a_subscription_is_held_by_dead_letters_only_if_nothing_else_can_be_delivered(
    node: Node, dest: Topic
) -> None:
    async with started_owner(node) as owner:
        full(owner)
        made, client = await failed(owner, record(1, "k"))

        async def seen() -> tuple[str, str, RowPhase, str]:
            await owner.later(1.1)
            state = await owner.ask(Describe(made.subscription_id))
            row = owner.board.read(made.slot, made.subscription_id)
            assert row is not None
            return state["held"], state["blocked_letters"], row.phase, row.reason

        why = "dead letters cannot be stored: a partition is full"
        assert await seen() == (why, why, RowPhase.HELD, why)
        owner.produce(record(2, "other"))
        await owner.rest()
        assert data(client) == [1, 2]
        running = RowPhase.RUNNING
        assert await seen() == ("", why, running, f"blocked letters: {why}")
        owner.outbox.full_partitions.clear()
        await committed(owner)
        assert await seen() == ("", "", running, "")


async def test_a_letter_to_a_full_topic_is_not_moved(node: Node, dest: Topic) -> None:
    async with started_owner(node) as owner:
        full(owner)
        made, client = await failed(owner, record(1, "k"), record(2, "k"))
        for _ in range(3):
            await committed(owner)
        state = await owner.ask(Describe(made.subscription_id))
        assert (state["dead_lettered"], state["lag"], state["blocked_keys"]) == (0, 2, 1)
        assert data(client) == [1] and not owner.outbox.appended
        await owner.ask(SkipKey(made.subscription_id, "k"))
        await owner.rest()
        assert data(client) == [1, 2]


@pytest.mark.parametrize(
    ("policy", "sent", "dropped"),
    [
        ({"poison": "drop", "dead_letter_topic": None}, [1, 2], 1),
        ({"redeliveries_max": 9}, [1, 1], 0),
    ],
)
async def test_a_policy_applies_to_letters_that_wait(
    node: Node, dest: Topic, policy: dict[str, Any], sent: list[int], dropped: int
) -> None:
    async with started_owner(node) as owner:
        full(owner)
        made, client = await failed(owner, record(1, "k"), record(2, "k"))
        alter(owner, **policy)
        await owner.later(0.1)
        owner.outbox.full_partitions.clear()
        await committed(owner)
        assert data(client) == sent and copies(node, dest) == []
        state = await owner.ask(Describe(made.subscription_id))
        assert (state["dropped"], state["held"]) == (dropped, "")


async def test_while_a_copy_is_on_its_way_its_message_is_neither_retried_nor_skipped(
    node: Node, dest: Topic
) -> None:
    async with started_owner(node) as owner:
        made, client = await failed(owner, record(1, "k"))
        for asked in (RetryKey(made.subscription_id, "k"), SkipKey(made.subscription_id, "k")):
            with pytest.raises(OwnerRefused, match="on its way to dead") as refused:
                await owner.ask(asked)
            assert (refused.value.status, refused.value.code) == (409, "moving")
        await committed(owner)
        assert (copies(node, dest), data(client)) == (["1"], [1])
        assert (await owner.ask(Describe(made.subscription_id)))["dropped"] == 0


@pytest.mark.parametrize("is_gone", [False, True])
async def test_a_message_that_is_resent_and_fails_again_leaves_another_letter(
    node: Node, dest: Topic, is_gone: bool
) -> None:
    async with started_owner(node) as owner:
        made, client = await failed(owner, record(1, "k"))
        await committed(owner)
        assert copies(node, dest) == ["1"]
        resend = Resend(made.subscription_id, (0, 1), "id")
        assert not (await owner.ask(resend))["finished"]
        await owner.rest()
        if is_gone:  # its copy is void
            node.ledger.write(topics.delete, "dead", 2, force=True)
        await owner.nack(made, "c", messages(client)[-1])
        await committed(owner)
        answer = await owner.ask(resend)
        if is_gone:
            assert not answer["finished"], "it waits for its topic"
        else:
            assert answer["finished"] and copies(node, dest) == ["1", "1"]
            assert (await owner.ask(Describe(made.subscription_id)))["dead_lettered"] == 2
