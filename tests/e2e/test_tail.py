"""Reading costs nothing at the tail, and one range read for each older extent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.daemon import Daemon, running, wait_for_heartbeats
from tests.e2e.wire import Wire, request, wire_of_each_shard
from tests.minio import Bucket


def on_s3(bucket: Bucket) -> dict[str, Any]:
    """Options for a daemon on a bucket, with a window for tests."""
    return {
        "store": bucket.url,
        "environ": bucket.environment,
        "settings": {"s3_endpoint_url": bucket.endpoint_url, "commit_window_min_ms": 2},
    }


@pytest.fixture(params=["embedded", "s3"])
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A daemon's store: both kinds."""
    if request.param == "embedded":
        return {}
    return on_s3(request.getfixturevalue("bucket"))


def gets(daemon: Daemon) -> int:
    return int(daemon.status()["store"]["gets"])


def follow_everything(daemon: Daemon) -> None:
    """Readers on every shard keep up with writers on every shard, by asking and by waiting."""
    with (
        wire_of_each_shard(daemon, "tail") as readers,
        wire_of_each_shard(daemon, "tail") as writers,
    ):
        seen = daemon.diff("tail", tail=True)["head_seq"]
        for turn in range(20):
            for writer in writers:
                batch = {"records": [{"data": [turn, n]} for n in range(10)]}
                assert writer.json("POST", "/v0/topics/tail", batch).status == 200
            for reader in readers:
                asked = {"from_seq": seen, "limit": 1000, "wait_ms": 30_000}
                page = reader.json("POST", "/v0/topics/tail/diff", asked).json
                assert [r["seq"] for r in page["records"]] == [seen + n for n in range(1, 21)]
            seen += 20


def test_a_reader_that_keeps_up_costs_no_request_to_the_store(daemon: Daemon) -> None:
    wait_for_heartbeats(daemon)  # what others did before is counted
    before = gets(daemon)
    follow_everything(daemon)
    # A reader that comes late finds in the rings what they still hold.
    assert len(daemon.read_all("tail")) >= 400
    wait_for_heartbeats(daemon)
    assert gets(daemon) == before


@pytest.mark.slow
def test_a_reader_that_keeps_up_costs_no_request_to_s3(data: Path, bucket: Bucket) -> None:
    with running(data, shards=2, **on_s3(bucket)) as daemon:
        follow_everything(daemon)
        wait_for_heartbeats(daemon)
        assert gets(daemon) == 0


@contextmanager
def cold(data: Path, options: dict[str, Any]) -> Iterator[Daemon]:
    """A daemon of one shard whose rings are empty: ``cold`` has three objects of its own with 600
    records each, the two partitions of ``both`` share objects."""
    with running(data, **options) as daemon:
        daemon.json("PUT", "/v0/topics/both", {"partitions": 2})
        for _ in range(3):
            assert daemon.produce("cold", *range(600)).status == 200
        path = "/v0/topics/both"
        with Wire(daemon.port) as wire:
            # Many on one connection in one write: they share objects.
            body = b"[%s]" % b",".join([b"1"] * 600)
            wire.send(b"".join(request("POST", f"{path}?partition={p}", body) for p in (0, 1) * 10))
            assert {a.status for _ in range(20) if (a := wire.answer())} == {200}
    with running(data, **options) as daemon:
        assert gets(daemon) == 0
        yield daemon


@pytest.mark.slow
def test_cold_reads_cost_one_request_for_each_extent_once(
    data: Path, options: dict[str, Any]
) -> None:
    with cold(data, options) as daemon, ExitStack() as stack:
        wires = [stack.enter_context(Wire(daemon.port)) for _ in range(8)]
        asked = request("POST", "/v0/topics/cold/diff", json.dumps({"limit": 600}).encode())
        for wire in wires:
            wire.send(asked * 4)
        for wire in wires:
            for _ in range(4):
                answer = wire.answer()
                assert answer is not None
                assert [r["data"] for r in answer.json["records"]] == list(range(600))
        assert gets(daemon) == 1, "many readers wait for one request"
        size_bytes = daemon.status()["store"]["get_bytes"]
        assert 600 < size_bytes < 100_000, "which is for one extent, no more"

        page = daemon.diff("cold", from_seq=600, limit=10)
        for _ in range(3):
            page = daemon.diff("cold", from_seq=page["next_from_seq"], limit=10)
        assert gets(daemon) == 2, "the pages that follow are from the cache"
        for _ in range(2):
            assert len(daemon.read_all("cold")) == 1800
            assert gets(daemon) == 3, "and so is whatever is read again"


@pytest.mark.slow
def test_partitions_that_share_objects_are_read_apart(data: Path) -> None:
    with cold(data, {}) as daemon:
        for partition in (0, 1):
            assert len(daemon.read_all("both", partition)) == 6000
        extents = gets(daemon)
        assert extents <= 20, "requests that shared an object share its extents"
        for partition in (0, 1):
            daemon.read_all("both", partition)
        assert gets(daemon) == extents
