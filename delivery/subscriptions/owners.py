"""Who owns a subscription, and how a shard asks the owner: in this process, or through a pipe.

The owner is the shard ``subscription_id mod shards``, whichever process that is now. If it dies
while it is asked for something to *show*, its successor is asked, one time. For anything else,
``owner_restarted`` tells the client that whether it was done is unknown, and everything that
clients ask may be asked twice. Streams need nothing: the pipe opens them again at the successor.

``PipedRequests`` is the other end: what comes through a pipe, for this shard's subscriptions.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol, TypeVar, get_args

import msgspec
from msgspec import Struct

from delivery.pipes.client import Pipes
from delivery.pipes.errors import FrameTooLarge, PipeBroken, PipeBusy, PipeError, PipeRefused
from delivery.pipes.server import Asker
from delivery.streams.formats import FORMATS
from delivery.streams.outlet import Outlet
from delivery.streams.wire import chunk
from delivery.subscriptions.requests import (
    AnyRequest,
    Consume,
    Describe,
    DescribeKey,
    ListAttempts,
    ListKeys,
    OwnerRefused,
    OwnerRequest,
    Poll,
)
from delivery.tasks import Tasks
from ledger.errors import LedgerError

A = TypeVar("A")

OPEN_AGAIN_S = 0.5

# They change nothing. One that kills its owner must not go on to kill each successor.
SHOWING = (Describe, DescribeKey, ListKeys, ListAttempts)


class SubscriptionOwner(Protocol):
    """Whoever answers for subscriptions: this process for its own, ``Owners`` for all."""

    async def ask(self, request: OwnerRequest[A]) -> A:
        """The answer to all but a poll. Raises OwnerRefused."""

    async def poll(self, request: Poll, asker: Asker) -> bytes:
        """The answer to a poll, a JSON document: messages are encoded once, for the client. Raises
        OwnerRefused."""

    def open(self, request: Consume, outlet: Outlet) -> None:
        """Sends messages to the consumer until one side ends the outlet."""


class _Refusal(Struct, frozen=True, array_like=True):
    """An OwnerRefused on its way."""

    status: int
    code: str
    message: str
    detail: dict[str, Any]


_encoder = msgspec.msgpack.Encoder()
_requests = msgspec.msgpack.Decoder(AnyRequest)
_refusals = msgspec.msgpack.Decoder(_Refusal)
# Of the answers of owners in other processes; a request's base names the type.
_answers: dict[type, msgspec.msgpack.Decoder[Any]] = {
    each: msgspec.msgpack.Decoder(get_args(each.__orig_bases__[0])[0])
    for each in get_args(AnyRequest)
}


class Owners:
    """The owners of all subscriptions, as this shard asks them."""

    def __init__(self, shard: int, shards: int, here: SubscriptionOwner, pipes: Pipes) -> None:
        self._shard = shard
        self._shards = shards
        self._here = here
        self._pipes = pipes

    def owner_of(self, subscription_id: int) -> int:
        """The shard that owns a subscription."""
        return subscription_id % self._shards

    async def ask(self, request: OwnerRequest[A]) -> A:
        """The owner's answer. Raises OwnerRefused and, if that is this shard, LedgerError."""
        owner = self.owner_of(request.subscription_id)
        if owner == self._shard:
            return await self._here.ask(request)
        answer: A = _answers[type(request)].decode(await self._piped(owner, request))
        return answer

    async def poll(self, request: Poll, asker: Asker) -> bytes:
        """The owner's answer, a JSON document. Raises OwnerRefused."""
        owner = self.owner_of(request.subscription_id)
        if owner == self._shard:
            return await self._here.poll(request, asker)
        return await self._piped(owner, request)

    async def _piped(self, owner: int, request: OwnerRequest[Any]) -> bytes:
        """What a shard answers through a pipe. Raises OwnerRefused."""
        payload = _encoder.encode(request)
        if isinstance(request, Consume) and not self._pipes.has_room(len(payload)):
            raise _busy(owner)
        try:
            return await self._answer(owner, payload, isinstance(request, SHOWING))
        except PipeRefused as error:
            raise OwnerRefused(*_fields(_refusals.decode(error.payload))) from None
        except PipeBroken:
            raise OwnerRefused(
                503, "owner_restarted",
                f"shard {owner}, which owns this subscription, is being restarted; whether it has"
                " done this is unknown, and it may be asked again",
                {"owner_shard": owner},
            ) from None  # fmt: skip
        except FrameTooLarge as error:
            raise OwnerRefused(
                413, "too_large", f"{error}; name fewer messages", {"owner_shard": owner}
            ) from None
        except PipeBusy:
            raise _busy(owner) from None
        except PipeError as error:
            raise OwnerRefused(
                500, "internal", f"the shard that owns this subscription failed: {error}",
                {"owner_shard": owner},
            ) from None  # fmt: skip

    async def _answer(self, owner: int, payload: bytes, is_shown: bool) -> bytes:
        """What the owner answers, or, if it only shows something, its successor. Raises
        PipeError."""
        try:
            return await self._pipes.ask(owner, payload)
        except PipeBroken:
            if not is_shown or self._pipes.draining:  # the daemon stops: there is no successor
                raise
        return await self._pipes.ask(owner, payload)

    def open(self, request: Consume, outlet: Outlet) -> None:
        """Sends messages to the consumer until one side ends the outlet. A death of the owner does
        not end it."""
        owner = self.owner_of(request.subscription_id)
        if owner == self._shard:
            self._here.open(request, outlet)
        else:
            self._pipes.open(owner, _encoder.encode(request), outlet)


class PipedRequests:
    """What other shards ask of this one."""

    def __init__(self, here: SubscriptionOwner) -> None:
        self._here = here
        self._opening = Tasks()
        self._closed = False

    async def ask(self, payload: bytes, asker: Asker) -> bytes:
        """Answers a request. Raises PipeRefused."""
        request = _requests.decode(payload)
        try:
            if isinstance(request, Poll):
                return await self._here.poll(request, asker)
            return _encoder.encode(await self._here.ask(request))
        except OwnerRefused as refused:
            refusal = _Refusal(refused.status, refused.code, refused.message, refused.detail)
        except LedgerError as error:
            refusal = _Refusal(503, "ledger_unavailable", str(error), {})
        raise PipeRefused(_encoder.encode(refusal))

    def open(self, payload: bytes, outlet: Outlet) -> None:
        """Opens a stream; the request is a Consume. If it cannot be opened, an event says why."""
        request = _requests.decode(payload)
        assert isinstance(request, Consume)
        self._opening.start(self._open(request, outlet))

    async def _open(self, request: Consume, outlet: Outlet) -> None:
        """A stream of a former owner is opened before this one knows the subscription, and may even
        have to wait until its ledger can be read."""
        while not outlet.closed:
            try:
                await self._here.ask(request)
            except OwnerRefused as refused:
                if refused.status != 503 or self._closed:
                    outlet.end(_told(request, refused))
                    return
                await asyncio.sleep(OPEN_AGAIN_S)
            except Exception:
                outlet.end()
                raise
            else:
                if not outlet.closed:
                    self._here.open(request, outlet)
                return

    def close(self) -> None:
        """No stream waits for this shard's subscriptions any more."""
        self._closed = True


def _fields(refusal: _Refusal) -> tuple[int, str, str, dict[str, Any]]:
    return refusal.status, refusal.code, refusal.message, refusal.detail


def _told(request: Consume, refused: OwnerRefused) -> bytes:
    if request.is_sender:
        return b""
    format_ = next(each for each in FORMATS if each.content_type == request.content_type)
    return chunk(format_.error(refused.code, refused.message, refused.detail))


def _busy(owner: int) -> OwnerRefused:
    return OwnerRefused(
        503, "owner_busy",
        f"too many requests to shard {owner}, which owns this subscription, are under way; nothing"
        " was done; ask again",
        {"owner_shard": owner},
    )  # fmt: skip
