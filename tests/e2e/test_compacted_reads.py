"""A daemon reads compacted offsets byte for byte as before, within bounds."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from compaction.inputs.place import Place
from ledger import topics
from ledger.lake import lake_files as ledger_lake_files
from shards.clock import wall_ms
from tests.compaction.by_hand import compact, delete_compacted, opened, place_of
from tests.e2e.daemon import Daemon, running
from tests.e2e.lake import produce_some
from tests.e2e.stores import on_s3
from tests.minio import Bucket

# A ring that has come round several times: nothing old is left in it.
SMALL = {"object_bytes_target": "64KiB", "ring_bytes": "256KiB", "body_bytes_max": "64KiB",
         "record_bytes_max": "64KiB"}  # fmt: skip
PARTITIONS = 2
HOUR_MS = 3_600_000


def fill(daemon: Daemon, topic: str, requests: int = 30) -> None:
    """Records of all kinds, then enough others that the rings have forgotten them."""
    daemon.json("PUT", f"/v0/topics/{topic}", {"partitions": PARTITIONS})
    rng = random.Random(topic)
    produce_some(daemon, rng, topic, 12 * requests, wall_ms())
    for _ in range(12):
        assert daemon.produce("filler", "x" * 50_000).status == 200


LATE = 1 << 40  # stands for an offset near the end of each partition


def answers(daemon: Daemon, topic: str, now_ms: int) -> list[bytes]:
    """The bodies of diffs of many kinds."""
    questions: list[dict[str, Any]] = [
        *(
            {"from_seq": seq, "limit": limit}
            for seq in (0, 7, 100, LATE)
            for limit in (1, 50, 1000)
        ),
        *({"from_seq": 3, "max_bytes": most} for most in (1, 100, 5_000)),
        *({"tag": tag, "limit": 20} for tag in ("a", "", "no record has it")),
        {"node": "bb", "tag": "a"},
        *({"from_ts": now_ms - back * HOUR_MS, "limit": 9} for back in (1000, 60, 30, 1, -1)),
    ]
    found = []
    states = daemon.get(f"/v0/topics/{topic}").json["partitions"]
    for partition in range(PARTITIONS):
        near_the_end = states[partition]["head_seq"] - 3
        for asked in questions:
            if asked.get("from_seq") == LATE:
                asked = asked | {"from_seq": near_the_end}
            body = json.dumps({"partition": partition, **asked}).encode()
            answer = daemon.ask(
                "POST", f"/v0/topics/{topic}/diff", body, content_type="application/json"
            )
            assert answer.status == 200, answer.body
            found.append(answer.body)
    return found


@pytest.mark.slow
def test_answers_are_the_same_bytes_when_l0_is_gone(data: Path) -> None:
    now_ms = wall_ms()
    with running(data, shards=2, settings=SMALL) as daemon:
        fill(daemon, "t")
        before = answers(daemon, "t", now_ms)
        compact(data, "r1", ["t"], objects_max=10)
        assert answers(daemon, "t", now_ms) == before, "some of it compacted, some still cached"
    with running(data, shards=2, settings=SMALL) as daemon:
        assert answers(daemon, "t", now_ms) == before, "some of it compacted, nothing cached"
        compact(data, "r2", ["t", "filler"])
        assert delete_compacted(data) > 10
        produce_some(daemon, random.Random(2), "other", 10, now_ms)
    with running(data, shards=2, settings=SMALL) as daemon:
        assert answers(daemon, "t", now_ms) == before, "all of it compacted, and nothing else left"
        # The rest of the topic comes from L0 and the rings, in the same answer.
        daemon.produce("t", "new", partition=0)
        page = daemon.read_all("t", 0)
        assert [record["seq"] for record in page] == list(range(1, len(page) + 1))
        assert page[-1]["data"] == "new"


@pytest.mark.s3
@pytest.mark.slow
def test_answers_are_the_same_bytes_from_a_bucket(
    data: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = wall_ms()
    options = on_s3(bucket, **SMALL)
    place = Place(bucket.url, bucket.endpoint_url, bucket.region)
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    with running(data, **options) as daemon:
        fill(daemon, "t")
        before = answers(daemon, "t", now_ms)
        compact(data, "r1", ["t", "filler"], place=place)
        assert delete_compacted(data, place) > 10
    files = len(lake_files(data, "t", place))  # of three or four days, or five over a midnight
    with running(data, **options) as daemon:
        gets = daemon.status()["store"]["gets"]
        assert answers(daemon, "t", now_ms) == before
        # Of each file a footer and a row group, for each partition.
        most = 2 * PARTITIONS * files
        assert daemon.status()["store"]["gets"] - gets <= most, "row groups are kept"


def lake_files(data: Path, topic: str, place: Place | None = None) -> list[Path]:
    with opened(data) as ledger:
        found = ledger.read(topics.find, topic)
        assert found is not None
        place = place or place_of(data)
        return [
            Path(place.path_of(file.path))
            for file in ledger.read(ledger_lake_files.of_topic, found.topic_id)
        ]


@pytest.mark.slow
def test_a_damaged_or_missing_file_is_named(data: Path) -> None:
    with running(data, settings=SMALL) as daemon:
        for topic in ("torn", "gone"):
            daemon.produce(topic, "1", "2")
        for _ in range(12):
            daemon.produce("filler", "x" * 50_000)
        compact(data, "r1", ["torn", "gone", "filler"])
    (torn,) = lake_files(data, "torn")
    torn.write_bytes(torn.read_bytes()[:-1] + b"?")
    (gone,) = lake_files(data, "gone")
    gone.unlink()
    with running(data, settings=SMALL) as daemon:
        kinds = (("torn", "object_damaged", torn), ("gone", "store_unavailable", gone))
        for topic, code, file in kinds:
            answer = daemon.json("POST", f"/v0/topics/{topic}/diff", {})
            assert (answer.status, answer.code) == (503, code)
            assert file.name in answer.json["error"]["message"]
        assert daemon.diff("filler")["records"], "the others are read"


@pytest.mark.slow
def test_pyarrow_is_loaded_by_the_first_read_of_l1_only(data: Path) -> None:
    def loads(daemon: Daemon) -> bool:
        pid = daemon.status()["shards"][0]["pid"]
        return (
            re.search(r"/libparquet|/_parquet", Path(f"/proc/{pid}/maps").read_text()) is not None
        )

    with running(data, settings=SMALL) as daemon:
        daemon.produce("t", "1")
        for _ in range(12):
            daemon.produce("filler", "x" * 50_000)
        assert daemon.diff("t")["records"]
        assert not loads(daemon)
        compact(data, "r1", ["t"])
    with running(data, settings=SMALL) as daemon:
        assert not loads(daemon)
        assert daemon.diff("t")["records"]
        assert loads(daemon)
