"""Compaction: MB/s of the Spark job compared with plain pyarrow on the same files.

Both sides have done a small job before. Then they take turns, and the median of each counts. A
figure is the bytes of L0 over the time from the call to the description of the last file; CPU is
that of all processes, including the JVM.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import statistics
import tempfile
from collections.abc import Callable
from multiprocessing.pool import Pool
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import psutil

from bench import l0, plain_pyarrow
from bench.processes import cpu_s
from bench.results import CompactionResult
from compaction.inputs.place import Place
from compaction.parquet.writer import ZSTD_LEVEL
from compaction.run.driver import JobOutcome, run_job
from compaction.run.file_groups import TopicWork
from compaction.run.session import spark_session
from compaction.run.splits import SplitLimits
from ledger.lake.types import PlannedObject
from shards.clock import monotonic_ns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

L0_BYTES = 1 << 30
PROCESSES = 2
FEW_TOPICS = 10  # up to this many, the plain side splits the objects; above, the topics
TURNS = 3
WARM_BYTES = 16 << 20
WARM_SPLIT_BYTES_MIN = 1 << 20  # so that there are two tasks, and a shuffle if there is to be one


class Shape(NamedTuple):
    """What to compact."""

    name: str
    topics: int
    partitions: int
    batch_records: int
    limits: SplitLimits = SplitLimits()


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("compaction/few-topics", topics=4, partitions=2, batch_records=64),
        Shape("compaction/thousand-topics", topics=1000, partitions=1, batch_records=4),
        Shape(
            "compaction/thousand-topics-shuffled",
            topics=1000,
            partitions=1,
            batch_records=4,
            limits=SplitLimits(range_bytes_min=L0_BYTES),
        ),
    )
}


class Work(NamedTuple):
    """Objects in a store, and the folder for their tables."""

    shape: Shape
    place: Place
    lake: Path
    objects: list[PlannedObject]

    @property
    def topics(self) -> list[TopicWork]:
        return [
            TopicWork(topic, f"{self.place.lake}/topic-{topic}")
            for topic in range(1, self.shape.topics + 1)
        ]


class Time(NamedTuple):
    """The time and CPU of a call."""

    seconds: float
    cpu_s: float


def measure(shape: Shape, total_bytes: int, folder: Path, turns: int = TURNS) -> CompactionResult:
    """Makes the objects in a new folder, measures, and removes them."""
    own = Path(tempfile.mkdtemp(prefix="compaction-", dir=folder))
    try:
        work = made(shape, own / "l0", total_bytes)
        warm = made(shape, own / "warm", WARM_BYTES)
        scratch = own / "spark"
        scratch.mkdir()
        return _measured(work, warm, scratch, turns)
    finally:
        shutil.rmtree(own)


def made(shape: Shape, folder: Path, total_bytes: int) -> Work:
    """Puts objects of a shape into a store."""
    objects = l0.make(
        folder / "store", total_bytes, shape.topics, shape.partitions, shape.batch_records
    )
    lake = folder / "lake"
    place = Place((folder / "store").as_uri(), lake_url=lake.as_uri())
    return Work(shape, place, lake, objects)


def _measured(work: Work, warm: Work, scratch: Path, turns: int) -> CompactionResult:
    before_ns = monotonic_ns()
    with spark_session(f"local[{PROCESSES}]", scratch) as spark:
        session_s = (monotonic_ns() - before_ns) / 1e9
        limits = msgspec.structs.replace(work.shape.limits, split_bytes_min=WARM_SPLIT_BYTES_MIN)
        first_job, outcome = _by_spark(spark, warm, limits)
        # Spawned, not forked: this process has threads of the JVM's gateway and of pyarrow.
        with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
            _by_pyarrow(pool, warm, outcome, tuned=True)
            spark_times, plain_times, default_times = [], [], []
            for _ in range(turns):
                time, outcome = _by_spark(spark, work, work.shape.limits)
                spark_times.append(time)
                plain_times.append(_by_pyarrow(pool, work, outcome, tuned=True))
                default_times.append(_by_pyarrow(pool, work, outcome, tuned=False))
    files = [written.file for topic in outcome.topics.values() for written in topic.files]
    return CompactionResult(
        name=work.shape.name,
        topics=work.shape.topics,
        l0_bytes=outcome.bytes_planned,
        rows=outcome.rows,
        spark_s=statistics.median(time.seconds for time in spark_times),
        plain_s=statistics.median(time.seconds for time in plain_times),
        plain_default_s=statistics.median(time.seconds for time in default_times),
        spark_cpu_s=statistics.median(time.cpu_s for time in spark_times),
        plain_cpu_s=statistics.median(time.cpu_s for time in plain_times),
        turns=[
            (spark.seconds, plain.seconds, default.seconds)
            for spark, plain, default in zip(spark_times, plain_times, default_times, strict=True)
        ],
        session_s=session_s,
        first_job_s=first_job.seconds,
        files=len(files),
        lake_bytes=sum(file.size_bytes for file in files),
        bytes_read_ratio=outcome.bytes_read / outcome.bytes_planned,
        requests=outcome.requests,
        memory_peak_bytes=outcome.memory_peak_bytes,
        shuffled=outcome.reducers > 0,
    )


def _by_spark(spark: SparkSession, work: Work, limits: SplitLimits) -> tuple[Time, JobOutcome]:
    found: list[JobOutcome] = []
    time = _timed(
        work,
        lambda: found.append(
            run_job(spark, work.place, "run", work.objects, work.topics, limits=limits)
        ),
    )
    return time, found[0]


def _by_pyarrow(pool: Pool, work: Work, outcome: JobOutcome, tuned: bool) -> Time:
    halves = plain_pyarrow.halves(
        work.objects,
        work.shape.topics,
        by_topic=work.shape.topics > FEW_TOPICS,
        store_url=work.place.url,
        folder=str(work.lake),
        zstd_level=ZSTD_LEVEL,
        tuned=tuned,
    )
    rows: list[int] = []
    time = _timed(work, lambda: rows.extend(pool.map(plain_pyarrow.run, halves, 1)))
    if sum(rows) != outcome.rows:
        raise ValueError(f"plain pyarrow wrote {sum(rows)} rows, Spark {outcome.rows}")
    return time


def _timed(work: Work, call: Callable[[], None]) -> Time:
    os.sync()  # writes of others must not count in this turn
    before_cpu_s, before_ns = _cpu_s(), monotonic_ns()
    call()
    seconds = (monotonic_ns() - before_ns) / 1e9
    cpu_s = _cpu_s() - before_cpu_s
    shutil.rmtree(work.lake)
    return Time(seconds, cpu_s)


def _cpu_s() -> float:
    """CPU-seconds of this process and its descendants."""
    own = psutil.Process()
    return cpu_s((own, *own.children(recursive=True)))
