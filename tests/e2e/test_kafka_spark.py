"""Spark's own ``kafka`` source and sink, in batches and as a stream, while shards are killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from compaction.run.session import spark_session
from tests.e2e.daemon import Daemon
from tests.e2e.kafka import bootstrap, kafka_daemon
from tests.e2e.packages import copy_jars
from tests.e2e.processes import kill_shards

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

COUNT = 2_000


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with the source's package."""
    folder = tmp_path_factory.mktemp("jars")  # the newest version that Maven has
    copy_jars(folder, "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0")
    jars = ",".join(map(str, folder.glob("*.jar")))
    conf = {"spark.sql.shuffle.partitions": "2", "spark.jars": jars}
    with spark_session("local[2]", tmp_path_factory.mktemp("spark"), conf=conf) as session:
        yield session


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with kafka_daemon(tmp_path_factory.mktemp("data"), shards=2) as made:
        yield made


def values(rows: list[tuple[bytes, bytes]]) -> list[int]:
    for key, value in rows:
        assert bytes(key) == b"key %d" % (int(value) % 7)
    return sorted(int(value) for _, value in rows)


def test_what_sparks_sink_writes_its_source_reads_whole_in_batches_and_as_a_stream(
    spark: SparkSession, daemon: Daemon, tmp_path: Path
) -> None:
    assert daemon.json("PUT", "/v0/topics/numbers", {"partitions": 4}).status == 201
    options = {"kafka.bootstrap.servers": bootstrap(daemon)}
    made = spark.range(COUNT).selectExpr(
        "concat('key ', id % 7) AS key", "cast(id AS string) AS value"
    )
    made.write.format("kafka").options(**options, topic="numbers").save()
    kill_shards(daemon, 0, 1)
    reading = {**options, "subscribe": "numbers", "startingOffsets": "earliest"}
    batch = spark.read.format("kafka").options(**reading).load().select("key", "value")
    assert values([tuple(row) for row in batch.collect()]) == list(range(COUNT))
    found: list[tuple[bytes, bytes]] = []
    stream = spark.readStream.format("kafka").options(**reading, maxOffsetsPerTrigger="300").load()
    query = (
        stream.select("key", "value")
        .writeStream.foreachBatch(lambda rows, _: found.extend(map(tuple, rows.collect())))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(300)
    assert query.exception() is None
    assert values(found) == list(range(COUNT))
