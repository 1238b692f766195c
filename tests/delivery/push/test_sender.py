"""A sender POSTs what its subscription has, in order, and finishes only what was delivered."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from delivery.push.secrets import PushSecrets, SecretsFile
from delivery.streams.outlet import Outlet
from delivery.subscriptions.requests import Consume, Resend, Seek
from delivery.subscriptions.shown.inspection import drainable_lag
from ledger.delivery.push_rates import LearnedRate
from ledger.delivery.subscriptions import Subscription
from shards.boards.pushboard import PushBoard, SenderWords
from tests.delivery.node import Node, node_in
from tests.delivery.push.sending import Receiver, Sending, started_senders, until_it_rests
from tests.delivery.subscriptions.owning import NoSenders, record
from tests.signing import secret_of

S = 1_000_000_000


def failing(receiver: Receiver, status: str, *seqs: int, times: int = 1) -> None:
    """The receiver answers the first attempts for some records so, and others with success."""
    left = dict.fromkeys(seqs, times)

    def answer(headers: dict[str, str], _: bytes) -> str:
        seq = int(headers["ce-seq"])
        if left.get(seq, 0) > 0:
            left[seq] -= 1
            return status
        return "204 OK"

    receiver.answer = answer


async def test_each_record_is_posted_once_and_acknowledged_when_it_was_taken(
    node: Node, tmp_path: Path
) -> None:
    async with started_senders(node, tmp_path) as them:
        made = them.create()
        them.owner.produce(*(record(n, f"k{n % 3}") for n in range(30)))
        await them.until_finished(made, 30)
        receiver = them.receiver
        assert sorted(receiver.seqs()) == list(range(1, 31))
        assert all(receiver.seqs(f"k{n}") == sorted(receiver.seqs(f"k{n}")) for n in range(3))
        headers, body = receiver.posts[0]
        assert (headers["content-type"], headers["ce-specversion"]) == ("application/json", "1.0")
        assert json.loads(body) == int(headers["ce-seq"]) - 1


async def test_what_is_not_answered_is_not_finished(node: Node, tmp_path: Path) -> None:
    async with started_senders(node, tmp_path) as them:
        them.receiver.gate.clear()
        made = them.create({"connections_max": 4})
        them.owner.produce(*(record(n, f"k{n}") for n in range(10)))
        await them.until(lambda: them.receiver.under_way == 4, made)
        running = them.owner.subscriptions._running[made.subscription_id]
        assert running.window.look_aheads[0].floor == 0 and running.window.in_flight == 10
        them.receiver.gate.set()
        await them.until_finished(made, 10)
        assert them.receiver.under_way_max == 4


async def test_a_failure_of_the_receiver_is_tried_again_and_never_counts(
    node: Node, tmp_path: Path
) -> None:
    """The policy would drop what failed once."""

    async with started_senders(node, tmp_path) as them:
        failing(them.receiver, "500 No", 1, times=3)
        made = them.create(poison="drop", redeliveries_max=0, backoff_ms=(1_000, 2_000))
        them.owner.produce(record(1, "a"), record(2, "a"), record(3, "b"))
        running = them.owner.subscriptions._running
        for attempt in range(3):
            await them.until(
                lambda: made.subscription_id in running
                and len(running[made.subscription_id].window.blocked.resting) == 1,
                made,
            )  # fmt: skip
            assert them.receiver.seqs("a") == [1] * (attempt + 1)
            (blocked,) = running[made.subscription_id].window.blocked.resting.values()
            assert "500" in blocked.why and blocked.due_ns is not None
            rest_s = (blocked.due_ns - them.owner.now_ns) / S
            assert rest_s == min(2.0, 2.0**attempt)
            await them.owner.later(rest_s)
        await them.until_finished(made, 3)
        assert them.receiver.seqs("a") == [1, 1, 1, 1, 2] and them.receiver.seqs("b") == [3]
        ids = {headers["ce-id"] for headers, _ in them.receiver.posts if headers["ce-seq"] == "1"}
        assert len(ids) == 1
        assert running[made.subscription_id].window.counts.dropped == 0


async def until_only_failing_ones_are_left(them: Sending, made: Subscription) -> None:
    running = them.owner.subscriptions._running
    await them.until(
        lambda: made.subscription_id in running
        and running[made.subscription_id].lag
        == len(running[made.subscription_id].window.blocked.resting),
        made,
    )  # fmt: skip


@pytest.mark.parametrize("answer", ["500 No", "403 No", "503 No"])
async def test_a_record_that_makes_its_receiver_fail_counts_while_others_are_delivered(
    node: Node, tmp_path: Path, answer: str
) -> None:
    async with started_senders(node, tmp_path) as them:
        failing(them.receiver, answer, 2, times=100)
        made = them.create({"connections_max": 1}, poison="drop", redeliveries_max=1)
        for n in range(20):
            them.owner.produce(record(n, f"k{n}"))
            await until_only_failing_ones_are_left(them, made)
            await them.owner.later(1)
        window = them.owner.subscriptions._running[made.subscription_id].window
        assert window.counts.dropped == 1 and window.look_aheads[0].floor == 20
        assert 3 <= them.receiver.seqs().count(2) <= 5, "two that count, and what makes them known"


async def test_a_record_in_a_batch_that_makes_its_receiver_fail_is_found_by_halves(
    node: Node, tmp_path: Path
) -> None:
    async with started_senders(node, tmp_path) as them:
        them.receiver.answer = lambda _, body: "500 No" if b'"seq":"6"' in body else "200 OK"
        push = {"format": "batch", "batch_max": 4, "batch_wait_ms": 10, "connections_max": 1}
        made = them.create(push, poison="drop", redeliveries_max=0)
        for first in range(0, 80, 4):
            them.owner.produce(*(record(n, f"k{n}") for n in range(first, first + 4)))
            await until_only_failing_ones_are_left(them, made)
            await them.owner.later(1)
        window = them.owner.subscriptions._running[made.subscription_id].window
        assert window.counts.dropped == 1 and window.look_aheads[0].floor == 80


async def test_a_record_that_the_receiver_refuses_counts_for_the_policy(
    node: Node, tmp_path: Path
) -> None:
    async with started_senders(node, tmp_path) as them:
        failing(them.receiver, "422 No", 1, times=10)
        made = them.create(poison="drop", redeliveries_max=1)
        them.owner.produce(record(1, "a"), record(2, "a"))
        await them.until(lambda: len(them.receiver.posts) == 1, made)
        running = them.owner.subscriptions._running[made.subscription_id]
        await them.until(lambda: len(running.window.blocked.resting) == 1, made)
        await them.owner.later(2)
        await them.until_finished(made, 2)
        assert them.receiver.seqs() == [1, 1, 2]
        assert running.window.counts.dropped == 1


async def test_a_record_refused_in_a_batch_is_found_by_halves(node: Node, tmp_path: Path) -> None:
    async with started_senders(node, tmp_path) as them:
        them.receiver.answer = lambda _, body: "400 No" if b'"seq":"5"' in body else "200 OK"
        made = them.create(
            {"format": "batch", "batch_max": 8, "batch_wait_ms": 1_000, "connections_max": 1},
            poison="drop", redeliveries_max=0,
        )  # fmt: skip
        them.owner.produce(*(record(n, f"k{n}") for n in range(8)))
        await them.until_finished(made, 8)
        posts = [[int(event["seq"]) for event in json.loads(body)]
                 for _, body in them.receiver.posts]  # fmt: skip
        assert [len(each) for each in posts] == [8, 4, 4, 2, 1, 1, 2]
        alone = [each for each in posts if each == [5]]
        assert len(alone) == 1
        running = them.owner.subscriptions._running[made.subscription_id]
        assert running.window.counts.dropped == 1 and running.window.counts.acknowledged == 7


async def test_an_exclusive_subscription_is_in_order_whatever_fails(
    node: Node, tmp_path: Path
) -> None:
    async with started_senders(node, tmp_path) as them:
        failing(them.receiver, "422 No", 3, times=1)
        made = them.create(mode="exclusive")
        them.owner.produce(*(record(n) for n in range(6)))
        await them.until(lambda: len(them.receiver.posts) == 3, made)
        running = them.owner.subscriptions._running[made.subscription_id]
        await them.until(lambda: len(running.window.blocked.resting) == 1, made)
        assert them.receiver.seqs() == [1, 2, 3]
        await them.owner.later(2)
        await them.until_finished(made, 6)
        assert them.receiver.seqs() == [1, 2, 3, 3, 4, 5, 6]
        assert them.receiver.under_way_max == 1


async def test_a_receiver_that_is_gone_pauses_the_subscription(node: Node, tmp_path: Path) -> None:
    async with started_senders(node, tmp_path) as them:
        them.receiver.answer = lambda *_: "410 Gone"
        made = them.create({"connections_max": 1})
        them.owner.produce(record(1, "a"), record(2, "b"))
        await them.until(lambda: them.config.paused, made)
        assert "410" in them.config.paused_because
        posts = len(them.receiver.posts)
        them.receiver.answer = lambda *_: "200 OK"
        await them.owner.later(100)
        await them.until(lambda: "paused" in them.senders.held(made.subscription_id), made)
        assert len(them.receiver.posts) == posts
        them.alter(paused=False)
        await them.owner.later(100)
        await them.until_finished(made, 2)


async def test_a_receiver_that_asks_for_a_pause_gets_it(node: Node, tmp_path: Path) -> None:
    async with started_senders(node, tmp_path) as them:
        failing(them.receiver, "503 Busy\r\nRetry-After: 3600", 1)
        made = them.create({"connections_max": 1})
        them.owner.produce(record(1, "a"), record(2, "b"))
        await until_it_rests(them, made)
        held_ns = them.senders._senders[made.subscription_id].limiter.held_until_ns
        await them.owner.later(100)
        await them.until(
            lambda: them.owner.subscriptions._running[made.subscription_id].window.in_flight == 2,
            made,
        )
        assert them.receiver.seqs() == [1] and held_ns > 0
        them.alter({"timeout_ms": 9_999, "endpoint": them.endpoint + "/other"})
        await them.until_finished(made, 2)


async def test_what_was_delivered_is_not_posted_again_if_the_owner_sends_it_again(
    node: Node, tmp_path: Path
) -> None:
    async with started_senders(node, tmp_path) as them:
        them.receiver.gate.clear()
        made = them.create()
        them.owner.produce(record(1, "a"), record(2, "a"))
        await them.until(lambda: them.receiver.under_way == 1, made)
        running = them.owner.subscriptions._running[made.subscription_id]
        running.window.returned("push/0")  # as another owner would
        running.consumers._tell_opened(running.consumers.by_name["push/0"])
        them.owner.subscriptions._wake(running)
        them.receiver.gate.set()
        await them.until_finished(made, 2)
        assert them.receiver.seqs() == [1, 2]


async def test_what_is_resent_is_posted_although_its_sender_remembers_to_have_delivered_it(
    node: Node, tmp_path: Path
) -> None:
    async with started_senders(node, tmp_path) as them:
        them.receiver.gate.clear()
        made = them.create()
        them.owner.produce(record(1, "a"))
        await them.until(lambda: them.receiver.under_way == 1, made)
        running = them.owner.subscriptions._running[made.subscription_id]
        window = running.window
        window.returned("push/0")
        batch = window.take("push/0", 1, 0)
        assert batch is not None
        them.receiver.gate.set()
        await them.until(lambda: running.window.counts.refused == 1, made)
        window.ack("push/0", batch.epoch, 0)  # as if it came from another sender
        asked = Resend(made.subscription_id, (0, 1), "id")
        for is_finished in (False, True):
            assert (await them.owner.ask(asked))["finished"] is is_finished
            await them.until(lambda: not window.resent.is_open((0, 1)), made)
        assert them.receiver.seqs() == [1, 1]


async def test_after_a_seek_everything_is_posted_again(node: Node, tmp_path: Path) -> None:
    async with started_senders(node, tmp_path) as them:
        made = them.create()
        them.owner.produce(record(1, "a"), record(2, "a"))
        await them.until_finished(made, 2)
        await them.owner.ask(Seek(made.subscription_id, {0: 0}))
        await them.until_finished(made, 2)
        assert them.receiver.seqs() == [1, 2, 1, 2]


@pytest.mark.parametrize(("others_bytes", "queued"), [(0, range(100, 200)), (1 << 30, range(70))])
async def test_senders_that_have_queued_too_much_together_take_a_little_each(
    node: Node, tmp_path: Path, others_bytes: int, queued: range
) -> None:
    async with started_senders(node, tmp_path) as them:
        them.queued.note(-1, others_bytes)
        them.receiver.gate.clear()
        made = them.create({"connections_max": 1})
        for chunk in range(20):
            them.owner.produce(*(record("x" * 2_000, f"k{chunk}-{n}") for n in range(10)))
        await them.until(lambda: bool(them.receiver.posts), made)
        sender = them.senders._senders[made.subscription_id]
        looks = iter(range(20))
        await them.until(lambda: next(looks, None) is None, made)
        assert sender.queue.messages in queued
        them.receiver.gate.set()
        them.senders.close()
        await them.senders.ended()
        assert them.queued.taken == others_bytes


async def test_nothing_is_posted_without_the_secrets_or_the_prefix(
    node: Node, tmp_path: Path
) -> None:
    async with started_senders(node, tmp_path) as them:
        secrets_id = them.secrets.save(PushSecrets(headers={"authorization": "Bearer x"}))
        made = them.create({"headers": ["authorization"], "secrets_id": "0" * 32})
        them.owner.produce(record(1, "a"))
        await them.until(lambda: "authorization" in them.senders.held(made.subscription_id), made)
        them.is_foreign = True
        them.alter({"headers": ["authorization"], "secrets_id": secrets_id})
        await them.until(lambda: them.senders.held(made.subscription_id) == "", made)
        sender = them.senders._senders[made.subscription_id]
        await them.until(lambda: sender.queue.messages == 1, made)
        assert them.receiver.posts == []
        them.is_foreign = False
        await them.until_finished(made, 1)
        ((headers, _),) = them.receiver.posts
        assert headers["authorization"] == "Bearer x"


async def test_who_delivers_a_subscription_may_change(node: Node, tmp_path: Path) -> None:
    async with started_senders(node, tmp_path) as them:
        made = them.create()
        them.owner.produce(record(1, "a"))
        await them.until_finished(made, 1)
        them.end_push()
        await them.until(lambda: len(them.senders) == 0, made)
        client = await them.owner.consume(made, "c")
        them.owner.produce(record(2, "a"))
        await them.owner.rest()
        (event,) = [each for each in client.events if "epoch" in each]
        assert event["data"] == 2 and len(them.receiver.posts) == 1
        them.alter({})
        await them.until(lambda: client.closed, made)
        await them.until_finished(made, 2)
        assert them.receiver.seqs() == [1, 2]


async def test_a_sender_that_joins_begins_with_the_part_that_the_others_send(
    tmp_path: Path,
) -> None:
    with node_in(tmp_path, shards=2, ring_bytes=1 << 16) as node:
        async with started_senders(node, tmp_path) as them:
            made = them.create({"senders": 2, "rate_max": 100.0})
            segment = them.owner.node.segment
            PushBoard(segment).offer(made.slot, made.subscription_id, 100.0, 2)
            other = SenderWords(segment, 1, made.slot)
            other.join(made.subscription_id)
            other.tell(LearnedRate(0, 45.0, None), 1)
            them.grant(made, 50.0)
            await them.until(lambda: len(them.senders) == 1, made, 50.0)
            limiter = them.senders._senders[made.subscription_id].limiter
            await them.until(lambda: limiter.maximum == 50, made, 50.0)
            assert limiter.rate == pytest.approx(45)


async def test_what_a_receiver_repeats_of_a_request_is_shown_without_its_secrets(
    node: Node, tmp_path: Path
) -> None:
    async with started_senders(node, tmp_path) as them:
        token = "Bearer that-only-the-receiver-knows"
        secrets_id = them.secrets.save(PushSecrets(headers={"authorization": token}))
        push = {"headers": ["authorization"], "secrets_id": secrets_id}
        them.receiver.says = f"who is {token}?".encode()
        them.receiver.answer = lambda headers, _: f"400 {headers['authorization']}"
        made = them.create(push, redeliveries_max=0)
        them.owner.produce(record(1, "k"))
        running = them.owner.subscriptions._running
        await them.until(
            lambda: bool(
                (found := running.get(made.subscription_id)) and found.window.blocked.stuck
            ),
            made,
        )
        (blocked,) = running[made.subscription_id].window.blocked.stuck.values()
        assert "answered 400" in blocked.why and "who is (hidden)?" in blocked.why


async def test_nothing_is_sent_while_secrets_are_missing_and_the_owner_says_so(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("delivery.push.senders.LACKS_NS", 1)

    async with started_senders(node, tmp_path) as them:
        secrets_id = "0" * 32
        made = them.create({"signed": True, "secrets_id": secrets_id})
        them.owner.produce(record(1, "k"))
        path = them.secrets.path
        held = them.senders.held_pushed
        await them.until(lambda: made.subscription_id in held, made)
        assert held[made.subscription_id].startswith("secret_missing: its signing secret")
        path.write_text("{")  # damaged
        path.chmod(0o600)
        await them.until(lambda: "is damaged" in held.get(made.subscription_id, ""), made)
        assert "cannot be read" in caplog.text and not them.receiver.posts
        path.unlink()
        SecretsFile(path.parent, lambda _: secrets_id).save(PushSecrets((secret_of(b"k" * 24),)))
        await them.until_finished(made, 1)
        assert not held and "webhook-signature" in them.receiver.posts[0][0]


@pytest.mark.parametrize("status", ["503 No", "422 No"])
async def test_what_an_unreliable_subscription_cannot_deliver_is_dropped_and_counted(
    node: Node, tmp_path: Path, status: str
) -> None:
    async with started_senders(node, tmp_path) as them:
        failing(them.receiver, status, 2, times=10)
        made = them.create(reliable=False, start="latest")
        running = them.owner.subscriptions._running
        await them.until(
            lambda: made.subscription_id in running
            and bool(running[made.subscription_id].consumers.by_name),
            made,
        )  # fmt: skip
        them.owner.produce(*(record(n, "k") for n in range(3)))
        window = running[made.subscription_id].window
        await them.until(lambda: window.counts.dropped == 1 and len(them.receiver.posts) == 3, made)
        assert them.receiver.seqs() == [1, 2, 3]
        assert running[made.subscription_id].window.counts.refused == 0


async def test_under_pressure_batches_grow_and_then_the_rate_is_halved(
    node: Node, tmp_path: Path
) -> None:
    async with started_senders(node, tmp_path) as them:
        made = them.create({"format": "batch", "batch_wait_ms": 60_000})
        senders = them.senders._senders
        await them.until(lambda: made.subscription_id in senders, made, 50.0)
        sender = senders[made.subscription_id]
        await them.until(lambda: sender.words.follow() == 50.0, made, 50.0)
        rates = []
        for is_coalescing, is_deferring in [(False, False), (True, False), (True, True)]:
            them.senders.set_pressure(is_coalescing=is_coalescing, is_deferring=is_deferring)
            sender.look()
            assert sender.queue.is_coalescing is is_coalescing
            rates.append(sender.limiter.maximum)
        assert rates == [50.0, 50.0, 25.0]
        them.senders.set_pressure(is_coalescing=False, is_deferring=False)
        sender.look()
        assert sender.limiter.maximum == 50.0 and not sender.queue.is_coalescing


class MoreWanted(NoSenders):
    """Senders that would be more if there were more."""

    def wants_more(self, subscription: Subscription) -> bool:
        return True


async def test_lag_asks_for_more_senders_only_while_they_would_help(
    node: Node, tmp_path: Path
) -> None:
    """D19."""

    async with started_senders(node, tmp_path) as them:
        them.receiver.gate.clear()
        made = them.create({"connections_max": 2})
        them.owner.produce(*(record(n, f"k{n}") for n in range(5)))
        await them.until(lambda: them.receiver.under_way == 2, made)
        running = them.owner.subscriptions._running[made.subscription_id]
        assert running.lag == 5 and drainable_lag(running) == 0, "nothing says that they would"
        them.owner.senders = MoreWanted()
        assert drainable_lag(running) == 5
        failing(them.receiver, "503 No", 1)
        them.receiver.gate.set()
        await them.until(lambda: running.window.is_failing and running.lag == 1, made)
        assert drainable_lag(running) == 0, "the receiver fails"


async def test_a_stream_that_ends_while_it_is_opened_is_opened_again(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started_senders(node, tmp_path) as them:
        owner = them.owner.subscriptions
        opens = owner.open

        def ends(_: Consume, outlet: Outlet) -> None:
            monkeypatch.setattr(owner, "open", opens)
            outlet.end()

        monkeypatch.setattr(owner, "open", ends)
        made = them.create()
        them.owner.produce(record(0, "k"))
        await them.until_finished(made, 1)


async def test_a_batch_may_have_more_records_than_an_owner_writes_together(
    node: Node, tmp_path: Path
) -> None:
    async with started_senders(node, tmp_path) as them:
        made = them.create(
            {"format": "batch", "batch_max": 600, "batch_wait_ms": 20}, consumer_max=1_000
        )
        for first in range(0, 1_500, 100):
            them.owner.produce(*(record(n, "k") for n in range(first, first + 100)))
        await them.until_finished(made, 1_500)
        posts = [[int(event["seq"]) for event in json.loads(body)]
                 for _, body in them.receiver.posts]  # fmt: skip
        assert [seq for each in posts for seq in each] == list(range(1, 1_501))
        assert max(map(len, posts)) == 600


async def test_a_batch_takes_one_permit_of_the_rate_however_many_records_it_has(
    node: Node, tmp_path: Path
) -> None:
    async with started_senders(node, tmp_path) as them:
        push = {"format": "batch", "batch_max": 20, "batch_wait_ms": 1, "connections_max": 2}
        made = them.create(push)
        words = SenderWords(node.segment, 0, made.slot)
        words.join(made.subscription_id)
        words.tell(LearnedRate(0, 50.0, None), 1)
        them.owner.produce(*(record(n, f"k{n}") for n in range(200)))
        running = them.owner.subscriptions._running
        await them.until(
            lambda: made.subscription_id in running
            and running[made.subscription_id].window.look_aheads[0].floor == 200,
            made, 50.0,
        )  # fmt: skip
        posts = len(them.receiver.posts)
        assert 10 <= posts < 50
        pacer = them.senders._senders[made.subscription_id].limiter._pacer
        assert pacer.came - pacer.lost - pacer._level == pytest.approx(posts)
        assert pacer.came >= posts - 1, "nothing was sent before its permit"
        (row,) = PushBoard(node.segment).senders(made.slot, made.subscription_id)
        assert (row.attempts, row.records) == (posts, 200)


async def test_a_batch_has_several_records_of_a_key_in_their_order(
    node: Node, tmp_path: Path
) -> None:
    """Without acknowledgments between them: the batch is as large as there are records."""

    async with started_senders(node, tmp_path) as them:
        them.receiver.answer = lambda _, body: "400 No" if b'"seq":"7"' in body else "200 OK"
        made = them.create(
            {"format": "batch", "batch_max": 50, "batch_wait_ms": 100, "connections_max": 4},
            poison="drop", redeliveries_max=0,
        )  # fmt: skip
        them.owner.produce(*(record(n, f"k{n % 2}") for n in range(20)))
        await them.until_finished(made, 20)
        posts = [[int(event["seq"]) for event in json.loads(body)]
                 for _, body in them.receiver.posts]  # fmt: skip
        assert len(posts[0]) == 20
        taken = [seq for each in posts if 7 not in each for seq in each]
        for key in range(2):
            mine = [seq for seq in taken if seq % 2 == key]
            assert mine == sorted(mine)
        assert sorted(taken) == [n for n in range(1, 21) if n != 7]
