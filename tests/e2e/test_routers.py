"""Routers copy exactly what their filters let pass, in order, through a real daemon."""

from __future__ import annotations

from pathlib import Path

import pytest

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
