"""``format("headgate")``: topics as Spark reads them, in batches and as streams.

    spark.dataSource.register(HeadgateDataSource)
    spark.read.format("headgate").option("url", URL).option("subscribe", "orders").load()

Columns: ``source_rows.py``; options: ``source_options.py``; what is read: ``source_plan.py``;
reading: ``source_read.py``; streams: ``source_stream.py``. This module and that one are all that
knows pyspark. Objects of both travel between Spark's Python processes, so they are plain data.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from msgspec import Struct
from pyspark import SparkContext
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from compaction.place import Place
from compaction.run.session import is_local
from compaction.source.bounds import bounds, lose
from compaction.source.errors import SourceError
from compaction.source.lease import keep_for_a_batch
from compaction.source.options import OptionError, Options, parse
from compaction.source.planner import DaemonPlanner, LedgerPlanner, Planner, TopicState, plan
from compaction.source.read_tasks import ReadTask, losses, tasks_of
from compaction.source.reader import Reader
from compaction.source.rows import DDL
from compaction.source.schemas import Offsets, Plan, PlanRequest, PlanStore
from ledger.types import PartitionState

if TYPE_CHECKING:
    import pyarrow as pa

    from compaction.source.stream import HeadgateStreamReader

FIRST_LOOKS = 16  # extents or files that are looked at for a time; further ones in a next look
_MICROSECONDS = 1000


class TaskPartition(InputPartition):
    """One task, as Spark carries it to an executor."""

    def __init__(self, task: ReadTask, place: Place) -> None:
        super().__init__(None)
        self.task = task
        self.place = place


class HeadgateDataSource(DataSource):
    """Reads topics of a Headgate daemon, or of its data directory."""

    @classmethod
    def name(cls) -> str:
        # The first that ``register`` asks, before it packs the class up for workers.
        _use_own_interpreter()
        return "headgate"

    def schema(self) -> str:
        self._check_options()
        return DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        _check_schema(schema)
        return HeadgateReader(parse(self.options, "batch"))

    def streamReader(self, schema: StructType) -> HeadgateStreamReader:  # noqa: N802  # pyspark's
        from compaction.source.stream import HeadgateStreamReader

        _check_schema(schema)
        return HeadgateStreamReader(parse(self.options, "stream"))

    def _check_options(self) -> None:
        """Early, at ``load()``, whatever is wrong both for a batch and for a stream."""
        try:
            parse(self.options, "batch")
        except OptionError as error:
            try:
                parse(self.options, "stream")
            except OptionError:
                raise error from None


class HeadgateReader(DataSourceReader):
    """A batch read."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        options = self._options
        planner = planner_of(options)
        fail = options.fail_on_data_loss
        topics = {name: planner.state(name) for name in options.topics}
        at_time = FirstAtTime(options, planner).offset
        starts = bounds("startingOffsets", options.starting, topics, at_time, fail=fail)
        stops = bounds("endingOffsets", options.ending, topics, at_time, fail=fail)
        _check_order(starts, stops, timed=options.starting.timestamp_ms is not None)
        ids = {name: topic.topic_id for name, topic in topics.items()}
        pages = plan(planner, PlanRequest(list(topics), starts, stops), ids)
        keep_for_a_batch(planner, pages[0].plan)
        return list(partitions_of(options, pages))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition)


def read_partition(options: Options, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """A task's rows; Spark makes a partition without a task where there is nothing to read."""
    if isinstance(partition, TaskPartition):
        reader = Reader(
            partition.place, planner_of(options), fail_on_data_loss=options.fail_on_data_loss
        )
        yield from reader.read(partition.task)


def partitions_of(options: Options, pages: list[Plan]) -> Iterator[TaskPartition]:
    """Spark's partitions of a plan, its losses told first."""
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
    """Who plans for these options."""
    if options.url is not None:
        return DaemonPlanner(options.url.rstrip("/"))
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

    def offset(self, topic: TopicState, state: PartitionState, timestamp_ms: int) -> int:
        """The offset; the next one where no record is that late. The ledger says which extent or
        file to begin with, and rows of it are read until one is late enough."""
        start = self.planner.extent_at(topic, state.partition, timestamp_ms)
        if isinstance(self.planner, DaemonPlanner):
            return min(start, state.next_seq)  # diff has looked at the records itself
        # The other partitions from their end to their end: nothing.
        starts = {p.partition: p.next_seq for p in topic.partitions}
        stops = dict(starts)
        starts[state.partition] = max(start, state.earliest_seq)
        request: PlanRequest | None = PlanRequest(
            [topic.topic], {topic.topic: starts}, {topic.topic: stops}, limit=FIRST_LOOKS
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
        reader = Reader(
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


def _check_order(starts: Offsets, stops: Offsets, *, timed: bool) -> None:
    for topic, partitions in starts.items():
        for partition, start in partitions.items():
            stop = stops[topic][partition]
            if start > stop:
                if not timed:
                    raise SourceError(
                        f"option 'startingOffsets' is {start} and 'endingOffsets' {stop} for"
                        f" partition {partition} of topic {topic!r}: nothing lies between"
                    )
                stops[topic][partition] = start


def _use_own_interpreter() -> None:
    """Has local workers run this interpreter: what PATH calls ``python3``, pyspark's default, need
    not have the packages of this environment. What the user sets stays, and a cluster's machines
    have interpreters of their own."""
    context = SparkContext._active_spark_context
    if context is None or "PYSPARK_PYTHON" in os.environ or not is_local(context.master or ""):
        return
    context.pythonExec = sys.executable


def _check_schema(schema: StructType) -> None:
    wanted = _schema()
    if [(f.name, f.dataType) for f in schema.fields] != [
        (f.name, f.dataType) for f in wanted.fields
    ]:
        raise OptionError(
            "schema", schema.simpleString(), f"is not the source's, which is always {DDL}; leave"
            " .schema() out and choose columns with select",
        )  # fmt: skip


def _schema() -> StructType:
    header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    columns: Mapping[str, Any] = {
        "topic": StringType(), "partition": IntegerType(), "offset": LongType(),
        "timestamp": TimestampType(), "key": BinaryType(), "value": BinaryType(),
        "headers": ArrayType(header),
    }  # fmt: skip
    return StructType([StructField(name, kind) for name, kind in columns.items()])
