"""The client for asyncio. It starts no threads; otherwise it is as ``Client``.

The two differ in how they wait, and in nothing else: what is asked, repeated and resumed is decided
in calls.py, watching.py, consuming.py and batching.py.
"""

from __future__ import annotations

import asyncio
import functools
import time
import uuid
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Generic, ParamSpec, Self, TypeVar, overload

import httpx

from headgate import calls
from headgate.batching import Batching, Limits
from headgate.calls import OnGap, warn_of
from headgate.consuming import Consuming, Delivery, reason_of
from headgate.errors import HeadgateError, ProducerFailed
from headgate.records import Gap, NewRecord, Record
from headgate.steps import Emit, Emitting, Look, Lost, Moment, Op, Open, Read, Send, Step, Wait
from headgate.transport import REACH_S, answer_of, built, lost, settings
from headgate.watching import Watching

P = ParamSpec("P")
T = TypeVar("T")


class _Call(Generic[P, T]):
    """A method that takes the steps of a call."""

    def __init__(self, call: Callable[P, Op[T]]) -> None:
        self._call = call

    @overload
    def __get__(self, client: None, owner: type) -> Callable[P, Op[T]]: ...
    @overload
    def __get__(self, client: AsyncClient, owner: type) -> Callable[P, Awaitable[T]]: ...
    def __get__(self, client: AsyncClient | None, owner: type) -> Callable[P, Any]:
        if client is None:
            return self._call

        @functools.wraps(self._call)
        async def method(*args: P.args, **kwargs: P.kwargs) -> T:
            return await client.run(self._call(*args, **kwargs))

        return method


class _Listing(Generic[P, T]):
    """A method that is an iterator of what a call emits."""

    def __init__(self, call: Callable[P, Emitting[T]]) -> None:
        self._call = call

    @overload
    def __get__(self, client: None, owner: type) -> Callable[P, Emitting[T]]: ...
    @overload
    def __get__(self, client: AsyncClient, owner: type) -> Callable[P, AsyncGenerator[T, None]]: ...
    def __get__(self, client: AsyncClient | None, owner: type) -> Callable[P, Any]:
        if client is None:
            return self._call

        @functools.wraps(self._call)
        def method(*args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[T, None]:
            return client.iterate(self._call(*args, **kwargs))

        return method


class AsyncClient:
    """Calls the daemon at ``url``; the arguments are those of ``Client``."""

    def __init__(
        self, url: str = "http://127.0.0.1:7440", *, token: str | None = None,
        ca_file: str | None = None, timeout_s: float = 30.0, patience_s: float = 60.0,
    ) -> None:  # fmt: skip
        self._http = httpx.AsyncClient(**settings(url, token, ca_file, timeout_s, patience_s))
        self._patience_s = patience_s
        self._is_reached = False

    async def aclose(self) -> None:
        """Ends its connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    produce = _Call(calls.produce)
    produce_many = _Call(calls.produce_many)
    read = _Listing(calls.read)
    status = _Call(calls.status)
    topics = _Listing(calls.topics)
    topic = _Call(calls.topic_state)
    create_topic = _Call(calls.create_topic)
    delete_topic = _Call(calls.delete_topic)
    trim = _Call(calls.trim)
    subscriptions = _Listing(calls.subscriptions)
    subscription = _Call(calls.subscription)
    create_subscription = _Call(calls.create_subscription)
    delete_subscription = _Call(calls.delete_subscription)
    seek = _Call(calls.seek)
    blocked_keys = _Call(calls.blocked_keys)
    repair = _Call(calls.repair)
    routers = _Listing(calls.routers)
    router = _Call(calls.router)
    create_router = _Call(calls.create_router)
    delete_router = _Call(calls.delete_router)
    cursors = _Listing(calls.cursors)
    cursor = _Call(calls.cursor)
    put_cursor = _Call(calls.put_cursor)
    delete_cursor = _Call(calls.delete_cursor)

    def producer(
        self, topic: str, *, cursor: str | None = None, limits: Limits | None = None
    ) -> AsyncProducer:
        """As ``Client.producer``. Use it with ``async with``."""
        return AsyncProducer(self, topic, cursor, limits or Limits())

    def watch(
        self, topic: str, *, from_seq: int | None = None, from_ts: int | None = None,
        partition: int | None = None, key: str | None = None, tag: str | None = None,
        node: str | None = None, position: str = "",
    ) -> AsyncWatch:  # fmt: skip
        """As ``Client.watch``. Use it with ``async with``, which ends its connection."""
        return AsyncWatch(
            self, Watching(topic, from_seq=from_seq, from_ts=from_ts, partition=partition, key=key,
                           tag=tag, node=node, position=position),
        )  # fmt: skip

    def consume(
        self, topic: str, subscription: str, *, name: str, filters: Sequence[str] = (),
        create: bool | Mapping[str, object] = False, on_gap: OnGap = warn_of,
    ) -> AsyncConsumer:  # fmt: skip
        """As ``Client.consume``. Use it with ``async with``."""
        return AsyncConsumer(self, topic, subscription, name, filters, create, on_gap)

    async def run(self, op: Op[T]) -> T:
        """Takes the steps of a call to its end."""
        came: Any = None
        while True:
            try:
                step = op.throw(came) if isinstance(came, Lost) else op.send(came)
            except StopIteration as end:
                result: T = end.value
                return result
            came = await self._taken(step)

    async def iterate(self, op: Emitting[T]) -> AsyncGenerator[T, None]:
        """Takes the steps of a call, and hands out what it emits."""
        came: Any = None
        stream: _Stream | None = None
        try:
            while True:
                try:
                    step = op.throw(came) if isinstance(came, Lost) else op.send(came)
                except StopIteration:
                    return
                if isinstance(step, Emit):
                    yield step.item
                    came = None
                    continue
                if isinstance(step, Open) and stream is not None:
                    await stream.close()
                came = await self._taken(step)
                if isinstance(step, Open) and not isinstance(came, Lost):
                    stream = came.stream
        finally:
            op.close()
            if stream is not None:
                await stream.close()

    async def _taken(self, step: Step) -> Any:
        try:
            match step:
                case Look():
                    patience_s = self._patience_s if self._is_reached else REACH_S
                    return Moment(
                        time.monotonic(), min(patience_s, self._patience_s), self._is_reached,
                        uuid.uuid4().hex,
                    )  # fmt: skip
                case Wait(seconds):
                    return await asyncio.sleep(seconds)
                case Read(stream):
                    return await stream.read()
                case Send(request):
                    response = await self._http.send(built(self._http, request))
                    self._is_reached = True
                    return answer_of(response)
                case Open(request):
                    response = await self._http.send(built(self._http, request), stream=True)
                    self._is_reached = True
                    if response.is_success:
                        return answer_of(response, _Stream(response))
                    try:
                        await response.aread()
                    finally:
                        await response.aclose()
                    return answer_of(response)
        except httpx.RequestError as error:
            return lost(error)


class _Stream:
    def __init__(self, response: httpx.Response) -> None:
        self._chunks = response.aiter_raw()
        self.close = response.aclose

    async def read(self) -> bytes:
        return await anext(self._chunks, b"")


class AsyncWatch(AsyncIterator[Record | Gap]):
    """As ``Watch``. If an ``anext`` is cancelled, the next one goes on after the position."""

    def __init__(self, client: AsyncClient, watching: Watching) -> None:
        self._client, self._watching = client, watching
        self._told = client.iterate(watching.told())

    @property
    def position(self) -> str:
        """Where to go on after the last item; empty before the daemon has told it."""
        return self._watching.position

    async def __anext__(self) -> Record | Gap:
        try:
            return await anext(self._told)
        except asyncio.CancelledError:
            self._told = self._client.iterate(self._watching.told())  # the former one has ended
            raise

    async def aclose(self) -> None:
        """Ends the stream."""
        await self._told.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class AsyncProducer:
    """As ``Producer``, in a task. If it is cancelled, what is in the buffer is not sent."""

    def __init__(self, client: AsyncClient, topic: str, cursor: str | None, limits: Limits) -> None:
        self._client, self._topic, self._cursor, self._limits = client, topic, cursor, limits
        self._run_id = uuid.uuid4().hex
        self._changed = asyncio.Condition()
        self._batching = Batching(limits)
        self._task: asyncio.Task[None] | None = None

    @property
    def position(self) -> int:
        """How many records are stored; with a cursor, of all its producers."""
        return self._batching.stored

    async def send(
        self, data: Any, *, key: str | None = None, tag: str | None = None,
        node: str | None = None, meta: dict[str, Any] | None = None, ts: int | None = None,
    ) -> None:  # fmt: skip
        """Takes a record. Raises TypeError or ValueError for what JSON cannot say, and
        ProducerFailed."""
        line = NewRecord(data, key, tag, node, meta, ts).encoded()
        async with self._changed:
            await self._changed.wait_for(
                lambda: self._task is None or self._batching.has_room(line)
            )
            if self._task is None:
                raise ValueError("the producer is not open: use it inside its `async with`")
            self._batching.add(line, time.monotonic())
            self._changed.notify_all()

    async def flush(self) -> None:
        """Returns when all records that were sent so far are stored. Raises ProducerFailed."""
        async with self._changed:
            count = self._batching.flush()
            self._changed.notify_all()
            await self._changed.wait_for(lambda: self._batching.is_stored(count))

    async def __aenter__(self) -> Self:
        if self._cursor is not None:
            stored = await self._client.run(calls.position(self._cursor))
            self._batching = Batching(self._limits, stored)
        self._task = asyncio.create_task(self._work())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        task, is_lost = self._task, isinstance(error, ProducerFailed | asyncio.CancelledError)
        assert task is not None
        self._task = None
        try:
            if not is_lost:
                await self.flush()
        finally:
            task.cancel()
            try:
                await asyncio.wait([task])
            finally:
                async with self._changed:
                    self._batching.close()
                    self._changed.notify_all()

    async def _work(self) -> None:
        while True:
            async with self._changed:
                batch = self._batching.due(time.monotonic())
                if batch is None:
                    await self._wait(self._batching.wait_s(time.monotonic()))
                    continue
            failure: HeadgateError | None = None
            try:
                call = calls.produce_batch(self._topic, batch, self._run_id, self._cursor)
                await self._client.run(call)
            except HeadgateError as error:
                failure = error
            except Exception as error:  # noqa: BLE001 - raised by every call of the producer
                failure = HeadgateError("internal", reason_of(error))
                failure.__cause__ = error
            async with self._changed:
                if failure is None:
                    self._batching.done()
                else:
                    self._batching.fail(failure)
                self._changed.notify_all()

    async def _wait(self, seconds: float | None) -> None:
        try:
            # Not wait_for: in CPython 3.11 it can swallow a cancellation.
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncMessage(Delivery):
    """As ``Message``."""

    consumer: AsyncConsumer = field(repr=False, compare=False)

    async def ack(self) -> bool:
        """It is dealt with. False: it was taken back before, and may come again."""
        return await self.consumer.ack([self])

    async def nack(self, *, delay: float = 0.0, reason: str = "") -> bool:
        """It could not be dealt with: it is sent again, not before ``delay`` seconds."""
        return await self.consumer.nack([self], delay=delay, reason=reason)


class AsyncConsumer(AsyncIterator[AsyncMessage]):
    """As ``Consumer``."""

    def __init__(
        self, client: AsyncClient, topic: str, subscription: str, name: str,
        filters: Sequence[str], create: bool | Mapping[str, object], on_gap: OnGap,
    ) -> None:  # fmt: skip
        self._client = client
        self._consuming = Consuming(
            topic, subscription, functools.partial(AsyncMessage, consumer=self), name=name,
            filters=filters, create=create, on_gap=on_gap,
        )  # fmt: skip
        self._waiting: deque[AsyncMessage] = deque()
        self._must_stop = False

    async def __aenter__(self) -> Self:
        await self._client.run(self._consuming.begin())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.run(self._consuming.end())

    def stop(self) -> None:
        """Ends the iterator, or ``handle``, within 5 seconds."""
        self._must_stop = True

    async def __anext__(self) -> AsyncMessage:
        while not self._must_stop:
            if self._waiting:
                return self._waiting.popleft()
            self._waiting.extend(await self._client.run(self._consuming.next_batch()))
        raise StopAsyncIteration

    async def ack(self, messages: Sequence[AsyncMessage]) -> bool:
        """Acknowledges several messages in one request."""
        return await self._client.run(self._consuming.ack(messages))

    async def nack(
        self, messages: Sequence[AsyncMessage], *, delay: float = 0.0, reason: str = ""
    ) -> bool:
        """Refuses several messages in one request."""
        return await self._client.run(self._consuming.nack(messages, delay, reason))

    async def handle(
        self, handler: Callable[[AsyncMessage], Awaitable[object]], *, tasks: int = 1
    ) -> None:
        """As ``Consumer.handle``, in tasks."""
        working: set[asyncio.Task[None]] = set()
        async with asyncio.TaskGroup() as group:
            while not self._must_stop:
                working = {each for each in working if not each.done()}
                if len(working) == tasks:
                    await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)
                    continue
                for each in await self._client.run(self._consuming.poll(tasks - len(working))):
                    working.add(group.create_task(self._handled(handler, each)))

    async def _handled(
        self, handler: Callable[[AsyncMessage], Awaitable[object]], message: AsyncMessage
    ) -> None:
        try:
            await handler(message)
        except Exception as error:  # noqa: BLE001 - told to the daemon
            calls.log.exception("the handler failed at seq %d", message.seq)
            if self._consuming.is_in_hand(message):
                await message.nack(reason=reason_of(error))
        else:
            if self._consuming.is_in_hand(message):
                await message.ack()
