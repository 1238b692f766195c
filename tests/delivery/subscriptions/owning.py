"""The subscriptions of a shard over real rings, ledger and store; commits, time and clients by
hand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing, contextmanager, nullcontext
from typing import Any, cast

import msgspec
from msgspec import Struct

from delivery.changes import DeliveryChanges
from delivery.dispatch import Dispatcher
from delivery.flush import Flush
from delivery.ledger_thread import LedgerThread
from delivery.pipes.server import Asker
from delivery.reading.followed import FollowedPartitions
from delivery.reading.partition import PartitionReader
from delivery.reading.tail import TailReader
from delivery.ready import Kind, PriorityInputs
from delivery.subscriptions.requests import (
    Acknowledge,
    AnyRequest,
    BatchRef,
    Consume,
    MessageRef,
    Nack,
    Poll,
    SenderRequest,
)
from delivery.subscriptions.runtime import PushedHere, Subscriptions
from delivery.subscriptions.shown.inspection import OwnerClocks
from ledger import topics
from ledger.delivery import subscriptions
from ledger.delivery.subscriptions import Subscription, SubscriptionConfig
from ledger.ledger import Ledger
from ledger.space import retention
from shards import layout as at
from shards.boards.pushboard import PushSenderRow
from shards.boards.rowboard import subscription_board
from shards.doorbell import Doorbells
from shards.journal import FinishedJournal
from tests.delivery.fifo import FifoReadySet
from tests.delivery.node import Node, l0_reader, raise_it, stored_reader
from tests.delivery.routers.test_shard_routers import RingOutbox
from tests.delivery.watch.watching import Client
from uploader.l0.records import Record

MS = 1_000_000
S = 1_000 * MS


class _Silent:
    def ring_all(self, _: object) -> None:
        """Nobody listens."""


class NoSenders:
    """A shard without push."""

    def wants_more(self, subscription: Subscription) -> bool:
        return False

    def rows(self, subscription: Subscription) -> Sequence[PushSenderRow]:
        return ()

    async def asked(self, subscription: Subscription, request: SenderRequest) -> Struct | None:
        raise AssertionError("nothing is pushed here")

    def forget(self, subscription_id: int) -> None:
        """There is nothing to forget."""


class Owner:
    """A shard that owns all subscriptions of a node, and how far it was told of commits."""

    def __init__(self, node: Node, partitions: PartitionReader, ledger: LedgerThread) -> None:
        self.ledger = ledger
        self.node = node
        self.partitions = partitions
        self.seen = 0
        self.now_ns = S
        self.changes = 1
        self.evictions = 0
        self.has_died = False
        self.is_owned = True
        self.dispatcher = Dispatcher(
            FifoReadySet(), lambda _: PriorityInputs(), lambda: self.now_ns
        )
        self.flush = Flush(
            lambda: Ledger(node.ledger.path, nullcontext(), must_exist=True),
            lambda: self.now_ns, self._ended,
        )  # fmt: skip
        self.outbox = RingOutbox(node, 0)
        self.board = subscription_board(node.segment)
        self.journal = FinishedJournal(node.segment, 0)
        self.subscriptions = Subscriptions(
            0, 1, 1, partitions, ledger, self.journal, self.flush, self.outbox, self.board,
            self.dispatcher.dirty,
            lambda: self.changes + int(node.segment.words[at.G_DELIVERY]),
            lambda _: self.evictions, lambda topic_id: int(node.segment.words[at.grown(topic_id)]),
            OwnerClocks(lambda: self.now_ns, lambda: self.now_ns // MS),
            lambda _: None, lambda: self.is_owned, lambda *_: None,
            DeliveryChanges(node.segment, cast(Doorbells, _Silent()), ledger, nullcontext()),
            raise_it, lambda: self.senders,
        )  # fmt: skip
        self.senders: PushedHere = NoSenders()

    def _ended(self) -> None:
        raise AssertionError("the process would end")

    def start(self) -> None:
        servers = {Kind.CONSUME: self.subscriptions.serve}
        self.dispatcher.start(asyncio.get_running_loop(), servers, raise_it)

    def dies(self) -> None:
        """From now on nothing is flushed."""
        self.has_died = True

    async def stop(self) -> None:
        """Ends it, with a last flush unless it has died."""
        self.subscriptions.close()
        if self.has_died:
            self.subscriptions.progress.collect = list  # type: ignore[method-assign]
        await self.flush.stop()

    def create(self, name: str = "s", start: Any = "earliest", **config: Any) -> Subscription:
        made = self.node.ledger.write(
            subscriptions.create, self.node.topic.name, name, SubscriptionConfig(**config), start, 1
        )
        self.changes += 1
        return made

    def produce(self, *records: Record, partition: int = 0, tell: bool = True) -> None:
        """A commit of these records."""
        self.node.produce(0, {partition: list(records)})
        assert self.node.commit(0) is not None
        if tell:
            self.tell()

    def evict_all_but(self, newest: int) -> None:
        """Retention keeps as many records of each partition of the topic."""
        node = self.node
        capped = msgspec.structs.replace(node.topic.config, cap_records=newest)
        topic = node.ledger.write(topics.alter, node.topic.name, capped)
        due = node.ledger.read(retention.due_evictions, topic, None)
        node.ledger.write(retention.evict, due.evictions)
        self.evictions += 1

    def tell(self) -> None:
        """The commits of the log that it was not told of."""
        for commit in self.node.commits[self.seen :]:
            self.seen = commit.number
            self.subscriptions.committed(self.partitions.followed.apply(commit), self.now_ns)
            self.outbox.committed(commit)

    async def ask(self, request: AnyRequest) -> Any:
        if isinstance(request, Poll):
            return json.loads(await self.subscriptions.poll(request, Asker()))
        return msgspec.to_builtins(await self.subscriptions.ask(request))

    async def consume(
        self, made: Subscription, name: str, *filters: str, client: Client | None = None
    ) -> Client:
        """A stream for a consumer."""
        client = client or Client()
        request = Consume(made.subscription_id, name, list(filters), "application/x-ndjson")
        await self.ask(request)
        self.subscriptions.open(request, client)
        await self.rest()
        return client

    async def ack(self, made: Subscription, name: str, *events: dict[str, Any]) -> Any:
        found = await self.ask(Acknowledge(made.subscription_id, name, _refs(events), []))
        await self.rest()
        return found

    async def ack_batch(self, made: Subscription, name: str, *epochs: int) -> Any:
        batches = [BatchRef(epoch) for epoch in epochs]
        found = await self.ask(Acknowledge(made.subscription_id, name, [], batches))
        await self.rest()
        return found

    async def take_all(self, made: Subscription, client: Client) -> None:
        """Consumer ``c`` acknowledges until nothing more comes."""
        done = 0
        while done < len(messages(client)):
            new = messages(client)[done:]
            done += len(new)
            await self.ack(made, "c", *new)

    async def nack(
        self, made: Subscription, name: str, *events: dict[str, Any], delay_ms: int = 0
    ) -> Any:
        request = Nack(made.subscription_id, name, _refs(events), [], delay_ms, "no")
        found = await self.ask(request)
        await self.rest()
        return found

    async def later(self, seconds: float) -> None:
        """Time passes; heartbeats come."""
        self.now_ns += int(seconds * S)
        self.subscriptions.look()
        await self.rest()

    async def until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not done():  # noqa: ASYNC110 - the test turns the loop
                await asyncio.sleep(0)

    async def rest(self) -> None:
        """Turns the loop, and flushes, until there is nothing left to do."""
        ready: Any = self.dispatcher.ready
        for _ in range(2):
            await self.until(lambda: not self.subscriptions.tasks and not len(ready))
            if not self.has_died:
                await self.flush.flush()
        await self.until(lambda: not self.subscriptions.tasks and not len(ready))


def _refs(events: tuple[dict[str, Any], ...]) -> list[MessageRef]:
    return [MessageRef(each["partition"], each["seq"], each["epoch"]) for each in events]


def messages(client: Client) -> list[dict[str, Any]]:
    """The messages that a client got."""
    return [event for event in client.events if "epoch" in event]


def data(client: Client) -> list[object]:
    """The data of the messages that a client got."""
    return [message["data"] for message in messages(client)]


def record(data: object, key: str | None = None) -> Record:
    return Record(msgspec.json.encode(data).decode(), key=key)


@contextmanager
def owning(node: Node) -> Iterator[Owner]:
    """An owner over a node."""
    with (
        closing(Ledger(node.ledger.path, nullcontext(), must_exist=True)) as reads,
        ThreadPoolExecutor(1) as thread,
        l0_reader(node) as (l0, _),
    ):
        ledger = LedgerThread(reads, thread)
        owner: Owner
        partitions = PartitionReader(
            FollowedPartitions(lambda: node.tail_of(owner.seen)), TailReader(node.segment), ledger,
            stored_reader(node, ledger, l0), lambda _: owner.evictions,
        )  # fmt: skip
        owner = Owner(node, partitions, ledger)
        yield owner


@asynccontextmanager
async def started_owner(node: Node) -> AsyncIterator[Owner]:
    """An owner that has looked at the subscriptions, and finds what the one before it left."""
    with owning(node) as owner:
        owner.start()
        owner.subscriptions.look()
        await owner.rest()
        yield owner
        await owner.stop()


def run(node: Node, *uses: Callable[[Owner], Awaitable[None]]) -> None:
    """Each is given another owner."""

    async def with_owners() -> None:
        for use in uses:
            async with started_owner(node) as owner:
                await use(owner)

    asyncio.run(with_owners())
