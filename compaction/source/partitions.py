"""A plan's tasks as Spark's partitions, for batch reads and for streams alike.

The driver cuts a plan into partitions and finds the first offset of a time; an executor reads one
partition. Everything here travels between Spark's Python processes, so it is plain data.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from msgspec import Struct
from pyspark.sql.datasource import InputPartition

from compaction.inputs.place import Place
from compaction.source.bounds import lose
from compaction.source.options import Options
from compaction.source.planner import DaemonPlanner, LedgerPlanner, Planner, TopicPartitions
from compaction.source.read_tasks import ReadTask, losses, tasks_of
from compaction.source.reader import TaskReader
from compaction.source.schemas import Plan, PlanRequest, PlanStore
from ledger.types import PartitionState

if TYPE_CHECKING:
    import pyarrow as pa

# Extents or files in one page of a search for a time; the next page has the following ones.
FIRST_AT_TIME_PAGE = 16
_MICROSECONDS = 1000


class TaskPartition(InputPartition):
    """One task, as Spark carries it to an executor."""

    def __init__(self, task: ReadTask, place: Place) -> None:
        super().__init__(None)
        self.task = task
        self.place = place


def read_partition(options: Options, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of a task. Spark makes a partition without a task if there is nothing to read."""
    if isinstance(partition, TaskPartition):
        reader = TaskReader(
            partition.place, planner_of(options), fail_on_data_loss=options.fail_on_data_loss
        )
        yield from reader.read(partition.task)


def partitions_of(options: Options, pages: list[Plan]) -> Iterator[TaskPartition]:
    """Spark's partitions of a plan. Reports the plan's losses first."""
    for page in pages:
        for loss in losses(page):
            lose(loss, fail=options.fail_on_data_loss)
    tasks_min = max(1, options.min_partitions // len(pages))
    for page in pages:
        store = page.store
        place = Place(store.url, store.endpoint_url, store.region, store.lake_url)
        for task in tasks_of(
            page, bytes_max=options.max_bytes_per_partition, tasks_min=tasks_min,
            through_diff=options.read_through == "diff",
        ):  # fmt: skip
            yield TaskPartition(task, place)


def planner_of(options: Options) -> Planner:
    """The planner for these options."""
    if options.url is not None:
        return DaemonPlanner(options.url.rstrip("/"), options.token_file)
    if options.data is None:
        raise AssertionError("options have a url or data")
    data = str(Path(options.data).absolute())
    store = options.store or "file://" + quote(f"{data}/store")
    return LedgerPlanner(
        data, PlanStore(store, options.s3_endpoint_url, options.s3_region, options.lake or "")
    )


class FirstAtTime(Struct):
    """Finds the first offset whose record is not before a time."""

    options: Options
    planner: Planner

    def offset(self, topic: TopicPartitions, state: PartitionState, timestamp_ms: int) -> int:
        """The offset, or the partition's next offset if no record is that late. The ledger says
        where to begin, and rows are read from there until one is late enough."""
        start = self.planner.extent_at(topic, state.partition, timestamp_ms)
        if isinstance(self.planner, DaemonPlanner):
            return min(start, state.next_seq)  # diff has compared the records
        # Nothing of the other partitions: from their end to their end.
        starts = {p.partition: p.next_seq for p in topic.partitions}
        stops = dict(starts)
        starts[state.partition] = max(start, state.earliest_seq)
        request: PlanRequest | None = PlanRequest(
            [topic.topic], {topic.topic: starts}, {topic.topic: stops}, limit=FIRST_AT_TIME_PAGE
        )
        lease = ""
        try:
            while request is not None:
                page = self.planner.page(request)
                lease = page.plan
                found = self._first(page, timestamp_ms)
                if found is not None:
                    return found
                request = page.next
        finally:
            if lease:
                self.planner.end(lease)
        return state.next_seq

    def _first(self, page: Plan, timestamp_ms: int) -> int | None:
        store = page.store
        place = Place(store.url, store.endpoint_url, store.region, store.lake_url)
        reader = TaskReader(
            place, self.planner, fail_on_data_loss=self.options.fail_on_data_loss,
            since_ms=timestamp_ms,
        )  # fmt: skip
        for task in tasks_of(page, bytes_max=1):
            for batch in reader.read(task):
                times = batch.column("timestamp").cast("int64").to_pylist()
                for index, time in enumerate(times):
                    if time >= timestamp_ms * _MICROSECONDS:
                        return int(batch.column("offset")[index].as_py())
        return None
