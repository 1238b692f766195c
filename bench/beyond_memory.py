"""A compaction of more data than the machine has memory, from producers to tables.

A daemon receives 1 KiB records of four topics over HTTP until its objects are larger than memory.
It is stopped, and ``headgate compact`` writes them into tables; the memory of its processes is
sampled twice a second. A few more records and a second run follow, which merges the first one's
files. Then the rows of the files that the ledger has are compared with the acknowledged records.

``python -m bench.beyond_memory [--gib N] [--limit-mib N] [--work-dir FOLDER]``; the size is by
default 1.1 x the memory, or 1.1 x the limit. With a limit, tasks are small and two at a time, and
more memory than the limit fails. The disk needs about twice the size.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import math
import random
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq

from bench import l0
from bench.figures import number
from bench.lake_reads import serving
from bench.processes import ROOT, Daemon, plain_environment, post_ndjson
from commands.output import table
from ledger.lake import pages
from ledger.ledger import Ledger
from shards.clock import monotonic_ns

TOPICS = 4
PARTITIONS = 2
PRODUCERS = 4
BODIES = 64
BODY_RECORDS = 1000
INTERVAL_S = 0.5
DISK_RATIO = 2.5
FEW_BYTES = 4 << 20  # for the second run
LARGE_BYTES = 128_000_000
LIMITED = ("--set", "compact_run_bytes=32MiB", "--master", "local[2]")


class Memory:
    """The peak memory of a process and its descendants; shared pages count once."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory")
        self.peak_bytes = 0

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(INTERVAL_S):
            total = 0
            with contextlib.suppress(psutil.NoSuchProcess):
                for process in (self._root, *self._root.children(recursive=True)):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        total += process.memory_full_info().pss
            self.peak_bytes = max(self.peak_bytes, total)


def bodies() -> list[bytes]:
    """Request bodies of 1 MiB as NDJSON."""
    rng = random.Random(l0.SEED)
    words = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(3, 9))) for _ in range(2000)]
    pool = [l0.record(rng, words) for _ in range(l0.POOL)]
    return ["\n".join(rng.choices(pool, k=BODY_RECORDS)).encode() for _ in range(BODIES)]


def produce(daemon: Daemon, requests: int, producer: int) -> int:
    """Sends the requests of one producer to all partitions in turn; returns the records."""
    some = bodies()
    connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=120)
    with contextlib.closing(connection):
        for number in range(requests):
            place = number * PRODUCERS + producer
            topic, partition = place % TOPICS, place // TOPICS % PARTITIONS
            post_ndjson(connection, f"large-{topic}", partition, some[place % BODIES])
    return requests * BODY_RECORDS


def filled(daemon: Daemon, size_bytes: int) -> int:
    """Fills the topics to this size; returns how many records they have."""
    for topic in range(TOPICS):
        config = json.dumps({"partitions": PARTITIONS}).encode()
        daemon.ask("PUT", f"/v0/topics/large-{topic}", config)
    requests = -(-size_bytes // (BODY_RECORDS * l0.RECORD_BYTES * PRODUCERS))
    with ThreadPoolExecutor(PRODUCERS) as pool:
        producers = [pool.submit(produce, daemon, requests, n) for n in range(PRODUCERS)]
        return sum(producer.result() for producer in producers)


def compacted(data: Path, options: Sequence[str]) -> tuple[dict[str, Any], int]:
    """Runs ``headgate compact``; returns its report and the peak memory of its processes."""
    command = [sys.executable, "-m", "cli", "compact", "--data", str(data), "-o", "json", *options]
    process = subprocess.Popen(
        command, cwd=ROOT, env=plain_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with Memory(process.pid) as memory:
        out, err = process.communicate()
    if process.returncode:
        raise RuntimeError(f"compact ended with {process.returncode}: {err.decode()[-2000:]}")
    return json.loads(out), memory.peak_bytes


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, help="size of L0; by default 1.1 x the memory")
    parser.add_argument("--limit-mib", type=int, help="what the compaction may take of memory")
    parser.add_argument("--work-dir", type=Path, help="a folder on a disk with enough room")
    given = parser.parse_args(arguments)
    if given.gib is not None and not 0 < given.gib < math.inf:
        parser.error(f"--gib must be a number above 0, got {given.gib}")
    if given.work_dir is not None and not given.work_dir.is_dir():
        parser.error(f"--work-dir {given.work_dir} is not a folder; create it, or leave it out")
    memory_bytes = psutil.virtual_memory().total
    limit_bytes = memory_bytes if given.limit_mib is None else given.limit_mib << 20
    size_bytes = int(given.gib * (1 << 30)) if given.gib else int(limit_bytes * 1.1)
    options = () if given.limit_mib is None else LIMITED
    with tempfile.TemporaryDirectory(prefix="headgate-large-", dir=given.work_dir) as folder:
        free_bytes = shutil.disk_usage(folder).free
        if free_bytes < DISK_RATIO * size_bytes:
            print(f"beyond_memory: {folder} has {free_bytes >> 30} GiB free, but"
                  f" {int(DISK_RATIO * size_bytes) >> 30} are needed; choose another disk with"
                  " --work-dir, or another size with --gib", file=sys.stderr)  # fmt: skip
            return 2
        data = Path(folder) / "data"
        started_ns = monotonic_ns()
        with serving(data, 1, [0]) as daemon:
            records = filled(daemon, size_bytes)
        produced_s = (monotonic_ns() - started_ns) / 1e9
        report, peak_bytes = compacted(data, options)
        with serving(data, 1, [0]) as daemon:
            few = filled(daemon, FEW_BYTES)
        second, second_peak_bytes = compacted(data, options)
        peak_bytes = max(peak_bytes, second_peak_bytes)
        sizes, rows = files_in(data)
    figures: list[tuple[str, float]] = [
        ("machine's memory, GiB", memory_bytes / (1 << 30)),
        ("L0 compacted, GiB", report["bytes_compacted"] / (1 << 30)),
        ("produced, MiB/s", records * l0.RECORD_BYTES / produced_s / (1 << 20)),
        ("compacted, MB/s", report["mb_per_second"]),
        ("bytes read over bytes compacted", report["bytes_read"] / report["bytes_compacted"]),
        ("largest Python worker, MiB", report["peak_memory_bytes"] / (1 << 20)),
        ("all processes of the compaction, MiB", peak_bytes / (1 << 20)),
        ("files that the first run wrote", report["files"]),
        ("mean size of these, MB", report["bytes_written"] / report["files"] / 1e6),
        ("files that the second run merged", sum(each["rewritten"] for each in second["tables"])),
        ("time of the second run, s", second["seconds"]),
        ("files now", len(sizes)),
        ("bytes in files of 128 MB and more, %", 100 * share_of_large(sizes)),
        ("largest file, MB", max(sizes) / 1e6),
        ("records acknowledged", records + few),
        ("rows in the tables", rows),
    ]
    print(table(["figure", "measured"], [(name, number(value)) for name, value in figures]))
    if rows != records + few:
        print(f"beyond_memory: {records + few} records were acknowledged, but {rows} are in the"
              " tables", file=sys.stderr)  # fmt: skip
        return 1
    if peak_bytes > limit_bytes:
        print(f"beyond_memory: the compaction took {peak_bytes >> 20} MiB, and"
              f" {limit_bytes >> 20} are the limit", file=sys.stderr)  # fmt: skip
        return 1
    return 0


def files_in(data: Path) -> tuple[list[int], int]:
    """The sizes of the files that readers use, and their rows, by the files' own footers."""
    with contextlib.closing(Ledger(data / "ledger" / "ledger.db", nullcontext())) as ledger:
        files = [
            Path(file.path.removeprefix("file://"))
            for each in pages.tables(ledger)
            for file in pages.files_of(ledger, each.topic_id)
        ]
    return (
        [file.stat().st_size for file in files],
        sum(pq.read_metadata(file).num_rows for file in files),
    )


def share_of_large(sizes: Sequence[int]) -> float:
    """The share of bytes in files of the size that lake.md promises at volume."""
    return sum(size for size in sizes if size >= LARGE_BYTES) / sum(sizes)


if __name__ == "__main__":
    sys.exit(main())
