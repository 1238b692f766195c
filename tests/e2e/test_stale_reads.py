"""Reads of a standby, for those who allow that they are stale."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from compaction import job
from compaction.run.session import spark_session
from daemon.access.token_file import Scope, TokenFile
from tests.e2e.daemon import Answer, wait_until
from tests.e2e.standbys import Standby, started
from tests.minio import Bucket

pytestmark = [pytest.mark.slow, pytest.mark.s3]


def stale(standby: Standby, topic: str = "t", **asked: object) -> Answer:
    return standby.json("POST", f"/v0/topics/{topic}/diff", {"stale": True, **asked})


def wait_equal(owner: Standby, standby: Standby) -> None:
    """Waits until the standby has all commits."""
    wait_until(
        lambda: standby.status()["standby"]["commits"] == owner.status()["commits"],
        "the standby to have all commits",
    )


def read(document: Any) -> list[Any]:
    return [each["data"] for each in document["records"]]


def test_a_standby_answers_who_allows_it_to_be_stale_and_nobody_else(
    data: Path, tmp_path: Path, bucket: Bucket
) -> None:
    owner, standby = Standby(data, bucket), Standby(tmp_path / "second", bucket)
    with started(owner):
        owner.wait_owner()
        owner.json("PUT", "/v0/topics/t", {"partitions": 2})
        for number in range(3):
            owner.ask("POST", "/v0/topics/t?partition=1", b"%d" % number,
                      Content_Type="application/x-ndjson")  # fmt: skip
        with started(standby):
            standby.wait_standby()
            wait_equal(owner, standby)
            refused = standby.json("POST", "/v0/topics/t/diff", {"partition": 1})
            assert (refused.status, refused.code) == (503, "standby")
            assert '"stale": true' in refused.json["error"]["message"]

            page = stale(standby, partition=1, limit=2, wait_ms=20_000)
            assert page.status == 200, page.body
            assert read(page.json) == [0, 1] and page.json["stale_ms"] >= 0
            assert (page.json["head_seq"], page.json["caught_up"]) == (3, False)
            rest = stale(standby, partition=1, from_seq=2, topic_id=page.json["topic_id"]).json
            assert read(rest) == [2] and rest["caught_up"]
            fresh = owner.diff("t", partition=1, stale=True)
            assert read(fresh) == [0, 1, 2] and "stale_ms" not in fresh

            # What the standby has not heard of sends nobody back.
            aheads: list[dict[str, Any]] = [{"from_seq": 4}, {"from_seq": 3, "topic_id": 99}]
            for ahead in aheads:
                answer = stale(standby, partition=1, **ahead)
                assert (answer.status, answer.code) == (503, "standby_behind"), ahead
            assert stale(standby, "other").status == 404
            escaped = standby.json("POST", "/v0/topics/t/%64iff", {"stale": True})
            assert escaped.code == "standby", "a proxy would not know this path"
            assert stale(standby, partition=2).status == 400
            assert stale(standby, tail=True, from_seq=1).status == 400
            assert stale(standby, tag="x" * 5_000).status == 413
            assert standby.json("POST", "/v0/topics/t/diff", {"stall": True}).status == 400
            assert standby.get("/v0/topics/t").code == "standby"

            # It goes on with what comes, and without its owner's ring or process.
            owner.ask("POST", "/v0/topics/t?partition=1", b"3", Content_Type="application/x-ndjson")
            wait_equal(owner, standby)
            assert read(stale(standby, partition=1, from_seq=3).json) == [3]
            owner.kill_everything()
            assert read(stale(standby, partition=1).json) == [0, 1, 2, 3]
            standby.wait_owner()
            assert read(standby.diff("t", partition=1)) == [0, 1, 2, 3]


def test_a_standby_reads_what_was_compacted_from_the_lake(
    data: Path, tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    owner = Standby(data, bucket, admin_over_tcp="true")
    standby = Standby(tmp_path / "second", bucket)
    with started(owner), spark_session("local[1]", tmp_path):
        owner.wait_owner()
        for number in range(3):
            owner.produce("t", number)
        with started(standby):
            standby.wait_standby()
            assert job.main(["--url", owner.url]) == 0
            objects = bucket.client.list_objects_v2(
                Bucket=bucket.bucket, Prefix=f"{bucket.prefix}/l0/"
            )
            for each in objects["Contents"]:
                # As a collection does later.
                bucket.client.delete_object(Bucket=bucket.bucket, Key=each["Key"])
            wait_until(
                lambda: stale(standby).status == 200, "the standby to hear of the compaction"
            )
            assert read(stale(standby).json) == [0, 1, 2]


def test_a_standby_shows_a_token_its_topics_only(
    data: Path, tmp_path: Path, bucket: Bucket
) -> None:
    file = TokenFile(tmp_path / "tokens.json")
    admin = file.issue("admin", [Scope.ADMIN, Scope.PRODUCE, Scope.METRICS])[1]
    reads = file.issue("reads", [Scope.READ], ["t"])[1]
    produces = file.issue("produces", [Scope.PRODUCE], ["t"])[1]
    settings = {"auth_file": str(tmp_path / "tokens.json")}
    owner = Standby(data, bucket, **settings)
    standby = Standby(tmp_path / "second", bucket, **settings)
    owner.token = standby.token = admin
    with started(owner):
        owner.wait_owner()
        for topic in ("t", "other"):
            assert owner.produce(topic, "mine").status == 200
        with started(standby):
            standby.wait_standby()
            wait_equal(owner, standby)
            standby.token = reads
            assert stale(standby).status == 200, standby.text
            assert read(stale(standby).json) == ["mine"]
            assert stale(standby, "other").status == 403
            standby.token = produces
            assert stale(standby).status == 403
            standby.token = "hg_none"
            assert stale(standby).status == 401
            file.revoke("reads")
            standby.token = reads
            wait_until(lambda: stale(standby).status == 401, "the revoked token to be refused")
