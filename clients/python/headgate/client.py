"""The client for programs with threads; it may be shared by them. ``AsyncClient`` is its sibling.

The two differ in how they wait, and in nothing else: what is asked, repeated and resumed is decided
in calls.py, watching.py, consuming.py and batching.py.
"""

from __future__ import annotations

import functools
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Generic, ParamSpec, Self, TypeVar, overload

import httpx

from headgate import calls
from headgate.batching import Batch, Batching, Limits, closed
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
    def __get__(self, client: Client, owner: type) -> Callable[P, T]: ...
    def __get__(self, client: Client | None, owner: type) -> Callable[P, Any]:
        if client is None:
            return self._call

        @functools.wraps(self._call)
        def method(*args: P.args, **kwargs: P.kwargs) -> T:
            return client.run(self._call(*args, **kwargs))

        return method


class _Listing(Generic[P, T]):
    """A method that is an iterator of what a call emits."""

    def __init__(self, call: Callable[P, Emitting[T]]) -> None:
        self._call = call

    @overload
    def __get__(self, client: None, owner: type) -> Callable[P, Emitting[T]]: ...
    @overload
    def __get__(self, client: Client, owner: type) -> Callable[P, Generator[T, None, None]]: ...
    def __get__(self, client: Client | None, owner: type) -> Callable[P, Any]:
        if client is None:
            return self._call

        @functools.wraps(self._call)
        def method(*args: P.args, **kwargs: P.kwargs) -> Generator[T, None, None]:
            return client.iterate(self._call(*args, **kwargs))

        return method


class Client:
    """Calls the daemon at ``url``.

    ``token`` goes by https or to this machine only; ``ca_file`` has the authorities of a private
    certificate. A call waits ``timeout_s`` for an answer, and is repeated for ``patience_s``; for 5
    seconds if the daemon never answered.
    """

    def __init__(
        self, url: str = "http://127.0.0.1:7440", *, token: str | None = None,
        ca_file: str | None = None, timeout_s: float = 30.0, patience_s: float = 60.0,
    ) -> None:  # fmt: skip
        self._http = httpx.Client(**settings(url, token, ca_file, timeout_s, patience_s))
        self._patience_s = patience_s
        self._is_reached = False

    def close(self) -> None:
        """Ends its connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
    ) -> Producer:
        """Sends records in the background; see Producer. Use it with ``with``."""
        return Producer(self, topic, cursor, limits or Limits())

    def watch(
        self, topic: str, *, from_seq: int | None = None, from_ts: int | None = None,
        partition: int | None = None, key: str | None = None, tag: str | None = None,
        node: str | None = None, position: str = "",
    ) -> Watch:  # fmt: skip
        """Records as they are committed, forever: from now on, or from where is given.

        ``key``, ``tag`` and ``node`` are patterns with ``*`` and ``?``. ``position`` is that of
        another Watch of this topic, to go on after it.
        """
        return Watch(
            self, Watching(topic, from_seq=from_seq, from_ts=from_ts, partition=partition, key=key,
                           tag=tag, node=node, position=position),
        )  # fmt: skip

    def consume(
        self, topic: str, subscription: str, *, name: str, filters: Sequence[str] = (),
        create: bool | Mapping[str, object] = False, on_gap: OnGap = warn_of,
    ) -> Consumer:  # fmt: skip
        """A consumer of a subscription; see Consumer. Use it with ``with``.

        ``create`` makes the subscription if there is none, with the settings that are given.
        ``filters`` are patterns of keys.
        """
        return Consumer(self, topic, subscription, name, filters, create, on_gap)

    def run(self, op: Op[T], pause: Callable[[float], object] = time.sleep) -> T:
        """Takes the steps of a call to its end. ``pause`` is how it waits."""
        came: Any = None
        while True:
            try:
                step = op.throw(came) if isinstance(came, Lost) else op.send(came)
            except StopIteration as end:
                result: T = end.value
                return result
            came = pause(step.seconds) if isinstance(step, Wait) else self._taken(step)

    def iterate(self, op: Emitting[T]) -> Generator[T, None, None]:
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
                    stream.close()
                came = self._taken(step)
                if isinstance(step, Open) and not isinstance(came, Lost):
                    stream = came.stream
        finally:
            op.close()
            if stream is not None:
                stream.close()

    def _taken(self, step: Step) -> Any:
        try:
            match step:
                case Look():
                    patience_s = self._patience_s if self._is_reached else REACH_S
                    return Moment(
                        time.monotonic(), min(patience_s, self._patience_s), self._is_reached,
                        uuid.uuid4().hex,
                    )  # fmt: skip
                case Wait(seconds):
                    return time.sleep(seconds)
                case Read(stream):
                    return stream.read()
                case Send(request):
                    response = self._http.send(built(self._http, request))
                    self._is_reached = True
                    return answer_of(response)
                case Open(request):
                    response = self._http.send(built(self._http, request), stream=True)
                    self._is_reached = True
                    if response.is_success:
                        return answer_of(response, _Stream(response))
                    try:
                        response.read()
                    finally:
                        response.close()
                    return answer_of(response)
        except httpx.RequestError as error:
            return lost(error)


class _Stream:
    def __init__(self, response: httpx.Response) -> None:
        self._chunks = response.iter_raw()
        self.close = response.close

    def read(self) -> bytes:
        return next(self._chunks, b"")


class Watch(Iterator[Record | Gap]):
    """An iterator without an end that survives lost connections. ``close`` ends it, as does the
    end of a ``with``, in the thread that iterates."""

    def __init__(self, client: Client, watching: Watching) -> None:
        self._watching = watching
        self._told = client.iterate(watching.told())

    @property
    def position(self) -> str:
        """Where to go on after the last item; empty before the daemon has told it."""
        return self._watching.position

    def __next__(self) -> Record | Gap:
        return next(self._told)

    def close(self) -> None:
        """Ends the stream."""
        self._told.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Producer:
    """Batches records in the background and sends them in order, each once.

    ``send`` returns when the record is in the buffer, and waits while that is full. Refusals for
    now (429, 503) are repeated forever. A request whose outcome is unknown is repeated for 60
    seconds, so that a daemon with its default ``dedupe_window_ms`` still knows its key; with a
    ``cursor``, which moves with the records, also forever. After a failure every call raises
    ProducerFailed.

    A ``cursor`` belongs to one producer at a time and outlives it: ``position`` is how many records
    were stored under it.
    """

    def __init__(self, client: Client, topic: str, cursor: str | None, limits: Limits) -> None:
        self._client, self._topic, self._cursor, self._limits = client, topic, cursor, limits
        self._run_id = uuid.uuid4().hex
        self._changed = threading.Condition()
        self._batching = Batching(limits)
        self._is_open = False  # for records
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name=f"headgate-{topic}", daemon=True)

    @property
    def position(self) -> int:
        """How many records are stored; with a cursor, of all its producers."""
        return self._batching.stored

    def send(
        self, data: Any, *, key: str | None = None, tag: str | None = None,
        node: str | None = None, meta: dict[str, Any] | None = None, ts: int | None = None,
    ) -> None:  # fmt: skip
        """Takes a record. Raises TypeError or ValueError for what JSON cannot say, and
        ProducerFailed."""
        line = NewRecord(data, key, tag, node, meta, ts).encoded()
        with self._changed:
            while self._is_open and not self._batching.has_room(line):
                self._changed.wait()
            if not self._is_open:
                raise ValueError("the producer is not open: use it inside its `with`")
            self._batching.add(line, time.monotonic())
            self._changed.notify_all()

    def flush(self) -> None:
        """Returns when all records that were sent so far are stored. Raises ProducerFailed."""
        with self._changed:
            count = self._batching.flush()
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._batching.is_stored(count))

    def __enter__(self) -> Self:
        if self._cursor is not None:
            stored = self._client.run(calls.position(self._cursor))
            self._batching = Batching(self._limits, stored)
        self._is_open = True
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        with self._changed:
            self._is_open = False
            self._changed.notify_all()
        try:
            if not isinstance(error, ProducerFailed):
                self.flush()
        finally:
            with self._changed:
                self._is_closed = True
                self._changed.notify_all()
            self._thread.join()

    def _work(self) -> None:
        while (batch := self._next()) is not None:
            failure: HeadgateError | None = None
            try:
                call = calls.produce_batch(self._topic, batch, self._run_id, self._cursor)
                self._client.run(call, self._pause)
            except HeadgateError as error:
                failure = error
            except Exception as error:  # noqa: BLE001 - raised by every call of the producer
                failure = HeadgateError("internal", reason_of(error))
                failure.__cause__ = error
            with self._changed:
                if failure is None:
                    self._batching.done()
                else:
                    self._batching.fail(failure)
                self._changed.notify_all()
        with self._changed:
            self._batching.close()
            self._changed.notify_all()

    def _pause(self, seconds: float) -> None:
        with self._changed:
            if self._changed.wait_for(lambda: self._is_closed, seconds):
                raise closed()

    def _next(self) -> Batch | None:
        """The next batch, when it is due; None when the producer is closed."""
        with self._changed:
            while not self._is_closed:
                now_s = time.monotonic()
                batch = self._batching.due(now_s)
                if batch is not None:
                    return batch
                self._changed.wait(self._batching.wait_s(now_s))
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Message(Delivery):
    """A message that this consumer has until it is acknowledged."""

    consumer: Consumer = field(repr=False, compare=False)

    def ack(self) -> bool:
        """It is dealt with. False: it was taken back before, and may come again."""
        return self.consumer.ack([self])

    def nack(self, *, delay: float = 0.0, reason: str = "") -> bool:
        """It could not be dealt with: it is sent again, not before ``delay`` seconds."""
        return self.consumer.nack([self], delay=delay, reason=reason)


class Consumer(Iterator[Message]):
    """An iterator of messages, until ``stop``; what is not acknowledged at the end of the ``with``
    goes to others. A message may come more than once; partition and seq identify it."""

    def __init__(
        self, client: Client, topic: str, subscription: str, name: str, filters: Sequence[str],
        create: bool | Mapping[str, object], on_gap: OnGap,
    ) -> None:  # fmt: skip
        self._client = client
        self._consuming = Consuming(
            topic, subscription, functools.partial(Message, consumer=self), name=name,
            filters=filters, create=create, on_gap=on_gap,
        )  # fmt: skip
        self._waiting: deque[Message] = deque()
        self._must_stop = False

    def __enter__(self) -> Self:
        self._client.run(self._consuming.begin())
        return self

    def __exit__(self, *_: object) -> None:
        self._client.run(self._consuming.end())

    def stop(self) -> None:
        """Ends the iterator, or ``handle``, within 5 seconds; from any thread or signal."""
        self._must_stop = True

    def __next__(self) -> Message:
        while not self._must_stop:
            if self._waiting:
                return self._waiting.popleft()
            self._waiting.extend(self._client.run(self._consuming.next_batch()))
        raise StopIteration

    def ack(self, messages: Sequence[Message]) -> bool:
        """Acknowledges several messages in one request."""
        return self._client.run(self._consuming.ack(messages))

    def nack(self, messages: Sequence[Message], *, delay: float = 0.0, reason: str = "") -> bool:
        """Refuses several messages in one request."""
        return self._client.run(self._consuming.nack(messages, delay, reason))

    def handle(self, handler: Callable[[Message], object], *, threads: int = 1) -> None:
        """Calls ``handler`` with each message, in ``threads`` threads, until ``stop``.

        A message is acknowledged when the handler returns, and refused when it raises, unless it
        did either itself. With ``key_shared``, messages of a key come one after the other.
        """
        working: set[Future[None]] = set()
        with ThreadPoolExecutor(threads, "headgate-handler") as pool:
            while not self._must_stop:
                if len(working) == threads:
                    wait(working, return_when=FIRST_COMPLETED)
                for future in [each for each in working if each.done()]:
                    working.remove(future)
                    future.result()
                if len(working) < threads:
                    for each in self._client.run(self._consuming.poll(threads - len(working))):
                        working.add(pool.submit(self._handled, handler, each))
        for future in working:
            future.result()

    def _handled(self, handler: Callable[[Message], object], message: Message) -> None:
        try:
            handler(message)
        except Exception as error:  # noqa: BLE001 - told to the daemon
            calls.log.exception("the handler failed at seq %d", message.seq)
            if self._consuming.is_in_hand(message):
                message.nack(reason=reason_of(error))
        else:
            if self._consuming.is_in_hand(message):
                message.ack()
