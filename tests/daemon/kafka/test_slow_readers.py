"""Clients that ask for records and do not take them, and one that does."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import nullcontext
from pathlib import Path

from daemon.intake.topic_cache import TopicCache
from daemon.kafka import fetching
from daemon.kafka.fetching import KafkaReads
from daemon.kafka.server import KafkaServer
from daemon.kafka.topics import KafkaTopics
from ledger import topics
from ledger.types import TopicConfig
from shards.frame import CODEC_KAFKA
from tests.daemon.intake.test_copies import Outbox, outbox_in
from tests.daemon.kafka.frames import Key, array, frame, int32, text
from tests.daemon.kafka.test_fetching import batches_of
from tests.daemon.kafka.test_server import kafka_server
from tests.delivery.node import Node, ledger_thread, node_in
from tests.delivery.reading.test_diff import Told, told_reader
from uploader.l0.records import Record

PARTITIONS, BATCHES = 4, 4
SLOW = 4


def fetch(offsets: list[int]) -> bytes:
    """Of all partitions, as many bytes as there may be."""
    places = [
        int32(each) + struct.pack(">qi", offset, 1 << 20) for each, offset in enumerate(offsets)
    ]
    return frame(
        Key.FETCH, struct.pack(">iiiib", -1, 60_000, 1, 1 << 30, 0),
        array(text("t") + array(*places)),
    )  # fmt: skip


def records_in(answer: bytes) -> dict[int, bytes]:
    """Of each partition, from an answer of version 4 with its number."""
    at, found = 4 + 4 + 4 + 2 + 1 + 4, {}
    for _ in range(PARTITIONS):
        partition, size = struct.unpack_from(">i", answer, at)[0], 4 + 2 + 8 + 8 + 4
        (length,) = struct.unpack_from(">i", answer, at + size)
        found[partition] = answer[at + size + 4 : at + size + 4 + length]
        at += size + 4 + length
    assert at == len(answer)
    return found


async def slow_client(port: int) -> socket.socket:
    """One that asks for more than the kernel takes of answers, and reads nothing."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, ("127.0.0.1", port))
    await loop.sock_sendall(client, fetch([0] * PARTITIONS) * 100)
    return client


def are_stuck(served: KafkaServer) -> int:
    """How many clients do not take what is written."""
    buffered = [each._writer.transport.get_write_buffer_size() for each in served._open]
    return sum(size > 0 for size in buffered)


async def with_slow_clients(made: Outbox, node: Node, told: Told, reads: KafkaReads) -> None:
    for _ in range(BATCHES):
        for each in range(PARTITIONS):
            node.produce(0, {each: [Record(bytes(260_000), 9)]}, codec=CODEC_KAFKA)
            node.commit()
    told.tell()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    port = listener.getsockname()[1]
    served = kafka_server(made, reads._names, reads)
    await served.start([listener.detach()])
    slow = [await slow_client(port) for _ in range(SLOW)]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(60):
            for _ in iter(lambda: are_stuck(served), SLOW):
                await asyncio.sleep(0.01)
            offsets = [0] * PARTITIONS
            while min(offsets) < BATCHES:
                writer.write(fetch(offsets))
                size = int.from_bytes(await reader.readexactly(4), "big")
                answer = records_in(await reader.readexactly(size))
                assert any(answer.values())
                for each, data in answer.items():
                    offsets[each] += sum(len(values) for _, values in batches_of(data))
        assert not any(connection.has_ended for connection in served._open)
    finally:
        writer.close()
        for client in slow:
            client.close()
        await served.close()
    assert reads._untaken._free_bytes == fetching.UNTAKEN_BYTES_MAX
    assert reads._reading._free_bytes == fetching.READ_BYTES_MAX


def test_who_reads_nothing_does_not_keep_records_from_others(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with (
        outbox_in(tmp_path / "other") as made,
        node_in(tmp_path, ring_bytes=8 << 20) as node,
        told_reader(node) as told,
        ledger_thread(node) as ledger,
    ):
        node.ledger.write(topics.alter, "t", TopicConfig(partitions=PARTITIONS))
        known = TopicCache(node.segment, ledger, nullcontext())
        names = KafkaTopics(known, (9000,), "file:///store", auto_create=False)
        reads = KafkaReads(names, told.partitions, told.reader.waiters)
        asyncio.run(with_slow_clients(made, node, told, reads))
