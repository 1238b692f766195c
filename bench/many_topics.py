"""What grows with the number of topics: created, produced to, started with, compacted, collected.

A daemon of one shard gets topics of one partition, and in each round a record of 200 bytes for each
topic. After a round ``headgate compact`` writes all tables, in the first round into new ones, and
``headgate gc`` looks at them all. The rows of the files that the ledger has are compared with the
acknowledged records.

``python -m bench.many_topics [--topics 1000] [--rounds 2] [--offline] [--no-compaction]``; with
``--offline`` the compaction and the collection run while no daemon does. A step that fails is
named, and what was measured before it is shown.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.beyond_memory import compacted, files_in
from bench.figures import number
from bench.lake_reads import serving
from bench.processes import ROOT, Daemon, ServerError, plain_environment, post_ndjson
from commands.output import table
from shards.clock import monotonic_ns

CONNECTIONS = 32
RECORD = b'{"data":"' + b"x" * 200 + b'"}'
TASK_FILES = ("--master", "local[2]")


class Failed(RuntimeError):
    """A step could not be done; what was measured before it counts."""


class Figures:
    """Names with measured values, in the order of measuring."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, float]] = []

    def add(self, name: str, value: float) -> None:
        self.rows.append((name, value))
        print(f"{name}: {number(value)}", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def timed(self, name: str, of: int | None = None) -> Iterator[None]:
        """Adds the seconds of a block, or with ``of`` the milliseconds of each of that number."""
        began_ns = monotonic_ns()
        yield
        seconds = (monotonic_ns() - began_ns) / 1e9
        self.add(name, seconds if of is None else seconds * 1000 / of)


def name_of(topic: int) -> str:
    """The name of a topic."""
    return f"topic-{topic:06d}"


def for_each(
    daemon: Daemon, topics: int, ask: Callable[[http.client.HTTPConnection, int], None]
) -> None:
    """Asks something about each topic, on several connections."""

    def some(first: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=120)
        with contextlib.closing(connection):
            for topic in range(first, topics, CONNECTIONS):
                ask(connection, topic)

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        list(pool.map(some, range(min(CONNECTIONS, topics))))


def create(connection: http.client.HTTPConnection, topic: int) -> None:
    """Creates a topic. Raises ServerError."""
    path = f"/v0/topics/{name_of(topic)}"
    connection.request("PUT", path, b"{}", {"Content-Type": "application/json"})
    answer = connection.getresponse()
    content = answer.read()
    if answer.status >= 300:
        raise ServerError(f"PUT {path} was answered {answer.status}: {content[:300]!r}")


def produce(connection: http.client.HTTPConnection, topic: int) -> None:
    """Sends a record. Raises ServerError."""
    post_ndjson(connection, name_of(topic), 0, RECORD)


def look(daemon: Daemon, figures: Figures) -> None:
    """How long the daemon's answers about itself take, and its memory."""
    for path in ("/v0/status", "/metrics", "/v0/topics"):
        daemon.ask_bytes("GET", path)
        with figures.timed(f"GET {path}, ms", 1):
            daemon.ask_bytes("GET", path)
    memory = sum(process.memory_full_info().pss for process in daemon.processes())
    figures.add("memory of the daemon, MiB", memory / (1 << 20))


def collected(data: Path) -> dict[str, Any]:
    """Runs ``headgate gc``; returns its report."""
    command = [sys.executable, "-m", "cli", "gc", "--data", str(data), "-o", "json"]
    done = subprocess.run(command, cwd=ROOT, env=plain_environment(), capture_output=True)
    if done.returncode:
        raise Failed(f"gc ended with {done.returncode}: {done.stderr.decode()[-2000:]}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def upkeep(data: Path, topics: int, number_of_round: int, figures: Figures) -> None:
    """A compaction and a collection of all tables."""
    report, peak_bytes = compacted(data, TASK_FILES)
    if report["failed"]:
        raise Failed(f"topics that failed: {report['failed'][:3]}")
    figures.add(f"compaction {number_of_round}, s", report["seconds"])
    figures.add(f"compaction {number_of_round}, ms a table", report["seconds"] * 1000 / topics)
    figures.add(
        "  of it preparing and committing, ms a table", report["commit_seconds"] * 1000 / topics
    )
    figures.add("  of it the Spark job, ms a table", report["spark_seconds"] * 1000 / topics)
    figures.add("  memory of all its processes, MiB", peak_bytes / (1 << 20))
    with figures.timed(f"gc {number_of_round}, s"):
        collected(data)


def measure(given: argparse.Namespace, data: Path, figures: Figures) -> None:
    """Everything, until a step fails. Raises Failed, ServerError, RuntimeError."""
    topics = given.topics
    with serving(data, 1, [0]) as daemon, figures.timed("a topic created, ms", topics):
        for_each(daemon, topics, create)
    for number_of_round in range(1, given.rounds + 1):
        with figures.timed("start to ready, s"):
            entered = serving(data, 1, [0])
            daemon = entered.__enter__()
        try:
            with figures.timed("a record to each topic, ms", topics):
                for_each(daemon, topics, produce)
            look(daemon, figures)
            if not given.offline and not given.no_compaction:
                upkeep(data, topics, number_of_round, figures)
        finally:
            entered.__exit__(None, None, None)
        if given.offline and not given.no_compaction:
            upkeep(data, topics, number_of_round, figures)
    if not given.no_compaction:
        _, rows = files_in(data)
        if rows != topics * given.rounds:
            raise Failed(f"{topics * given.rounds} records were acknowledged, {rows} are in tables")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--offline", action="store_true", help="compact without a daemon")
    parser.add_argument("--no-compaction", action="store_true", help="only the daemon")
    parser.add_argument("--work-dir", type=Path, help="a folder on a disk with enough room")
    given = parser.parse_args(arguments)
    figures = Figures()
    failure = ""
    with tempfile.TemporaryDirectory(prefix="headgate-topics-", dir=given.work_dir) as folder:
        try:
            measure(given, Path(folder) / "data", figures)
        except (Failed, ServerError, RuntimeError) as error:
            failure = str(error)
    print(table(["figure", "measured"], [(name, number(value)) for name, value in figures.rows]))
    if failure:
        print(f"many_topics: {failure}", file=sys.stderr)
    return 1 if failure else 0


if __name__ == "__main__":
    sys.exit(main())
