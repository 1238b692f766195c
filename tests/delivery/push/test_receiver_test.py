"""The test of a receiver: the whole exchange without secrets, within the limit."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.push.posts.client import PushClient
from delivery.push.rates.limiter import Limiter, LimiterSettings
from delivery.push.rates.pacer import BURST_S, LATE_S, NEVER_NS
from delivery.push.secrets import PushSecrets
from delivery.subscriptions.requests import OwnerRefused, TryPush
from delivery.subscriptions.schemas import PushExchange
from ledger.delivery.push_rates import LearnedRate
from ledger.delivery.subscriptions import Subscription
from shards.boards.pushboard import LimiterMode, PushBoard, SenderWords
from tests.delivery.node import Node
from tests.delivery.push.sending import Sending, started_senders
from tests.delivery.subscriptions.owning import record
from tests.signing import secret_of

S = 1_000_000_000


async def begun(them: Sending, made: Subscription) -> None:
    """The sender is there."""
    await them.until(lambda: len(them.senders) == 1, made)


async def tried(
    them: Sending, made: Subscription, rate: float = 100_000.0, **asked: Any
) -> PushExchange:
    """What a test shows. Raises OwnerRefused."""
    wanted: dict[str, Any] = {"data": '{"a":1}', "key": "k", "token": "0a", **asked}
    await begun(them, made)
    task = asyncio.ensure_future(
        them.owner.subscriptions.ask(TryPush(made.subscription_id, **wanted))
    )
    await them.until(task.done, made, rate)
    shown = task.result()
    return msgspec.json.decode(msgspec.json.encode(shown), type=PushExchange)


async def test_the_whole_exchange_is_shown(node: Node, tmp_path: Path) -> None:
    async with started_senders(node, tmp_path) as them:
        them.receiver.answer = lambda *_: "201 Created\r\nx-seen: yes"
        made = them.create()
        shown = await tried(them, made)
        assert (shown.status, shown.outcome, shown.failure) == (201, "success", None)
        assert shown.endpoint == them.endpoint and shown.address in them.endpoint
        request = {each.name: each.value for each in shown.request_headers}
        ((received, body),) = them.receiver.posts
        assert request.items() <= received.items()
        assert (request["ce-key"], request["content-type"]) == ("k", "application/json")
        assert (shown.request_body, shown.request_bytes, body) == ('{"a":1}', 7, b'{"a":1}')
        assert ("x-seen", "yes") in [(each.name, each.value) for each in shown.answer_headers]
        again = await tried(them, made, token="0b")
        ids = [
            next(each.value for each in told.request_headers if each.name == "ce-id")
            for told in (shown, again)
        ]
        assert ids[0] != ids[1], "a receiver takes the second one for another record"


@pytest.mark.parametrize("format_", ["binary", "batch"])
async def test_values_of_own_headers_are_hidden_even_if_the_receiver_repeats_them(
    node: Node, tmp_path: Path, format_: str
) -> None:
    async with started_senders(node, tmp_path) as them:
        secret = secret_of(b"s" * 24)
        secrets_id = them.secrets.save(PushSecrets((secret,), {"x-key": "hunter2"}))
        them.receiver.answer = lambda headers, _: f"400 No {headers['x-key']}\r\nx: {secret}!"
        made = them.create(
            {"headers": ["x-key"], "signed": True, "secrets_id": secrets_id, "format": format_}
        )
        shown = await tried(them, made)
        assert (shown.status, shown.outcome) == (400, "record")
        ((received, _),) = them.receiver.posts
        assert received["x-key"] == "hunter2" and received["webhook-signature"].startswith("v1,")
        request = {each.name: each.value for each in shown.request_headers}
        assert request["x-key"] == "(hidden)"
        told = repr(shown)
        assert "hunter2" not in told and secret not in told
        assert "(hidden)!" in [each.value for each in shown.answer_headers]


async def test_a_test_counts_as_an_attempt_and_nothing_of_the_subscription_moves(
    node: Node, tmp_path: Path
) -> None:
    async with started_senders(node, tmp_path) as them:
        them.receiver.answer = lambda *_: "503 No\r\nretry-after: 1"
        made = them.create()
        shown = await tried(them, made)
        assert (shown.outcome, shown.retry_after_ms) == ("held", 1_000)
        (row,) = PushBoard(node.segment).senders(made.slot, made.subscription_id)
        assert (row.attempts, row.records, sum(row.outcomes)) == (1, 0, 1)
        running = them.owner.subscriptions._running[made.subscription_id]
        assert running.window.in_flight == 0 and not running.window.counts.delivered


async def test_a_receiver_that_is_gone_is_told_and_not_paused_by_a_test(
    node: Node, tmp_path: Path
) -> None:
    async with started_senders(node, tmp_path) as them:
        them.receiver.answer = lambda *_: "410 Gone"
        shown = await tried(them, them.create())
        assert (shown.status, shown.outcome) == (410, "gone")
        assert them.config.paused is False


@pytest.mark.parametrize(
    ("status", "mode"), [("204 OK", LimiterMode.NORMAL), ("500 No", LimiterMode.HEARTBEAT)]
)
async def test_a_test_that_the_receiver_takes_ends_the_slow_mode_of_all_senders(
    node: Node, tmp_path: Path, status: str, mode: LimiterMode
) -> None:
    async with started_senders(node, tmp_path) as them:
        made = them.create({"rate_max": 50.0})
        before = SenderWords(node.segment, 0, made.slot)
        before.join(made.subscription_id)
        before.tell(LearnedRate(LimiterMode.HEARTBEAT, 5.0, None), 1)
        them.receiver.answer = lambda *_: status
        await tried(them, made, rate=50.0)
        resumed_ns = before.resumed_ns  # as the sender of another shard sees it
        assert bool(resumed_ns) == (mode is LimiterMode.NORMAL)
        limiter = them.senders._senders[made.subscription_id].limiter
        looks = iter(range(3))
        await them.until(lambda: next(looks, None) is None, made, 50.0)
        assert limiter.mode is mode
        if mode is LimiterMode.NORMAL:
            assert limiter.rate > 5.0
            (row,) = PushBoard(node.segment).senders(made.slot, made.subscription_id)
            assert row.state.mode == LimiterMode.NORMAL


async def test_loading_the_client_is_no_time_of_the_receiver(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = PushClient._load

    async def slowly(client: PushClient) -> object:
        await asyncio.sleep(0.3)
        return await load(client)

    monkeypatch.setattr(PushClient, "_load", slowly)

    async with started_senders(node, tmp_path) as them:
        shown = await tried(them, them.create())
        assert shown.outcome == "success" and shown.waited_ms >= 300


async def test_a_paused_subscription_can_be_tested(node: Node, tmp_path: Path) -> None:
    async with started_senders(node, tmp_path) as them:
        made = them.create(paused=True)
        assert (await tried(them, made)).outcome == "success"


async def test_after_the_pause_by_a_receiver_that_is_gone_a_test_need_not_wait(
    node: Node, tmp_path: Path
) -> None:
    async with started_senders(node, tmp_path) as them:
        them.receiver.answer = lambda *_: "410 Gone"
        made = them.create()
        them.owner.produce(record(1))
        await begun(them, made)
        sender = them.senders._senders[made.subscription_id]
        await them.until(lambda: sender.job.config.paused, made)
        assert sender.limiter.held_until_ns == 0
        assert (await tried(them, made)).outcome == "gone"


async def test_a_rate_that_allows_no_test_soon_refuses_it_and_says_when(
    node: Node, tmp_path: Path
) -> None:
    async with started_senders(node, tmp_path) as them:
        made = them.create()
        await tried(them, made)
        with pytest.raises(OwnerRefused) as refused:
            await tried(them, made, rate=0.005)
        assert (refused.value.status, refused.value.code) == (429, "push_limited")
        assert 100_000 < refused.value.detail["wait_ms"] <= 200_000
        assert len(them.receiver.posts) == 1
        assert not them.senders._senders[made.subscription_id].is_testing


async def test_without_its_secrets_or_a_receiver_there_is_no_test(
    node: Node, tmp_path: Path
) -> None:
    async with started_senders(node, tmp_path) as them:
        made = them.create({"signed": True, "secrets_id": "lost"})
        with pytest.raises(OwnerRefused, match="its signing secret") as refused:
            await tried(them, made)
        assert (refused.value.status, refused.value.code) == (409, "secret_missing")
        them.end_push()
        await them.until(lambda: not len(them.senders), made)
        with pytest.raises(OwnerRefused) as gone:
            await them.owner.subscriptions.ask(TryPush(made.subscription_id, "1", None, "0a"))
        assert (gone.value.status, gone.value.code) == (409, "not_pushed")
        assert them.receiver.posts == []


async def test_what_is_sent_looks_as_in_the_format_of_the_subscription(
    node: Node, tmp_path: Path
) -> None:
    async with started_senders(node, tmp_path) as them:
        shown = await tried(them, them.create({"format": "batch"}), key=None)
        (event,) = json.loads(shown.request_body)
        assert event["data"] == {"a": 1} and "key" not in event


@given(
    maximum=st.floats(0.05, 500),
    mode=st.sampled_from(LimiterMode),
    gaps_s=st.lists(st.floats(0, 3), min_size=1, max_size=60),
    data=st.data(),
)
def test_tests_and_attempts_together_keep_the_maximum(
    maximum: float, mode: LimiterMode, gaps_s: list[float], data: st.DataObject
) -> None:
    limiter = Limiter(LimiterSettings(), maximum, 0, LearnedRate(mode, maximum, None))
    bucket = max(1.0 + maximum * LATE_S, maximum * BURST_S)
    now_ns, level, at_ns = 0, 0.0, 0
    for gap_s in gaps_s:
        now_ns += int(gap_s * S)
        limiter.tick(now_ns)
        is_test = data.draw(st.booleans())
        due_ns = limiter.test_ns(now_ns) if is_test else limiter.next_ns(now_ns)
        if due_ns > now_ns:
            continue
        limiter.attempted(now_ns)
        limiter.check_invariants()
        level = min(bucket, level + (now_ns - at_ns) * maximum / S) - 1
        at_ns = now_ns
        assert level >= -1e-3, "more attempts than the maximum allows"


def test_a_test_does_not_wait_for_the_mode_and_waits_for_the_maximum() -> None:
    limiter = Limiter(LimiterSettings(), 2.0, 0, LearnedRate(LimiterMode.HEARTBEAT, 2.0, None))
    limiter.attempted(60 * S)
    assert limiter.next_ns(60 * S) == 120 * S
    assert limiter.test_ns(60 * S) == 60 * S + S // 2
    limiter.hold(70 * S)
    assert limiter.test_ns(60 * S) == 70 * S
    limiter.set_maximum(0, 60 * S)
    assert limiter.test_ns(60 * S) == NEVER_NS
