"""A load generator for machines without wrk: pre-encoded requests over sockets on uvloop.

There is one process per CPU. Each opens its share of the connections and prints its counts and a
histogram of latencies, which the parent adds up. The buckets of the histogram grow by 2 %.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import random
import ssl
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import cast

import httptools
import msgspec
import uvloop

from bench.load import GeneratorError, Load, Pace, Request
from shards.clock import monotonic_ns, process_cpu_ns

BUCKET_GROWTH = math.log(1.02)
END_GRACE_S = 30


class Counts(msgspec.Struct):
    """What one process counted. ``buckets`` maps a bucket of latency to its requests."""

    requests: int = 0
    not_2xx: int = 0
    socket_errors: int = 0
    seconds: float = 0.0
    latency_sum_us: float = 0.0
    cpu_s: float = 0.0
    buckets: dict[int, int] = {}


def bucket_of(latency_us: float) -> int:
    """The histogram's bucket of a latency."""
    return int(math.log(max(latency_us, 1.0)) / BUCKET_GROWTH)


def percentile_us(buckets: Mapping[int, int], share: float) -> float:
    """The latency that ``share`` of all requests did not exceed; 0 without requests."""
    wanted = math.ceil(sum(buckets.values()) * share)
    seen = 0
    for bucket in sorted(buckets):
        seen += buckets[bucket]
        if seen >= wanted:
            return math.exp((bucket + 0.5) * BUCKET_GROWTH)
    return 0.0


def added(parts: Iterable[Counts]) -> Load:
    """The Load of all processes."""
    counts = list(parts)
    buckets: Counter[int] = Counter()
    for part in counts:
        buckets.update(part.buckets)
    requests = sum(part.requests for part in counts)
    return Load(
        requests=requests,
        not_2xx=sum(part.not_2xx for part in counts),
        socket_errors=sum(part.socket_errors for part in counts),
        seconds=max(part.seconds for part in counts),
        mean_ms=sum(part.latency_sum_us for part in counts) / max(requests, 1) / 1e3,
        p50_ms=percentile_us(buckets, 0.5) / 1e3,
        p99_ms=percentile_us(buckets, 0.99) / 1e3,
        generator_cpu_s=sum(part.cpu_s for part in counts),
    )


class OwnGenerator:
    """Runs this module in its own processes."""

    name = "headgate's own (asyncio on uvloop)"

    def run(self, port: int, request: Request, pace: Pace, cpus: Iterable[int]) -> Load:
        """Runs one load, with a process on each CPU."""
        chosen = sorted(set(cpus))[: pace.connections]
        with tempfile.TemporaryDirectory(prefix="headgate-bench-load-") as folder:
            request_path = Path(folder) / "request"
            request_path.write_bytes(request.encoded(f"127.0.0.1:{port}"))
            processes = []
            for index, cpu in enumerate(chosen):
                share = pace.connections * (index + 1) // len(chosen)
                share -= pace.connections * index // len(chosen)
                command = [sys.executable, "-m", "bench.own_generator", str(port)]
                command += [str(request_path), str(share)]
                command += [str(number) for number in pace[1:]]
                command += ["--by-tls"] if request.by_tls else []
                process = subprocess.Popen(command, stdout=subprocess.PIPE)
                os.sched_setaffinity(process.pid, {cpu})
                processes.append(process)
            outputs = []
            for process in processes:
                output, _ = process.communicate()
                outputs.append(output)
        for process in processes:
            if process.returncode != 0:
                raise GeneratorError(f"a generator process ended with {process.returncode}")
        return added(msgspec.json.decode(output, type=Counts) for output in outputs)


class _Client(asyncio.Protocol):
    """One connection: a request, its answer, a pause, the next."""

    def __init__(self, run: _Run) -> None:
        self._run = run
        self._transport: asyncio.Transport
        self._parser = httptools.HttpResponseParser(self)
        self._started_ns = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The transports of uvloop do not inherit from those of asyncio.
        self._transport = cast(asyncio.Transport, transport)
        self._pause()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        if self._run.over:
            return
        self._run.count(monotonic_ns() - self._started_ns, self._parser.get_status_code())
        self._pause()

    def connection_lost(self, exc: Exception | None) -> None:
        self._run.lost(failed=True)

    def _pause(self) -> None:
        low_ms, high_ms = self._run.pause_range_ms
        if high_ms > 0:
            self._run.loop.call_later(self._run.rng.uniform(low_ms, high_ms) / 1e3, self._send)
        else:
            self._send()

    def _send(self) -> None:
        if not self._run.over and not self._transport.is_closing():
            self._started_ns = monotonic_ns()
            self._transport.write(self._run.request)

    def close(self) -> None:
        self._transport.abort()


class _Run:
    """One process's share of a load."""

    def __init__(self, port: int, request: bytes, pace: Pace, by_tls: bool = False) -> None:
        self.request = request
        self._tls = None
        if by_tls:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            self._tls.check_hostname = False
            self._tls.verify_mode = ssl.CERT_NONE
        self.pause_range_ms = pace.pause_range_ms
        self.rng = random.Random(os.getpid())
        self.loop: asyncio.AbstractEventLoop
        self.over = False
        self._port = port
        self._pace = pace
        self._counts = Counts()
        self._reopening: set[asyncio.Task[None]] = set()

    async def run(self) -> Counts:
        self.loop = asyncio.get_running_loop()
        cpu_ns = process_cpu_ns()
        clients = await asyncio.gather(*[self._open() for _ in range(self._pace.connections)])
        started_ns = monotonic_ns()
        self._counts = Counts()
        await asyncio.sleep(self._pace.seconds)
        self.over = True
        self._counts.seconds = (monotonic_ns() - started_ns) / 1e9
        self._counts.cpu_s = (process_cpu_ns() - cpu_ns) / 1e9
        for client in clients:
            client.close()
        return self._counts

    def count(self, latency_ns: int, status: int) -> None:
        counts = self._counts
        counts.requests += 1
        counts.latency_sum_us += latency_ns / 1e3
        if not 200 <= status < 300:
            counts.not_2xx += 1
        bucket = bucket_of(latency_ns / 1e3)
        counts.buckets[bucket] = counts.buckets.get(bucket, 0) + 1

    def lost(self, failed: bool) -> None:
        """A connection ended; another replaces it while the load lasts."""
        if self.over:
            return
        self._counts.socket_errors += failed
        task = self.loop.create_task(self._reopen())
        self._reopening.add(task)
        task.add_done_callback(self._reopening.discard)

    async def _reopen(self) -> None:
        try:
            await self._open()
        except OSError:
            await asyncio.sleep(0.1)  # no busy loop against a server that refuses
            self.lost(failed=True)

    async def _open(self) -> _Client:
        _, client = await self.loop.create_connection(
            lambda: _Client(self), "127.0.0.1", self._port, ssl=self._tls
        )
        return client


def main() -> None:
    """One generator process; prints its Counts as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("request_path", type=Path)
    parser.add_argument("connections", type=int)
    parser.add_argument("seconds", type=float)
    parser.add_argument("pause_ms", type=float)
    parser.add_argument("pause_spread", type=float)
    parser.add_argument("--by-tls", action="store_true")
    given = parser.parse_args()
    pace = Pace(given.connections, given.seconds, given.pause_ms, given.pause_spread)
    run = _Run(given.port, given.request_path.read_bytes(), pace, given.by_tls)
    counts = uvloop.run(run.run())
    sys.stdout.buffer.write(msgspec.json.encode(counts))


if __name__ == "__main__":
    main()
