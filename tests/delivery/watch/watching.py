"""A hub over real rings, ledger and store, and clients that take bytes when the test says so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from typing import Any

from delivery.dispatch import Dispatcher
from delivery.filters import Filter
from delivery.ledger_thread import LedgerThread
from delivery.reading.followed import FollowedPartitions, Key
from delivery.reading.partition import PartitionReader
from delivery.reading.tail import TailReader
from delivery.ready import Kind, PriorityInputs, ReadySet
from delivery.streams.events import WatchError
from delivery.streams.formats import NDJSON, Format
from delivery.watch.hub import WatchHub
from delivery.watch.tail_encoder import Shape
from ledger.ledger import Ledger
from tests.delivery.fifo import FifoReadySet
from tests.delivery.node import Node, l0_reader, raise_it, stored_reader


def unchunked(data: bytes) -> bytes:
    """The bytes without HTTP's framing; every chunk must be whole."""
    found = b""
    while data:
        size, _, rest = data.partition(b"\r\n")
        length = int(size, 16)
        assert rest[length : length + 2] == b"\r\n"
        found += rest[:length]
        data = rest[length + 2 :]
    return found


class Client:
    """An outlet, and what arrived through it. ``stuck``: the client takes nothing for now."""

    def __init__(self, *, stuck: bool = False) -> None:
        self.drained: Callable[[], None] | None = None
        self.closed_by_peer: Callable[[], None] | None = None
        self.closed = False
        self.stuck = stuck
        self.data = b""
        self.writes: list[bytes] = []
        self.untaken = 0

    @property
    def writable(self) -> bool:
        return not self.closed and not self.untaken

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.data += data
        self.writes.append(data)
        if self.stuck:
            self.untaken += len(data)

    def take(self, *, stuck: bool = False) -> None:
        """Takes what was written; with ``stuck``, what is written next stays again."""
        self.stuck = stuck
        if self.untaken:
            self.untaken = 0
            assert self.drained is not None
            self.drained()

    def end(self, data: bytes = b"") -> None:
        if not self.closed:
            self.data += data
            self.closed = True

    def go(self) -> None:
        """The client closes the connection."""
        self.closed = True
        assert self.closed_by_peer is not None
        self.closed_by_peer()

    @property
    def events(self) -> list[dict[str, Any]]:
        """Everything of an NDJSON stream but positions and heartbeats."""
        lines = [json.loads(line) for line in unchunked(self.data).splitlines()]
        return [line for line in lines if line.get("event") not in ("position", "heartbeat")]

    @property
    def position(self) -> str:
        """The last position that the stream told."""
        lines = [json.loads(line) for line in unchunked(self.data).splitlines()]
        return [str(line["id"]) for line in lines if line.get("event") == "position"][-1]

    @property
    def seqs(self) -> list[int]:
        return [event["seq"] for event in self.events if "seq" in event]

    @property
    def data_seen(self) -> list[Any]:
        return [event["data"] for event in self.events if "seq" in event]


class Watching:
    """A node's hub, and how far it was told of commits."""

    def __init__(
        self, node: Node, partitions: PartitionReader, ready: ReadySet | None = None
    ) -> None:
        self.node = node
        self.partitions = partitions
        self.seen = 0
        self.now_ns = 1
        self.delivered: list[tuple[int, int]] = []
        self.coalesced = False
        self.priorities: dict[int, PriorityInputs] = {}
        self.dispatcher = Dispatcher(
            ready or FifoReadySet(),
            lambda topic_id: self.priorities.get(topic_id, PriorityInputs()),
            lambda: self.now_ns,
        )
        self.hub = WatchHub(
            partitions,
            self.dispatcher.dirty,
            lambda error: WatchError("broken", str(error), {}),
            lambda topic_id, after_ns: self.delivered.append((topic_id, after_ns)),
            lambda: self.coalesced,
            lambda: self.now_ns,
            self.watched,
        )
        self.watchers: dict[int, int] = {}
        self.lagged: dict[int, int] = {}

    def watched(self, topic_id: int, watchers: int, lagged: int) -> None:
        self.watchers[topic_id], self.lagged[topic_id] = watchers, lagged

    def start(self) -> None:
        self.dispatcher.start(asyncio.get_running_loop(), {Kind.WATCH: self.hub.serve}, raise_it)

    def tell(self, most: int = 1000) -> None:
        """The next commits of the log, in order."""
        for commit in self.node.commits[self.seen : self.seen + most]:
            self.seen = commit.number
            self.hub.committed(self.partitions.followed.apply(commit), self.now_ns)

    def watch(
        self, client: Client, cursors: dict[int, int], *, filter_: Filter | None = None,
        format_: Format = NDJSON, whole: bool = True,
    ) -> Client:  # fmt: skip
        """Adds a client that watches partitions of the node's topic after these offsets."""
        keys: dict[Key, int] = {self.node.key(p): seq for p, seq in cursors.items()}
        is_one = len(keys) == 1
        shape = Shape(
            format_, filter_ or Filter(), shows_partition=not is_one, with_position=is_one
        )
        self.hub.add(client, shape, [self.node.topic], keys, [self.node.topic.topic_id] * whole)
        return client

    async def settle(self, done: Callable[[], bool]) -> None:
        """Turns the loop until a condition holds."""
        async with asyncio.timeout(60):
            while not done():
                self.hub.check_invariants()
                await asyncio.sleep(0)
        self.hub.check_invariants()

    async def rest(self) -> None:
        """Turns the loop until the hub has nothing left to do."""
        await self.settle(
            lambda: (
                all(w.catch_up is None or not w.outlet.writable for w in self.hub._watchers)
                and not len(self.dispatcher.ready)  # type: ignore[arg-type]
            )
        )


@contextmanager
def watching(node: Node, ready: ReadySet | None = None) -> Iterator[Watching]:
    """The hub of a node, by default in the order of commits."""
    with (
        closing(Ledger(node.ledger.path, nullcontext(), must_exist=True)) as reads,
        ThreadPoolExecutor(1) as thread,
        l0_reader(node) as (l0, _),
    ):
        # A connection of its own: the node commits while catch-ups read.
        ledger = LedgerThread(reads, thread)
        made: Watching
        partitions = PartitionReader(
            FollowedPartitions(lambda: node.tail_of(made.seen)), TailReader(node.segment), ledger,
            stored_reader(node, ledger, l0), lambda _: 0,
        )  # fmt: skip
        made = Watching(node, partitions, ready)
        yield made
