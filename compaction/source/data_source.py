"""``format("headgate")``: topics as Spark reads them, in batches and as streams.

    spark.dataSource.register(HeadgateDataSource)
    spark.read.format("headgate").option("url", URL).option("subscribe", "orders").load()

Columns are in ``rows.py``, options in ``options.py``, plans in ``plan.py``, streams in
``stream.py``. Only this module, ``stream.py``, and ``partitions.py`` import pyspark. Their objects
are sent between Spark's Python processes, so they are plain data.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

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

from compaction.archive import is_local
from compaction.source.bounds import bounds
from compaction.source.errors import SourceError
from compaction.source.lease_keeper import keep_for_a_batch
from compaction.source.options import OptionError, Options, parse
from compaction.source.partitions import FirstAtTime, partitions_of, planner_of, read_partition
from compaction.source.planner import plan
from compaction.source.rows import DDL
from compaction.source.schemas import Offsets, PlanRequest
from compaction.source.stream import HeadgateStreamReader

if TYPE_CHECKING:
    import pyarrow as pa


class HeadgateDataSource(DataSource):
    """Reads topics of a Headgate daemon, or of its data directory."""

    @classmethod
    def name(cls) -> str:
        # ``register`` calls this first, before it pickles the class for workers.
        _use_own_interpreter()
        return "headgate"

    def schema(self) -> str:
        self._check_options()
        return DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        _check_schema(schema)
        return HeadgateReader(parse(self.options, "batch"))

    def streamReader(self, schema: StructType) -> HeadgateStreamReader:  # noqa: N802  # pyspark's
        _check_schema(schema)
        return HeadgateStreamReader(parse(self.options, "stream"))

    def _check_options(self) -> None:
        """Raises OptionError at ``load()`` if the options fit neither a batch nor a stream."""
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


def _check_order(starts: Offsets, stops: Offsets, *, timed: bool) -> None:
    for topic, partitions in starts.items():
        for partition, start in partitions.items():
            stop = stops[topic][partition]
            if start > stop:
                if not timed:
                    raise SourceError(
                        f"option 'startingOffsets' is {start} and 'endingOffsets' {stop} for"
                        f" partition {partition} of topic {topic!r}: there is nothing to read"
                    )
                stops[topic][partition] = start


def _use_own_interpreter() -> None:
    """Makes local workers run this interpreter. pyspark's default, the ``python3`` on PATH, may not
    have the packages of this environment. A user's setting stays; a cluster has its own."""
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
            "schema", schema.simpleString(), f"is not the source's, which is always {DDL}; omit"
            " .schema() and choose columns with select",
        )  # fmt: skip


def _schema() -> StructType:
    header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    columns: Mapping[str, Any] = {
        "topic": StringType(), "partition": IntegerType(), "offset": LongType(),
        "timestamp": TimestampType(), "key": BinaryType(), "value": BinaryType(),
        "headers": ArrayType(header),
    }  # fmt: skip
    return StructType([StructField(name, kind) for name, kind in columns.items()])
