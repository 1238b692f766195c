"""``python -m bench.large_ledger``: images of a large ledger during entries and commits.

It fills a ledger up to ``--gib`` with idempotency answers of 16 KiB. Then an owner thread and an
image thread work on it as in a daemon, on the embedded store or on the one that HEADGATE_STORE_URL
and HEADGATE_S3_ENDPOINT_URL name, while another thread commits all the time. It reports how old the
ownership became, how long commits took, how much memory the process used, and how long a recovery
from the store takes.

It needs four times ``--gib`` on the disk of ``--folder``, which must not exist, and removes it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import shutil
import sqlite3
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import msgspec
from msgspec import Struct

from daemon.config import load
from daemon.upkeep.directory import open_config_store
from daemon.upkeep.image import ImageThread
from daemon.upkeep.owner import OwnerThread
from daemon.upkeep.recover import rebuild
from ledger import commits, epochs, topics
from ledger.ledger import Ledger
from ledger.log import backup
from ledger.log.entry import Owner
from ledger.types import CommitDraft, ExtentDraft, ExtentRunDraft, LeasedRange, LeaseId, TopicConfig
from shards import layout as at
from shards.alarms import AlarmBoard
from shards.clock import boottime_ns, monotonic_ns, wall_ms
from shards.doorbell import Doorbells
from shards.layout import Layout
from shards.segment import Segment
from uploader.ownership.ownerlog import Former, OwnerLog, SealedLog

GIB = 1 << 30
ROW_BYTES = 16 << 10
OWNER = Owner("bench", 1, "boot", 1, 1, "/bench")


class Result(Struct):
    """Seconds, bytes and counts."""

    store: str
    ledger_bytes: int = 0
    image_s: float = 0.0
    entries_meanwhile: int = 0
    ownership_age_max_s: float = 0.0
    commits_meanwhile: int = 0
    commit_max_ms: float = 0.0
    commit_p99_ms: float = 0.0
    rss_grown_bytes: int = 0
    recovery_s: float = 0.0


def fill(path: Path, size_bytes: int) -> None:
    """Adds rows to ``dedupe`` until the file has this size."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        rows = size_bytes // ROW_BYTES
        now_ms = wall_ms()
        for start in range(0, rows, 10_000):
            connection.execute("BEGIN")
            connection.executemany(
                "INSERT INTO dedupe (topic_id, key, created_ms, answer)"
                " VALUES (1, ?, ?, randomblob(?))",
                (
                    (str(at), now_ms, ROW_BYTES - 400)
                    for at in range(start, min(rows, start + 10_000))
                ),
            )
            connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint (TRUNCATE)").fetchall()


def _commit(ledger: Ledger, lease: LeaseId, topic_id: int, counter: int) -> float:
    """Commits an object of one record; returns the milliseconds it took."""
    lease = msgspec.structs.replace(lease, counter=counter)
    extent = ExtentDraft(topic_id, 0, 8, 10, 1, 1, 1, 1, 0, (ExtentRunDraft(0, 0, 1),))
    sources = (LeasedRange(0, 64 * counter, 64 * counter + 64),)
    draft = CommitDraft(lease, f"l0/{counter}", f"l0/{counter}", 100, 1, sources, (extent,))
    began_ns = monotonic_ns()
    ledger.commit(draft, 1, lambda _: None)
    return (monotonic_ns() - began_ns) / 1e6


def _observe(
    result: Result, segment: Segment, images: ImageThread, commit: Callable[[int], float]
) -> None:
    """Commits until an image is finished."""
    words = segment.words
    rss_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    entries_before = words[at.G_ENTRY_NUMBER]
    began_ns = monotonic_ns()
    maker = threading.Thread(target=images.make)
    maker.start()
    took_ms: list[float] = []
    while maker.is_alive():
        took_ms.append(commit(len(took_ms) + 1))
        words[at.G_COMMITS] = len(took_ms)
        age_s = (boottime_ns() - words[at.G_OWNED_SENT_NS]) / 1e9
        result.ownership_age_max_s = max(result.ownership_age_max_s, age_s)
    result.image_s = (monotonic_ns() - began_ns) / 1e9
    result.entries_meanwhile = words[at.G_ENTRY_NUMBER] - entries_before
    result.commits_meanwhile = len(took_ms)
    result.commit_max_ms = max(took_ms)
    result.commit_p99_ms = sorted(took_ms)[len(took_ms) * 99 // 100]
    rss_after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result.rss_grown_bytes = (rss_after - rss_before) << 10


def main() -> int:
    """Prints a Result as JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.large_ledger", description=__doc__)
    parser.add_argument("--gib", type=float, default=6.0)
    parser.add_argument("--folder", type=Path, required=True)
    asked = parser.parse_args()
    asked.folder.mkdir()
    try:
        result = measure(asked.folder, int(asked.gib * GIB))
    finally:
        shutil.rmtree(asked.folder)
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(result)).decode() + "\n")
    return 0


def measure(folder: Path, size_bytes: int) -> Result:
    """One image and one recovery."""
    config = load(None, {"HEADGATE_STORE_URL": f"file://{folder}/store", **os.environ}, [])
    path = folder / "ledger.db"
    lock = threading.Lock()
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(contextlib.closing(open_config_store(config)))
        store.check()
        result = Result(store.url)
        ledger = stack.enter_context(contextlib.closing(Ledger(path, lock)))
        told = stack.enter_context(contextlib.closing(Ledger(path, lock)))
        topic, _ = ledger.write(topics.create, "t", TopicConfig(), 1)
        incarnation, epoch = ledger.write(epochs.begin_incarnation, 1, 0)
        fill(path, size_bytes)
        result.ledger_bytes = path.stat().st_size
        segment = Segment.create(Layout(shards=1, ring_bytes=4096))
        bells = Doorbells.create(1)
        log = OwnerLog(store, OWNER, lambda _: None)
        owner = OwnerThread(segment, bells, log, told)
        segment.words[at.G_INCARNATION] = incarnation
        # As in a running daemon, earlier entries cover what the ledger has.
        before = log.entry(0, 1, "entry", ledger.read(backup.mark))
        owner.own(incarnation, SealedLog(0, before, Former.OURS))
        board = AlarmBoard(segment, 1)
        images = ImageThread(segment, owner, log, store, Ledger(path, lock), board)
        owner.start()
        commit = partial(_commit, ledger, LeaseId(incarnation, epoch, 0, 0), topic.topic_id)
        _observe(result, segment, images, commit)
        owner.release()
        last = log.last()
        began_ns = monotonic_ns()
        there = folder / "recovered"
        there.mkdir()
        taken = SealedLog(incarnation, last, Former.OURS)
        rebuild(there / "ledger.db", nullcontext(), store, taken, log)
        result.recovery_s = (monotonic_ns() - began_ns) / 1e9
        with contextlib.closing(Ledger(there / "ledger.db", nullcontext())) as copy:
            assert copy.read(commits.latest_number) == ledger.read(commits.latest_number)
    return result


if __name__ == "__main__":
    sys.exit(main())
