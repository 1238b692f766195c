"""Handlers for consumers of a subscription, and for the keys that they cannot get any further with.

What needs no decision is checked here: names, filters, what excludes each other. Everything else
is decided by the subscription's owner, which may be another shard, and whose JSON is the answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from daemon.api.handlers.subscription_directory import SubscriptionDirectory
from daemon.api.streaming import EncodedJson, Streaming
from daemon.schemas.errors import ApiError, invalid
from daemon.schemas.names import check_consumer_name
from daemon.schemas.subscriptions import (
    FILTERS_MAX,
    NAMED_MESSAGES_MAX,
    AckRequest,
    BlockedCondition,
    BlockedMessageRequest,
    ConsumeHeaders,
    ConsumeQuery,
    KeysQuery,
    LeaveRequest,
    NackRequest,
    RepairRequest,
    ResendRequest,
)
from delivery.filters import Filter, FilterError
from delivery.pipes.server import Asker
from delivery.streams.accept import accepted
from delivery.streams.formats import MSGPACK, NDJSON, SSE
from delivery.subscriptions.owners import SubscriptionOwner
from delivery.subscriptions.requests import (
    Acknowledge,
    BatchRef,
    BlockedWhere,
    Consume,
    DescribeKey,
    Leave,
    ListKeys,
    MessageRef,
    Nack,
    Poll,
    RepairBlocked,
    Resend,
    RetryKey,
    SkipKey,
)
from delivery.subscriptions.schemas import (
    Acknowledged,
    BlockedKey,
    BlockedKeys,
    ConsumerLeft,
    KeyState,
    Polled,
    RepairedMessages,
    ResentMessage,
)

# The formats of streams; the first one for clients that accept all.
STREAM_TYPES = tuple(each.content_type for each in (NDJSON, SSE, MSGPACK))
_ESCAPED_OR_COMMA = re.compile(r"((?:[^\\,]|\\.)*)(?:,|\Z)", re.DOTALL)


class ConsumerRoutes:
    """What consumers of subscriptions do."""

    def __init__(self, directory: SubscriptionDirectory, owners: SubscriptionOwner) -> None:
        self._directory = directory
        self._owners = owners

    async def consume(
        self, topic: str, name: str, query: ConsumeQuery, headers: ConsumeHeaders
    ) -> EncodedJson[Polled] | Streaming:
        """A batch, if the query has ``max``; otherwise a stream."""
        check_consumer_name(query.consumer)
        filters = _filters(query.filter)
        if query.max is None and query.wait_ms:
            raise invalid("wait_ms is for a request with max; a stream has no end", field="wait_ms")
        content_type = _content_type(headers.accept) if query.max is None else ""
        _, subscription_id = await self._directory.find(topic, name)
        if query.max is not None:
            poll = Poll(subscription_id, query.consumer, filters, query.max, query.wait_ms)
            return EncodedJson(await self._owners.poll(poll, Asker()))
        consume = Consume(subscription_id, query.consumer, filters, content_type)
        await self._owners.ask(consume)  # a stream cannot be refused with a status once it is open
        return Streaming(content_type, lambda outlet: self._owners.open(consume, outlet))

    async def ack(self, topic: str, name: str, asked: AckRequest) -> Acknowledged:
        """Messages that are dealt with."""
        messages, batches = _named(asked)
        _, subscription_id = await self._directory.find(topic, name)
        return await self._settled(
            Acknowledge(subscription_id, asked.consumer, messages, batches), "acknowledge"
        )

    async def nack(self, topic: str, name: str, asked: NackRequest) -> Acknowledged:
        """Messages that could not be dealt with."""
        messages, batches = _named(asked)
        _, subscription_id = await self._directory.find(topic, name)
        return await self._settled(
            Nack(
                subscription_id, asked.consumer, messages, batches, asked.delay_ms, asked.reason
            ),
            "refuse",
        )  # fmt: skip

    async def _settled(self, request: Acknowledge | Nack, verb: str) -> Acknowledged:
        answer = await self._owners.ask(request)
        if not answer.accepted and any(each.reason == "epoch" for each in answer.refused_messages):
            raise ApiError(
                409,
                "stale_epoch",
                f"consumer {request.consumer!r} does not have any of these messages to {verb}: they"
                " were not sent to it in these batches, or they were taken back after a time-out, a"
                " nack, a seek or a restart; nothing was changed; go on with what is sent now",
                msgspec.to_builtins(answer),
            )
        return answer

    async def leave(self, topic: str, name: str, asked: LeaveRequest) -> ConsumerLeft:
        """A consumer goes."""
        check_consumer_name(asked.consumer)
        _, subscription_id = await self._directory.find(topic, name)
        return await self._owners.ask(Leave(subscription_id, asked.consumer))

    async def keys(self, topic: str, name: str, query: KeysQuery) -> BlockedKeys:
        """Keys that are blocked."""
        _, subscription_id = await self._directory.find(topic, name)
        return await self._owners.ask(ListKeys(subscription_id, query.limit))

    async def key(self, topic: str, name: str, key: str) -> KeyState:
        """Why a key gets no further."""
        _, subscription_id = await self._directory.find(topic, name)
        return await self._owners.ask(DescribeKey(subscription_id, key))

    async def retry(self, topic: str, name: str, asked: BlockedMessageRequest) -> BlockedKey:
        """Sends a blocked message again; the answer is how it was before."""
        place = _place(asked)
        _, subscription_id = await self._directory.find(topic, name)
        return await self._owners.ask(RetryKey(subscription_id, asked.key, place))

    async def skip(self, topic: str, name: str, asked: BlockedMessageRequest) -> BlockedKey:
        """Gives a blocked message up; the answer is how it was before."""
        place = _place(asked)
        _, subscription_id = await self._directory.find(topic, name)
        return await self._owners.ask(SkipKey(subscription_id, asked.key, place))

    async def resend(self, topic: str, name: str, asked: ResendRequest) -> ResentMessage:
        """Delivers a finished message once more."""
        _, subscription_id = await self._directory.find(topic, name)
        request = Resend(subscription_id, (asked.partition, asked.seq), asked.id, asked.topic_id)
        return await self._owners.ask(request)

    async def repair(self, topic: str, name: str, asked: RepairRequest) -> RepairedMessages:
        """Deals with all blocked messages that match."""
        where = _where(asked.where)
        _, subscription_id = await self._directory.find(topic, name)
        is_retry = asked.action == "retry"
        return await self._owners.ask(RepairBlocked(subscription_id, is_retry, where))


def _named(asked: AckRequest | NackRequest) -> tuple[list[MessageRef], list[BatchRef]]:
    """The messages and batches of an acknowledgment. Raises ApiError 400."""
    check_consumer_name(asked.consumer)
    epochs = asked.batches if asked.batch is None else [asked.batch, *asked.batches]
    if not asked.messages and not epochs:
        raise invalid("give messages, batch or batches: there is nothing in it", field="messages")
    if asked.but and not epochs:
        raise invalid(
            "except leaves messages of a batch out: give batch or batches with it", field="except"
        )
    if len(asked.but) * len(epochs) > NAMED_MESSAGES_MAX:
        raise invalid(
            f"except has {len(asked.but)} messages, to be left out of {len(epochs)} batches; the"
            f" product may be {NAMED_MESSAGES_MAX} at most; acknowledge fewer batches together",
            field="except", limit=NAMED_MESSAGES_MAX,
        )  # fmt: skip
    but = tuple((each.partition, each.seq) for each in asked.but)
    return (
        [MessageRef(each.partition, each.seq, each.epoch) for each in asked.messages],
        [BatchRef(epoch, but) for epoch in dict.fromkeys(epochs)],
    )


def _filters(given: Sequence[str]) -> list[str]:
    """The patterns of a consumer. Raises ApiError 400."""
    patterns = list(dict.fromkeys(each for text in given for each in split_patterns(text)))
    if len(patterns) > FILTERS_MAX:
        raise invalid(
            f"a consumer has at most {FILTERS_MAX} filters, got {len(patterns)}; use patterns that"
            " match more keys, or consumers with fewer of them",
            field="filter", limit=FILTERS_MAX,
        )  # fmt: skip
    for pattern in patterns:
        if not pattern:
            raise invalid(
                "filter is empty; leave it out for all keys, or give a pattern with * and ?",
                field="filter",
            )
        try:
            Filter(key=pattern).check()
        except FilterError as error:
            problem = str(error).removeprefix("key ")
            raise invalid(f"filter {pattern[:40]!r} {problem}", field="filter") from error
    return patterns


def split_patterns(text: str) -> list[str]:
    """The patterns between commas; a comma after a backslash is part of one."""
    found: list[str] = []
    at = 0
    while True:
        match = _ESCAPED_OR_COMMA.match(text, at)
        if match is None:  # a backslash at the end, which no pattern can have
            return [*found, text[at:]]
        found.append(match[1])
        at = match.end()
        if at == match.end(1):
            return found


def _content_type(accept: str) -> str:
    chosen = accepted(accept, STREAM_TYPES)
    if chosen is None:
        raise ApiError(
            406,
            "not_acceptable",
            f"a stream is sent as {', '.join(STREAM_TYPES)}; Accept is {accept[:80]!r}",
            {"accept": accept[:80]},
        )
    return chosen


def _place(asked: BlockedMessageRequest) -> tuple[int, int] | None:
    """Where the message is, if that is how it is named. Raises ApiError 400."""
    if (asked.partition is None) != (asked.seq is None) or (
        (asked.key is None) == (asked.seq is None)
    ):
        raise invalid("name one message: give key, or partition and seq", field="key")
    if asked.partition is None or asked.seq is None:
        return None
    return asked.partition, asked.seq


def _where(asked: BlockedCondition) -> BlockedWhere:
    """Which messages. Raises ApiError 400."""
    for field, pattern in (("key", asked.key), ("reason", asked.reason)):
        try:
            Filter(key=pattern).check()
        except FilterError as error:
            says = str(error).removeprefix("key ")
            raise invalid(f"where.{field} {says}", field=f"where.{field}") from error
    return BlockedWhere(asked.key, asked.partition, asked.reason, asked.resting)
