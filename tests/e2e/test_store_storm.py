"""The store answers every request of the daemon with 503 SlowDown for a while.

Producers see latency, 429 or 503 with Retry-After, or 504 past their deadline; afterwards
everything is as before. ``python -m tests.chaos.storm`` prints what a storm was like.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.storm import measured
from tests.e2e.daemon import HANG_S, Daemon, command, running, wait_until
from tests.e2e.load import Load, check_stored, load
from tests.e2e.proxy import Fault, store_proxy
from tests.e2e.stores import on_s3
from tests.minio import Bucket
from uploader.stores.faults import parse

PLACES = [("orders", 0), ("clicks", 0), ("clicks", 1)]

STORM_S = 30.0
RECOVERY_MS_MAX = 3_000.0


def put_failures(daemon: Daemon) -> int:
    return int(daemon.status()["store"]["put_failures"])


@pytest.mark.slow
def test_in_a_storm_of_30_s_nothing_is_cut_off_and_the_next_acknowledgment_comes_within_3_s(
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
    assert storm.first_ack_ms is not None and storm.first_ack_ms < RECOVERY_MS_MAX


def every_record(daemon: Daemon, topic: str) -> list[Any]:
    """All records of a topic with one partition."""
    found: list[Any] = []
    while page := daemon.diff(topic, from_seq=len(found), limit=1_000)["records"]:
        found += page
    return found


def assert_told_of_outages_only(daemon: Daemon, run: Load) -> None:
    """Producers see latency, and a refusal only if the store has taken nothing for two seconds: a
    slow machine makes few attempts in them, and each may meet a fault."""
    assert not run.unknown
    is_out = "store failing for" in daemon.text
    told = {(answer.status, answer.code) for _, answer in run.refused}
    assert told <= ({(503, "store_failing")} if is_out else set())


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
