"""The routes of subscriptions over a real ledger, without sockets; owners note what they are asked.

An owner is another object, usually in another process (tests/delivery/subscriptions): here it
answers what a test tells it to.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

import msgspec

from daemon.api.application import Api
from daemon.api.handlers.consumers import ConsumerRoutes
from daemon.api.handlers.subscription_directory import SubscriptionDirectory
from daemon.api.handlers.subscriptions import SubscriptionRoutes
from daemon.api.subscription_table import SUBSCRIPTION_ROUTES
from daemon.http.limits import HttpLimits
from daemon.http.server import Server
from daemon.intake.topic_cache import TopicCache
from delivery.changes import DeliveryChanges
from delivery.ledger_thread import LedgerThread
from delivery.pipes.server import Asker
from delivery.push.posts.addresses import AllowList
from delivery.push.secrets import SecretsFile
from delivery.reading.waiters import Waiters
from delivery.streams.outlet import Outlet
from delivery.streams.wire import chunk
from delivery.subscriptions.requests import (
    Acknowledge,
    Consume,
    Describe,
    Nack,
    OwnerRequest,
    Poll,
)
from delivery.subscriptions.schemas import Acknowledged, SubscriptionState
from ledger.ledger import Ledger
from ledger.types import TopicConfig
from shards.boards.rowboard import subscription_board
from shards.doorbell import Doorbells
from shards.layout import Layout
from shards.segment import Segment
from tests.daemon.http.memory_transport import connect
from tests.e2e.daemon import Answer
from tests.e2e.load import read_answer


class ToldOwners:
    """Owners that note each request, and answer with ``answer`` or raise it."""

    def __init__(self) -> None:
        self.asked: list[OwnerRequest[Any]] = []
        self.opened: list[Consume] = []
        self.answer: Any = {}

    def forget(self) -> None:
        """As if nothing had been asked."""
        self.asked.clear()
        self.opened.clear()

    async def ask(self, request: OwnerRequest[Any]) -> Any:
        self.asked.append(request)
        if isinstance(self.answer, Exception):
            raise self.answer
        if isinstance(request, Acknowledge | Nack):
            return msgspec.convert(self.answer, Acknowledged)
        return (
            msgspec.convert(self.answer, SubscriptionState)
            if (isinstance(request, Describe))
            else self.answer
        )

    async def poll(self, request: Poll, asker: Asker) -> bytes:
        return msgspec.json.encode(await self.ask(request))

    def open(self, request: Consume, outlet: Outlet) -> None:
        self.opened.append(request)
        outlet.end(chunk(b"message\n"))


class TimeIndex:
    """Where records of a time begin: the partition's number after the time."""

    async def before_time(self, key: tuple[int, int], from_ts: int) -> int:
        return from_ts + key[1]


class SubscribingNode:
    """One shard's subscriptions. ``t`` is a topic with two partitions."""

    def __init__(self, segment: Segment, ledger: LedgerThread, directory: Path) -> None:
        self.segment = segment
        self.ledger = ledger.ledger
        self.owners = ToldOwners()
        self.board = subscription_board(segment)
        self.topics = TopicCache(segment, ledger, nullcontext())
        self.directory = SubscriptionDirectory(segment, ledger, self.topics)
        reader: Any = TimeIndex()
        self.secrets = SecretsFile(directory)
        handlers: Any = _Handlers()
        handlers.subscriptions = SubscriptionRoutes(
            segment, DeliveryChanges(segment, cast(Doorbells, _Silent()), ledger, nullcontext()),
            ledger, self.topics, reader, self.secrets, AllowList(("public", "hooks.test")),
            self.directory, self.owners,
        )  # fmt: skip
        handlers.consumers = ConsumerRoutes(self.directory, self.owners)
        producer: Any = None  # there is no route for producing
        self.server = Server()
        self.server.application = Api(SUBSCRIPTION_ROUTES, handlers, producer, Waiters())
        self.server.limits = HttpLimits()

    def raw(self, request: bytes) -> bytes:
        """All bytes of the answer."""

        async def written() -> bytes:
            connection, transport = connect(self.server)
            connection.data_received(request)
            while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
                await asyncio.wait(tasks)
            return bytes(transport.written)

        return asyncio.run(written())

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        """A request with a JSON body; ``path`` begins after ``/v0/topics/t/subscriptions``, or
        with ``/v0``."""
        if not path.startswith("/v0"):
            path = f"/v0/topics/t/subscriptions{path}"
        data = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", "Host: a"]
        lines += ["Content-Type: application/json"] * bool(data)
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines += [f"Content-Length: {len(data)}", "", ""]
        answer = read_answer(io.BytesIO(self.raw("\r\n".join(lines).encode() + data)))
        assert answer is not None
        return answer


class _Handlers:
    pass


class _Silent:
    def ring_all(self, _: object) -> None:
        """Nobody listens."""


@contextmanager
def subscribing(directory: Path) -> Iterator[SubscribingNode]:
    """A node over a real ledger."""
    segment = Segment.create(Layout(shards=1, ring_bytes=4096))
    with (
        closing(Ledger(directory / "ledger.db", nullcontext())) as ledger,
        ThreadPoolExecutor(1) as thread,
    ):
        node = SubscribingNode(segment, LedgerThread(ledger, thread), directory)
        asyncio.run(node.topics.create("t", TopicConfig(partitions=2)))
        yield node
    segment.close()
