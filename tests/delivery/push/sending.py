"""The senders of a shard at a real owner, with a real client and a receiver that tests script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from delivery.pipes.client import Pipes
from delivery.push.posts.addresses import AllowList
from delivery.push.posts.client import PushClient
from delivery.push.rates.limiter import LearnedRates, LimiterSettings
from delivery.push.secrets import SecretsFile
from delivery.push.sender import QUEUED_BYTES_MAX, SenderTools
from delivery.push.senders import PushSenders
from delivery.subscriptions.budget import QueuedBudget
from delivery.subscriptions.owners import Owners
from ledger.delivery import subscriptions
from ledger.delivery.push_settings import PushSettings
from ledger.delivery.subscriptions import Subscription, SubscriptionConfig
from shards import layout as at
from shards.boards.endpointholds import EndpointHolds
from shards.boards.pushgrants import SlotGrants
from shards.clock import monotonic_ns, wall_ms
from tests.delivery.node import Node, raise_it
from tests.delivery.subscriptions.owning import Owner, owning

TICK_S = 0.005


class Receiver:
    """Answers each POST as ``answer`` says: by its headers and body, with a status and headers."""

    def __init__(self) -> None:
        self.posts: list[tuple[dict[str, str], bytes]] = []
        self.answer: Callable[[dict[str, str], bytes], str] = lambda *_: "204 OK"
        self.says = b""  # the body of its answers
        self.gate = asyncio.Event()  # answers wait while it is not set
        self.gate.set()
        self.under_way = 0
        self.under_way_max = 0

    async def start(self) -> str:
        """Listens; returns the endpoint."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/hook"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                lines = [line.split(": ", 1) for line in head.split("\r\n")[1:] if line]
                headers = {name.lower(): value for name, value in lines}
                body = await reader.readexactly(int(headers["content-length"]))
                self.posts.append((headers, body))
                self.under_way += 1
                self.under_way_max = max(self.under_way_max, self.under_way)
                await self.gate.wait()
                self.under_way -= 1
                status, *more = self.answer(headers, body).split("\r\n")
                extra = "".join(f"{line}\r\n" for line in more)
                extra += f"content-length: {len(self.says)}\r\n\r\n"
                writer.write(f"HTTP/1.1 {status}\r\n{extra}".encode() + self.says)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def seqs(self, key: str | None = None) -> list[int]:
        """The sequence numbers of the POSTs so far, or of those with a key."""
        return [
            int(headers["ce-seq"]) for headers, _ in self.posts
            if key is None or headers.get("ce-key") == key
        ]  # fmt: skip

    def close(self) -> None:
        self._server.close()


class Sending:
    """The senders of a node's one shard, and what the supervisor grants them."""

    def __init__(self, owner: Owner, receiver: Receiver, endpoint: str, folder: Path) -> None:
        self.owner = owner
        self.receiver = receiver
        self.endpoint = endpoint
        self.is_foreign = False
        self.secrets = SecretsFile(folder)
        self.queued = QueuedBudget(QUEUED_BYTES_MAX)
        self._grants: dict[int, SlotGrants] = {}
        self.senders = self.owner.senders = self._made()

    def _made(self) -> PushSenders:
        segment = self.owner.node.segment
        learned = LearnedRates()
        self.owner.flush.add_rates(learned)
        tools = SenderTools(
            Owners(0, 1, self.owner.subscriptions, cast(Pipes, None)),
            PushClient(AllowList(("127.0.0.1",))), LimiterSettings(), learned, self.queued,
            EndpointHolds(segment), monotonic_ns, wall_ms, lambda: not self.is_foreign, raise_it,
        )  # fmt: skip
        return PushSenders(
            segment, 0, self.owner.ledger,
            lambda: self.owner.changes + int(segment.words[at.G_DELIVERY]), self.secrets, tools,
        )  # fmt: skip

    def restart(self) -> None:
        """Other senders take over, as after the death of their process."""
        self.senders = self.owner.senders = self._made()

    def create(self, push: dict[str, Any] | None = None, **config: Any) -> Subscription:
        """A push subscription."""
        settings = {"endpoint": self.endpoint, "rate_max": 100_000.0, **(push or {})}
        return self.owner.create(push=PushSettings(**settings), **config)

    def alter(self, push: dict[str, Any] | None = None, **config: Any) -> None:
        """Changes its settings."""
        if push is not None:
            settings = {"endpoint": self.endpoint, "rate_max": 100_000.0, **push}
            config["push"] = PushSettings(**settings)
        self._alter(config)

    def end_push(self) -> None:
        """From now on, consumers get it."""
        self._alter({"push": None})

    def _alter(self, config: dict[str, Any]) -> None:
        node = self.owner.node
        node.ledger.write(subscriptions.alter, node.topic.name, "s", config)
        self.owner.changes += 1

    @property
    def config(self) -> SubscriptionConfig:
        """The settings in the ledger."""
        node = self.owner.node
        found = node.ledger.read(subscriptions.find, node.topic.topic_id, "s")
        assert found is not None
        return found.config

    def grant(self, made: Subscription, rate: float = 100_000.0) -> None:
        """What the supervisor does in each tick."""
        grants = self._grants.get(made.slot)
        if grants is None:
            segment = self.owner.node.segment
            grants = self._grants[made.slot] = SlotGrants(segment, made.slot, made.subscription_id)
        grants.look()
        for shard in grants.senders:
            grants.grant(shard, rate)

    async def until(
        self, done: Callable[[], bool], made: Subscription, rate: float = 100_000.0
    ) -> None:
        """Heartbeats come until something is so."""
        async with asyncio.timeout(60):
            while not done():
                self.owner.subscriptions.look()
                self.senders.look()
                self.grant(made, rate)
                await self.owner.flush.flush()
                await asyncio.sleep(TICK_S)

    async def until_finished(self, made: Subscription, offset: int) -> None:
        """Until all of partition 0 up to an offset is finished."""
        running = self.owner.subscriptions._running
        await self.until(
            lambda: (
                made.subscription_id in running
                and running[made.subscription_id].window.look_aheads[0].floor >= offset
            ),
            made,
        )


@asynccontextmanager
async def started_senders(node: Node, folder: Path) -> AsyncIterator[Sending]:
    """Senders over a node, and a receiver."""
    receiver = Receiver()
    endpoint = await receiver.start()
    with owning(node) as owner:
        owner.start()
        owner.subscriptions.look()
        await owner.rest()
        them = Sending(owner, receiver, endpoint, folder)
        yield them
        receiver.gate.set()
        them.senders.close()
        await them.senders.ended()
        owner.subscriptions.close()
        await owner.flush.stop()
    receiver.close()


def sending(node: Node, folder: Path, use: Callable[[Sending], Awaitable[None]]) -> None:
    """Runs a test over senders in a loop of its own."""

    async def run() -> None:
        async with started_senders(node, folder) as them:
            await use(them)

    asyncio.run(run())


async def until_it_rests(them: Sending, made: Subscription) -> None:
    """Until a message was given back to the owner."""
    running = them.owner.subscriptions._running
    await them.until(
        lambda: made.subscription_id in running
        and len(running[made.subscription_id].window.blocked.resting) == 1,
        made,
    )  # fmt: skip
