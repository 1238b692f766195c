"""What a receiver asked for and what it taught, when its endpoint changes or its sender dies."""

from __future__ import annotations

from pathlib import Path

import pytest

from delivery.push.sender import PushSender
from ledger.delivery.push_rates import LearnedRate
from ledger.delivery.subscriptions import Subscription
from shards.boards.endpointholds import EndpointHolds, HoldPlace
from shards.boards.pushboard import LimiterMode, PushBoard, SenderWords
from shards.clock import monotonic_ns
from tests.delivery.node import Node
from tests.delivery.push.sending import Sending, started_senders, until_it_rests
from tests.delivery.subscriptions.owning import record

HOUR_NS = 3_600_000_000_000
PAUSE = "503 Busy\r\nRetry-After: 3600"


def sender_of(them: Sending, made: Subscription) -> PushSender:
    return them.senders._senders[made.subscription_id]


def place_of(them: Sending) -> HoldPlace:
    return EndpointHolds(them.owner.node.segment).place(them.endpoint)


def hold(them: Sending) -> int:
    """The receiver asks some sender for a pause of an hour. Returns its end."""
    holds, now_ns = EndpointHolds(them.owner.node.segment), monotonic_ns()
    holds.hold(place_of(them), now_ns + HOUR_NS, now_ns)
    return holds.until_ns(place_of(them))


@pytest.mark.parametrize("last_words", ["410 Gone", PAUSE, "500 No"])
async def test_what_a_former_endpoint_still_answers_is_not_said_by_the_new_one(
    node: Node, tmp_path: Path, last_words: str
) -> None:
    async with started_senders(node, tmp_path) as them:
        them.receiver.gate.clear()
        answers = iter([last_words])  # to the first POST
        them.receiver.answer = lambda *_: next(answers, "204 OK")
        made = them.create({"connections_max": 1}, backoff_ms=(1, 1))
        them.owner.produce(record(1, "a"), record(2, "b"))
        await them.until(lambda: them.receiver.under_way == 1, made)
        them.alter({"connections_max": 1, "endpoint": them.endpoint + "/new"})
        sender = sender_of(them, made)
        await them.until(lambda: sender.job.push.endpoint.endswith("/new"), made)
        them.receiver.gate.set()
        await until_it_rests(them, made)
        await them.owner.later(100)
        await them.until_finished(made, 2)
        assert not them.config.paused
        assert sender.limiter._failed == 0


async def test_a_changed_endpoint_is_learned_anew(node: Node, tmp_path: Path) -> None:
    async with started_senders(node, tmp_path) as them:
        made = them.create({"rate_max": 50.0})
        slow = LearnedRate(LimiterMode.HEARTBEAT, 3.0, 7.0)
        words = SenderWords(node.segment, 0, made.slot)
        words.join(made.subscription_id)
        words.tell(slow, 1)
        await them.until(lambda: len(them.senders) == 1, made, 50.0)
        limiter = sender_of(them, made).limiter
        await them.until(lambda: limiter.maximum == 50, made, 50.0)
        assert limiter.mode is LimiterMode.HEARTBEAT
        them.alter({"rate_max": 50.0, "endpoint": them.endpoint + "/new"})
        await them.until(lambda: limiter.mode is LimiterMode.NORMAL, made, 50.0)
        assert (limiter.rate, limiter.ceiling) == (10.0, None)
        board, anew = PushBoard(node.segment), LearnedRate(LimiterMode.NORMAL, 10.0, None)
        looks = iter(range(2))
        await them.until(lambda: next(looks, None) is None, made, 50.0)
        assert [row.state for row in board.senders(made.slot, made.subscription_id)] == [anew]


async def test_a_sender_begins_with_the_rate_of_the_settings_also_at_another_endpoint(
    node: Node, tmp_path: Path
) -> None:
    async with started_senders(node, tmp_path) as them:
        push = {"rate_max": 50.0, "rate_start": 40.0}
        made = them.create(push)
        await them.until(lambda: len(them.senders) == 1, made, 50.0)
        limiter = sender_of(them, made).limiter
        await them.until(lambda: limiter.maximum == 50, made, 50.0)
        assert limiter.rate == pytest.approx(40.0)
        them.alter({**push, "endpoint": them.endpoint + "/new", "rate_start": 500.0})
        await them.until(lambda: limiter.rate == 50, made, 50.0)


async def test_a_pause_is_told_as_soon_as_it_was_asked_for(node: Node, tmp_path: Path) -> None:
    async with started_senders(node, tmp_path) as them:
        them.receiver.answer = lambda *_: PAUSE
        made = them.create()
        them.owner.produce(record(1, "a"))
        await until_it_rests(them, made)
        held_ns = sender_of(them, made).limiter.held_until_ns
        assert held_ns > monotonic_ns() + HOUR_NS // 2
        (row,) = PushBoard(node.segment).senders(made.slot, made.subscription_id)
        assert row.held_until_ns == held_ns


async def test_a_pause_outlives_the_process_that_was_asked_for_it(
    node: Node, tmp_path: Path
) -> None:
    async with started_senders(node, tmp_path) as them:
        made = them.create()
        until_ns = hold(them)  # and it dies
        them.owner.produce(record(1, "a"))
        await them.until(lambda: len(them.senders) == 1, made)
        sender = sender_of(them, made)
        await them.until(lambda: sender.limiter.maximum > 0 and sender.queue.messages == 1, made)
        assert sender.limiter.next_ns(monotonic_ns()) == until_ns
        them.alter({"endpoint": them.endpoint + "/new"})
        await them.until_finished(made, 1)


async def test_a_pause_holds_all_subscriptions_that_send_to_the_endpoint_at_all_shards(
    node: Node, tmp_path: Path
) -> None:
    async with started_senders(node, tmp_path) as them:
        made = them.create({"connections_max": 1})
        them.owner.produce(record(1, "a"))
        await them.until_finished(made, 1)
        until_ns = hold(them)  # a sender of another subscription, at any shard
        them.owner.produce(record(2, "a"))
        sender = sender_of(them, made)
        await them.until(lambda: sender.queue.messages == 1, made)
        looks = iter(range(20))
        await them.until(lambda: next(looks, None) is None, made)
        assert sender.limiter.held_until_ns == until_ns and len(them.receiver.posts) == 1
        (row,) = PushBoard(node.segment).senders(made.slot, made.subscription_id)
        assert row.held_until_ns == until_ns
        PushBoard(node.segment).resume(made.slot, made.subscription_id, 1)
        await them.until_finished(made, 2)
        assert EndpointHolds(node.segment).until_ns(place_of(them)) == 0, "for the others too"


async def test_what_an_endpoint_asks_for_holds_no_other_one_and_ends_when_an_operator_resumes(
    node: Node, tmp_path: Path
) -> None:
    async with started_senders(node, tmp_path) as them:
        answers = iter([PAUSE])
        them.receiver.answer = lambda *_: next(answers, "204 OK")
        made = them.create()
        them.owner.produce(record(1, "a"))
        await until_it_rests(them, made)
        assert EndpointHolds(node.segment).until_ns(place_of(them)) > monotonic_ns()
        other = EndpointHolds(node.segment).place(them.endpoint + "/other")
        assert EndpointHolds(node.segment).until_ns(other) == 0
        them.alter(paused=True)
        await them.until(lambda: sender_of(them, made).job.config.paused, made)
        them.alter(paused=False)
        await them.until(lambda: not sender_of(them, made).job.config.paused, made)
        await them.owner.later(10)
        await them.until_finished(made, 1)
