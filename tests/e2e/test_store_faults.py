"""When the store fails, producers see latency or a refusal; nothing is lost or doubled."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.daemon import Daemon, running, wait_until
from tests.e2e.load import check_stored, load
from tests.e2e.processes import Line
from tests.e2e.proxy import Fault, Request, object_puts, store_proxy
from tests.e2e.stores import assert_told_of_outages_only, on_s3
from tests.minio import Bucket

PLACES = [("orders", 0), ("clicks", 0), ("clicks", 1)]


def put_failures(daemon: Daemon) -> int:
    """PUTs of objects that failed, as the daemon counts them."""
    return int(daemon.status()["store"]["put_failures"])


@pytest.mark.slow
@pytest.mark.parametrize("fault", [Fault.LOSE_ANSWER, Fault.SLOW_DOWN])
def test_puts_that_fail_between_others_that_succeed_change_neither_order_nor_count(
    data: Path, bucket: Bucket, fault: Fault
) -> None:
    def every_third(request: Request) -> Fault:
        return fault if request.is_object_put and request.number % 3 == 0 else Fault.NONE

    with store_proxy(bucket.endpoint_url) as proxy:
        options = on_s3(bucket, proxy.endpoint_url, commit_window_min_ms=2)
        with running(data, shards=2, **options) as daemon:
            daemon.json("PUT", "/v0/topics/clicks", {"partitions": 2})
            proxy.decide = every_third
            with load(daemon, PLACES, connections=6, depth=4) as run:
                wait_until(lambda: proxy.count(fault) >= 8, "some PUTs to fail")
                run.wait_more(100)
            proxy.release()
            check_stored(daemon, PLACES, run)
            objects = len(_objects(bucket))
            # Counters follow the answers.
            wait_until(lambda: daemon.status()["totals"]["objects_committed"] == objects, "counts")
            store = daemon.status()["store"]
            failed = proxy.count(fault)

    assert_told_of_outages_only(daemon, run)
    # A PUT whose answer was lost and that is made again meets 412 and its own bytes.
    assert store["put_failures"] == failed
    assert store["puts"] == objects + failed


def _objects(bucket: Bucket) -> list[str]:
    pages = bucket.client.get_paginator("list_objects_v2").paginate(
        Bucket=bucket.bucket, Prefix=f"{bucket.prefix}/l0/"
    )
    return [item["Key"] for page in pages for item in page.get("Contents", [])]


@pytest.mark.slow
def test_while_the_store_is_down_producers_are_refused_with_retry_after_and_nothing_is_doubled(
    data: Path, bucket: Bucket
) -> None:
    with store_proxy(bucket.endpoint_url) as proxy:
        small = {
            "ring_bytes": "256KiB", "object_bytes_target": "64KiB", "body_bytes_max": "64KiB",
            "record_bytes_max": "64KiB",
        }  # fmt: skip
        options = on_s3(bucket, proxy.endpoint_url, commit_window_min_ms=2, **small)
        with running(data, shards=1, **options) as daemon:
            proxy.decide = object_puts(Fault.SLOW_DOWN)
            with load(daemon, PLACES[:1], connections=12, depth=1, pad="x" * 20_000) as run:
                wait_until(lambda: len(run.refused) >= 10, "producers to be refused")
                wait_until(lambda: put_failures(daemon), "a PUT to fail")
                assert daemon.get("/livez").status == 200
                acknowledged = run.acknowledged_count
                assert daemon.status()["shards"][0]["ring_used_bytes"] <= 256 << 10
                proxy.release()
                wait_until(lambda: run.acknowledged_count > acknowledged + 50, "it to go on")
            check_stored(daemon, PLACES[:1], run)
            rejected = daemon.status()["totals"]["rejected"]

    assert not run.unknown
    # The ring is full, or the store is known to fail, whichever comes first.
    told = {(answer.status, answer.code) for _, answer in run.refused}
    assert told <= {(429, "throttled"), (503, "store_failing")}
    assert all(1 <= int(answer.headers["retry-after"]) <= 10 for _, answer in run.refused)
    retry_ms = [answer.json["error"]["detail"]["retry_after_ms"] for _, answer in run.refused]
    assert all(ms >= 1000 for ms in retry_ms)
    assert rejected == len(run.refused)


def test_nothing_is_acknowledged_before_it_and_what_is_before_it_is_stored(
    data: Path, bucket: Bucket
) -> None:
    def only_the_second(request: Request) -> Fault:
        return Fault.HOLD if request.number == 2 else Fault.NONE

    with store_proxy(bucket.endpoint_url) as proxy:
        options = on_s3(bucket, proxy.endpoint_url, commit_window_min_ms=1)
        with running(data, shards=1, **options) as daemon, Line(daemon) as line:
            line.produce("t", "first")
            proxy.decide = only_the_second
            line.send("t", "held")
            wait_until(lambda: proxy.held, "the first PUT to be under way")
            line.send("t", "early")
            wait_until(lambda: len(_objects(bucket)) == 3, "the next object to be stored")
            # Stored it is, durable it is not: nothing of either is committed.
            status = daemon.status()
            assert (status["commits"], status["totals"]["requests_acked"]) == (1, 1)
            assert daemon.diff("t")["head_seq"] == 1
            proxy.release()
            answers = [line.answer(), line.answer()]
            assert [each.json["first_seq"] for each in answers if each is not None] == [2, 3]

            wait_until(lambda: daemon.status()["totals"]["requests_acked"] == 3, "the counts")
            # A store that was held for two seconds has been found to fail.
            wait_until(lambda: daemon.json("POST", "/v0/topics/t", []).status == 400, "the gate")
            failures = put_failures(daemon)
            proxy.decide = object_puts(Fault.SLOW_DOWN)
            line.send("t", "last")
            wait_until(lambda: put_failures(daemon) >= failures + 3, "the PUT to fail repeatedly")
            assert daemon.status()["totals"]["requests_acked"] == 3
            assert daemon.diff("t")["head_seq"] == 3
            assert len(_objects(bucket)) == 3
            proxy.release()
            answer = line.answer()
            assert answer is not None and answer.json["first_seq"] == 4
            assert len(_objects(bucket)) == 4
