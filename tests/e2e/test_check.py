"""``headgate check`` names what is missing, torn, orphan or foreign, and writes nothing."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.daemon import running
from tests.e2e.orphans import Place, write_some
from tests.e2e.stores import on_s3
from tests.minio import Bucket
from uploader.stores import open_store

FIELDS = {
    "store", "data_dir", "deep", "daemon_pid", "objects", "object_bytes", "orphans", "in_flight",
    "named_for_deletion", "copies", "foreign", "gaps_declared", "entries", "last_entry",
    "problems", "problems_more", "seconds",
}  # fmt: skip


def problems(report: Any) -> set[tuple[str, str]]:
    """(kind, key) of all problems; each must have a message and a remedy."""
    assert all(each["problem"] and each["hint"] for each in report["problems"])
    return {(each["kind"], each["key"]) for each in report["problems"]}


def test_a_sound_store_is_sound_and_an_object_that_is_gone_or_damaged_is_named(
    data: Path,
) -> None:
    place = Place(data, {})
    with running(data, shards=2) as daemon:
        write_some(daemon)
        report = place.json("check", "--deep")
        assert set(report) == FIELDS
        assert report["objects"] == len(place.rows()) and report["problems"] == []
        assert report["daemon_pid"] == daemon.process.pid
        assert report["last_entry"]["pid"] == daemon.process.pid
        assert "sound" in place.run("check", "-o", "table").stdout
    after = place.json("check")
    assert after["daemon_pid"] is None and after["last_entry"]["kind"] == "release"
    assert after["last_entry"]["commits"] == after["objects"] == report["objects"]

    gone, torn = place.rows()[1], place.rows()[2]
    with closing(open_store(place.store_url)) as store:
        store.delete([gone.locator])
        body = store.get(torn.locator)
    segment = data / "store" / "segments" / torn.locator.split(":")[0]
    data_before = segment.read_bytes()
    at = data_before.index(body) + len(body) // 2
    segment.write_bytes(data_before[:at] + bytes([data_before[at] ^ 1]) + data_before[at + 1 :])
    assert problems(place.json("check", code=1)) == {("missing", gone.key)}
    report = place.json("check", "--deep", code=1)
    assert problems(report) == {("missing", gone.key), ("damaged", torn.key)}
    text = place.run("check", "--deep", "-o", "table").stdout
    assert "MISSING" in text and "DAMAGED" in text and gone.key in text


@pytest.mark.slow
def test_others_in_the_store_are_told_apart(data: Path) -> None:
    place = Place(data, {})
    with running(data) as daemon:
        write_some(daemon)
        below, in_flight, foreign = place.put(1, 0, 91), place.put(1, 1, 92), place.put(7, 0, 93)
        keys = place.present()
        report = place.json("check", code=1)
        assert problems(report) == {("orphan", below), ("foreign", foreign)}
        assert (report["orphans"], report["in_flight"], report["foreign"]) == (1, 1, 1)
        assert place.present() == keys and place.named() == []
    # Without a daemon it will never be committed.
    report = place.json("check", code=1)
    assert problems(report) == {("orphan", below), ("orphan", in_flight), ("foreign", foreign)}


@pytest.mark.s3
@pytest.mark.slow
def test_a_truncated_object_and_strange_keys_in_a_bucket_are_named(
    data: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    options = on_s3(bucket, commit_window_min_ms=10)
    place = Place(data, options)
    with running(data, **options) as daemon:
        write_some(daemon)
    assert place.json("check", "--deep")["problems"] == []
    torn = place.rows()[0]
    at = f"{bucket.prefix}/{torn.key}"
    body = bucket.client.get_object(Bucket=bucket.bucket, Key=at)["Body"].read()
    bucket.client.put_object(Bucket=bucket.bucket, Key=at, Body=body[:-3])
    for key in ("readme", "l0/readme", "ledger/readme", "lake/table/file"):
        bucket.client.put_object(
            Bucket=bucket.bucket, Key=f"{bucket.prefix}/{key}", Body=b"of another"
        )
    report = place.json("check", code=1)
    strange = {("foreign", "readme"), ("foreign", "l0/readme"), ("foreign", "ledger/readme")}
    assert problems(report) == {("size", torn.key), ("log", "")} | strange
    assert ("damaged", torn.key) in problems(place.json("check", "--deep", code=1))


@pytest.mark.slow
def test_a_ledger_that_is_older_than_the_log_is_named(data: Path, tmp_path: Path) -> None:
    place = Place(data, {})
    with running(data) as daemon:
        write_some(daemon)
    shutil.copytree(data / "ledger", tmp_path / "copy")
    with running(data) as daemon:
        write_some(daemon)
    shutil.rmtree(data / "ledger")
    shutil.copytree(tmp_path / "copy", data / "ledger")
    report = place.json("check", code=1)
    assert ("log", "") in problems(report)
    assert "headgate recover" in next(p["problem"] for p in report["problems"])


@pytest.mark.slow
def test_an_entry_that_is_missing_or_unreadable_is_named(data: Path) -> None:
    place = Place(data, {})
    for _ in range(2):
        with running(data) as daemon:
            write_some(daemon)
    entries = sorted((data / "store" / "entries").iterdir())
    assert len(entries) == place.json("check")["entries"]
    entries[1].unlink()
    report = place.json("check", code=1)
    assert problems(report) == {("log", "")} and "incomplete" in report["problems"][0]["problem"]
    entries[-1].write_bytes(b"no entry")
    report = place.json("check", code=1)
    assert "is not an entry of the owner's log" in report["problems"][0]["problem"]
