"""``headgate compact``: every record once, the same for every reader, whatever is in the way."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from compaction.access.http_calls import socket_address
from compaction.access.via_daemon import ViaDaemon
from compaction.run.run_lease import RunLease
from ledger import topics
from ledger.lake import lake_tables
from shards.clock import wall_ms
from tests.e2e.daemon import ROOT, Daemon, running
from tests.e2e.killed_compact import POINTS
from tests.e2e.lake import diff_rows, produce_some, table_rows
from tests.e2e.orphans import Place
from tests.e2e.stores import on_s3
from tests.minio import Bucket

TOPICS = ("clicks", "eu.orders")
SMALL = {"object_bytes_target": "64KiB", "ring_bytes": "256KiB", "body_bytes_max": "64KiB",
         "record_bytes_max": "64KiB"}  # fmt: skip
JOB_S = 300.0  # ends a hang only


def fill(daemon: Daemon, rng: random.Random, count: int = 150) -> None:
    """Some records in both topics, of which one has three partitions."""
    assert daemon.json("PUT", "/v0/topics/clicks", {"partitions": 3}).status in (200, 201)
    for topic in TOPICS:
        produce_some(daemon, rng, topic, count, wall_ms())


def all_rows(daemon: Daemon) -> dict[str, Any]:
    return {topic: diff_rows(daemon, topic) for topic in TOPICS}


def locations(place: Place) -> dict[str, str]:
    """Where the tables' metadata is, by topic."""
    with closing(place.ledger()) as ledger:
        names = {topic.topic_id: topic.name for topic in ledger.read(topics.page)}
        return {names[t.topic_id]: t.metadata_location for t in ledger.read(lake_tables.every)}


def compact(place: Place, *more: str, code: int = 0) -> Any:
    """The command's report."""
    done = subprocess.run(
        place.command("compact", *more), cwd=ROOT, env=place.environ, capture_output=True,
        text=True, timeout=JOB_S, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr + done.stdout
    return json.loads(done.stdout)


@pytest.mark.spark
@pytest.mark.slow
def test_diff_and_table_hold_the_same_rows_also_when_l0_is_gone(data: Path) -> None:
    rng = random.Random(1)
    place = Place(data, {"settings": SMALL})
    with running(data, shards=2, settings={**SMALL, "gc_grace_ms": 0}) as daemon:
        fill(daemon, rng)
        before = all_rows(daemon)
        report = compact(place)
        assert all_rows(daemon) == before
        tables = {each["topic"]: each for each in report["tables"]}
        for topic in TOPICS:
            assert table_rows(tables[topic]["metadata_location"]) == before[topic]
            assert tables[topic]["watermarks"] == {
                str(state["partition"]): state["head_seq"]
                for state in daemon.get(f"/v0/topics/{topic}").json["partitions"]
                if state["head_seq"]
            }
        assert report["rows"] == sum(map(len, before.values()))
        assert report["quarantined"] == report["failed"] == []
        sizes = [each.size_bytes for each in place.rows()]
        assert (report["objects"], report["requests"]["gets"]) == (len(sizes), len(sizes))
        assert report["bytes_read"] == sum(sizes), "each byte of an object is read once"

        fill(daemon, rng)
        before = all_rows(daemon)
        compact(place)
        produce_some(daemon, rng, "clicks", 10, wall_ms())
        kept = len(place.present())
        assert place.json("gc")["collected"] > 0
        assert len(place.present()) < kept
        after = all_rows(daemon)
        assert after["eu.orders"] == before["eu.orders"]
        assert [row for row in after["clicks"] if row in before["clicks"]] == before["clicks"]
        assert len(after["clicks"]) == len(before["clicks"]) + 10
        for topic, location in locations(place).items():
            assert table_rows(location) == before[topic]
        assert place.json("check")["problems"] == []
    assert compact(place)["rows"] == 10, "without a daemon it writes the log's entries itself"
    with running(data, shards=1, settings=SMALL) as daemon:
        assert all_rows(daemon) == after
    assert table_rows(locations(place)["clicks"]) == after["clicks"]


@pytest.mark.slow
def test_with_nothing_to_do_neither_java_nor_spark_is_started(data: Path) -> None:
    place = Place(data, {})
    with running(data) as daemon:
        assert daemon.json("PUT", "/v0/topics/orders").status == 201
        place.environ |= {"JAVA_HOME": "/nonexistent", "PATH": "/nonexistent"}
        report = compact(place)
    assert (report["objects"], report["tables"], report["java"]) == (0, [], "")
    done = subprocess.run(
        [word for word in place.command("compact") if word not in ("-o", "json")],
        cwd=ROOT, env=place.environ, capture_output=True, text=True, timeout=JOB_S, check=True,
    )  # fmt: skip
    assert done.stdout.startswith("nothing to compact: everything acknowledged is in the tables")


@pytest.mark.slow
def test_a_second_compaction_is_refused_by_the_name_of_the_first(data: Path) -> None:
    place = Place(data, {})
    with running(data) as daemon:
        assert daemon.produce("orders", 1).status == 200
        lease = RunLease(ViaDaemon(socket_address(str(data))), "first")
        lease.begin()
        done = place.run("compact")
        lease.stop()
    assert done.returncode == 1
    assert "another compaction is at work: run first of" in done.stderr, done.stderr
    assert f"pid {os.getpid()} " in done.stderr


BAD_INPUT = [
    (["--topic", "nobody"], 1, "there is no topic 'nobody'"),
    (["--set", "catalog_uri=sqlite:////nonexistent/c.db"], 1, "/nonexistent/c.db"),
    (["--set", "catalog_uri=http://127.0.0.1:1"], 1, "http://127.0.0.1:1"),
    (["--set", "catalog_name=nobody"], 1, "'nobody'"),
    (["--set", "compact_run_bytes=1"], 2, "compact_run_bytes"),
]


@pytest.mark.slow
def test_bad_input_is_one_sentence_and_nothing_is_written(data: Path) -> None:
    place = Place(data, {})
    with running(data) as daemon:
        assert daemon.produce("orders", 1).status == 200
        for arguments, code, sentence in BAD_INPUT:
            done = place.run("compact", *arguments)
            assert done.returncode == code, done.stderr
            assert sentence in done.stderr and "Traceback" not in done.stderr, done.stderr
            assert not (data / "store" / "lake").exists()
        assert daemon.read_all("orders")[0]["data"] == 1


@pytest.mark.spark
@pytest.mark.s3
@pytest.mark.slow
def test_a_torn_object_is_named_and_kept_and_the_rest_is_compacted(
    data: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)  # the test itself opens the store too
    options = on_s3(bucket, commit_window_min_ms=10)
    place = Place(data, options)
    with running(data, **options) as daemon:
        for number in range(4):
            assert daemon.produce("orders", number).status == 200
        torn = place.rows()[1]
        name = f"{bucket.prefix}/{torn.key}"
        body = bucket.client.get_object(Bucket=bucket.bucket, Key=name)["Body"].read()
        bucket.client.put_object(Bucket=bucket.bucket, Key=name, Body=body[:-9])

        report = compact(place, code=1)
        (hole,) = report["quarantined"]
        assert (hole["topic"], hole["first_offset"], hole["last_offset"]) == ("orders", 2, 2)
        assert hole["key"] == torn.key and hole["problem"].startswith("torn: ")
        assert report["rows"] == 3
        assert place.json("gc")["quarantined"] == 1
        assert torn.key in place.present()
    with running(data, **options) as daemon:  # whose rings hold nothing of it any more
        first = daemon.diff("orders")
        assert [record["seq"] for record in first["records"]] == [1]
        then = daemon.diff("orders", from_seq=first["next_from_seq"])
        assert then["tombstone"] == {"gap_from": 2, "gap_to": 2, "reason": "quarantined"}
        assert [record["data"] for record in then["records"]] == [2, 3]
        assert compact(place)["objects"] == 0

        (held,) = place.json("quarantine ls")
        assert (held["topic"], held["key"], held["readable"]) == ("orders", torn.key, True)
        bucket.client.put_object(Bucket=bucket.bucket, Key=name, Body=body[:30])
        assert place.run("quarantine retry").returncode == 1, "its records are torn"
        bucket.client.put_object(Bucket=bucket.bucket, Key=name, Body=body[:-9])
        (outcome,) = place.json("quarantine retry")  # only the footer is torn
        assert (outcome["outcome"], outcome["first_offset"]) == ("restored", 2)
        back = daemon.diff("orders")  # by the shard that told of the hole
        assert [record["data"] for record in back["records"]] == [0, 1, 2, 3]
        assert back["tombstone"] is None and place.json("quarantine ls") == []
        bucket.client.put_object(Bucket=bucket.bucket, Key=name, Body=body)
        assert place.json("check")["problems"] == []
        assert compact(place)["objects"] == 0


@pytest.mark.spark
@pytest.mark.slow
def test_when_every_object_is_gone_nothing_is_quarantined(data: Path) -> None:
    place = Place(data, {})
    with running(data) as daemon:
        for number in range(3):
            assert daemon.produce("orders", number).status == 200
        segments = data / "store" / "segments"
        segments.rename(data / "elsewhere")  # as of a mount that is not there
        done = place.run("compact")
        assert done.returncode == 1
        assert "none of the 3 objects to compact is in file://" in done.stderr, done.stderr
        (data / "elsewhere").rename(segments)
        assert compact(place)["rows"] == 3


@pytest.mark.spark
@pytest.mark.slow
def test_one_topics_failure_never_stops_the_others_and_everything_says_which(data: Path) -> None:
    place = Place(data, {})
    longest = "n" * 255
    with running(data) as daemon:
        for topic in ("unmade", "unwritten", longest, "orders"):
            assert daemon.produce(topic, {"n": 1}).status == 200
        ids = {topic: daemon.get(f"/v0/topics/{topic}").json["topic_id"] for topic in
               ("unmade", "unwritten")}  # fmt: skip
        # One table cannot be made, the other's files cannot be written: a file is where their
        # folders would be.
        folder = data / "store" / "lake"
        (folder / f"unwritten-{ids['unwritten']}").mkdir(parents=True)
        (folder / f"unmade-{ids['unmade']}").write_text("in the way")
        (folder / f"unwritten-{ids['unwritten']}" / "data").write_text("in the way")
        report = compact(place, code=1)
        assert sorted(table["topic"] for table in report["tables"]) == [longest, "orders"]
        assert {failed["topic"] for failed in report["failed"]} == set(ids)
        assert all(f"{f['topic']}-{ids[f['topic']]}" in f["problem"] for f in report["failed"])
        done = subprocess.run(
            [each for each in place.command("compact") if each not in ("-o", "json")], cwd=ROOT,
            env=place.environ, capture_output=True, text=True, timeout=JOB_S, check=False,
        )  # fmt: skip
        assert done.returncode == 1
        for topic in ids:
            assert f"NOT COMPACTED {topic}: " in done.stdout + done.stderr
        (folder / f"unmade-{ids['unmade']}").unlink()
        (folder / f"unwritten-{ids['unwritten']}" / "data").unlink()
        assert sorted(table["topic"] for table in compact(place)["tables"]) == sorted(ids)
        assert compact(place)["objects"] == 0


@pytest.mark.spark
@pytest.mark.slow
def test_killed_at_any_point_and_run_again_each_record_is_in_its_table_once(data: Path) -> None:
    rng = random.Random(2)
    place = Place(data, {"settings": SMALL})
    with running(data, shards=2, settings=SMALL) as daemon:
        for point in POINTS:
            fill(daemon, rng, 40)
            command = place.command("compact")
            at = command.index("compact")
            killed = subprocess.run(
                [sys.executable, "-m", "tests.e2e.killed_compact", point, *command[at + 1 :]],
                cwd=ROOT, env=place.environ, capture_output=True, text=True, timeout=JOB_S,
                check=False,
            )  # fmt: skip
            assert killed.returncode == -signal.SIGKILL, (point, killed.stderr)
            rows = all_rows(daemon)
            for topic, location in locations(place).items():
                found = table_rows(location)
                assert [row for row in rows[topic] if row in found] == found, point
        report = compact(place)
        rows = all_rows(daemon)
        for topic, location in locations(place).items():
            assert table_rows(location) == rows[topic]
        assert report["failed"] == report["quarantined"] == []
        assert place.json("check")["problems"] == []
        assert compact(place)["objects"] == 0


def kill_python_workers(run: subprocess.Popen[bytes], rng: random.Random) -> int:
    """Kills some of Spark's Python workers as they start. Returns how many."""
    kills = 0
    while run.poll() is None and kills < 4:
        try:
            children = psutil.Process(run.pid).children(recursive=True)
            workers = [c for c in children if "pyspark.daemon" in c.cmdline()]
        except psutil.NoSuchProcess:
            continue  # one ended while it was looked at
        for worker in workers:
            if rng.random() < 0.3:
                with contextlib.suppress(psutil.NoSuchProcess):
                    worker.kill()
                    kills += 1
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.wait(0.05)
    return kills


@pytest.mark.spark
@pytest.mark.slow
def test_executors_killed_at_work_each_record_is_in_its_table_once(data: Path) -> None:
    rng = random.Random(4)
    place = Place(data, {"settings": SMALL})
    kills = 0
    with running(data, shards=2, settings=SMALL) as daemon:
        while kills < 4:
            fill(daemon, rng, 100)
            run = subprocess.Popen(
                place.command("compact", "--master", "local[2,4]"), cwd=ROOT, env=place.environ,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            kills += kill_python_workers(run, rng)
            run.wait(JOB_S)
        compact(place)
        rows = all_rows(daemon)
        for topic, location in locations(place).items():
            assert table_rows(location) == rows[topic]
        assert place.json("check")["problems"] == []
