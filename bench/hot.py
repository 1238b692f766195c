"""What a known request costs by step: one shard's way in, in this process, without sockets.

Connections, application, producer and ring are the daemon's own; the transport keeps nothing, and
what was published is committed immediately, in memory. So a step can be seen that is lost in the
noise of a load over sockets: the best pass of many varies by 3 to 5 %, a load by 20 %. Each pass
takes all steps, so that a busy minute of the machine affects all, and one of them is a yardstick
that runs nothing of the daemon: over it, figures of two runs and two machines can be compared.

    yardstick the same kinds of operations as receiving one short request, written down in a row
    receive   bytes of a request with a known head, until it is published; it has in it:
      parse     the body becomes rows
      encode    rows become the payload
      ring      the payload is copied into the ring
    scan      the puller walks what was published
    answer    the commit is known, and the answer is written
"""

from __future__ import annotations

import asyncio
import gc
import random
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from itertools import cycle
from pathlib import Path
from typing import cast

import msgspec

from bench import bodies
from bench.bodies import Body, Size
from bench.figures import NONE, number
from daemon.api.application import Api
from daemon.api.route import Handlers
from daemon.api.routes import ROUTES
from daemon.http.connection import Connection
from daemon.http.server import Server
from daemon.intake import formats
from daemon.intake.cursor_cache import CursorCache
from daemon.intake.formats import BodyLimits
from daemon.intake.pending import PendingRequests
from daemon.intake.producer import Producer
from daemon.intake.topic_cache import TopicCache
from daemon.process.shard import GC_THRESHOLD
from delivery.ledger_thread import LedgerThread
from delivery.reading.waiters import Waiters
from ledger.ledger import Ledger
from ledger.types import Commit, ExtentRun, LeasedRange, LeaseId, PartitionHead, TopicConfig
from shards import layout as at
from shards.boards.namecounts import TopicTally
from shards.checksum import crc32c
from shards.clock import process_cpu_ns
from shards.frame import CODEC_RECORDS, Part
from shards.layout import Layout
from shards.ring import RingReader, RingWriter
from shards.segment import Segment

TOPIC = "bench"
RING_BYTES = 64 << 20
PASS_BYTES = 4 << 20  # of bodies, about; each pass is measured as a whole
PASS_REQUESTS_MAX = 1_000
ACK_TIMEOUT_MS = 20_000
PASSES = 40
YARDSTICK = "yardstick"
STEPS = (YARDSTICK, "receive", "parse", "encode", "ring", "scan", "answer")
INSIDE = frozenset({"parse", "encode", "ring"})  # of ``receive``


class HotResult(msgspec.Struct, frozen=True):
    """One step of one request."""

    size: str
    step: str
    cpu_us: float


class _Nowhere(asyncio.Transport):
    """A socket whose client takes everything."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return False


class Yardstick:
    """What interpreter and machine take for a short request's operations; it never changes, or all
    that was compared with it is void."""

    def __init__(self, request: bytes) -> None:
        self._heads = {request[: request.find(b"\r\n\r\n") + 4]: request}
        self._memory = memoryview(bytearray(b"\1") * RING_BYTES)  # no page of it is new
        self._words = memoryview(bytearray(64)).cast("Q")
        self._waiting: deque[tuple[object, ...]] = deque(maxlen=PASS_REQUESTS_MAX)
        self._pack = struct.Struct("<IIQQHHIQIIQQQIIIIQIHH")
        self._decode = msgspec.json.Decoder(msgspec.Raw).decode
        self._encode = msgspec.msgpack.Encoder().encode
        self._at = 0

    def take(self, request: bytes) -> None:
        """One request."""
        end = request.find(b"\r\n\r\n") + 4
        if self._heads.get(request[:end]) is None or self._words[1]:
            return
        payload = self._encoded(request[end:])
        position = self._stored(payload, len(payload))
        self._waiting.append((position, self, ((0, 1),), len(payload), None, end))
        self._noted(position)

    def _encoded(self, body: bytes) -> bytes:
        if body.find(b"\n", 0, len(body) - 1) < 0:
            self._decode(body)
        return self._encode([(str(body, "utf-8").strip(" \r\n"),)])

    def _stored(self, payload: bytes, size: int) -> int:
        at_byte = self._place(size + 104)
        checksum = crc32c(payload)
        self._pack.pack_into(
            self._memory, at_byte, size, checksum, at_byte, size, 1, 0, 0, 1, 0, size, 1, 1, 0, 32,
            0, size, 1, 1, checksum, 1, 0,
        )  # fmt: skip
        self._memory[at_byte + 104 : at_byte + 104 + size] = payload
        return at_byte

    def _place(self, size: int) -> int:
        if self._at + size > RING_BYTES:
            self._at = 0
        at_byte = self._at
        self._at = at_byte + (size + 7 & ~7)
        self._words[0] = at_byte
        return at_byte

    def _noted(self, position: int) -> None:
        self._words[2] = position


class WayIn:
    """One shard's way in; each of its connections sends one request a pass."""

    def __init__(self, topics: TopicCache) -> None:
        self._segment = Segment.create(Layout(1, RING_BYTES))
        self._words = self._segment.words
        self._base = self._segment.layout.shard(0)
        self._ring = RingWriter(self._segment, 0)
        self._reader = RingReader(self._segment, 0)
        self._pending = PendingRequests(
            self._segment, 0, lambda _: TopicTally(), ACK_TIMEOUT_MS * 1_000_000
        )
        self._limits = BodyLimits()
        producer = Producer(
            self._segment, 0, topics, cast(CursorCache, None), self._ring, self._pending,
            self._limits, lambda: None, lambda *_: None, random.Random(1), ACK_TIMEOUT_MS,
        )  # fmt: skip
        routes = [route for route in ROUTES if route.handler is None]
        server = Server()
        server.application = Api(routes, cast(Handlers, None), producer, Waiters())
        self._connections = [Connection(server) for _ in range(PASS_REQUESTS_MAX)]
        for connection in self._connections:
            connection.connection_made(_Nowhere())
        self._turns = cycle(self._connections)
        self._commits = self._offset = 0

    def receive(self, request: bytes) -> None:
        """A request comes on the next connection."""
        next(self._turns).data_received(request)

    def scan(self) -> int:
        """Walks what was published; how many requests that is."""
        committed = int(self._words[self._base + at.S_COMMITTED])
        return sum(1 for _ in self._reader.requests(committed, self._ring.head))

    def commit(self, topic_id: int, records: int) -> None:
        """All that was published is durable, as ``records`` records, and is answered."""
        start, end = int(self._words[self._base + at.S_COMMITTED]), self._ring.head
        first, self._offset = self._offset + 1, self._offset + records
        self._commits += 1
        self._words[self._base + at.S_COMMITTED] = end
        if len(self._pending):
            self._pending.committed(
                Commit(
                    self._commits, LeaseId(1, 1, 0, self._commits), (LeasedRange(0, start, end),),
                    (ExtentRun(0, topic_id, 0, first, records),),
                    (PartitionHead(topic_id, 0, self._offset),),
                )
            )  # fmt: skip
            self._pending.answer(lambda: 0, 1)

    def parse(self, body: Body) -> formats.Produce:
        """The body's rows."""
        return formats.parse(body.content_type, {}, body.data, self._limits, 1)

    def append(self, part: Part) -> None:
        """Copies a payload into the ring."""
        self._ring.append(1, 1, b"", (part,))

    def close(self) -> None:
        """Gives the shared memory back."""
        for connection in self._connections:
            connection.connection_lost(None)
        self._segment.close()


@contextmanager
def way_in(folder: Path) -> Iterator[tuple[WayIn, int]]:
    """A way in whose topic is known, and the topic's id."""
    folder.mkdir(parents=True, exist_ok=True)
    segment = Segment.create(Layout(1, 4096))
    with (
        closing(Ledger(folder / "ledger.db", nullcontext())) as ledger,
        ThreadPoolExecutor(1) as thread,
    ):
        topics = TopicCache(segment, LedgerThread(ledger, thread), nullcontext())
        topic, _ = asyncio.run(topics.create(TOPIC, TopicConfig()))
        asyncio.run(topics.entry(TOPIC))
        made = WayIn(topics)
        yield made, topic.topic_id
        made.close()
    segment.close()


def request_of(body: Body) -> bytes:
    """The bytes of a request."""
    head = (
        f"POST /v0/topics/{TOPIC} HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: {body.content_type}\r\nContent-Length: {len(body.data)}\r\n\r\n"
    )
    return head.encode() + body.data


def measure(size: Size, folder: Path) -> list[HotResult]:
    """All steps of bodies of this size, in microseconds of CPU a request."""
    body = bodies.of(size, bodies.NDJSON)
    request = request_of(body)
    times = min(PASS_REQUESTS_MAX, PASS_BYTES // size.size_bytes)
    records = times * size.records
    best: dict[str, float] = {}
    short = request_of(bodies.of(bodies.size_named("1KiB"), bodies.NDJSON))
    yardstick = Yardstick(short)
    with collecting_as_in_a_shard(), way_in(folder / f"hot-{size.name}") as (way, topic_id):
        asked = way.parse(body)
        payload = formats.payloads(asked, 1, lambda: 0)[0]
        part = Part(topic_id, *payload, CODEC_RECORDS)
        steps: dict[str, Callable[[], object]] = {
            YARDSTICK: lambda: yardstick.take(short),
            "receive": lambda: way.receive(request),
            "parse": lambda: way.parse(body),
            "encode": lambda: formats.payloads(asked, 1, lambda: 0),
            "ring": lambda: way.append(part),
        }
        way.receive(request)
        way.commit(topic_id, size.records)
        for _ in range(PASSES):
            found = {}
            for name, step in steps.items():
                found[name] = _cpu_us(step, times)
                if name == "receive":
                    found["scan"] = _cpu_us(way.scan, 1) / times
                    found["answer"] = _cpu_us(lambda: way.commit(topic_id, records), 1) / times
            way.commit(topic_id, 0)
            for name, cpu_us in found.items():
                best[name] = min(cpu_us, best.get(name, cpu_us))
    return [HotResult(size.name, step, best[step]) for step in STEPS]


@contextmanager
def collecting_as_in_a_shard() -> Iterator[None]:
    """The collector of cycles rests as in a shard (daemon/process/shard.py)."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 20)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def _cpu_us(step: Callable[[], object], times: int) -> float:
    """Microseconds of CPU for each of ``times`` calls."""
    begun_ns = process_cpu_ns()
    for _ in range(times):
        step()
    return (process_cpu_ns() - begun_ns) / times / 1000


def table(
    results: Sequence[HotResult], before: Sequence[HotResult]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """What is printed."""
    now = {(each.size, each.step): each.cpu_us for each in results}
    earlier = {(each.size, each.step): each.cpu_us for each in before}
    heads = ("body", "step", "CPU us a request", "over the last run, by the yardstick")
    rows: list[tuple[str, ...]] = []
    for (size, step), cpu_us in now.items():
        over, then_us = NONE, earlier.get((size, step))
        yardstick_us = earlier.get((size, YARDSTICK))  # older runs had none
        if then_us is not None and yardstick_us is not None:
            over = f"{cpu_us / then_us / (now[size, YARDSTICK] / yardstick_us):.2f} x"
        rows.append((size, f"{'  ' * (step in INSIDE)}{step}", number(cpu_us), over))
    return heads, rows
