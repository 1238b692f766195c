"""The test of a receiver: one POST of a record that is in no topic, and the exchange to look at.

An operator wants to see what the receiver says now, and a sender in slow mode would wait for a
minute. So a test does not wait for the limiter's mode, but it keeps the limit: it begins no earlier
than the maximum allows after the last attempt, and counts as an attempt, with what becomes of it.
While one waits for its turn, the sender begins nothing else. A success ends the slow mode of all
senders (``senders.py``).

Nothing that is secret is in an exchange: values of own headers are replaced, also where the
receiver repeats them.
"""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from delivery.push.events import request_of
from delivery.push.posts.answers import PushAnswer, PushVerdict
from delivery.push.secrets import HIDDEN, PushSecrets
from delivery.push.sender import PushSender, SenderTools
from delivery.subscriptions.handing import PushedMessage
from delivery.subscriptions.requests import OwnerRefused, TryPush
from delivery.subscriptions.schemas import PushExchange, PushHeader
from uploader.l0.records import Record

TURN_S = 5.0  # a test waits this long for its turn; its sender begins nothing else meanwhile
TIMEOUT_MS_MAX = 30_000  # an operator waits for it
BODY_CHARACTERS_SHOWN = 16 << 10
_LOOK_S = 0.02


async def exchange(sender: PushSender, tools: SenderTools, asked: TryPush) -> PushExchange:
    """Sends a record that is in no topic. Raises OwnerRefused."""
    job = sender.job
    name = job.subscription.name
    if job.lacks:
        raise OwnerRefused(409, "secret_missing", f"subscription {name!r} cannot send: {job.lacks}")
    if sender.is_testing:
        raise OwnerRefused(
            429, "push_limited", "another test waits for its turn; ask again", {"limit": 1}
        )
    began_ns = tools.now_ns()
    sender.is_testing = True
    try:
        await _turn(sender, tools)
        # A source of its own, so that receivers take each test for another record.
        source = replace(job.source, history=f"test{asked.token}")
        record = Record(asked.data, key=asked.key)
        message = PushedMessage(0, 0, 1, 0, tools.wall_ms(), record)
        headers, body = request_of(job.push, source, [message], job.secrets, tools.wall_ms())
        sent_ns = tools.now_ns()
        sender.limiter.attempted(sent_ns)
        sender.words.began()
    finally:
        sender.is_testing = False
        sender.look_again()
    push = job.push
    answer = await tools.client.post(
        push.endpoint, headers, body, min(push.timeout_ms, TIMEOUT_MS_MAX)
    )
    answer = job.hiding.shown(answer)
    verdict = sender.count(answer, sent_ns, 0)
    return _shown(job.push.endpoint, headers, body, answer, verdict, job.secrets,
                  (sent_ns - began_ns) / 1e6)  # fmt: skip


def _nothing() -> None:
    """It is looked at again anyway."""


async def _turn(sender: PushSender, tools: SenderTools) -> None:
    """Returns when a POST may begin. Raises OwnerRefused if that takes too long."""
    limiter = sender.limiter
    ends_ns = tools.now_ns() + int(TURN_S * 1e9)
    while True:
        now_ns = tools.now_ns()
        limiter.set_maximum(sender.words.follow(), now_ns)
        sender.hold_with_others()
        next_ns = limiter.test_ns(now_ns)
        is_ours = tools.may_deliver()
        # While the client loads its library no POST begins: it would count as the receiver's time.
        is_ready = tools.client.is_ready(_nothing) or now_ns >= ends_ns
        if next_ns <= now_ns and is_ours and is_ready:
            return
        if now_ns >= ends_ns or (limiter.maximum > 0 and next_ns > ends_ns):
            raise _limited(sender, now_ns, next_ns, is_ours=is_ours)
        await asyncio.sleep(_LOOK_S)


def _limited(sender: PushSender, now_ns: int, next_ns: int, *, is_ours: bool) -> OwnerRefused:
    if not is_ours:
        return OwnerRefused(503, "not_ready", "whether the prefix is ours is unknown; ask again")
    if sender.limiter.maximum <= 0:
        return OwnerRefused(
            429,
            "push_limited",
            "the sender has no share of rate_max yet; ask again",
            {"limit": "rate_max"},
        )
    wait_ns = next_ns - now_ns
    why = f"the sender's share of rate_max is {sender.limiter.maximum:.4g} POSTs a second"
    if sender.limiter.held_until_ns > now_ns:
        why = "the receiver asked for a pause"
    return OwnerRefused(
        429, "push_limited", f"{why}; the next one may begin in {wait_ns / 1e9:.1f} s; ask then",
        {"limit": "rate_max", "wait_ms": wait_ns // 1_000_000},
    )  # fmt: skip


def _shown(
    endpoint: str, headers: dict[str, str], body: bytes, answer: PushAnswer, verdict: PushVerdict,
    secrets: PushSecrets | None, waited_ms: float,
) -> PushExchange:  # fmt: skip
    own = {} if secrets is None else secrets.headers
    return PushExchange(
        endpoint=endpoint,
        address=answer.address,
        request_headers=[
            PushHeader(name, HIDDEN if name in own else value) for name, value in headers.items()
        ],
        request_body=body.decode(errors="replace")[:BODY_CHARACTERS_SHOWN],
        request_bytes=len(body),
        status=answer.status,
        failure=None if answer.failure is None else answer.failure.value,
        message=answer.message,
        answer_headers=[PushHeader(name, value) for name, value in answer.headers],
        answer_body=answer.head.decode(errors="replace"),
        took_ms=answer.took_ms,
        waited_ms=waited_ms,
        outcome=verdict.outcome.value,
        meaning=verdict.sentence,
        retry_after_ms=verdict.retry_after_ms,
    )
