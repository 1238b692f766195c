"""Routers copy exactly what their filters let pass, in order, through a real daemon."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compaction.by_hand import compact, delete_compacted
from tests.e2e.daemon import Daemon, running, wait_until
from tests.e2e.routing import add_router, assert_copied, partitions_of, router, wait_routed


def records(first: int, count: int, **more: object) -> list[dict[str, object]]:
    """Records that differ; every third has a tag, every second a key."""
    return [
        {
            "data": n,
            **({"key": f"k{n % 7}"} if n % 2 else {}),
            **({"tag": "third"} if n % 3 == 0 else {"tag": "other"}),
            **more,
        }
        for n in range(first, first + count)
    ]


def produce(daemon: Daemon, topic: str, *batches: list[dict[str, object]]) -> None:
    for batch in batches:
        answer = daemon.json("POST", f"/v0/topics/{topic}", {"records": batch})
        assert answer.status == 200, answer.body


def test_copies_follow_the_source_with_every_field_and_their_timestamps(
    shared_daemon: Daemon,
) -> None:
    for topic, partitions in (("copies.src", 2), ("copies.dst", 3)):
        shared_daemon.json("PUT", f"/v0/topics/{topic}", {"partitions": partitions})
    add_router(shared_daemon, "copies", "copies.src", "copies.dst")
    produce(
        shared_daemon, "copies.src", records(0, 20), records(20, 10, ts=77, node="n", meta={"a": 1})
    )
    shared_daemon.ask(
        "POST", "/v0/topics/copies.src", b"\x00\xff", content_type="application/octet-stream"
    )
    shown = wait_routed(shared_daemon, "copies")
    assert assert_copied(shared_daemon, "copies.src", "copies.dst") == 31
    wait_until(lambda: router(shared_daemon, "copies")["copied"] == 31, "the count")
    assert (shown["state"], shown["reason"]) == ("running", "")


def test_a_filter_lets_pass_what_matches_and_the_rest_is_counted(shared_daemon: Daemon) -> None:
    shared_daemon.json("PUT", "/v0/topics/rf.src", {})
    shared_daemon.json("PUT", "/v0/topics/rf.dst", {})
    add_router(shared_daemon, "rf", "rf.src", "rf.dst", filter={"tag": "th*"})
    produce(shared_daemon, "rf.src", records(0, 10), records(10, 20), records(30, 1))
    wait_routed(shared_daemon, "rf")
    passed = assert_copied(
        shared_daemon, "rf.src", "rf.dst", lambda record: record["tag"] == "third"
    )
    assert passed == 11
    # Nothing of this passes: only the flush moves the cursor.
    produce(shared_daemon, "rf.src", records(31, 2))
    wait_routed(shared_daemon, "rf")
    wait_until(lambda: router(shared_daemon, "rf")["filtered"] == 22, "the count")
    assert router(shared_daemon, "rf")["copied"] == 11


def test_a_router_that_is_created_later_begins_where_it_is_told(shared_daemon: Daemon) -> None:
    for topic in ("rb.src", "rb.all", "rb.some", "rb.new"):
        shared_daemon.json("PUT", f"/v0/topics/{topic}", {})
    produce(shared_daemon, "rb.src", records(0, 5), records(5, 5))
    for name, start in (("all", "earliest"), ("some", 7), ("new", "now")):
        add_router(shared_daemon, f"rb.{name}", "rb.src", f"rb.{name}", **{"from": start})
    produce(shared_daemon, "rb.src", records(10, 5))
    counts = []
    for name in ("all", "some", "new"):
        wait_routed(shared_daemon, f"rb.{name}")
        (copies,) = partitions_of(shared_daemon, f"rb.{name}")
        counts.append([record["data"] for record in copies])
    assert counts == [list(range(15)), list(range(7, 15)), list(range(10, 15))]


def test_a_chain_and_a_fan_in_of_routers_deliver_everything_once(shared_daemon: Daemon) -> None:
    for topic in ("chain.a", "chain.b", "chain.c", "chain.all"):
        shared_daemon.json("PUT", f"/v0/topics/{topic}", {})
    for source, dest in (("a", "b"), ("b", "c"), ("a", "all"), ("c", "all")):
        add_router(shared_daemon, f"chain.{source}.{dest}", f"chain.{source}", f"chain.{dest}")
    for n in range(10):
        produce(shared_daemon, "chain.a", records(3 * n, 3))
    for name in ("a.b", "b.c", "a.all"):
        wait_routed(shared_daemon, f"chain.{name}")
    wait_until(
        lambda: shared_daemon.diff("chain.all", limit=1)["head_seq"] == 60,
        "both ways into one topic",
    )
    assert_copied(shared_daemon, "chain.a", "chain.c")
    (found,) = partitions_of(shared_daemon, "chain.all")
    assert sorted(record["data"] for record in found) == sorted([*range(30)] * 2)


def test_a_paused_router_copies_nothing_and_continues_where_it_was(shared_daemon: Daemon) -> None:
    for topic in ("rp.src", "rp.dst"):
        shared_daemon.json("PUT", f"/v0/topics/{topic}", {})
    add_router(shared_daemon, "rp", "rp.src", "rp.dst", paused=True)
    produce(shared_daemon, "rp.src", records(0, 5))
    assert router(shared_daemon, "rp")["lag"] == 5
    assert router(shared_daemon, "rp")["state"] == "paused"
    assert shared_daemon.read_all("rp.dst") == []
    shared_daemon.json("PUT", "/v0/routers/rp", {"paused": False})
    wait_routed(shared_daemon, "rp")
    assert_copied(shared_daemon, "rp.src", "rp.dst")


def test_partitions_that_are_added_to_either_side_are_copied_too(shared_daemon: Daemon) -> None:
    for topic in ("rg.src", "rg.dst"):
        shared_daemon.json("PUT", f"/v0/topics/{topic}", {})
    add_router(shared_daemon, "rg", "rg.src", "rg.dst")
    shared_daemon.json("PUT", "/v0/topics/rg.src", {"partitions": 3})
    for partition in (0, 1, 2):
        body = {"records": records(10 * partition, 4), "partition": partition}
        assert shared_daemon.json("POST", "/v0/topics/rg.src", body).status == 200
    wait_until(
        lambda: shared_daemon.diff("rg.dst", limit=1)["head_seq"] == 12, "all partitions' copies"
    )
    assert_copied(shared_daemon, "rg.src", "rg.dst")


def test_a_full_destination_holds_the_router_until_there_is_room(shared_daemon: Daemon) -> None:
    daemon = shared_daemon
    daemon.json("PUT", "/v0/topics/rfull.src", {})
    daemon.json("PUT", "/v0/topics/rfull.dst", {"cap_records": 7, "discard": "reject"})
    add_router(daemon, "rfull", "rfull.src", "rfull.dst")
    produce(daemon, "rfull.src", records(0, 10))
    held = wait_until(
        lambda: (found := router(daemon, "rfull"))["state"] == "held" and found, "the hold"
    )
    assert "partition 0 of topic 'rfull.dst' has 7 records of cap_records = 7" in held["reason"]
    assert len(daemon.read_all("rfull.dst")) == 7
    daemon.json("PUT", "/v0/topics/rfull.dst", {"cap_records": 100})
    wait_routed(daemon, "rfull")
    assert_copied(daemon, "rfull.src", "rfull.dst")
    assert router(daemon, "rfull")["state"] == "running"


def test_a_router_without_its_topic_stops_and_says_so(shared_daemon: Daemon) -> None:
    for topic in ("rd.src", "rd.dst"):
        shared_daemon.json("PUT", f"/v0/topics/{topic}", {})
    add_router(shared_daemon, "rd", "rd.src", "rd.dst")
    produce(shared_daemon, "rd.src", records(0, 3))
    wait_routed(shared_daemon, "rd")
    shared_daemon.ask("DELETE", "/v0/topics/rd.dst")
    produce(shared_daemon, "rd.src", records(3, 3))
    shown = router(shared_daemon, "rd")
    assert (shown["state"], shown["lag"]) == ("stopped", 3)
    assert "its destination, the topic 'rd.dst'" in shown["reason"]
    shared_daemon.json("PUT", "/v0/topics/rd.dst", {})
    assert router(shared_daemon, "rd")["state"] == "stopped"
    shared_daemon.ask("DELETE", "/v0/routers/rd")
    assert shared_daemon.read_all("rd.dst") == []


@pytest.mark.slow
def test_what_was_there_before_the_daemon_is_copied_from_the_store(data: Path) -> None:
    with running(data, shards=2) as daemon:
        daemon.json("PUT", "/v0/topics/src", {"partitions": 3})
        for n in range(30):
            produce(daemon, "src", records(10 * n, 10))
    with running(data, shards=1) as daemon:
        daemon.json("PUT", "/v0/topics/dst", {})
        add_router(daemon, "r", "src", "dst", **{"from": "earliest"})
        wait_routed(daemon, "r")
        assert assert_copied(daemon, "src", "dst") == 300
        assert daemon.status()["store"]["gets"] > 0


@pytest.mark.slow
def test_records_that_were_evicted_before_they_were_copied_are_told_of(data: Path) -> None:
    settings = {"retention_interval_ms": 100}
    with running(data, settings=settings) as daemon:
        daemon.json("PUT", "/v0/topics/src", {})
        daemon.json("PUT", "/v0/topics/dst", {})
        add_router(daemon, "r", "src", "dst", paused=True)
        for n in range(5):
            produce(daemon, "src", records(10 * n, 10))
        daemon.json("PUT", "/v0/topics/src", {"cap_records": 20})
        wait_until(lambda: daemon.diff("src", limit=1)["earliest_seq"] == 31, "the eviction")
    with running(data, settings=settings) as daemon:  # the rings are empty now
        daemon.json("PUT", "/v0/routers/r", {"paused": False})
        wait_routed(daemon, "r")
        assert assert_copied(daemon, "src", "dst") == 20
        wait_until(lambda: router(daemon, "r")["skipped"], "the count")
        assert router(daemon, "r")["skipped"] == 30


@pytest.mark.slow
def test_what_was_compacted_is_copied_from_the_lake(data: Path) -> None:
    settings = {"object_bytes_target": "64KiB", "ring_bytes": "256KiB", "body_bytes_max": "64KiB",
                "record_bytes_max": "64KiB"}  # fmt: skip
    with running(data, settings=settings) as daemon:
        daemon.json("PUT", "/v0/topics/src", {"partitions": 2})
        daemon.json("PUT", "/v0/topics/dst", {"partitions": 3})
        for n in range(40):
            produce(daemon, "src", records(20 * n, 20))
        compact(data, "r1", ["src"])
        assert delete_compacted(data) > 10
    with running(data, settings=settings) as daemon:
        add_router(daemon, "r", "src", "dst", **{"from": "earliest"})
        for n in range(40, 50):
            produce(daemon, "src", records(20 * n, 20))
        wait_routed(daemon, "r")
        assert assert_copied(daemon, "src", "dst") == 1_000
