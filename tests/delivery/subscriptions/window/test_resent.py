"""A finished message is delivered once more to its subscription, and nothing else changes."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from delivery.subscriptions import repairs
from delivery.subscriptions.requests import Describe, DescribeKey, OwnerRefused, Resend, Seek
from delivery.subscriptions.window import resent as known
from delivery.subscriptions.window.failures import WindowPolicy
from delivery.subscriptions.window.windows import window_for
from ledger import topics
from ledger.delivery import progress
from ledger.delivery.subscriptions import Subscription
from ledger.lake import lake_files
from ledger.types import TopicConfig
from tests.delivery import lakes
from tests.delivery.node import Node
from tests.delivery.subscriptions.owning import Owner, S, data, messages, record, run
from tests.delivery.watch.watching import Client
from uploader.l0.records import Record


async def refusal(owner: Owner, made: Subscription, seq: int, partition: int = 0) -> str:
    return await refused(owner, Resend(made.subscription_id, (partition, seq)))


async def refused(owner: Owner, asked: Resend) -> str:
    with pytest.raises(OwnerRefused) as found:
        await owner.ask(asked)
    return found.value.code


async def finished(owner: Owner, made: Subscription, *records: Record) -> Client:
    """The consumer "c" of a subscription, which has acknowledged these records."""
    client = await owner.consume(made, "c")
    owner.produce(*records)
    await owner.rest()
    await owner.take_all(made, client)
    return client


@pytest.mark.parametrize("mode", ["key_shared", "shared", "exclusive"])
@pytest.mark.parametrize("key", ["k", None])
def test_a_finished_message_is_delivered_once_more(node: Node, mode: str, key: str | None) -> None:
    async def use(owner: Owner) -> None:
        made = owner.create(mode=mode, backoff_ms=(1_000, 1_000))
        client = await finished(owner, made, *(record(n, key) for n in range(1, 6)))
        sent = await owner.ask(Resend(made.subscription_id, (0, 3)))
        assert sent == {"partition": 0, "seq": 3, "key": key, "finished": False}
        await owner.rest()
        assert data(client) == [1, 2, 3, 4, 5, 3]
        state = await owner.ask(Describe(made.subscription_id))
        assert (state["lag"], state["in_flight"], state["waiting"]) == (0, 1, 0)
        assert state["partitions"][0]["floor"] == 5
        assert await refusal(owner, made, 3) == "not_finished"
        await owner.nack(made, "c", messages(client)[-1])
        await owner.later(1.1)
        assert data(client)[5:] == [3, 3] and messages(client)[-1]["attempt"] == 2
        assert (await owner.ack(made, "c", messages(client)[-1]))["accepted"] == 1
        await owner.later(60)
        assert len(data(client)) == 7, "it is finished again"
        owner.produce(record(6, key))
        await owner.rest()
        await owner.ack(made, "c", messages(client)[-1])
        await owner.ask(Resend(made.subscription_id, (0, 3)))
        await owner.rest()
        assert data(client)[7:] == [6, 3], "as often as it is asked for"

    run(node, use)


@pytest.mark.parametrize("batch_max", [1, 3])
def test_a_message_is_resent_to_a_sender_of_runs(batch_max: int) -> None:
    window = window_for(
        "key_shared", WindowPolicy(run_max=batch_max, backoff_min_ns=S, backoff_max_ns=S),
        is_pushed=True,
    )  # fmt: skip
    window.open(0, 0)
    window.join("a")
    window.admit(0, ["k"] * 3)

    def taken() -> list[int]:
        batch = window.take("a", 10, 0)
        assert batch is not None
        window.sent(batch.epoch, 0)
        return [message.offset for message in batch.messages if message is not None]

    while window.look_aheads[0].unfinished:
        taken()
        window.ack("a", window.epoch, 0)
    window.admit(0, ["k"])
    look_ahead = window.resent.add((0, 2), "k")
    window.admit_again(look_ahead, "k")
    assert taken() == [4], "a run is of one look-ahead"
    window.ack("a", window.epoch, 0)
    assert taken() == [2]
    window.nack("a", window.epoch, 0)
    window.tick(S)
    assert taken() == [2]
    window.take_news()
    window.ack("a", window.epoch, 0)
    assert window.take_news() == {}, "it is finished in the ledger"
    window.check_invariants()
    assert not window.resent.is_open((0, 2)) and window.take("a", 10, 0) is None


def test_a_resent_message_is_the_last_of_its_key_and_waits_for_those_before_it(node: Node) -> None:
    async def use(owner: Owner) -> None:
        made = owner.create()
        client = await finished(owner, made, record(1, "k"))
        owner.produce(record(2, "k"), record(3, "k"))
        await owner.rest()
        await owner.ask(Resend(made.subscription_id, (0, 1)))
        await owner.rest()
        assert data(client) == [1, 2], "a consumer has one message of the key"
        assert (await owner.ask(DescribeKey(made.subscription_id, "k")))["waiting"] == 2
        owner.produce(record(4, "k"))
        await owner.rest()
        for _ in range(4):
            await owner.ack(made, "c", messages(client)[-1])
        assert data(client) == [1, 2, 3, 4, 1] or data(client) == [1, 2, 3, 1, 4]
        assert (await owner.ask(Describe(made.subscription_id)))["lag"] == 0

    run(node, use)


def test_a_resent_message_that_fails_too_often_is_given_up_by_the_policy(node: Node) -> None:
    async def use(owner: Owner) -> None:
        made = owner.create(redeliveries_max=0, poison="drop")
        client = await finished(owner, made, record(1, "k"), record(2, "k"))
        await owner.ask(Resend(made.subscription_id, (0, 1)))
        await owner.rest()
        await owner.nack(made, "c", messages(client)[-1])
        await owner.later(60)
        assert data(client) == [1, 2, 1]
        state = await owner.ask(Describe(made.subscription_id))
        assert (state["dropped"], state["in_flight"], state["blocked_keys"]) == (1, 0, 0)

    run(node, use)


def test_what_is_resent_is_as_finished_for_a_successor_and_after_a_seek_as_before(
    node: Node,
) -> None:
    made: list[Subscription] = []

    async def first(owner: Owner) -> None:
        made.append(owner.create())
        client = await finished(owner, made[0], record(1, "k"), record(2, "k"))
        await owner.ask(Resend(made[0].subscription_id, (0, 1)))
        await owner.rest()
        await owner.ask(Seek(made[0].subscription_id, {0: 2}))
        await owner.rest()
        assert data(client) == [1, 2, 1]
        late = await owner.ack(made[0], "c", messages(client)[-1])
        assert late["accepted"] == 0
        await owner.ask(Resend(made[0].subscription_id, (0, 2)))
        await owner.rest()
        await owner.ack(made[0], "c", messages(client)[-1])

    async def second(owner: Owner) -> None:
        client = await owner.consume(made[0], "c")
        assert data(client) == []
        state = node.ledger.read(progress.state_of, made[0].subscription_id)
        assert state is not None and state.floors == {0: 2} and not state.rows

    run(node, first, second)


def test_what_cannot_be_resent_is_refused(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    async def use(owner: Owner) -> None:
        made = owner.create()
        client = await owner.consume(made, "c")
        owner.produce(*(record(n) for n in range(1, 6)))
        await owner.rest()
        assert await refusal(owner, made, 2) == "not_finished"
        assert await refusal(owner, made, 6) == "unknown_message"
        assert await refusal(owner, made, 1, partition=9) == "unknown_message"
        await owner.take_all(made, client)
        monkeypatch.setattr(repairs, "RESENT_MAX", 1)
        monkeypatch.setattr(known, "RESENT_MAX", 1)
        await owner.ask(Resend(made.subscription_id, (0, 2)))
        assert await refusal(owner, made, 3) == "too_many_resent"
        await owner.rest()
        await owner.ack(made, "c", messages(client)[-1])
        await owner.ask(Resend(made.subscription_id, (0, 3)))
        await owner.rest()
        assert data(client) == [1, 2, 3, 4, 5, 2, 3]
        loose = owner.create("loose", reliable=False)
        assert await refusal(owner, loose, 1) == "not_finished"

    run(node, use)


def test_a_record_that_retention_removed_is_not_resent(node: Node) -> None:
    async def first(owner: Owner) -> None:
        made = owner.create()
        await finished(owner, made, *(record(n) for n in range(1, 6)))

    async def second(owner: Owner) -> None:
        (running,) = owner.subscriptions._running.values()
        asked = Resend(running.view.subscription.subscription_id, (0, 2), "id")
        await owner.ask(asked)
        owner.evict_all_but(1)
        await owner.later(0.1)
        assert await refusal(owner, running.view.subscription, 2) == "unknown_message"
        assert await refused(owner, asked) == "unknown_message", "it was asked for before"

    run(node, first, second)


@pytest.mark.parametrize(
    ("mode", "key"), [("key_shared", "k"), ("key_shared", None), ("exclusive", None)]
)
@pytest.mark.parametrize("state", ["waits", "sent", "rests", "stuck", "becomes a letter"])
def test_a_resent_message_that_retention_removes_is_finished_and_known_to_be_gone(
    node: Node, mode: str, key: str | None, state: str
) -> None:
    policy: dict[str, Any] = {"redeliveries_max": 5 if state == "rests" else 0}
    if state == "becomes a letter":
        node.ledger.write(topics.create, "dead", TopicConfig(), 1)
        policy |= {"poison": "dead_letter", "dead_letter_topic": "dead"}

    async def use(owner: Owner) -> None:
        owner.outbox.full_partitions = {0}
        made = owner.create(mode=mode, backoff_ms=(60_000, 60_000), consumer_max=1, **policy)
        client = await finished(owner, made, *(record(n, key) for n in range(1, 6)))
        first = Resend(made.subscription_id, (0, 1), "first")
        second = Resend(made.subscription_id, (0, 2), "second")
        if state == "waits":
            await owner.ask(first)
        await owner.ask(second)
        await owner.rest()
        assert data(client)[5:] == [1 if state == "waits" else 2]
        (running,) = owner.subscriptions._running.values()
        window = running.window
        if state not in ("waits", "sent"):
            await owner.nack(made, "c", messages(client)[-1])
            blocked = window.blocked
            assert (state == "rests") == ((0, 2) in blocked.resting) != ((0, 2) in blocked.stuck)
            assert len(window.dead_letters.waiting) == (state == "becomes a letter")
        window.check_invariants()
        owner.evict_all_but(2)
        await owner.later(0.1)
        window.check_invariants()
        if state == "waits":
            await owner.ack(made, "c", messages(client)[-1])
            assert (await owner.ask(first))["finished"], "it was dealt with"
        elif state == "sent":
            await owner.nack(made, "c", messages(client)[-1])
        told = await owner.ask(Describe(made.subscription_id))
        assert (told["blocked_keys"], told["in_flight"], told["lag"]) == (0, 0, 0)
        assert told["evicted"] == 1 and not window.dead_letters.waiting
        assert await refused(owner, second) == "unknown_message"
        owner.produce(record(6, key))
        await owner.rest()
        assert data(client)[6:] == [6], "nothing waits for it"
        window.check_invariants()

    run(node, use)


def test_a_resent_message_that_stays_keeps_its_failures_when_those_before_it_are_removed() -> None:
    window = window_for("shared", WindowPolicy(redeliveries_max=9, backoff_min_ns=S))
    window.open(0, 0)
    window.join("a")
    window.admit(0, [None] * 5)
    first = window.take("a", 5, 0)
    assert first is not None
    window.ack("a", first.epoch, 0, [(0, 1), (0, 2), (0, 4), (0, 5)])
    for seq in (2, 4):
        window.admit_again(window.resent.add((0, seq)), None)
    assert window.take("a", 2, 0) is not None
    window.nack("a", window.epoch, 0)
    window.tick(10 * S)
    window.check_invariants()
    window.evict(0, 4)
    window.check_invariants()
    again = window.take("a", 5, 0)
    assert again is not None
    assert [(each.offset, each.attempts) for each in again.messages if each] == [(4, 1)]
    window.give_back(first.epoch)
    assert (window.unfinished, window.counts.evicted) == (0, 2)
    window.ack("a", again.epoch, 0)
    window.check_invariants()
    assert not window.resent.look_aheads(0)


async def resent(owner: Owner, made: Subscription, seq: int, name: str) -> bool:
    """Asks for a message once more; whether it is finished again."""
    answer = await owner.ask(Resend(made.subscription_id, (0, seq), name))
    await owner.rest()
    assert (answer["seq"], answer["key"]) == (seq, "k")
    return bool(answer["finished"])


def test_a_request_that_is_repeated_with_its_id_tells_what_has_become_of_the_message(
    node: Node,
) -> None:
    made: list[Subscription] = []

    async def first(owner: Owner) -> None:
        made.append(owner.create())
        client = await finished(owner, made[0], record(1, "k"), record(2, "k"))
        assert not await resent(owner, made[0], 1, "a")
        assert not await resent(owner, made[0], 1, "a") and data(client) == [1, 2, 1]
        with pytest.raises(OwnerRefused) as refused:
            await resent(owner, made[0], 1, "b")
        assert refused.value.code == "not_finished" and refused.value.detail["resent"]
        await owner.ack(made[0], "c", messages(client)[-1])
        for _ in range(2):
            assert await resent(owner, made[0], 1, "a")
        assert data(client) == [1, 2, 1], "it is known by its id"
        assert not await resent(owner, made[0], 1, "b") and data(client) == [1, 2, 1, 1]
        await owner.ack(made[0], "c", messages(client)[-1])
        await owner.ask(Seek(made[0].subscription_id, {0: 2}))
        assert not await resent(owner, made[0], 1, "b"), "a seek has forgotten it"
        assert data(client) == [1, 2, 1, 1, 1]

    async def second(owner: Owner) -> None:
        client = await owner.consume(made[0], "c")
        assert not await resent(owner, made[0], 1, "b") and data(client) == [1]

    run(node, first, second)


def test_as_many_resent_messages_are_known_by_their_ids_as_there_is_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(known, "RESENT_MAX", 1)
    monkeypatch.setattr(known, "REMEMBERED_MAX", 2)
    found = known.ResentMessages()
    for seq in range(1, 6):
        assert found.count() == 0
        look_ahead = found.add((0, seq), "k", "id")
        look_ahead.add_keyed(1)
        assert found.count() == 1 and found.is_open((0, seq))
        look_ahead.finish_all((seq,))
    assert [found.named((0, seq), "id") is None for seq in range(1, 6)] == [True] * 2 + [False] * 3
    assert found.named((0, 5), "") is None and found.named((0, 5), "other") is None


def test_a_record_in_quarantine_is_resent_once_it_has_come_back(node: Node) -> None:
    async def first(owner: Owner) -> None:
        made = owner.create()
        await finished(owner, made, *(record(n) for n in range(1, 4)))

    async def second(owner: Owner) -> None:
        (running,) = owner.subscriptions._running.values()
        made = running.view.subscription
        owner.partitions.followed.forget_tail(node.key())
        with node.ledger.writing() as tx:
            tx.execute(
                "INSERT INTO quarantine (topic_id, partition, first_offset, last_offset, key,"
                " reason, found_ms) VALUES (?, 0, 2, 2, 'object', 'damaged', 1)",
                (node.topic.topic_id,),
            )
        assert await refusal(owner, made, 2) == "quarantined"
        with node.ledger.writing() as tx:
            tx.execute("DELETE FROM quarantine")
        client = await owner.consume(made, "c")
        await owner.ask(Resend(made.subscription_id, (0, 2)))
        await owner.rest()
        assert data(client) == [2]

    run(node, first, second)


def test_an_offset_of_a_topic_that_was_created_again_is_refused(node: Node) -> None:
    async def use(owner: Owner) -> None:
        made = owner.create()
        client = await finished(owner, made, record(1, "k"))
        topic_id = node.topic.topic_id
        with pytest.raises(OwnerRefused) as refused:
            await owner.ask(Resend(made.subscription_id, (0, 1), "", topic_id - 1))
        assert refused.value.code == "unknown_message"
        assert refused.value.detail["topic_id"] == topic_id
        await owner.ask(Resend(made.subscription_id, (0, 1), "", topic_id))
        await owner.rest()
        assert data(client) == [1, 1]

    run(node, use)


def test_messages_that_are_resent_count_for_the_memory_of_their_shard(node: Node) -> None:
    async def use(owner: Owner) -> None:
        made = owner.create()
        await finished(owner, made, record(1, "a"))
        owner.subscriptions.budgets.look_ahead.note(0, 1 << 40)  # of all others
        asked = Resend(made.subscription_id, (0, 1))
        with pytest.raises(OwnerRefused, match="used up their memory") as found:
            await owner.ask(asked)
        assert (found.value.status, found.value.code) == (429, "too_many_resent")
        owner.subscriptions.budgets.look_ahead.forget(0)
        await owner.ask(asked)
        await owner.later(0)
        assert 2_000 < owner.subscriptions.budgets.look_ahead.taken < 3_000

    run(node, use)


def test_what_resent_messages_take_is_counted() -> None:
    resent = known.ResentMessages()
    tracemalloc.start()
    try:
        for number in range(500):
            key, name = "\U0001f600" * (number % 1_000), f"{number}" * 10
            resent.add((0, number + 1), key, name).add_loose(1)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert 0.7 * taken <= resent.bytes <= 2 * taken


def test_a_message_in_a_damaged_file_of_the_lake_is_refused_with_the_name_of_the_file(
    node: Node,
) -> None:
    async def first(owner: Owner) -> None:
        made = owner.create()
        await finished(owner, made, record(1), record(2))

    async def second(owner: Owner) -> None:
        (running,) = owner.subscriptions._running.values()
        lakes.compact(node)
        owner.partitions.followed.forget_tail(node.key())
        (file,) = node.ledger.read(lake_files.of_topic, node.topic.topic_id)
        lakes.local(file.path).write_bytes(b"torn")
        asked = Resend(running.view.subscription.subscription_id, (0, 1))
        with pytest.raises(OwnerRefused, match=file.path) as found:
            await owner.ask(asked)
        assert (found.value.status, found.value.code) == (503, "object_damaged")

    run(node, first, second)
