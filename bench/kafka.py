"""Kafka's protocol: CPU and throughput of Produce and Fetch, by a generator of prebuilt batches.

Each connection has five requests of one batch under way, as clients have. Produce counts until all
is uploaded and committed; Fetch reads the newest MiB again and again, as consumers at the tail do.
One case has many partitions, and one a single producer that waits for each answer. The generator is
a process of its own: ``python -m bench.kafka KAFKA_LOAD`` prints a KafkaSide.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import cycle
from pathlib import Path
from threading import Thread

import msgspec
from msgspec.structs import replace

from bench.figures import GIB, MIB, Target, number
from bench.processes import ROOT, ServerError, pinned, plain_environment, start_daemon
from shards.clock import monotonic_ns
from tools import minio
from uploader.l0.kafka import KafkaRecord, encode_batch

CONNECTIONS = 32
IN_FLIGHT = 5
MANY_PARTITIONS = 1_000
RECORD_BYTES = 1_000
SMALL_RECORD_BYTES = 100
SIZES = ((1 << 10, RECORD_BYTES), (16 << 10, RECORD_BYTES), (64 << 10, RECORD_BYTES),
         (1 << 20, RECORD_BYTES), (64 << 10, SMALL_RECORD_BYTES))  # fmt: skip
# Topic, partitions, sizes, producers, and the requests that each has under way.
CASES = (
    ("bench", CONNECTIONS, SIZES, CONNECTIONS, IN_FLIGHT),
    ("wide", MANY_PARTITIONS, SIZES[1:2], CONNECTIONS, IN_FLIGHT),
    ("alone", 1, SIZES[:1], 1, 1),
)
FETCHED_BYTES = 1 << 20
SECONDS = 2.0
CPU_S_PER_GIB_MAX = {(16 << 10, RECORD_BYTES): 2.2, (64 << 10, RECORD_BYTES): 1.9}


class KafkaLoad(msgspec.Struct, frozen=True):
    """What the generator does for ``seconds``: it produces to all partitions, each connection to
    its share of them in turn, or fetches partition 0 from ``offset`` on."""

    port: int
    topic: str
    partitions: int
    batch_bytes: int
    record_bytes: int
    seconds: float
    offset: int | None = None
    connections: int = CONNECTIONS
    in_flight: int = IN_FLIGHT


class KafkaSide(msgspec.Struct, frozen=True):
    """What the generator has seen. ``first_offset`` is that of the last batch of its first
    connection; an answer took ``p50_ms`` and ``p99_ms``."""

    seconds: float
    bytes: int
    first_offset: int
    p50_ms: float
    p99_ms: float


class KafkaResult(msgspec.Struct, frozen=True):
    """One size of batches. Nothing is fetched from many partitions, or for a single producer."""

    batch_bytes: int
    record_bytes: int
    partitions: int
    producers: int
    mib_per_s: float
    cpu_s_per_gib: float
    p50_ms: float
    p99_ms: float
    fetched_mib_per_s: float | None = None
    fetch_cpu_s_per_gib: float | None = None


def measure(
    work: Path, daemon_cpus: Iterable[int], cpus: Iterable[int], seconds: float = SECONDS
) -> list[KafkaResult]:
    """All sizes, on one daemon with one shard."""
    port = minio.free_ports(2)  # the shard's own is the next one
    settings = {"kafka_listen": f"127.0.0.1:{port}"}
    daemon = start_daemon(work / "kafka", daemon_cpus, 1, None, settings)
    try:

        def load(asked: KafkaLoad) -> tuple[KafkaSide, float]:
            """And the daemon's CPU seconds."""
            before_s = daemon.cpu_s()
            with pinned(cpus):
                done = subprocess.run(
                    [sys.executable, "-m", "bench.kafka", msgspec.json.encode(asked)], cwd=ROOT,
                    check=False, env=plain_environment(), capture_output=True,
                    timeout=60 + 10 * asked.seconds,
                )  # fmt: skip
            if done.returncode:
                raise ServerError(f"the generator failed: {done.stderr.decode()[-500:]}")
            daemon.wait_until_quiet()
            return msgspec.json.decode(done.stdout, type=KafkaSide), daemon.cpu_s() - before_s

        found = []
        for topic, partitions, sizes, connections, in_flight in CASES:
            daemon.ask("PUT", f"/v0/topics/{topic}", b'{"partitions": %d}' % partitions)
            for size in sizes:
                asked = KafkaLoad(
                    port, topic, partitions, *size, seconds, None, connections, in_flight
                )
                load(replace(asked, seconds=seconds / 4))  # warms up
                produced, produce_s = load(asked)
                result = KafkaResult(
                    *size, partitions, connections, produced.bytes / MIB / produced.seconds,
                    produce_s / (produced.bytes / GIB), produced.p50_ms, produced.p99_ms,
                )  # fmt: skip
                if partitions == CONNECTIONS:
                    in_batch = max(1, size[0] // size[1])
                    batches = max(1, FETCHED_BYTES // size[0])
                    offset = max(0, produced.first_offset - (batches - 1) * in_batch)
                    fetched, fetch_s = load(replace(asked, seconds=seconds / 4, offset=offset))
                    result = replace(
                        result, fetched_mib_per_s=fetched.bytes / MIB / fetched.seconds,
                        fetch_cpu_s_per_gib=fetch_s / (fetched.bytes / GIB),
                    )  # fmt: skip
                found.append(result)
        return found
    finally:
        daemon.stop()


def table(results: list[KafkaResult]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """What is printed."""
    heads = ("batch", "records", "partitions", "producers", "produced MiB/s", "CPU s/GiB",
             "p50 ms", "p99 ms", "fetched MiB/s", "CPU s/GiB")  # fmt: skip
    return heads, [
        (
            f"{each.batch_bytes >> 10} KiB", f"{each.record_bytes} B", str(each.partitions),
            str(each.producers), number(each.mib_per_s), number(each.cpu_s_per_gib),
            number(each.p50_ms), number(each.p99_ms),
            *("" if of is None else number(of)
              for of in (each.fetched_mib_per_s, each.fetch_cpu_s_per_gib)),
        )
        for each in results
    ]  # fmt: skip


def targets(results: list[KafkaResult]) -> Iterator[Target]:
    """What a producer's batch may cost."""
    for each in results:
        bound = CPU_S_PER_GIB_MAX.get((each.batch_bytes, each.record_bytes))
        if bound is not None and (each.partitions, each.producers) == (CONNECTIONS, CONNECTIONS):
            yield Target(f"Kafka's batches of {each.batch_bytes >> 10} KiB: CPU s/GiB", bound,
                         each.cpu_s_per_gib, at_least=False)  # fmt: skip


# The generator


def batch_of(batch_bytes: int, record_bytes: int) -> bytes:
    """A batch of about this size."""
    record = KafkaRecord(1_700_000_000_000, None, b"v" * (record_bytes - 20))
    return encode_batch(
        0, [(index, record) for index in range(max(1, batch_bytes // record_bytes))]
    )


def _frame(key: int, version: int, body: bytes) -> bytes:
    head = key.to_bytes(2, "big") + version.to_bytes(2, "big") + bytes(4) + b"\xff\xff"
    return (len(head) + len(body)).to_bytes(4, "big") + head + body


def _named(topic: str, partition: int) -> bytes:
    name = topic.encode()
    named = b"\0\0\0\1" + len(name).to_bytes(2, "big") + name
    return named + b"\0\0\0\1" + partition.to_bytes(4, "big")


class _Connection(Thread):
    """One client: sends its requests in turn, again and again, and takes the answers."""

    def __init__(
        self, port: int, frames: list[bytes], error_at: int, seconds: float, in_flight: int
    ) -> None:
        super().__init__()
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._frames = cycle(frames)
        self._error_at = error_at
        self._until_ns = monotonic_ns() + int(seconds * 1e9)
        self._in_flight = in_flight
        self._sent_ns: deque[int] = deque()
        self.bytes = 0
        self.last = b""
        self.took_ns: list[int] = []

    @property
    def is_unanswered(self) -> bool:
        """Whether it ended before it had all answers."""
        return bool(self._sent_ns)

    def _send(self) -> None:
        self._sent_ns.append(monotonic_ns())
        self._socket.sendall(next(self._frames))

    def run(self) -> None:
        """Until its time is over, and all is answered."""
        stream = self._socket.makefile("rb", 1 << 20)
        for _ in range(self._in_flight):
            self._send()
        while self._sent_ns:
            size = int.from_bytes(stream.read(4), "big")
            self.last = stream.read(size)
            self.took_ns.append(monotonic_ns() - self._sent_ns.popleft())
            if self.last[self._error_at : self._error_at + 2] != b"\0\0":
                raise ServerError(f"an answer with an error: {self.last[:80]!r}")
            self.bytes += size
            if monotonic_ns() < self._until_ns:
                self._send()
        stream.close()
        self._socket.close()


def main() -> None:
    """One load."""
    asked = msgspec.json.decode(sys.argv[1], type=KafkaLoad)
    topic, name_bytes = asked.topic, len(asked.topic)
    batch = batch_of(asked.batch_bytes, asked.record_bytes)
    if asked.offset is None:
        error_at = 4 + 4 + 2 + name_bytes + 4 + 4
        sized = len(batch).to_bytes(4, "big") + batch
        start = b"\xff\xff\xff\xff" + (30_000).to_bytes(4, "big")
        frames = [
            _frame(0, 7, start + _named(topic, each) + sized) for each in range(asked.partitions)
        ]
    else:
        error_at = 4 + 4 + 4 + 2 + name_bytes + 4 + 4
        body = (b"\xff\xff\xff\xff" + bytes(4) + b"\0\0\0\1" + b"\x7f\xff\xff\xff\0"
                + _named(topic, 0) + asked.offset.to_bytes(8, "big")
                + FETCHED_BYTES.to_bytes(4, "big"))  # fmt: skip
        frames = [_frame(1, 4, body)] * asked.connections
    connections = [
        # The shard's own port is the next one.
        _Connection(asked.port + 1, frames[each :: asked.connections], error_at, asked.seconds,
                    asked.in_flight)
        for each in range(asked.connections)
    ]  # fmt: skip
    started_ns = monotonic_ns()
    for each in connections:
        each.start()
    for each in connections:
        each.join()
    took_s = (monotonic_ns() - started_ns) / 1e9
    if any(each.is_unanswered for each in connections):
        raise SystemExit("a connection has no answer to a request")
    last = connections[0].last
    at = 4 + 4 + 2 + name_bytes + 4 + 4 + 2
    first_offset = int.from_bytes(last[at : at + 8], "big") if asked.offset is None else 0
    took_ms = sorted(each / 1e6 for connection in connections for each in connection.took_ns)
    total = (
        len(took_ms) * len(batch) if asked.offset is None
        else sum(each.bytes for each in connections)
    )  # fmt: skip
    side = KafkaSide(
        took_s, total, first_offset, took_ms[len(took_ms) // 2], took_ms[len(took_ms) * 99 // 100]
    )
    sys.stdout.buffer.write(msgspec.json.encode(side))


if __name__ == "__main__":
    main()
