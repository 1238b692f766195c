"""The Spark job, in a real session of two cores: rows, holes, failures, progress."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from compaction.inputs.place import Place
from compaction.run.driver import TaskFailed, run_job, sentence_of
from compaction.run.file_groups import TopicWork
from compaction.run.splits import SplitLimits
from compaction.tables.schema import typed_columns
from ledger.lake.types import PlannedObject
from tests.compaction.objects import (
    DAY_MS,
    NOON_MS,
    Draft,
    Heads,
    check_file,
    put,
    rows_in,
    rows_of,
    table_of,
)
from tests.minio import Bucket
from uploader.l0.records import Record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SHUFFLED = SplitLimits(3000, 500, 1 << 20, group_bytes_max=2000, range_bytes_min=1 << 20)
SPLIT = SplitLimits(3000, 500, 1 << 20, range_bytes_min=1)
DIRECT = SplitLimits(3000, 500, 0)
LIMITS = [SHUFFLED, SPLIT, DIRECT]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A store in a folder."""
    place = Place((tmp_path / "store").as_uri())
    yield place
    place.store().close()


def objects_in(place: Place, count: int = 12) -> list[PlannedObject]:
    """Objects of three topics in two partitions each, over three days, with voids."""
    heads = Heads()
    return [
        put(
            place.store(),
            heads,
            [
                Draft(
                    topic_id,
                    partition,
                    [
                        (
                            NOON_MS,
                            [
                                Record(f'{{"n":{at}}}', ts=NOON_MS + at % 3 * DAY_MS, key="k"),
                                Record(bytes([at, partition]), tag="", meta="{}"),
                                Record("[]"),
                            ],
                        )
                    ],
                    ((1, 1),) if at % 4 == 3 else (),
                )
                for topic_id in (1, 2, 3)
                for partition in (0, 1)
            ],
        )
        for at in range(count)
    ]


def topics_of(place: Place) -> list[TopicWork]:
    """The three topics; the third has a typed column."""
    return [
        TopicWork(
            topic_id,
            f"{place.lake}/t-{topic_id}",
            typed_columns({"n": "long"}) if topic_id == 3 else (),
        )
        for topic_id in (1, 2, 3)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("limits", LIMITS)
def test_every_row_is_in_one_file_with_and_without_a_shuffle(
    spark: SparkSession, place: Place, limits: SplitLimits
) -> None:
    objects = objects_in(place)
    told: list[tuple[int, int]] = []
    outcome = run_job(
        spark, place, "run-1", objects, topics_of(place), cores=3, limits=limits,
        advance=lambda *done: told.append(done),
    )  # fmt: skip
    expected = rows_of(place.store(), objects)
    assert outcome.tasks > 1 and bool(outcome.reducers) == (limits is SHUFFLED)
    for topic_id, topic in outcome.topics.items():
        for written in topic.files:
            check_file(place, written)
        assert rows_in(place, topic.files) == expected[topic_id]
        assert topic.rows == len(expected[topic_id]) and not topic.holes
    numbers = [
        number
        for written in outcome.topics[3].files
        for number in table_of(place, written).column("n").to_pylist()
        if number is not None
    ]
    assert sorted(numbers) == sorted([*range(12)] * 2)
    assert outcome.objects == 12
    assert outcome.requests == (12 * outcome.tasks if limits is SPLIT else 12)
    if limits is SPLIT:
        assert outcome.bytes_read == outcome.bytes_planned, "footers are left out too"
    else:
        assert outcome.bytes_read == sum(each.size_bytes for each in objects)
    assert outcome.bytes_planned == sum(e.byte_length for o in objects for e in o.extents)
    assert told[-1] == (12, outcome.bytes_planned), "progress ends at what was planned"
    assert outcome.memory_peak_bytes > 1 << 20


@pytest.mark.slow
@pytest.mark.parametrize("limits", LIMITS)
def test_damaged_objects_are_holes_and_the_rest_is_compacted(
    spark: SparkSession, place: Place, limits: SplitLimits
) -> None:
    objects = objects_in(place)
    place.store().delete([objects[4].locator])
    outcome = run_job(spark, place, "run-1", objects, topics_of(place), cores=3, limits=limits)
    expected = rows_of(place.store(), objects[:4] + objects[5:])
    for topic_id, topic in outcome.topics.items():
        assert rows_in(place, topic.files) == expected[topic_id]
        assert [
            (hole.partition, hole.first_offset, hole.last_offset, hole.key) for hole in topic.holes
        ] == [
            (e.partition, e.first_offset, e.last_offset, objects[4].key)
            for e in objects[4].extents
            if e.topic_id == topic_id
        ]
        assert all(hole.reason.startswith("missing") for hole in topic.holes)


@pytest.mark.slow
def test_a_store_that_refuses_fails_the_run_in_one_sentence(
    spark: SparkSession, place: Place
) -> None:
    objects = objects_in(place, 2)
    wrong = msgspec.structs.replace(place, url="s3://no-bucket", endpoint_url="http://127.0.0.1:1")
    os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(TaskFailed) as raised:
        run_job(spark, wrong, "run-1", objects, topics_of(place))
    sentence = str(raised.value)
    assert "\n" not in sentence and "no-bucket" in sentence
    assert sentence.startswith("a task of the compaction failed: s3://")


@pytest.mark.slow
def test_a_lake_that_is_no_folder_fails_its_topics_in_one_sentence(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    objects = objects_in(place, 2)
    (tmp_path / "file").write_text("no folder")
    wrong = msgspec.structs.replace(place, lake_url=(tmp_path / "file").as_uri())
    outcome = run_job(spark, wrong, "run-1", objects, topics_of(wrong))
    assert outcome.topics and not outcome.rows
    for topic_id, topic in outcome.topics.items():
        assert re.search(rf"NotADirectoryError: .*/file/t-{topic_id}", topic.failed)
        assert "\n" not in topic.failed and not topic.files


def test_nothing_planned_starts_no_job(place: Place) -> None:
    class NoSession:
        """Whatever is asked of it fails."""

        class sparkContext:  # noqa: N801  # Spark's name
            defaultParallelism = 1  # noqa: N815  # Spark's name

    outcome = run_job(NoSession(), place, "run-1", [], topics_of(place))  # type: ignore[arg-type]  # on purpose
    assert outcome.rows == 0 and list(outcome.topics) == [1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize("limits", [SHUFFLED, DIRECT])
def test_in_a_bucket_everything_is_the_same(
    spark: SparkSession, bucket: Bucket, limits: SplitLimits, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Workers are started with the environment of their job.
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
        monkeypatch.setitem(spark.sparkContext.environment, name, value)
    place = Place(bucket.url, endpoint_url=bucket.endpoint_url, region=bucket.region)
    objects = objects_in(place, 6)
    outcome = run_job(spark, place, "run-1", objects, topics_of(place), limits=limits)
    expected = rows_of(place.store(), objects)
    filesystem, _ = place.filesystem()
    for topic_id, topic in outcome.topics.items():
        found = 0
        for written in topic.files:
            assert written.file.path.startswith(f"{bucket.url}/lake/t-{topic_id}/data/")
            info = filesystem.get_file_info(place.path_of(written.file.path))
            assert info.size == written.file.size_bytes
            found += written.file.rows
        assert found == len(expected[topic_id])
    place.store().close()


PYTHON = "Traceback (most recent call last):\n"
TRACE = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 in stage 2.0 failed \
4 times, most recent failure: Lost task 1.3 in stage 2.0 (TID 5) (10.0.0.7 executor 2): {}
\tat org.apache.spark.api.python.BasePythonRunner.read(PythonRunner.scala:1136)
Caused by: java.io.EOFException
\tat java.base/java.io.DataInputStream.readInt(DataInputStream.java:386)
"""


@pytest.mark.parametrize(
    ("trace", "sentence"),
    [
        (
            TRACE.format(
                "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)."
                " Consider setting 'x' to 'true'"
            ),
            "Python worker exited unexpectedly (crashed); if memory ran out, a smaller",
        ),
        (
            TRACE.format("ExecutorLostFailure (executor 2 exited) Reason: killed"),
            "ExecutorLostFailure (executor 2 exited) Reason: killed",
        ),
        (
            f"Thrown:\n{PYTHON}  x\ncompaction.fetch.StoreFailed: s3://b is forbidden\nmore\n",
            "s3://b is forbidden",
        ),
        (
            f"{PYTHON}  a\nKeyError: 1\n\nDuring\n\n{PYTHON}  b\nMemoryError\n",
            "MemoryError",
        ),
        (
            "An error occurred while calling o1.x.\n: java.lang.IllegalStateException: stopped\n",
            "java.lang.IllegalStateException: stopped",
        ),
        ("", "Spark gave no reason"),
    ],
)
def test_a_trace_becomes_a_sentence(trace: str, sentence: str) -> None:
    found = sentence_of(trace)
    assert re.fullmatch(r"(?:a task of the compaction|the Spark job) failed(?:: | with ).+", found)
    assert sentence in found and "\n" not in found and "\tat " not in found
