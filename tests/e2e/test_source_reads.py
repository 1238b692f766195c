"""The Spark source's tasks, without Spark, read the same rows as ``diff``, whatever is compacted,
collected or damaged meanwhile.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compaction.inputs.place import Place
from compaction.source.data_source import HeadgateReader
from compaction.source.errors import DataLoss, SourceError, TopicUnknown
from compaction.source.lease_keeper import end_batches
from compaction.source.options import parse
from compaction.source.partitions import TaskPartition
from ledger import reads, topics
from ledger.lake import lake_files, lake_tables, readleases, runs
from ledger.lake.types import Hole, NewFile, TableSwitch
from shards.clock import wall_ms
from tests.compaction.by_hand import compact, delete_compacted, opened, place_of
from tests.e2e.daemon import Daemon, running
from tests.e2e.lake import Row, diff_rows
from tests.e2e.stores import on_s3
from tests.minio import Bucket

DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def daemon(shared_daemon: Daemon) -> Iterator[Daemon]:
    yield shared_daemon
    end_batches()


def produced(daemon: Daemon, topic: str, requests: int, partitions: int = 3, seed: int = 1) -> None:
    """A workload with keys, bytes, headers and timestamps of several days."""
    rng = random.Random(seed)
    daemon.json("PUT", f"/v0/topics/{topic}", {"partitions": partitions})
    now_ms = wall_ms()
    for _ in range(requests):
        records: list[dict[str, Any]] = []
        for _ in range(rng.randint(1, 20)):
            record: dict[str, Any] = {"data": {"n": rng.random(), "text": "ä" * rng.randint(0, 9)}}
            if rng.random() < 0.2:
                record = {"data_b64": "AAEC/w=="}
            record["key"] = f"key-{rng.randint(0, 50)}" if rng.random() < 0.9 else ""
            for name, value in (("tag", "t"), ("node", ""), ("meta", {"a": [1, None]})):
                if rng.random() < 0.3:
                    record[name] = value
            if rng.random() < 0.5:
                record["ts"] = now_ms - rng.randint(0, 3) * DAY_MS
            records.append(record)
        assert daemon.json("POST", f"/v0/topics/{topic}", {"records": records}).status == 200


def partitions(daemon: Daemon, topic: str, **options: str) -> tuple[HeadgateReader, list[Any]]:
    """A reader and its Spark partitions."""
    where = {} if "data" in options else {"url": daemon.url}
    reader = HeadgateReader(parse({**where, "subscribe": topic, **options}, "batch"))
    return reader, list(reader.partitions())


def rows_of(reader: HeadgateReader, tasks: list[Any]) -> list[Row]:
    """Rows as ``diff_rows`` has them; offsets must rise within a task's partition."""
    found: list[Row] = []
    for task in tasks:
        reached: dict[int, int] = {}
        for batch in reader.read(task):
            for row in batch.to_pylist():
                assert row["offset"] > reached.get(row["partition"], 0), "offsets rise in a task"
                reached[row["partition"]] = row["offset"]
                found.append(_row(row))
    return sorted(found, key=lambda row: (row.partition, row.offset))


def _row(row: dict[str, Any]) -> Row:
    headers = {each["key"]: each["value"] for each in row["headers"] or ()}
    assert row["headers"] is None or headers
    value = row["value"]
    try:
        data: Any = json.loads(value)
    except ValueError:
        data = value
    text = {name: headers[name].decode() for name in headers}
    return Row(
        row["partition"], row["offset"], round(row["timestamp"].timestamp() * 1000),
        None if row["key"] is None else row["key"].decode(), text.get("tag"), text.get("node"),
        json.loads(text["meta"]) if "meta" in text else None, data,
    )  # fmt: skip


def read(daemon: Daemon, topic: str, **options: str) -> list[Row]:
    return rows_of(*partitions(daemon, topic, **options))


@pytest.mark.parametrize("compacted", [0, 10, 1_000])
def test_all_ways_read_what_diff_reads(daemon: Daemon, compacted: int) -> None:
    topic = f"all-{compacted}"
    produced(daemon, topic, 30)
    expected = diff_rows(daemon, topic)
    if compacted:
        compact(daemon.data, f"run-{topic}", [topic], objects_max=compacted)
    for size in ({}, {"maxBytesPerPartition": "1"}, {"minPartitions": "5"}):
        assert read(daemon, topic, **size) == expected
        assert read(daemon, topic, data=str(daemon.data), **size) == expected
        assert read(daemon, topic, readThrough="diff", **size) == expected


def test_two_compactions_and_a_rest_are_one_topic(daemon: Daemon) -> None:
    produced(daemon, "layers", 12)
    compact(daemon.data, "layers-1", ["layers"], objects_max=5)
    compact(daemon.data, "layers-2", ["layers"], objects_max=4)
    assert read(daemon, "layers") == diff_rows(daemon, "layers")


def test_several_topics_are_read_by_few_tasks(daemon: Daemon) -> None:
    topics = [f"several-{number}" for number in range(5)]
    for topic in topics:
        produced(daemon, topic, 3)
    reader, tasks = partitions(daemon, ",".join(topics))
    assert len(tasks) == 1
    found: dict[str, int] = {}
    for batch in reader.read(tasks[0]):
        for topic in batch.column("topic").to_pylist():
            found[topic] = found.get(topic, 0) + 1
    assert found == {topic: len(diff_rows(daemon, topic)) for topic in topics}


@pytest.mark.parametrize("compacted", [False, True])
def test_offsets_are_inclusive_and_exclusive(daemon: Daemon, compacted: bool) -> None:
    topic = f"bounds-{compacted}"
    daemon.json("PUT", f"/v0/topics/{topic}", {"partitions": 2})
    for number in range(10):
        daemon.produce(topic, number, number, partition=number % 2)
    if compacted:
        compact(daemon.data, f"run-{topic}", [topic])
    for where in ({}, {"data": str(daemon.data)}, {"readThrough": "diff"}):
        found = read(
            daemon, topic, startingOffsets=json.dumps({topic: {"0": 4, "1": -2}}),
            endingOffsets=json.dumps({topic: {"0": 8, "1": -1}}), **where,
        )  # fmt: skip
        offsets = [(row.partition, row.offset) for row in found]
        assert offsets == [(0, 4), (0, 5), (0, 6), (0, 7), *((1, n) for n in range(1, 11))]
        found = read(daemon, topic, startingOffsets=json.dumps({topic: {"0": 11}}), **where)
        assert {row.partition for row in found} == {1}, "what is not named begins at its earliest"


@pytest.mark.parametrize("compacted", [False, True])
def test_times_begin_at_the_first_record_that_is_not_before(
    daemon: Daemon, compacted: bool
) -> None:
    topic = f"times-{compacted}"
    daemon.json("PUT", f"/v0/topics/{topic}", {"partitions": 1})
    base = wall_ms() - DAY_MS
    for start in (0, 4, 8):
        records = [{"data": n, "ts": base + n * 1000} for n in range(start, start + 4)]
        daemon.json("POST", f"/v0/topics/{topic}", {"records": records})
    if compacted:
        compact(daemon.data, f"run-{topic}", [topic], objects_max=2)
    for where in ({}, {"data": str(daemon.data)}):
        found = read(
            daemon, topic, startingTimestamp=str(base + 1_500), endingTimestamp=str(base + 9_000),
            **where,
        )  # fmt: skip
        assert [row.data for row in found] == list(range(2, 9))
        assert read(daemon, topic, startingTimestamp=str(base + DAY_MS), **where) == []
    with opened(daemon.data) as ledger:
        assert not any(
            f"reads {topic}" in lease.what and lease.expires_ms - wall_ms() <= 0
            for lease in ledger.read(readleases.live, wall_ms())
        )


@pytest.mark.parametrize("through", ["url", pytest.param("data", marks=pytest.mark.slow)])
def test_what_is_compacted_and_collected_after_a_plan_is_read_once(
    daemon: Daemon, through: str
) -> None:
    """The lease would have held it; here it has not, as after a driver that slept."""
    topic = f"after-{through}"
    produced(daemon, topic, 20)
    expected = diff_rows(daemon, topic)
    where = {"data": str(daemon.data)} if through == "data" else {}
    cut = {"startingOffsets": json.dumps({topic: {"0": 3}})}
    for compacted in (7, 1_000):
        reader, tasks = partitions(daemon, topic, **where)
        cut_reader, cut_tasks = partitions(daemon, topic, **where, **cut)
        compact(daemon.data, f"{topic}-{compacted}", [topic], objects_max=compacted)
        delete_compacted(daemon.data)
        assert rows_of(reader, tasks) == expected
        assert rows_of(cut_reader, cut_tasks) == [
            row for row in expected if row.partition or row.offset >= 3
        ]


@pytest.mark.parametrize("which", ["all", "last"])
def test_a_file_that_was_rewritten_after_a_plan_is_read_where_its_rows_are(
    daemon: Daemon, which: str
) -> None:
    """Days interleave, so rows of other files were read before the last one is missed."""
    name = f"rewritten-{which}"
    produced(daemon, name, 10, partitions=1)
    expected = diff_rows(daemon, name)
    compact(daemon.data, f"{name}-1", [name], objects_max=5)
    reader, tasks = partitions(daemon, name)
    with opened(daemon.data) as ledger:
        topic = ledger.read(topics.find, name)
        assert topic is not None
        files = ledger.read(lake_files.of_topic, topic.topic_id)
        assert len(files) > 1
        ranges = ledger.read(lake_files.ranges, topic.topic_id)
        place = place_of(daemon.data)
        if which == "last":
            files = [max(files, key=lambda file: ranges[file.file_id][0].first_offset)]
        moved = []
        for file in files:
            path = Path(place.path_of(file.path))
            path.rename(path.with_name(f"moved-{path.name}"))
            moved.append((file, str(Path(file.path).with_name(f"moved-{path.name}"))))
        ledger.write(runs.begin, f"{name}-2", "a test", wall_ms())
        added = tuple(
            NewFile(
                file.path.replace(path_name(file.path), f"moved-{path_name(file.path)}"),
                file.size_bytes, file.rows, ranges[file.file_id],
            )
            for file, _ in moved
        )  # fmt: skip
        dropped = tuple(file.path for file in files)
        switch = TableSwitch(topic.topic_id, name, "2.json", {}, added, dropped)
        ledger.write(lake_tables.switch, f"{name}-2", [switch], wall_ms())
        ledger.write(runs.end, f"{name}-2", wall_ms())
    assert rows_of(reader, tasks) == expected


def path_name(location: str) -> str:
    return location.rpartition("/")[2]


def test_an_object_that_is_permanently_gone_is_an_error_that_names_its_offsets(
    daemon: Daemon,
) -> None:
    daemon.json("PUT", "/v0/topics/gone", {"partitions": 1})
    for number in range(3):
        daemon.produce("gone", number, number)
    with opened(daemon.data) as ledger:
        topic = ledger.read(topics.find, "gone")
        assert topic is not None
        lost = ledger.read(reads.extents_from, topic.topic_id, 0, 3, 1)[0]
    place_of(daemon.data).store().delete([lost.locator])
    with pytest.raises(DataLoss) as raised:
        read(daemon, "gone")
    message = str(raised.value)
    assert "offsets 3 to 4 of topic 'gone', partition 0" in message
    assert lost.key in message
    assert "failOnDataLoss = false" in message
    assert "planned again" not in message, "the new plan led to the same object"
    found = read(daemon, "gone", failOnDataLoss="false")
    assert [row.offset for row in found] == [1, 2, 5, 6]


def test_quarantined_offsets_are_a_loss(daemon: Daemon) -> None:
    daemon.json("PUT", "/v0/topics/quarantine", {"partitions": 1})
    for number in range(3):
        daemon.produce("quarantine", number, number)
    with opened(daemon.data) as ledger:
        topic = ledger.read(topics.find, "quarantine")
        assert topic is not None
        bad = ledger.read(reads.extents_from, topic.topic_id, 0, 1, 1)[0]
        ledger.write(runs.begin, "quarantine", "a test", wall_ms())
        hole = Hole(topic.topic_id, 0, bad.first_offset, bad.last_offset, bad.key, "torn")
        switch = TableSwitch(
            topic.topic_id, "quarantine", "1.json", {0: bad.last_offset}, holes=(hole,)
        )
        ledger.write(lake_tables.switch, "quarantine", [switch], wall_ms())
        ledger.write(runs.end, "quarantine", wall_ms())
    with pytest.raises(DataLoss, match=r"offsets 1 to 2 .* quarantine"):
        read(daemon, "quarantine")
    found = read(daemon, "quarantine", failOnDataLoss="false")
    assert [row.offset for row in found] == [3, 4, 5, 6]
    ahead = json.dumps({"quarantine": {"0": 3}})
    assert len(read(daemon, "quarantine", startingOffsets=ahead)) == 4


def test_a_start_below_the_earliest_offset_is_a_loss_unless_it_is_called_earliest(
    daemon: Daemon,
) -> None:
    daemon.json("PUT", "/v0/topics/trim", {"partitions": 1})
    daemon.produce("trim", *range(10))
    assert daemon.json("POST", "/v0/topics/trim/trim", {"partition": 0, "before_seq": 5}).status
    asked = json.dumps({"trim": {"0": 2}})
    with pytest.raises(DataLoss, match="offsets 2 to 4 of topic 'trim', partition 0"):
        read(daemon, "trim", startingOffsets=asked)
    assert [row.offset for row in read(daemon, "trim")] == list(range(5, 11))
    found = read(daemon, "trim", startingOffsets=asked, failOnDataLoss="false")
    assert [row.offset for row in found] == list(range(5, 11))


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_an_offset_past_the_end_is_a_loss(daemon: Daemon, option: str) -> None:
    daemon.json("PUT", "/v0/topics/ahead", {"partitions": 1})
    if not diff_rows(daemon, "ahead"):
        daemon.produce("ahead", 1, 2)
    asked = {option: json.dumps({"ahead": {"0": 500}})}
    with pytest.raises(DataLoss, match=r"offsets 3 to 499 .*'" + option + r"' is 500.*is 3"):
        read(daemon, "ahead", **asked)
    found = read(daemon, "ahead", **asked, failOnDataLoss="false")
    assert len(found) == (0 if option == "startingOffsets" else 2)


def test_a_topic_that_is_not_there_is_named(daemon: Daemon) -> None:
    for where in ({}, {"data": str(daemon.data)}):
        with pytest.raises(TopicUnknown, match="'nowhere'"):
            read(daemon, "nowhere", **where)


def test_a_partition_that_is_not_there_is_named(daemon: Daemon) -> None:
    daemon.json("PUT", "/v0/topics/narrow", {"partitions": 2})
    asked = json.dumps({"narrow": {"2": 5}})
    with pytest.raises(SourceError, match=r"partition 2 of topic 'narrow'.* 0 to 1"):
        read(daemon, "narrow", startingOffsets=asked)


def test_a_start_past_the_given_end_is_refused(daemon: Daemon) -> None:
    daemon.json("PUT", "/v0/topics/crossed", {"partitions": 1})
    daemon.produce("crossed", 1, 2, 3)
    bounds = {
        "startingOffsets": json.dumps({"crossed": {"0": 3}}),
        "endingOffsets": json.dumps({"crossed": {"0": 2}}),
    }
    with pytest.raises(SourceError, match="'startingOffsets' is 3 and 'endingOffsets' 2"):
        read(daemon, "crossed", **bounds)


def test_a_folder_that_is_not_a_data_directory_is_named(daemon: Daemon, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=str(tmp_path)):
        read(daemon, "any", data=str(tmp_path))
    assert list(tmp_path.iterdir()) == [], "and nothing is made in it"


def test_a_daemon_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compaction.access.http_calls.time.sleep", lambda _: None)
    reader = HeadgateReader(parse({"url": "http://127.0.0.1:1", "subscribe": "t"}, "batch"))
    with pytest.raises(SourceError, match=r"http://127\.0\.0\.1:1 does not answer"):
        reader.partitions()


def test_an_empty_topic_has_no_rows(daemon: Daemon) -> None:
    daemon.json("PUT", "/v0/topics/empty", {"partitions": 2})
    assert read(daemon, "empty") == []


def test_a_plan_of_a_batch_is_held(daemon: Daemon) -> None:
    produced(daemon, "leased", 2)
    _, tasks = partitions(daemon, "leased")
    (plan,) = {task.task.plan for task in tasks if isinstance(task, TaskPartition)}
    with opened(daemon.data) as ledger:
        assert plan in {lease.lease for lease in ledger.read(readleases.live, wall_ms())}


@pytest.mark.slow
def test_a_bucket_is_read_with_the_daemons_settings(
    tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    with running(tmp_path / "data", **on_s3(bucket)) as daemon:
        produced(daemon, "s3", 12)
        expected = diff_rows(daemon, "s3")
        place = Place(bucket.url, bucket.endpoint_url, bucket.region)
        compact(daemon.data, "run", ["s3"], objects_max=5, place=place)
        assert read(daemon, "s3") == expected
        assert read(
            daemon, "s3", data=str(daemon.data), store=bucket.url,
            s3_endpoint_url=bucket.endpoint_url, s3_region=bucket.region,
        ) == expected  # fmt: skip
        reader, tasks = partitions(daemon, "s3")
        compact(daemon.data, "again", ["s3"], place=place)
        with opened(daemon.data) as ledger:
            gone = [row.locator for row in ledger.read(reads.objects, 0, 1_000)]
        place.store().delete(gone)
        assert rows_of(reader, tasks) == expected
    end_batches()
