"""Caps, time to live and full topics of a real daemon: what is evicted, what readers are told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import cli
from tests.e2e.daemon import Daemon, running, wait_until
from tests.e2e.orphans import Place
from tests.e2e.wire import wire_of_each_shard

SOON = {"retention_interval_ms": 100}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running(tmp_path_factory.mktemp("data"), settings=SOON) as started:
        yield started


def state(daemon: Daemon, topic: str, partition: int = 0) -> Any:
    return daemon.get(f"/v0/topics/{topic}").json["partitions"][partition]


def until_count(daemon: Daemon, topic: str, count: int) -> Any:
    """The partition when it has ``count`` records."""
    return wait_until(
        lambda: (now := state(daemon, topic))["count"] == count and now, f"{count} records"
    )


def test_the_oldest_records_over_a_cap_are_evicted_and_a_late_reader_is_told(data: Path) -> None:
    with running(data, shards=2, settings=SOON) as daemon:
        daemon.json("PUT", "/v0/topics/t", {"cap_records": 5})
        for number in range(4):
            daemon.produce("t", *range(3 * number, 3 * number + 3))
        now = until_count(daemon, "t", 5)
        assert (now["earliest_seq"], now["head_seq"], now["lost_seq"]) == (8, 12, 7)
        read = daemon.diff("t", from_seq=2)
        assert [record["data"] for record in read["records"]] == [7, 8, 9, 10, 11]
        assert read["tombstone"] == {"gap_from": 3, "gap_to": 7, "reason": "cap"}
        assert daemon.diff("t", from_seq=7)["tombstone"] is None
        assert daemon.status()["retention"]["records_evicted"] == 7
        daemon.produce("t", 12)
        until_count(daemon, "t", 5)
    with running(data, settings=SOON) as daemon:
        read = daemon.diff("t", from_seq=0)
        assert [record["data"] for record in read["records"]] == [8, 9, 10, 11, 12]
        assert read["tombstone"] == {"gap_from": 1, "gap_to": 8, "reason": "cap"}


def test_records_older_than_their_time_to_live_go(daemon: Daemon, topic: str) -> None:
    old = {"records": [{"data": "old", "ts": 1_000}]}
    assert daemon.json("POST", f"/v0/topics/{topic}", old).status == 200
    daemon.produce(topic, "new")
    # After the records: a look at a topic without any is not repeated for minutes.
    daemon.json("PUT", f"/v0/topics/{topic}", {"ttl_ms": 3_600_000})
    until_count(daemon, topic, 1)
    read = daemon.diff(topic, from_seq=0)
    assert [record["data"] for record in read["records"]] == ["new"]
    assert read["tombstone"] == {"gap_from": 1, "gap_to": 1, "reason": "ttl"}
    daemon.json("PUT", f"/v0/topics/{topic}", {"ttl_ms": 200})
    until_count(daemon, topic, 0)
    assert daemon.produce(topic, "newer").json["first_seq"] == 3


@pytest.mark.slow
def test_an_eviction_survives_a_kill_and_a_recovery_from_the_store(
    data: Path, tmp_path: Path
) -> None:
    store = f"file://{tmp_path}/store"
    with running(data, store=store, settings=SOON) as daemon:
        daemon.json("PUT", "/v0/topics/t", {"cap_bytes": 30, "columns": {"n": "long"}})
        for number in range(5):
            daemon.produce("t", {"n": number})
        before = wait_until(
            lambda: (now := state(daemon, "t"))["bytes"] <= 35 and now, "the last eviction"
        )
        records = daemon.read_all("t")
        daemon.kill_everything()
    with running(data, store=store, settings=SOON) as daemon:
        assert state(daemon, "t") == before and daemon.read_all("t") == records
    place = Place(tmp_path / "other", {"store": store})
    place.data.mkdir()
    assert place.json("recover")["records_taken"] == 0
    with running(tmp_path / "other", store=store, settings=SOON) as daemon:
        assert state(daemon, "t") == before and daemon.read_all("t") == records
        assert daemon.get("/v0/topics/t").json["config"]["columns"] == {"n": "long"}


def test_a_full_topic_that_rejects_answers_422_and_keeps_what_it_has(
    daemon: Daemon, topic: str
) -> None:
    daemon.json("PUT", f"/v0/topics/{topic}", {"cap_records": 5, "discard": "reject"})
    for _ in range(2):
        assert daemon.produce(topic, 1, 2).status == 200
    full = daemon.produce(topic, 3, 4, disable_backpressure=True)  # a cap is not waited for
    assert (full.status, full.code) == (422, "topic_full")
    detail = full.json["error"]["detail"]
    assert (detail["limit"], detail["max"], detail["held"]) == ("cap_records", 5, 4)
    assert daemon.produce(topic, 5).status == 200
    assert daemon.produce(topic, 6).status == 422
    assert [record["data"] for record in daemon.read_all(topic)] == [1, 2, 1, 2, 5]
    # Room again: by a trim, by a larger cap, by evicting instead.
    assert daemon.json("POST", f"/v0/topics/{topic}/trim", {"before_seq": 2}).status == 200
    assert daemon.produce(topic, 7).json["first_seq"] == 6
    assert daemon.produce(topic, 8).status == 422
    daemon.json("PUT", f"/v0/topics/{topic}", {"cap_records": 6})
    assert daemon.produce(topic, 8).status == 200
    assert daemon.produce(topic, 9).status == 422
    daemon.json("PUT", f"/v0/topics/{topic}", {"discard": "old"})
    assert daemon.produce(topic, 9, 10).status == 200
    until_count(daemon, topic, 6)


@pytest.mark.slow
def test_a_cap_of_bytes_is_known_to_a_new_process(data: Path) -> None:
    with running(data) as daemon:
        daemon.json("PUT", "/v0/topics/t", {"cap_bytes": 1_000, "discard": "reject"})
        assert daemon.produce("t", "x" * 700).status == 200
    with running(data) as daemon:
        refused = daemon.produce("t", "x" * 700)
        assert (refused.status, refused.json["error"]["detail"]["limit"]) == (422, "cap_bytes")
        assert daemon.produce("t", "x" * 100).status == 200


def test_a_repeat_gets_its_first_answer_from_a_full_topic_too(daemon: Daemon, topic: str) -> None:
    daemon.json("PUT", f"/v0/topics/{topic}", {"cap_records": 2, "discard": "reject"})
    first = daemon.produce(topic, 1, 2, idempotency_key="k")
    assert first.json["deduped"] is False
    again = daemon.produce(topic, 1, 2, idempotency_key="k")
    assert again.json == {**first.json, "deduped": True}
    assert daemon.produce(topic, 1, 2, idempotency_key="other").status == 422
    assert state(daemon, topic)["count"] == 2


def test_time_to_live_makes_room_in_a_full_topic(daemon: Daemon, topic: str) -> None:
    settings = {"cap_records": 2, "ttl_ms": 500, "discard": "reject"}
    daemon.json("PUT", f"/v0/topics/{topic}", settings)
    assert daemon.produce(topic, 1, 2).status == 200
    wait_until(lambda: daemon.produce(topic, 3).status == 200, "room")
    assert state(daemon, topic)["lost_reason"] == "ttl"


def test_two_shards_know_of_each_others_commits(shared_daemon: Daemon) -> None:
    shared_daemon.json("PUT", "/v0/topics/t", {"cap_records": 3, "discard": "reject"})
    with wire_of_each_shard(shared_daemon, "other") as wires:
        body = {"records": [{"data": 1}]}
        answers = [
            wire.json("POST", "/v0/topics/t", body).status for _ in range(3) for wire in wires
        ]
    assert answers == [200, 200, 200, 422, 422, 422]
    assert state(shared_daemon, "t")["count"] == 3


def test_a_trim_from_the_command_line(daemon: Daemon, topic: str) -> None:
    def run(*arguments: str) -> Result:
        return CliRunner().invoke(cli.headgate, ["topics", *arguments, "--url", daemon.url])

    daemon.produce(topic, *range(5))
    done = run("trim", topic, "--before-seq", "4", "-o", "json")
    assert json.loads(done.stdout)["earliest_seq"] == 4, done.stderr
    people = run("trim", topic, "--before-seq", "2")
    assert people.stdout.startswith(f"{topic}, partition 0: begins at 4, 2 records"), people.stderr
    refused = run("trim", topic, "--before-seq", "7")
    assert refused.exit_code == 1 and "the next offset" in refused.stderr
    assert run("alter", topic, "--column", "a:long", "--column", "b:string").exit_code == 0
    done = run("alter", topic, "--column", "c:double", "--column", "a:none", "-o", "json")
    assert json.loads(done.stdout)["config"]["columns"] == {"b": "string", "c": "double"}
