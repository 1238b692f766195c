"""``recover`` restores what was acknowledged after a daemon and its directory are gone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from daemon.config import Config, Override
from daemon.config import load as load_config
from daemon.upkeep import directory
from daemon.upkeep.recover import RecoveryReport, recover
from ledger.log.entry import Entry, Owner
from shards import locks
from shards.locks import SharedLock
from tests.e2e.daemon import HANG_S, ROOT, Daemon, running, wait_until
from tests.e2e.load import Load, load
from tests.e2e.processes import unlisted
from tests.e2e.stores import on_s3
from tests.minio import Bucket
from uploader.ownership.ownerlog import OwnerLog

NOBODY = Owner("test", 0, "", 0, 0, "")  # who only reads the log
PLACES = [("orders", 0), ("clicks", 0), ("clicks", 1)]


@pytest.fixture(params=["embedded", pytest.param("s3", marks=[pytest.mark.s3, pytest.mark.slow])])
def options(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """A store outside of the data directory, for daemons and for this process."""
    if request.param == "embedded":
        return {"store": f"file://{tmp_path}/store"}
    bucket: Bucket = request.getfixturevalue("bucket")
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    return on_s3(bucket, commit_window_min_ms=10)


def arguments_of(data: Path, options: dict[str, Any]) -> list[str]:
    """The options of a command on that store."""
    arguments = ["--data", str(data), "--store", options["store"]]
    for key, value in options.get("settings", {}).items():
        arguments += ["--set", f"{key}={value}"]
    return arguments


def config_of(data: Path, options: dict[str, Any]) -> Config:
    """The configuration with those options."""
    settings = {"store_url": options["store"], "data_dir": str(data), **options.get("settings", {})}
    return load_config(None, {}, [Override(key, str(value)) for key, value in settings.items()])


def recovered(data: Path, options: dict[str, Any], *, take_over: bool = False) -> RecoveryReport:
    """``headgate recover`` in this process, where the wait for a former owner takes no time.

    Only for former owners that are dead.
    """
    config = config_of(data, options)
    with (
        closing(directory.take_directory(config)) as lock_file,
        closing(directory.open_config_store(config)) as store,
    ):
        return recover(
            config, SharedLock(lock_file, locks.LEDGER), store, take_over=take_over,
            allow_empty=False, sleep_s=lambda _: None,
        )  # fmt: skip


def log_entries(options: dict[str, Any]) -> list[Entry]:
    """The current owner's log."""
    with closing(directory.open_config_store(config_of(Path("unused"), options))) as store:
        return list(OwnerLog(store, NOBODY, lambda _: None).chain())


def read_behind(daemon: Daemon, topic: str, partition: int) -> tuple[list[Any], list[Any]]:
    """All records of a partition, and the tombstones between them."""
    records: list[Any] = []
    tombstones: list[Any] = []
    from_seq = 0
    while True:
        page = daemon.diff(topic, from_seq=from_seq, partition=partition, limit=1000)
        records += page["records"]
        assert page["earliest_seq"] == 1
        if page["tombstone"] is not None:
            tombstones.append(page["tombstone"])
        if page["caught_up"]:
            return records, tombstones
        assert page["next_from_seq"] > from_seq
        from_seq = page["next_from_seq"]


def check_recovered(daemon: Daemon, run: Load) -> None:
    """Every acknowledged record is there once, at the offset its producer was told or at one
    that no producer was told. Each connection's order is kept; gaps are declared."""
    told = {
        (sent.place, first_seq + index): record
        for sent, first_seq in run.acknowledged
        for index, record in enumerate(sent.records)
    }
    maybe = {record for sent in run.unknown for record in sent.records}
    times: dict[Any, int] = {}
    for place in PLACES:
        records, tombstones = read_behind(daemon, *place)
        last: dict[tuple[int, int], int] = {}
        seen = set()
        for record in records:
            data = tuple(record["data"])
            times[data] = times.get(data, 0) + 1
            seen.add(record["seq"])
            assert told.get((place, record["seq"]), data) == data, "an offset names two records"
            assert last.get(data[:2], 0) < data[2], f"{place}: {data} is out of order"
            last[data[:2]] = data[2]
        for gap in tombstones:
            assert gap["reason"] == "recovery"
            offsets = set(range(gap["gap_from"], gap["gap_to"] + 1))
            assert not offsets & seen
            seen |= offsets
        assert seen == set(range(1, len(seen) + 1)), "what is missing is declared"
    assert set(times.values()) == {1}
    assert set(told.values()) <= set(times), "an acknowledged record is lost"
    assert set(times) <= set(told.values()) | maybe


@pytest.mark.slow
def test_what_was_acknowledged_is_recovered_from_the_store_alone(
    data: Path, options: dict[str, Any]
) -> None:
    with running(data, shards=2, **options) as daemon:
        daemon.json("PUT", "/v0/topics/clicks", {"partitions": 2})
        with load(daemon, PLACES, connections=4, depth=4, pause_s=0.002) as run:

            def has_told() -> bool:
                # Some commits are listed and some topics too; then the rest must not be.
                return sum(len(e.changes.rows.get("objects", [])) for e in log_entries(options)
                           if e.changes is not None) > 0  # fmt: skip

            wait_until(has_told, "an entry that lists commits")
            with unlisted(daemon):
                goal = run.acknowledged_count + 60
                wait_until(lambda: run.acknowledged_count >= goal, "more after the entry")
                daemon.kill_everything()
    shutil.rmtree(data)
    report = recovered(data, options)
    assert report.sound and report.objects_listed and report.objects_taken and report.gaps
    assert report.objects == report.objects_listed + report.objects_taken + report.objects_orphan
    assert report.records_may_be_doubled == report.records_taken  # no keys were used
    with running(data, shards=1, **options) as daemon:
        check_recovered(daemon, run)
        # And it continues after all of it.
        heads = daemon.get("/v0/topics/orders").json["partitions"]
        answer = daemon.produce("orders", "after")
        assert answer.json["first_seq"] == heads[0]["head_seq"] + 1


def lasting(daemon: Daemon) -> list[dict[str, Any]]:
    """The topics, without what passing time and readers change."""
    passing = {"effective_priority", "band", "age_ms", "recency", "watchers", "lagged_watchers"}
    found = daemon.get("/v0/topics").json
    assert found["next_cursor"] is None and all(
        passing <= topic.keys() for topic in found["topics"]
    )
    return [{k: v for k, v in topic.items() if k not in passing} for topic in found["topics"]]


def test_after_a_clean_stop_nothing_is_unlisted_and_all_offsets_are_the_same(
    data: Path, options: dict[str, Any]
) -> None:
    with running(data, shards=2, **options) as daemon:
        daemon.json("PUT", "/v0/topics/clicks", {"partitions": 2})
        daemon.json("PUT", "/v0/topics/gone", {})
        with load(daemon, PLACES, connections=3, requests_max=20) as run:
            run.join()
        daemon.produce("orders", "keyed", idempotency_key="k")
        assert daemon.ask("DELETE", "/v0/topics/gone").status in (200, 204)
        before = {place: daemon.read_all(*place) for place in PLACES}
        topics = lasting(daemon)
    shutil.rmtree(data)
    report = recovered(data, options)
    assert report.sound and not report.gaps and not report.topics_restored
    assert (report.objects_taken, report.objects_orphan) == (0, 0)
    with running(data, shards=1, **options) as daemon:
        assert {place: daemon.read_all(*place) for place in PLACES} == before
        assert lasting(daemon) == topics
        again = daemon.produce("orders", "keyed", idempotency_key="k").json
        assert again["deduped"] and again["first_seq"] == before["orders", 0][-1]["seq"]
        assert daemon.produce("orders", "other", idempotency_key="k").status == 422


@pytest.mark.slow
def test_cursors_are_recovered_as_far_as_their_records(tmp_path: Path) -> None:
    """Made, moved, set and moved again, mostly after the last entry; then everything is gone."""
    audit = tmp_path / "audit.log"
    options: dict[str, Any] = {
        "store": f"file://{tmp_path}/store", "settings": {"audit_log": audit},
    }  # fmt: skip
    with running(tmp_path / "data", shards=2, **options) as daemon:

        def step(n: int, expected: int) -> int:
            advance = {"cursor": "c", "expected": expected, "next": expected + 10}
            return daemon.produce("orders", n, advance=advance).status

        assert daemon.json("PUT", "/v0/cursors/c").status == 201
        assert [step(n, 10 * n) for n in range(3)] == [200] * 3
        told = {"positions": [{"seq": 5}]}
        assert daemon.json("PUT", "/v0/cursors/c", told).status == 200
        assert [step(3, 30), step(4, 5), step(5, 15)] == [412, 200, 200]
        daemon.kill_everything()
    shutil.rmtree(tmp_path / "data")
    report = recovered(tmp_path / "data", options, take_over=True)
    assert report.records_may_be_doubled == 0
    line = json.loads(audit.read_bytes().splitlines()[-1])
    assert (line["event"], line["take_over"], line["user"]) == ("recovered", True, os.geteuid())
    with running(tmp_path / "data", **options) as daemon:
        cursor = daemon.get("/v0/cursors/c").json
        assert cursor["positions"] == [{"partition": 0, "seq": 25}]
        records, _ = read_behind(daemon, "orders", 0)
        assert [record["data"] for record in records] == [0, 1, 2, 4, 5]


@pytest.mark.slow
def test_an_old_copy_of_the_ledger_is_refused_and_recover_is_named(
    data: Path, options: dict[str, Any]
) -> None:
    with running(data, **options) as daemon:
        daemon.produce("t", 1)
    saved = data.parent / "saved"
    shutil.copytree(data / "ledger", saved)
    with running(data, **options) as daemon:
        daemon.produce("t", 2)
        assert daemon.produce("t", 3).json["first_seq"] == 3
    shutil.rmtree(data / "ledger")
    shutil.copytree(saved, data / "ledger")
    refused = subprocess.run(
        [sys.executable, "-m", "cli", "serve", "--listen", "127.0.0.1:0",
         *arguments_of(data, options)],
        cwd=ROOT, env={**os.environ, **options.get("environ", {})}, timeout=2 * HANG_S,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert refused.returncode == 1
    assert "old copy" in refused.stderr and "headgate recover" in refused.stderr
    assert "Traceback" not in refused.stderr
    done = subprocess.run(
        [sys.executable, "-m", "cli", "recover", *arguments_of(data, options), "-o", "json"],
        cwd=ROOT, env={**os.environ, **options.get("environ", {})}, timeout=2 * HANG_S,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["objects_taken"] == 0 and report["kept_ledger"]
    assert Path(report["kept_ledger"]).exists()
    with running(data, **options) as daemon:
        assert [(r["seq"], r["data"]) for r in daemon.read_all("t")] == [(1, 1), (2, 2), (3, 3)]


@pytest.mark.slow
def test_damaged_and_foreign_objects_are_named_and_the_rest_goes_on(
    data: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    options = on_s3(bucket, commit_window_min_ms=1)
    told: dict[int, int] = {}
    with running(data, **options) as daemon, unlisted(daemon):
        for number in range(5):
            told[daemon.produce("t", number).json["first_seq"]] = number
        daemon.kill_everything()
    heads = bucket.client.list_objects_v2(Bucket=bucket.bucket, Prefix=f"{bucket.prefix}/l0/")
    keys = [item["Key"] for item in heads["Contents"]]
    assert len(keys) == 5
    torn = bucket.client.get_object(Bucket=bucket.bucket, Key=keys[1])["Body"].read()[:-3]
    bucket.client.put_object(Bucket=bucket.bucket, Key=keys[1], Body=torn)
    bucket.client.put_object(Bucket=bucket.bucket, Key=f"{bucket.prefix}/l0/readme", Body=b"?")
    shutil.rmtree(data)
    report = recovered(data, options)
    assert not report.sound and report.objects_taken == 4
    assert [p.key for p in report.corrupt] == ["l0/readme", keys[1].removeprefix("prefix/")]
    with running(data, **options) as daemon:
        records, _ = read_behind(daemon, "t", 0)
        assert [record["data"] for record in records] == [0, 2, 3, 4]
        # The damaged one had an offset too, whichever it was.
        assert not {record["seq"] for record in records} & told.keys()


@pytest.mark.slow
def test_a_standby_recovers_while_it_starts(data: Path, tmp_path: Path) -> None:
    # The former owner stopped cleanly, so that nothing has to be waited for.
    store = f"file://{tmp_path}/store"
    with running(data, store=store) as daemon:
        daemon.produce("t", "kept")
    command = (sys.executable, "-m", "cli", "serve", "--take-over")
    with running(tmp_path / "standby", store=store, command=command) as daemon:
        assert [record["data"] for record in daemon.read_all("t")] == ["kept"]
    refused = subprocess.run(
        [sys.executable, "-m", "cli", "serve", "--listen", "127.0.0.1:0", "--data", str(data),
         "--store", store],
        cwd=ROOT, timeout=2 * HANG_S, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert refused.returncode == 1 and "from before a recovery" in refused.stderr
