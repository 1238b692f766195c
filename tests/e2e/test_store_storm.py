"""The store answers every request of the daemon with 503 SlowDown for a while.

Producers see latency, 429 or 503 with Retry-After, or 504 past their deadline; afterwards
everything is as before. ``python -m tests.chaos.storm`` prints what a storm was like.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.storm import measured
from tests.e2e.daemon import HANG_S, Daemon, command, running, wait_until
from tests.e2e.load import Load, check_stored, load
from tests.e2e.proxy import Fault, Request, store_proxy
from tests.e2e.stores import assert_told_of_outages_only, on_s3
from tests.minio import Bucket
from uploader.stores.faults import parse
from uploader.stores.retry import COMMIT

PLACES = [("orders", 0), ("clicks", 0), ("clicks", 1)]
SMALL = {
    "ring_bytes": "256KiB", "object_bytes_target": "64KiB", "body_bytes_max": "64KiB",
    "record_bytes_max": "64KiB", "commit_window_min_ms": 20, "ack_timeout_ms": 600_000,
}  # fmt: skip

PAD = "x" * 8_000
# 2.5 MB: more than both rings and all that their groups can have on the way to the store
# (2 x 256 KiB + 8 x 96 KiB), so that a ring fills however the kernel spreads the connections.
CROWD: dict[str, int] = {"connections": 40, "depth": 4, "requests_max": 4}


STORM_S = 30.0
PAUSE_S_MAX = 1.0


def slow_down(_: Request) -> Fault:
    """No request passes."""
    return Fault.SLOW_DOWN


def put_failures(daemon: Daemon) -> int:
    return int(daemon.status()["store"]["put_failures"])


def calm(run: Load) -> bool:
    """Waits for a hundred answers; whether none of them was a refusal."""
    refused = len(run.refused)
    run.wait_more(100)
    return len(run.refused) == refused


def settled(daemon: Daemon) -> bool:
    """Whether less than an object waits, which is how it is under this load without a storm."""
    backlog = sum(group["backlog_bytes"] for group in daemon.status()["groups"])
    return bool(backlog < 64 << 10)


@pytest.mark.slow
def test_in_a_storm_producers_see_latency_and_refusals_and_nothing_is_lost(
    data: Path, bucket: Bucket
) -> None:
    with store_proxy(bucket.endpoint_url) as proxy:
        options = on_s3(bucket, proxy.endpoint_url, **SMALL)
        with running(data, shards=2, **options) as daemon:
            daemon.json("PUT", "/v0/topics/clicks", {"partitions": 2})
            with load(daemon, PLACES, connections=8, depth=2, pause_s=0.02, pad=PAD) as run:
                run.wait_more(100)
                proxy.decide = slow_down
                wait_until(lambda: put_failures(daemon) >= 8, "PUTs to fail again and again")
                with load(daemon, PLACES, first_number=8, pad=PAD, **CROWD) as crowd:
                    wait_until(lambda: len(crowd.refused) >= 5, "full rings")
                    status = daemon.status()
                    proxy.release()
                    crowd.join()
                wait_until(lambda: settled(daemon), "the backlog to go")
                wait_until(lambda: calm(run), "a hundred answers without a refusal")
            run = Load([*run.producers, *crowd.producers])
            check_stored(daemon, PLACES, run)

    assert not run.unknown, "a connection ended without an answer"
    told = {(answer.status, answer.code) for _, answer in run.refused}
    assert told <= {(429, "throttled"), (503, "store_failing")}
    assert all(int(answer.headers["retry-after"]) >= 1 for _, answer in run.refused)
    for shard in status["shards"]:
        assert shard["ring_used_bytes"] <= 256 << 10
        assert shard["restarts"] == 0


@pytest.mark.slow
def test_in_a_storm_of_30_s_nothing_is_cut_off_and_after_it_no_object_needs_a_second_attempt(
    data: Path, bucket: Bucket
) -> None:
    with (
        store_proxy(bucket.endpoint_url) as proxy,
        running(data, shards=2, **on_s3(bucket, proxy.endpoint_url)) as daemon,
    ):
        storm = measured(daemon, proxy, STORM_S, producers=16)
        stored = {record["data"] for record in every_record(daemon, "t")}
    assert storm.cut == 0
    assert set(storm.told) <= {(200, ""), (429, "throttled"), (503, "store_failing"),
                               (503, "ack_timeout"), (504, "outcome_unknown")}  # fmt: skip
    assert storm.told[503, "store_failing"] and storm.told[504, "outcome_unknown"]
    assert storm.acknowledged <= stored, "what was acknowledged is stored"
    assert not storm.refused & stored, "what got 429 or 503 is not"
    # A pause between attempts is never longer than the cap, so producers are answered within
    # seconds; how soon, is for ``python -m tests.chaos.storm`` to tell.
    assert COMMIT.cap_s <= PAUSE_S_MAX
    taken = Counter(request.path for request, met in proxy.met[storm.met :]
                    if request.is_object_put and met is Fault.NONE)  # fmt: skip
    assert taken and set(taken.values()) == {1}, taken


def every_record(daemon: Daemon, topic: str) -> list[Any]:
    """All records of a topic with one partition."""
    found: list[Any] = []
    while page := daemon.diff(topic, from_seq=len(found), limit=1_000)["records"]:
        found += page
    return found


@pytest.mark.parametrize(
    ("spec", "faults"),
    [
        ("reset_before=0.2,latency=1ms..50ms@0.3", {Fault.RESET}),
        ("reset_after=0.2,busy=0.1", {Fault.LOSE_ANSWER, Fault.SLOW_DOWN}),
        ("full=0.2,read_only=0.1", {Fault.FULL, Fault.FORBIDDEN}),
        # A call that times out alone is longer than what counts as an outage of the store.
        ("timeout_after=0.05", {Fault.TIMEOUT}),
    ],
)
@pytest.mark.slow
def test_whatever_the_store_does_producers_see_latency_only(
    data: Path, bucket: Bucket, spec: str, faults: set[Fault]
) -> None:
    with store_proxy(bucket.endpoint_url) as proxy:
        options: dict[str, Any] = on_s3(bucket, proxy.endpoint_url, commit_window_min_ms=5)
        with running(data, shards=2, **options) as daemon:
            daemon.json("PUT", "/v0/topics/clicks", {"partitions": 2})
            proxy.obey(parse(spec), random.Random(3))
            with load(daemon, PLACES, connections=4, depth=4, pause_s=0.002) as run:
                wait_until(lambda: all(proxy.count(fault) for fault in faults), "faults")
                run.wait_more(50)
            proxy.release()
            check_stored(daemon, PLACES, run)
    assert_told_of_outages_only(daemon, run)


@pytest.mark.slow
def test_serve_with_chaos_warns_and_loses_nothing(data: Path) -> None:
    spec = "latency=1ms..100ms@0.2,reset_before=0.1,reset_after=0.2,torn=0.1,busy=0.1"
    with running(data, shards=2, command=command("serve", "--chaos", spec)) as daemon:
        daemon.json("PUT", "/v0/topics/clicks", {"partitions": 2})
        with load(daemon, PLACES, connections=4, depth=4) as run:
            wait_until(lambda: put_failures(daemon) >= 10, "PUTs to fail")
            run.wait_more(20)
        check_stored(daemon, PLACES, run)
    assert_told_of_outages_only(daemon, run)
    assert f"CHAOS IS ON: the shards' store fails on purpose (--chaos {spec})" in daemon.text


def test_impossible_chaos_is_refused_before_anything_starts(data: Path) -> None:
    daemon = Daemon(
        data, store="s3://bucket/prefix", command=command("serve", "--chaos", "torn=0.5")
    )
    daemon.start()
    daemon.process.wait(HANG_S)
    assert daemon.stop() == 1
    assert "'torn' in the chaos spec is for file:// stores" in daemon.text
