"""One record from a producer to the store and back, on both stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.daemon import Daemon, running
from tests.minio import Bucket


def test_what_is_produced_is_read_back(shared_daemon: Daemon) -> None:
    answer = shared_daemon.produce("path", {"a": 1}, "two", [3])

    assert answer.status == 200
    assert answer.json == {
        "topic": "path", "partition": 0, "first_seq": 1, "last_seq": 3, "count": 3,
        "head_seq": 3, "deduped": False,
    }  # fmt: skip
    records = shared_daemon.read_all("path")
    assert [(r["seq"], r["data"]) for r in records] == [(1, {"a": 1}), (2, "two"), (3, [3])]


@pytest.mark.slow
def test_what_was_acknowledged_is_there_after_everything_is_killed(data: Path) -> None:
    with running(data, shards=2) as daemon:
        for number in range(20):
            assert daemon.produce("kept", number).status == 200
        daemon.kill_everything()
    with running(data, shards=1) as daemon:
        assert [r["data"] for r in daemon.read_all("kept")] == list(range(20))
        assert daemon.produce("kept", 20).json["first_seq"] == 21


@pytest.mark.slow
def test_the_same_on_s3(data: Path, bucket: Bucket) -> None:
    environ = {"AWS_ACCESS_KEY_ID": bucket.access_key, "AWS_SECRET_ACCESS_KEY": bucket.secret_key}
    settings = {"s3_endpoint_url": bucket.endpoint_url, "commit_window_min_ms": 5}
    options = {"store": bucket.url, "environ": environ, "settings": settings}
    with running(data, shards=2, **options) as daemon:
        assert daemon.produce("path", {"a": 1}).json["first_seq"] == 1
        listed = bucket.client.list_objects_v2(Bucket=bucket.bucket)["Contents"]
        assert sum("/l0/" in f"/{item['Key']}" for item in listed) == 1
    with running(data, shards=2, **options) as daemon:
        assert [r["data"] for r in daemon.read_all("path")] == [{"a": 1}]
        assert daemon.status()["store"]["gets"] == 1
