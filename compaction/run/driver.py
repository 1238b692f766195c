"""One Spark job that compacts planned objects: the part that runs on the driver.

    tasks -> read, write -> reports                          if nothing is shuffled
    tasks -> read, write -> by reducer -> sort, write -> reports

``job_plan.py`` decides, ``executor.py`` runs on executors. The reports of all tasks make the
outcome: files with their descriptions for tables and ledger, and what could not be read. Before the
outcome is returned, the rows of files and holes are counted against the plan. A job that Spark
repeated in part with different results fails here; no row is ever committed twice or lost.

This module commits nothing and reads neither the ledger nor a clock. It does not change the
settings of the session, which belongs to the caller.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from compaction.inputs.objects import StoreFailed
from compaction.inputs.place import Place
from compaction.parquet.row_builder import TimesSetAside
from compaction.parquet.writer import WrittenFile
from compaction.run.executor import (
    MapFunction,
    ReduceFunction,
    Setup,
    TaskReport,
    decode_report,
    encode_task,
    reducer_of,
)
from compaction.run.file_groups import TopicWork
from compaction.run.job_plan import JobPlan, plan_job
from compaction.run.splits import RANGE_BYTES_MIN_LOCAL, SplitLimits
from ledger.lake.types import Hole, PlannedObject

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ADVANCE_EVERY_S = 0.25

_MOST_RECENT = re.compile(
    r"most recent failure: (?:Lost task [^\n]*?\(TID \d+\) \([^)]*\): )?"
    r"(?:[\w.$]+Exception: )?([^\n]+?)(?:\. Consider setting[^\n]*)?$",
    re.MULTILINE,
)

Advance = Callable[[int, int], None]
"""Called with (objects read, bytes of L0 written) so far, in a thread of its own. Tasks count when
they end. If Spark repeats one, the numbers may be ahead, but never above the plan's."""


class TaskFailed(Exception):
    """A task failed as often as Spark allows. Nothing was committed."""


class TopicOutcome(Struct, frozen=True):
    """The result of one topic. ``joined`` are files whose rows are in ``files`` now; ``kept`` are
    files that could not be read, each with the reason, and stay as they are. ``failed`` says why
    the topic could not be written, and is empty otherwise; a topic that failed has no results."""

    topic_id: int
    files: tuple[WrittenFile, ...]
    holes: tuple[Hole, ...]
    joined: tuple[str, ...]
    kept: tuple[tuple[str, str], ...]
    set_aside: tuple[TimesSetAside, ...] = ()
    failed: str = ""

    @property
    def rows(self) -> int:
        return sum(written.file.rows for written in self.files)


class JobOutcome(Struct, frozen=True):
    """The result of a job. ``bytes_planned`` are those of the extents, ``bytes_read`` what was read
    for them with ``requests`` GETs; ``memory_peak_bytes`` is that of the largest Python worker."""

    topics: dict[int, TopicOutcome]
    objects: int
    bytes_planned: int
    bytes_read: int
    requests: int
    memory_peak_bytes: int
    tasks: int
    reducers: int

    @property
    def rows(self) -> int:
        return sum(topic.rows for topic in self.topics.values())


def run_job(
    spark: SparkSession,
    place: Place,
    run: str,
    objects: Sequence[PlannedObject],
    topics: Sequence[TopicWork],
    *,
    cores: int | None = None,
    limits: SplitLimits | None = None,
    advance: Advance | None = None,
) -> JobOutcome:
    """Compacts ``objects``, in commit order, into files of ``topics``. No table has them yet.

    ``cores`` defaults to those of the session. Raises TaskFailed.
    """
    context = spark.sparkContext
    limits = limits or SplitLimits()
    if limits.range_bytes_min is None and place.url.startswith("file:"):
        limits = msgspec.structs.replace(limits, range_bytes_min=RANGE_BYTES_MIN_LOCAL)
    what = plan_job(objects, topics, cores or context.defaultParallelism, limits)
    if not what.tasks:
        return outcome_of(what, [])
    setup = Setup(place, run, what.topics)
    objects_done, bytes_done = context.accumulator(0), context.accumulator(0)

    def done() -> tuple[int, int]:
        objects_share = min(1.0, objects_done.value / max(1, what.reads))
        return int(what.objects * objects_share), min(bytes_done.value, what.bytes)

    count = _Count(objects_done, bytes_done)
    tasks = [encode_task(task) for task in what.tasks]
    pairs = context.parallelize(tasks, len(tasks)).mapPartitions(
        MapFunction(setup, what.shuffled, count)
    )
    if what.reducers:
        pairs = pairs.repartitionAndSortWithinPartitions(what.reducers, reducer_of).mapPartitions(
            ReduceFunction(setup, what.shuffled, count)
        )
    with _advancing(advance, done):
        reports = [decode_report(body) for _, body in _collected(pairs)]
    return outcome_of(what, reports)


class _Count:
    """Adds up, for the driver, what tasks have done."""

    def __init__(self, objects: Any, size: Any) -> None:
        self._objects = objects
        self._bytes = size

    def __call__(self, objects: int, size: int) -> None:
        self._objects.add(objects)
        self._bytes.add(size)


def _collected(pairs: Any) -> list[Any]:
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no types
    from pyspark.errors import PySparkException

    try:
        found: list[Any] = pairs.collect()
    except (Py4JJavaError, PySparkException) as error:
        raise TaskFailed(sentence_of(str(error))) from None
    return found


def sentence_of(trace: str) -> str:
    """One sentence about a failed job from its trace of many lines: the exception of the Python
    task if there is one, else Spark's own reason."""
    _, python, after = trace.rpartition("Traceback (most recent call last):\n")
    if python:
        # The first line without indentation is the exception, after the name of its module.
        said = next((line for line in after.splitlines() if line[:1].strip()), "")
        kind, colon, message = said.strip().partition(": ")
        name = kind.rpartition(".")[2]
        if colon:
            own = name == StoreFailed.__name__
            return f"a task of the compaction failed: {message if own else f'{name}: {message}'}"
        return f"a task of the compaction failed with {name or 'an exception without a name'}"
    reason = _MOST_RECENT.search(trace)
    if reason:
        said = reason[1].strip()
        if "worker exited unexpectedly" in said:
            said += "; if memory ran out, a smaller compact_run_bytes makes tasks smaller"
        return f"a task of the compaction failed: {said}"
    lines = [line.strip() for line in trace.splitlines() if line.strip()]
    cause = next((line for line in lines if line.startswith(":")), lines[0] if lines else "")
    return f"the Spark job failed: {cause.lstrip(': ') or 'Spark gave no reason'}"


@contextmanager
def _advancing(advance: Advance | None, done: Callable[[], tuple[int, int]]) -> Iterator[None]:
    if advance is None:
        yield
        return
    ended = threading.Event()

    def tell() -> None:
        told = (0, 0)
        while not ended.wait(ADVANCE_EVERY_S):
            if done() != told:
                told = done()
                advance(*told)

    thread = threading.Thread(target=tell, name="headgate-advance", daemon=True)
    thread.start()
    try:
        yield
        advance(*done())
    finally:
        ended.set()
        thread.join()


def outcome_of(what: JobPlan, reports: Sequence[TaskReport]) -> JobOutcome:
    """The reports of all tasks together, checked against the plan. Raises TaskFailed."""
    files: dict[int, list[WrittenFile]] = {topic.topic_id: [] for topic in what.topics}
    holes: dict[int, list[Hole]] = {topic.topic_id: [] for topic in what.topics}
    joined = {path for report in reports for path in report.joined}
    kept = {path: why for report in reports for path, why in report.kept}
    failed = {topic_id: why for report in reports for topic_id, why in report.failed}
    set_aside: dict[int, list[TimesSetAside]] = {topic.topic_id: [] for topic in what.topics}
    for report in reports:
        for written in report.files:
            files[written.topic_id].append(written)
        for hole in report.holes:
            holes[hole.topic_id].append(hole)
        for topic_id, some in report.set_aside:
            set_aside[topic_id].append(some)
    topics = {}
    for topic in what.topics:
        if topic.topic_id in failed:
            topics[topic.topic_id] = TopicOutcome(
                topic.topic_id, (), (), (), (), failed=failed[topic.topic_id]
            )
            continue
        of_topic = {each.path for each in topic.rewritten}
        topics[topic.topic_id] = TopicOutcome(
            topic.topic_id,
            tuple(sorted(files[topic.topic_id], key=lambda written: written.file.path)),
            tuple(
                sorted(holes[topic.topic_id], key=lambda hole: (hole.partition, hole.first_offset))
            ),
            tuple(sorted(of_topic & joined)),
            tuple(sorted((path, why) for path, why in kept.items() if path in of_topic)),
            tuple(sorted(set_aside[topic.topic_id], key=lambda s: (s.partition, s.first_offset))),
        )
    _check(what, topics)
    return JobOutcome(
        topics,
        what.objects,
        what.bytes,
        sum(report.bytes_read for report in reports),
        sum(report.requests for report in reports),
        max((report.memory_peak_bytes for report in reports), default=0),
        len(what.tasks),
        what.reducers,
    )


def _check(what: JobPlan, topics: dict[int, TopicOutcome]) -> None:
    """Checks that each planned offset of a topic that was written is a row or in a hole, exactly
    once. Raises TaskFailed."""
    expected: dict[tuple[int, int], int] = {}
    group_topic = {
        group.number: what.topics[group.topic].topic_id
        for group in (*what.shuffled, *(group for task in what.tasks for group in task.local))
    }
    for task in what.tasks:
        for each in task.objects:
            for extent in each.extents:
                place = (group_topic[extent.group], extent.partition)
                if topics[place[0]].failed:
                    continue
                count = extent.last_offset - extent.first_offset + 1
                expected[place] = expected.get(place, 0) + count
    found: dict[tuple[int, int], int] = {}
    for topic in what.topics:
        outcome = topics[topic.topic_id]
        for old in topic.rewritten:
            if old.path in outcome.joined:
                for part in old.ranges:
                    place = (topic.topic_id, part.partition)
                    expected[place] = expected.get(place, 0) + part.rows
        for written in outcome.files:
            for part in written.file.ranges:
                place = (topic.topic_id, part.partition)
                found[place] = found.get(place, 0) + part.rows
        for hole in outcome.holes:
            place = (topic.topic_id, hole.partition)
            found[place] = found.get(place, 0) + hole.last_offset - hole.first_offset + 1
    for place in sorted(expected.keys() | found.keys()):
        if expected.get(place, 0) != found.get(place, 0):
            raise TaskFailed(
                f"partition {place[1]} of topic {place[0]} should have {expected.get(place, 0)}"
                f" rows and the tasks wrote {found.get(place, 0)}: Spark repeated tasks with"
                " different results; nothing was committed, run it again"
            )
