"""How long a ``diff`` of old offsets takes: from L0 objects, and from L1 files after a compaction.

There is one topic of one partition with 1 KiB records, larger than the caches of a shard. Before
and after the compaction the daemon is restarted and reads are measured over one connection:

- *cold*: 256 records at distant offsets that are in no cache of the daemon (the kernel may have
  them: the latency of the store is not measured);
- *hot*: the same offsets again, as many as fit the caches;
- *scan*: the whole topic, 1,000 records at a time, like a consumer that catches up.

``python -m bench.lake_reads [--mib 192] [--shards 1]``; times are in milliseconds.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from bench.figures import number
from bench.processes import OBJECT_BYTES_TARGET, ROOT, Daemon, plain_environment, post_ndjson
from commands.output import table
from shards.clock import monotonic_ns
from tools.minio import free_port

RECORD_BYTES = 1024
LIMIT = 256
SCAN_LIMIT = 1000
COLD_READS = 40
HOT_PLACES = 12  # of 4 MiB extents or 16 MiB row groups at worst: less than half of the caches
HOT_READS = 400
TOPIC = "reads"


class ReadFigures(Struct, frozen=True):
    """Times of reads from one source; ``scan_mib_s`` counts the data of records."""

    cold_p50_ms: float
    cold_p95_ms: float
    hot_p50_ms: float
    hot_p95_ms: float
    scan_mib_s: float
    first_ms: float
    gets: int
    get_mib: float
    rss_mib: float


class Reader:
    """One connection that reads one topic."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def diff(self, from_seq: int, limit: int) -> tuple[float, int, int]:
        """(milliseconds, bytes of records, next_from_seq)."""
        body = json.dumps({"from_seq": from_seq, "limit": limit})
        started_ns = monotonic_ns()
        self._connection.request(
            "POST", f"/v0/topics/{TOPIC}/diff", body, {"Content-Type": "application/json"}
        )
        answer = self._connection.getresponse()
        content = answer.read()
        took_ms = (monotonic_ns() - started_ns) / 1e6
        if answer.status != 200:
            raise RuntimeError(f"diff was answered {answer.status}: {content[:300]!r}")
        page = json.loads(content)
        return took_ms, len(page["records"]) * RECORD_BYTES, page["next_from_seq"]

    def close(self) -> None:
        self._connection.close()


def measure(daemon: Daemon, records: int, rng: random.Random) -> ReadFigures:
    """Measures a daemon that was just started."""
    reader = Reader(daemon.port)
    try:
        first_ms, _, _ = reader.diff(0, 1)
        # Far from each other, in random order: no two are in one extent or row group.
        distance = (records - LIMIT) // COLD_READS
        places = [n * distance + rng.randrange(1 + distance // 8) for n in range(COLD_READS)]
        rng.shuffle(places)
        cold = [reader.diff(place, LIMIT)[0] for place in places]
        hot_places = places[-HOT_PLACES:]
        for place in hot_places:
            reader.diff(place, LIMIT)
        hot = [reader.diff(rng.choice(hot_places), LIMIT)[0] for _ in range(HOT_READS)]
        started_ns = monotonic_ns()
        reached = read_bytes = 0
        while reached < records:
            _, size, reached = reader.diff(reached, SCAN_LIMIT)
            read_bytes += size
        scan_s = (monotonic_ns() - started_ns) / 1e9
    finally:
        reader.close()
    store = daemon.ask("GET", "/v0/status")["store"]
    rss = max(process.memory_info().rss for process in daemon.processes())
    return ReadFigures(
        cold_p50_ms=statistics.median(cold),
        cold_p95_ms=_p95(cold),
        hot_p50_ms=statistics.median(hot),
        hot_p95_ms=_p95(hot),
        scan_mib_s=read_bytes / scan_s / (1 << 20),
        first_ms=first_ms,
        gets=store["gets"],
        get_mib=store["get_bytes"] / (1 << 20),
        rss_mib=rss / (1 << 20),
    )


def _p95(values: Sequence[float]) -> float:
    return sorted(values)[int(0.95 * len(values))]


@contextlib.contextmanager
def serving(data: Path, shards: int, cpus: Sequence[int]) -> Iterator[Daemon]:
    """Runs a daemon on a data directory, which stays."""
    port = free_port()
    command = [sys.executable, "-m", "cli", "serve", "--data", str(data)]
    command += ["--listen", f"127.0.0.1:{port}", "--shards", str(shards)]
    command += ["--set", f"object_bytes_target={OBJECT_BYTES_TARGET}"]
    command += ["--set", "partitions_max=1000000"]
    daemon = Daemon(command, data.parent / f"run-{port}", port, cpus, plain_environment())
    try:
        daemon.wait_until("/readyz")
        yield daemon
    finally:
        daemon.stop()


def produce(daemon: Daemon, mib: int, rng: random.Random) -> int:
    """Writes the topic; returns how many records it has."""
    records = 0
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=60)
    with contextlib.closing(connection):
        for _ in range(mib):
            lines = []
            for _ in range(1024):
                text = rng.randbytes(RECORD_BYTES // 4).hex()
                lines.append(json.dumps({"n": records, "hex": text, "fill": "f" * 480}))
                records += 1
            post_ndjson(connection, TOPIC, 0, "\n".join(lines).encode())
    return records


def compact(data: Path) -> None:
    """``headgate compact``."""
    command = [sys.executable, "-m", "cli", "compact", "--data", str(data), "-o", "json"]
    subprocess.run(command, cwd=ROOT, env=plain_environment(), check=True, capture_output=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=192, help="size of the topic")
    parser.add_argument("--shards", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headgate-reads-") as folder:
        data = Path(folder) / "data"
        cpus = [0]
        with serving(data, given.shards, cpus) as daemon:
            records = produce(daemon, given.mib, random.Random(1))
        with serving(data, given.shards, cpus) as daemon:
            before = measure(daemon, records, random.Random(2))
        compact(data)
        with serving(data, given.shards, cpus) as daemon:
            after = measure(daemon, records, random.Random(2))
    fields = ReadFigures.__struct_fields__
    rows = [[name, *(number(getattr(one, name)) for one in (before, after))] for name in fields]
    print(table(["figure", "from L0", "from L1"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
