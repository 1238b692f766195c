"""``format("headgate")`` in Spark itself: batches and streams."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ledger.lake import readleases
from shards.clock import wall_ms
from tests.compaction.by_hand import compact, delete_compacted, opened
from tests.e2e.daemon import Daemon, running
from tests.e2e.lake import diff_rows
from tests.e2e.test_source_reads import produced

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

Seen = list[tuple[int, int]]
"""(partition, offset), in order."""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running(tmp_path_factory.mktemp("data"), shards=2) as daemon:
        yield daemon


def frame(spark: SparkSession, daemon: Daemon, topic: str, **options: str) -> DataFrame:
    where = {} if "data" in options else {"url": daemon.url}
    reader = spark.read.format("headgate").options(**where, subscribe=topic, **options)
    return reader.load()


def seen(rows: Any) -> Seen:
    return sorted((row["partition"], row["offset"]) for row in rows)


def offsets(daemon: Daemon, topic: str) -> Seen:
    """Every offset of a topic."""
    return [(row.partition, row.offset) for row in diff_rows(daemon, topic)]


def test_a_topic_is_read_with_the_columns_that_kafkas_users_know(
    spark: SparkSession, daemon: Daemon
) -> None:
    record = {"data": {"a": 1}, "key": "k", "tag": "t", "meta": {"m": 2}, "ts": 1_700_000_000_123}
    daemon.json("POST", "/v0/topics/columns", {"records": [record, {"data_b64": "AP8="}]})
    found = frame(spark, daemon, "columns")
    assert found.columns == ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]
    kinds = dict(found.dtypes)
    assert (kinds["key"], kinds["value"], kinds["offset"]) == ("binary", "binary", "bigint")
    first, second = found.orderBy("offset").collect()
    assert (first.topic, first.partition, first.offset) == ("columns", 0, 1)
    assert (bytes(first.key), json.loads(first.value)) == (b"k", {"a": 1})
    assert [(h.key, bytes(h.value)) for h in first.headers] == [
        ("tag", b"t"),
        ("meta", b'{"m": 2}'),
    ]
    assert (second.key, bytes(second.value), second.headers) == (None, b"\x00\xff", None)
    millis = found.selectExpr("unix_millis(timestamp) AS ms").collect()
    assert 1_700_000_000_123 in {row.ms for row in millis}


def test_files_and_objects_are_read_as_one_topic_in_every_way(
    spark: SparkSession, daemon: Daemon
) -> None:
    produced(daemon, "mixed", 20)
    compact(daemon.data, "mixed", ["mixed"], objects_max=10)
    expected = offsets(daemon, "mixed")
    ways: list[dict[str, str]] = [
        {"maxBytesPerPartition": "2000"}, {"data": str(daemon.data)}, {"READTHROUGH": "diff"},
    ]  # fmt: skip
    for way in ways:
        assert seen(frame(spark, daemon, "mixed", **way).collect()) == expected


def test_what_is_compacted_and_deleted_after_sparks_plan_is_read_once(
    spark: SparkSession, daemon: Daemon
) -> None:
    produced(daemon, "moved", 15)
    expected = offsets(daemon, "moved")
    planned = frame(spark, daemon, "moved", minPartitions="3")
    planned._jdf.queryExecution().executedPlan()
    compact(daemon.data, "moved", ["moved"])
    assert delete_compacted(daemon.data) > 0
    assert seen(planned.collect()) == expected


def test_a_bad_option_is_reported_at_load(spark: SparkSession, daemon: Daemon) -> None:
    from pyspark.errors import AnalysisException

    reader = spark.read.format("headgate").options(url=daemon.url, subscrib="t")
    with pytest.raises(AnalysisException, match=r"'subscrib' is not known; did you mean 'subscri"):
        reader.load()


def test_a_loss_is_reported_with_its_offsets(spark: SparkSession, daemon: Daemon) -> None:
    from pyspark.errors import PySparkException

    daemon.json("PUT", "/v0/topics/lost", {"partitions": 1})
    daemon.produce("lost", *range(9))
    daemon.json("POST", "/v0/topics/lost/trim", {"partition": 0, "before_seq": 4})
    asked = json.dumps({"lost": {"0": 1}})
    with pytest.raises(PySparkException, match="offsets 1 to 3 of topic 'lost', partition 0"):
        frame(spark, daemon, "lost", startingOffsets=asked).collect()
    found = frame(spark, daemon, "lost", startingOffsets=asked, failOnDataLoss="false")
    assert seen(found.collect()) == [(0, offset) for offset in range(4, 10)]


def streamed(
    spark: SparkSession, daemon: Daemon, topic: str, folder: Path, **options: str
) -> tuple[list[int], Any]:
    """Runs a stream until it has caught up; the sizes of its batches, and what failed it."""
    query = (
        spark.readStream.format("headgate")
        .options(url=daemon.url, subscribe=topic, **options)
        .load()
        .writeStream.format("parquet")
        .option("path", str(folder / "rows"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    sizes = [progress["numInputRows"] for progress in query.recentProgress]
    return [size for size in sizes if size], query.exception()


def leases(daemon: Daemon, topic: str) -> list[str]:
    """Read leases that hold something for plans of this topic."""
    with opened(daemon.data) as ledger:
        held = ledger.read(readleases.live, wall_ms())
    return [lease.lease for lease in held if lease.what == f"plan of {topic}"]


def written(spark: SparkSession, folder: Path) -> Seen:
    return seen(spark.read.parquet(str(folder / "rows")).collect())


def test_a_stream_goes_on_where_its_checkpoint_ends(
    spark: SparkSession, daemon: Daemon, tmp_path: Path
) -> None:
    produced(daemon, "stream", 8, partitions=2)
    first = offsets(daemon, "stream")
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "40"}
    sizes, error = streamed(spark, daemon, "stream", tmp_path, **options)
    assert error is None
    assert sum(sizes) == len(first) and max(sizes) <= 40
    assert written(spark, tmp_path) == first
    assert len(sizes) > 1 and len(leases(daemon, "stream")) == 1, "of the last batch, to expire"

    # More of it, a new partition, and the old part compacted: only what is new comes.
    daemon.json("PUT", "/v0/topics/stream", {"partitions": 3})
    produced(daemon, "stream", 6, partitions=3, seed=2)
    compact(daemon.data, "stream", ["stream"], objects_max=10)
    everything = offsets(daemon, "stream")
    assert {partition for partition, _ in everything} == {0, 1, 2}
    sizes, error = streamed(spark, daemon, "stream", tmp_path, **options)
    assert error is None
    assert sum(sizes) == len(everything) - len(first)
    assert written(spark, tmp_path) == everything
    assert streamed(spark, daemon, "stream", tmp_path, **options) == ([], None)


def test_a_stream_begins_at_the_end_unless_told_otherwise(
    spark: SparkSession, daemon: Daemon, tmp_path: Path
) -> None:
    daemon.json("PUT", "/v0/topics/tail", {"partitions": 1})
    daemon.produce("tail", 1, 2, 3)
    assert streamed(spark, daemon, "tail", tmp_path) == ([], None)
    daemon.produce("tail", 4, 5)
    assert streamed(spark, daemon, "tail", tmp_path) == ([2], None)
    assert written(spark, tmp_path) == [(0, 4), (0, 5)]


def test_a_recreated_topic_is_not_taken_for_the_old_one(
    spark: SparkSession, daemon: Daemon, tmp_path: Path
) -> None:
    daemon.json("PUT", "/v0/topics/anew", {"partitions": 1})
    daemon.produce("anew", "old", "old")
    from_start = {"startingOffsets": "earliest"}
    assert streamed(spark, daemon, "anew", tmp_path, **from_start) == ([2], None)
    daemon.ask("DELETE", "/v0/topics/anew")
    daemon.produce("anew", *["new"] * 5)
    from pyspark.errors import StreamingQueryException

    with pytest.raises(StreamingQueryException, match="topic 'anew' was deleted while a stream"):
        streamed(spark, daemon, "anew", tmp_path, **from_start)
    sizes, error = streamed(spark, daemon, "anew", tmp_path, failOnDataLoss="false", **from_start)
    assert (sizes, error) == ([5], None)
    assert written(spark, tmp_path) == [(0, 1), (0, 1), (0, 2), (0, 2), (0, 3), (0, 4), (0, 5)]


def test_a_stream_outlives_its_daemons_restart(
    spark: SparkSession, tmp_path: Path, listen: str
) -> None:
    """The driver retries; what Spark has read is not read again. It gives up where a slow machine
    starts the daemon for longer than it retries: then another restart is tried."""
    from pyspark.errors import StreamingQueryException

    def begun() -> Any:
        query = (
            spark.readStream.format("headgate")
            .options(url=f"http://{listen}", subscribe="restart", startingOffsets="earliest")
            .load()
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "rows"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .start()
        )
        query.processAllAvailable()
        return query

    with running(tmp_path / "data", listen=listen) as daemon:
        daemon.produce("restart", *range(5))
        query, count = begun(), 5
    is_outlived = False
    while not is_outlived:
        with running(tmp_path / "data", listen=listen) as daemon:
            daemon.produce("restart", *range(5))
            count += 5
            try:
                query.processAllAvailable()
                is_outlived = True
            except StreamingQueryException as error:
                if "does not answer" not in str(error):
                    raise
                query = begun()
            assert written(spark, tmp_path) == [(0, offset) for offset in range(1, count + 1)]
            if is_outlived:
                query.stop()
