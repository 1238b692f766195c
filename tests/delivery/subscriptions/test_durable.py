"""What is finished stays finished: through a successor, a seek, another mode, growth, retention."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from delivery.subscriptions.requests import (
    Describe,
    DescribeKey,
    ListKeys,
    PausePush,
    RetryKey,
    Seek,
    SkipKey,
)
from delivery.subscriptions.shown import inspection
from ledger import topics
from ledger.delivery import subscriptions
from ledger.delivery.push_settings import PushSettings
from ledger.types import Topic, TopicConfig
from shards import layout as at
from shards.boards.rowboard import RowPhase
from tests.delivery.node import Node
from tests.delivery.subscriptions.owning import Owner, data, messages, record, started_owner
from uploader.l0.records import Record


async def test_a_successor_delivers_nothing_that_was_acknowledged(node: Node) -> None:
    made: Any = None
    epoch = 0

    async with started_owner(node) as owner:
        made = owner.create()
        owner.produce(*(record(n) for n in range(10)))
        client = await owner.consume(made, "c")
        epoch = messages(client)[0]["epoch"]
        answered = (each for each in messages(client) if each["data"] % 2)
        owner.dies()
        await owner.ack(made, "c", *answered)
    async with started_owner(node) as owner:
        client = await owner.consume(made, "c")
        assert data(client) == [0, 2, 4, 6, 8]
        assert messages(client)[0]["epoch"] > epoch, "no number of a batch is used twice"
        state = await owner.ask(Describe(made.subscription_id))
        assert (state["lag"], state["acknowledged"]) == (5, 0)


async def test_a_flush_is_enough_without_the_journal(node: Node) -> None:
    made: Any = None

    async with started_owner(node) as owner:
        made = owner.create()
        owner.produce(*(record(n, "k") for n in range(3)))
        client = await owner.consume(made, "c")
        await owner.ack(made, "c", *messages(client))
    async with started_owner(node) as owner:
        assert not list(owner.journal.entries())
        client = await owner.consume(made, "c")
        assert data(client) == [1]


def dead_letters(node: Node) -> Topic:
    return node.ledger.write(topics.create, "dead", TopicConfig(), 1)[0]


def copies(node: Node, dest: Topic) -> list[tuple[int, Record]]:
    return node.records[dest.topic_id, 0]


async def test_a_dead_letter_is_stored_once_and_its_key_goes_on(node: Node) -> None:
    dest = dead_letters(node)

    async with started_owner(node) as owner:
        made = owner.create(
            poison="dead_letter", dead_letter_topic="dead", redeliveries_max=0, window_max=10
        )
        client = await owner.consume(made, "c")
        owner.produce(Record('{"a":1}', key="k", meta='{"m":2}'), record(2, "k"))
        await owner.rest()
        await owner.nack(made, "c", *messages(client))
        assert data(client) == [{"a": 1}], "the key waits until the copy is durable"
        assert node.commit(0) is not None
        owner.tell()
        await owner.rest()
        assert data(client) == [{"a": 1}, 2]
        ((_, copy),) = copies(node, dest)
        assert (copy.data, copy.key) == ('{"a":1}', "k")
        meta = json.loads(str(copy.meta))
        assert meta["meta"] == {"m": 2}
        assert meta["headgate"] == {
            "topic": "t", "topic_id": node.topic.topic_id, "partition": 0, "seq": 1,
            "subscription": "s", "attempts": 1, "reason": "no",
        }  # fmt: skip
        state = await owner.ask(Describe(made.subscription_id))
        assert (state["dead_lettered"], state["lag"]) == (1, 1)


async def test_a_copy_that_a_former_owner_published_is_not_stored_again(node: Node) -> None:
    dest = dead_letters(node)
    made: Any = None
    config: dict[str, Any] = {
        "poison": "dead_letter", "dead_letter_topic": "dead", "redeliveries_max": 0,
    }  # fmt: skip

    async with started_owner(node) as owner:
        made = owner.create(**config)
        client = await owner.consume(made, "c")
        owner.produce(record(1, "k"), record(2, "k"))
        await owner.rest()
        await owner.nack(made, "c", *messages(client))
        assert owner.outbox.appended == 1, "it is in the ring, and not committed"
    async with started_owner(node) as owner:
        client = await owner.consume(made, "c")
        assert data(client) == [1], "nobody knows yet"
        await owner.nack(made, "c", *messages(client))
        assert owner.outbox.appended == 1
        assert node.commit(0) is not None
        owner.tell()
        await owner.rest()
        assert [copy.data for _, copy in copies(node, dest)] == ["1"]
        assert data(client) == [1, 2]


async def test_a_blocked_key_waits_for_an_operator(node: Node) -> None:
    async with started_owner(node) as owner:
        made = owner.create(redeliveries_max=0)
        client = await owner.consume(made, "c")
        owner.produce(record(1, "k"), record(2, "k"), record(3, "other"), record(4))
        await owner.rest()
        first, other, loose = messages(client)
        await owner.nack(made, "c", first, loose)
        await owner.ack(made, "c", other)
        key = await owner.ask(DescribeKey(made.subscription_id, "k"))
        assert (key["state"], key["seq"], key["waiting"]) == ("stuck", 1, 1)
        assert (await owner.ask(RetryKey(made.subscription_id, "k")))["seq"] == 1
        await owner.rest()
        assert data(client) == [1, 3, 4, 1] and messages(client)[-1]["attempt"] == 1
        await owner.nack(made, "c", messages(client)[-1])
        await owner.ask(SkipKey(made.subscription_id, "k"))
        await owner.ask(SkipKey(made.subscription_id, None, (0, 4)))
        await owner.rest()
        assert data(client) == [1, 3, 4, 1, 2]
        state = await owner.ask(Describe(made.subscription_id))
        assert (state["skipped"], state["dropped"]) == (2, 0), "dropping is the policy's"


async def test_a_list_of_long_keys_that_are_blocked_is_a_short_one(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "KEY_CHARACTERS_SHOWN", 250)

    async with started_owner(node) as owner:
        made = owner.create(redeliveries_max=0)
        client = await owner.consume(made, "c")
        owner.produce(*(record(n, f"{n}" * 100) for n in range(1, 6)))
        await owner.rest()
        await owner.nack(made, "c", *messages(client))
        for limit, shown in ((2, 2), (100, 3)):
            listed = await owner.ask(ListKeys(made.subscription_id, limit))
            assert len(listed["keys"]) == shown


async def test_a_seek_sends_again_and_refuses_what_was_in_flight(node: Node) -> None:
    async with started_owner(node) as owner:
        made = owner.create()
        client = await owner.consume(made, "c")
        owner.produce(*(record(n) for n in range(1, 5)))
        await owner.rest()
        await owner.ack(made, "c", *messages(client)[:2])
        sought = await owner.ask(Seek(made.subscription_id, {0: 1}))
        assert sought["partitions"][0]["floor"] == 1
        await owner.rest()
        assert data(client) == [1, 2, 3, 4, 2, 3, 4]
        late = await owner.ack(made, "c", messages(client)[3])
        assert (late["accepted"], late["refused"]) == (0, 1)
        await owner.ack(made, "c", *messages(client)[4:])
        assert (await owner.ask(Describe(made.subscription_id)))["lag"] == 0


def alter(owner: Owner, **changes: Any) -> None:
    owner.node.ledger.write(subscriptions.alter, owner.node.topic.name, "s", changes)
    owner.changes += 1


async def test_another_mode_goes_on_where_the_former_one_was(node: Node) -> None:
    async with started_owner(node) as owner:
        made = owner.create()
        client = await owner.consume(made, "c")
        owner.produce(*(record(n, f"k{n}") for n in range(1, 6)))
        await owner.rest()
        await owner.ack(made, "c", *(messages(client)[n] for n in (0, 2, 4)))
        alter(owner, mode="exclusive")
        await owner.later(0.1)
        assert data(client) == [1, 2, 3, 4, 5, 2, 4]
        await owner.ack(made, "c", *messages(client)[5:])
        assert (await owner.ask(Describe(made.subscription_id)))["lag"] == 0


async def test_a_policy_applies_to_what_is_blocked_already(node: Node) -> None:
    async with started_owner(node) as owner:
        made = owner.create(redeliveries_max=0)
        client = await owner.consume(made, "c")
        owner.produce(record(1, "k"), record(2, "k"))
        await owner.rest()
        await owner.nack(made, "c", *messages(client))
        alter(owner, poison="drop")
        await owner.later(0.1)
        assert data(client) == [1, 2]


async def test_a_paused_subscription_sends_nothing(node: Node) -> None:
    async with started_owner(node) as owner:
        made = owner.create()
        client = await owner.consume(made, "c")
        alter(owner, paused=True)
        await owner.later(0.1)
        owner.produce(record(1))
        await owner.rest()
        assert data(client) == []
        alter(owner, paused=False)
        await owner.later(0.1)
        assert data(client) == [1]


async def test_a_receiver_that_wants_no_more_pauses_its_subscription_at_all_shards(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    async with started_owner(node) as owner:
        made = owner.create(push=PushSettings("http://here/"))
        await owner.ask(Describe(made.subscription_id))

        def phase() -> RowPhase:
            row = owner.board.read(made.slot, made.subscription_id)
            assert row is not None
            return row.phase

        elsewhere = PausePush(made.subscription_id, "http://elsewhere/", "410 Gone")
        assert await owner.ask(elsewhere) == {"paused": False}
        await owner.later(1.1)
        assert phase() is not RowPhase.PAUSED
        assert not caplog.messages

        before = node.segment.words[at.G_DELIVERY]
        pause = PausePush(made.subscription_id, "http://here/", "410 Gone")
        assert [await owner.ask(pause) for _ in range(2)] == [{"paused": True}, {"paused": False}]
        (line,) = caplog.messages
        assert line.endswith("is paused until an operator resumes it: 410 Gone")
        assert node.segment.words[at.G_DELIVERY] > before, "by this word other shards notice it"
        await owner.later(0.1)
        await owner.later(1.1)
        assert phase() is RowPhase.PAUSED


async def test_new_partitions_wait_until_the_older_ones_are_read(node: Node) -> None:
    async with started_owner(node) as owner:
        made = owner.create()
        owner.produce(*(record(n, f"k{n % 20}") for n in range(300)), tell=False)
        changed = msgspec.structs.replace(node.topic.config, partitions=4)
        node.ledger.write(topics.alter, node.topic.name, changed)
        node.produce(0, {3: [record("new", "k0")]})
        node.commit(0)
        client = await owner.consume(made, "c")
        owner.tell()
        owner.subscriptions.topic_changed(node.topic)
        await owner.later(0.1)
        done = 0
        while done < len(messages(client)):
            new = messages(client)[done:]
            done += len(new)
            await owner.ack(made, "c", *new)
        of_key = [message["data"] for message in messages(client) if message["key"] == "k0"]
        assert of_key == [*range(0, 300, 20), "new"]


async def test_what_retention_removes_is_told_once(node: Node) -> None:
    async with started_owner(node) as owner:
        made = owner.create()
        owner.produce(*(record(n, "k") for n in range(1, 11)))
        owner.evict_all_but(3)
        await owner.later(0.1)
        await owner.later(0.1)
        state = await owner.ask(Describe(made.subscription_id))
        assert (state["lag"], state["evicted"]) == (3, 7)
        (gap,) = state["gaps"]
        assert (gap["gap_from"], gap["gap_to"], gap["reason"]) == (1, 7, "cap")
        client = await owner.consume(made, "c")
        assert [event.get("event") for event in client.events] == ["tombstone", None]
        assert data(client) == [8]


@pytest.mark.parametrize("mode", ["key_shared", "shared", "exclusive"])
async def test_what_was_given_up_because_it_was_evicted_is_given_up_by_the_successor(
    node: Node, mode: str
) -> None:
    """Although the rings still hold it: what followed it has been sent."""
    made: Any = None

    async with started_owner(node) as owner:
        made = owner.create(mode=mode, consumer_max=1, backoff_ms=(60_000, 60_000))
        owner.produce(*(record(n, "k") for n in range(1, 4)))
        client = await owner.consume(made, "c")
        owner.dies()
        await owner.nack(made, "c", *messages(client))
        owner.evict_all_but(2)
        await owner.later(0.1)
        await owner.later(0.1)
        assert data(client) == [1, 2]
    async with started_owner(node) as owner:
        client = await owner.consume(made, "c")
        assert [event.get("gap_to") for event in client.events] == [1, None]
        assert data(client) == [2]
        state = await owner.ask(Describe(made.subscription_id))
        assert (state["lag"], state["gaps"][0]["gap_to"]) == (2, 1)


async def test_a_seek_to_what_was_evicted_sends_none_of_it(node: Node) -> None:
    async with started_owner(node) as owner:
        made = owner.create(consumer_max=1)
        owner.produce(*(record(n, "k") for n in range(1, 4)))
        client = await owner.consume(made, "c")
        owner.evict_all_but(2)
        await owner.ask(Seek(made.subscription_id, {0: 0}))
        await owner.rest()
        assert data(client) == [1, 2]


async def test_an_acknowledgment_for_a_deleted_subscription_finishes_nothing_of_its_namesake(
    node: Node,
) -> None:
    async with started_owner(node) as owner:
        former = owner.create()
        owner.produce(record(1))
        client = await owner.consume(former, "c")
        (late,) = messages(client)
        node.ledger.write(subscriptions.delete, "t", "s", 1)
        owner.changes += 1
        made = owner.create()
        await owner.later(0.1)
        owner.produce(record(2))
        client = await owner.consume(made, "c")
        assert data(client) == [1, 2]
        answer = await owner.ack_batch(made, "c", late["epoch"])
        assert (answer["accepted"], answer["refused"]) == (0, 1)
        answer = await owner.ack(made, "c", late)
        assert answer["accepted"] == 0
        assert (await owner.ask(Describe(made.subscription_id)))["lag"] == 2


async def test_what_no_consumer_accepted_is_not_sent_after_what_followed_it(node: Node) -> None:
    made: Any = None

    async with started_owner(node) as owner:
        made = owner.create(unmatched="skip")
        await owner.consume(made, "other", "x*")
        owner.dies()
        owner.produce(record(1, "k"))
        await owner.rest()
        client = await owner.consume(made, "c", "k*")
        owner.produce(record(2, "k"))
        await owner.rest()
        assert data(client) == [2]
    async with started_owner(node) as owner:
        assert data(await owner.consume(made, "c", "k*")) == [2]


async def test_while_the_prefix_may_be_anothers_nothing_is_sent(node: Node) -> None:
    async with started_owner(node) as owner:
        made = owner.create()
        client = await owner.consume(made, "c")
        owner.is_owned = False
        owner.produce(record(1))
        await owner.rest()
        assert data(client) == []
        owner.is_owned = True
        await owner.later(0.1)
        assert data(client) == [1]


async def test_a_silent_stream_shows_that_it_is_alive(node: Node) -> None:
    async with started_owner(node) as owner:
        made = owner.create()
        client = await owner.consume(made, "c")
        await owner.later(14)
        assert client.writes == []
        await owner.later(2)
        assert len(client.writes) == 1 and b'"heartbeat"' in client.writes[0]
