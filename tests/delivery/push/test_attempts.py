"""The owner of a push subscription knows the last attempts of each record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from delivery.push.attempts import ATTEMPT_BYTES, ATTEMPTS_MAX, SHARD_ATTEMPTS_MAX, AttemptHistories
from delivery.subscriptions.requests import ListAttempts, OwnerRefused
from delivery.subscriptions.schemas import PushAttempt, PushAttempts
from ledger.delivery.record_filter import RecordFilter
from ledger.delivery.subscriptions import Subscription
from shards.clock import wall_ms
from tests.delivery.node import Node
from tests.delivery.push.sending import Sending, started_senders, until_it_rests
from tests.delivery.subscriptions.owning import record
from uploader.l0.records import Record


async def attempts(them: Sending, made: Subscription, seq: int | None = None) -> PushAttempts:
    request = ListAttempts(made.subscription_id, 0, seq, 100)
    return await them.owner.subscriptions.ask(request)


async def until_told(them: Sending, made: Subscription, count: int) -> None:
    histories = them.senders._attempts
    await them.until(lambda: len(histories.of(made.subscription_id)) == count, made)


async def test_each_attempt_of_a_record_is_listed_with_what_came_of_it(
    node: Node, tmp_path: Path
) -> None:
    async with started_senders(node, tmp_path) as them:
        answers = iter(["500 No", "400 No", "204 OK"])
        them.receiver.answer = lambda headers, _: (
            next(answers) if headers["ce-seq"] == "1" else "204 OK"
        )
        made = them.create(backoff_ms=(1_000, 1_000))
        began_ms = wall_ms()
        them.owner.produce(record(1, "k"))
        for _ in range(2):
            await until_it_rests(them, made)
            await them.owner.later(1)
        await them.until_finished(made, 1)
        them.owner.produce(record(2, "k"))
        await until_told(them, made, 4)
        found = await attempts(them, made, 1)
        assert [
            (each.outcome, each.status, each.failure, each.attempt, each.counted)
            for each in found.attempts
        ] == [
            ("success", 204, None, 2, False),
            ("record", 400, None, 1, True),
            ("receiver", 500, None, 1, False),
        ]  # fmt: skip
        assert ["400" in each.message for each in found.attempts] == [False, True, False]
        assert all(each.began_ms >= began_ms and each.took_ms > 0 for each in found.attempts)
        assert found.kept == 4 and (await attempts(them, made)).attempts[0].seq == 2
        other = ListAttempts(made.subscription_id, 7, None, 100)
        assert (await them.owner.subscriptions.ask(other)).attempts == []
        them.end_push()
        await them.until(lambda: not len(them.senders), made)
        with pytest.raises(OwnerRefused, match="is not pushed"):
            await attempts(them, made)


async def test_a_filtered_push_posts_what_matches_with_the_type_that_it_has(
    node: Node, tmp_path: Path
) -> None:
    async with started_senders(node, tmp_path) as them:
        made = them.create({"type_from": "tag"}, filter=RecordFilter(where=("paid=true",)))
        texts = ("true", "false") * 10
        them.owner.produce(*(Record(f'{{"paid":{text}}}', key="k", tag="order") for text in texts))
        await them.until_finished(made, 20)
        assert them.receiver.seqs() == [*range(1, 20, 2)]
        assert {headers["ce-type"] for headers, _ in them.receiver.posts} == {"order"}
        them.alter(filter=(unpaid := RecordFilter(where=("paid=false",))))
        running = them.owner.subscriptions._running[made.subscription_id]
        await them.until(lambda: running.view.subscription.config.filter == unpaid, made)
        them.owner.produce(*(Record(f'{{"paid":{text}}}', key="k") for text in texts))
        await them.until_finished(made, 40)
        assert them.receiver.seqs()[10:] == [*range(22, 41, 2)], "its sender goes on"


async def test_the_post_of_a_batch_is_an_attempt_of_each_record(node: Node, tmp_path: Path) -> None:
    async with started_senders(node, tmp_path) as them:
        made = them.create({"format": "batch", "batch_wait_ms": 0}, reliable=False)
        await them.until(lambda: len(them.senders) == 1, made)
        running = them.owner.subscriptions._running
        await them.until(
            lambda: made.subscription_id in running
            and len(running[made.subscription_id].consumers) == 1,
            made,
        )  # fmt: skip
        them.owner.produce(*(record(n) for n in range(5)))
        await until_told(them, made, 5)
        found = (await attempts(them, made)).attempts
        assert sorted(each.seq for each in found) == [1, 2, 3, 4, 5]
        assert {each.outcome for each in found} == {"success"}


def made_attempt(seq: int, outcome: str = "success", **more: Any) -> PushAttempt:
    return PushAttempt(0, seq, 1, seq, 1.5, outcome, False, 200, None, "", **more)


def test_deliveries_do_not_drive_out_failures_and_what_became_of_them() -> None:
    histories = AttemptHistories()
    histories.note(1, [made_attempt(5, "receiver"), made_attempt(5)])
    histories.note(1, [made_attempt(seq) for seq in range(10, 10_000)])
    found = histories.of(1)
    assert [each.outcome for each in found if each.seq == 5] == ["success", "receiver"]
    assert len(found) == ATTEMPTS_MAX // 5 + 2 and found[0].seq == 9_999
    histories.note(1, [made_attempt(seq, "record") for seq in range(10_000)])
    assert len(histories.of(1)) == ATTEMPTS_MAX
    histories.note(1, [made_attempt(5)] * 300)
    assert len(histories._of[1].delivered) == ATTEMPTS_MAX // 5, "its failures are forgotten"
    histories.forget(1)
    assert histories.of(1) == []


def test_a_shard_keeps_as_many_in_all_however_many_subscriptions_fail() -> None:
    histories = AttemptHistories()
    for number in range(300):
        histories.note(number, [made_attempt(seq, "receiver") for seq in range(2_000)])
    kept = sum(len(histories.of(number)) for number in range(300))
    assert SHARD_ATTEMPTS_MAX // 2 < kept <= SHARD_ATTEMPTS_MAX
    assert SHARD_ATTEMPTS_MAX * ATTEMPT_BYTES < 12 << 20
