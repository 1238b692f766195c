"""Upload groups live: one stream under light load, split by a flood, merged afterwards."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from shards.clock import monotonic_ns
from tests.e2e.daemon import Daemon, running, wait_for_heartbeats, wait_until
from tests.e2e.load import load
from tests.e2e.processes import Line, connect_to, locked_ledger
from tests.e2e.proxy import Fault, object_puts, store_proxy
from tests.e2e.stores import on_s3
from tests.minio import Bucket

PLACES = [("orders", 0), ("clicks", 0)]
WINDOW_MS = 250


def fixed_window(window_ms: int) -> dict[str, object]:
    """A window that pressure does not move."""
    return {"commit_window_min_ms": window_ms, "commit_window_max_ms": window_ms}


def check_map(groups: list[dict[str, Any]], shards: int) -> None:
    """Groups tile the shards as aligned powers of two, each named by its first shard."""
    members = [shard for group in groups for shard in group["shards"]]
    assert members == list(range(shards))
    for group in groups:
        size = len(group["shards"])
        assert size & (size - 1) == 0 and group["group"] % size == 0
        assert group["group"] == group["shards"][0]
        assert group["turn"] in group["shards"]


@pytest.mark.slow
def test_light_load_on_four_shards_is_one_group_and_one_stream_of_uploads(data: Path) -> None:
    with running(data, shards=4, settings=fixed_window(WINDOW_MS)) as daemon:
        before = daemon.status()
        began_ns = monotonic_ns()
        with contextlib.ExitStack() as stack:
            lines = [stack.enter_context(connect_to(daemon, shard)) for shard in range(4)]
            for number in range(8):
                for line in lines:
                    line.send("t", number)
                for line in lines:
                    answer = line.answer()
                    assert answer is not None and answer.status == 200
        windows = (monotonic_ns() - began_ns) / 1e6 / WINDOW_MS

        def acked() -> list[int]:
            return [shard["requests_acked"] for shard in daemon.status()["shards"]]

        wait_until(lambda: acked() == 4 * [8], "the counters, which follow the answers")
        after = daemon.status()
        assert after["window_ms"] == WINDOW_MS

    puts = after["store"]["puts"] - before["store"]["puts"]
    # A stream of its own for each of the four shards would be 32 PUTs.
    assert 2 <= puts <= 1.25 * windows + 1
    assert [group["shards"] for group in after["groups"]] == [[0, 1, 2, 3]]
    assert after["groups"][0]["splits"] == 0


@pytest.mark.slow
def test_steady_load_stays_within_a_quarter_of_the_fewest_possible_puts(data: Path) -> None:
    with running(data, shards=3, settings=fixed_window(WINDOW_MS)) as daemon:
        daemon.produce("orders", "first")
        with load(daemon, PLACES, connections=9, depth=2) as run:
            wait_until(lambda: run.acknowledged_count > 9, "a steady load")
            began_ns = monotonic_ns()
            wait_for_heartbeats(daemon)  # what was put before counts as before
            before = daemon.status()["store"]
            wait_until(lambda: daemon.status()["store"]["puts"] >= before["puts"] + 8, "PUTs")
            after = daemon.status()["store"]
            windows = (monotonic_ns() - began_ns) / 1e6 / WINDOW_MS

    by_size = (after["put_bytes"] - before["put_bytes"]) / (4 << 20)
    assert after["puts"] - before["puts"] - 1 <= 1.25 * max(windows, by_size)


@pytest.mark.slow
def test_an_idle_group_uploads_a_lone_request_immediately_and_others_at_an_objects_worth(
    data: Path,
) -> None:
    settings = {
        **fixed_window(60_000), "object_bytes_target": "64KiB", "body_bytes_max": "128KiB",
    }  # fmt: skip
    # No answer here waits for a window: it would end in the tests' limit for a hang.
    with running(data, shards=2, settings=settings) as daemon:
        with connect_to(daemon, 0) as first, connect_to(daemon, 1) as second:
            assert first.produce("t", "lone")["first_seq"] == 1
            first.send("t", "waits", ack_timeout_ms=600_000)
            wait_until(lambda: daemon.status()["shards"][0]["ring_used_bytes"], "it to wait")
            assert daemon.status()["totals"]["requests_acked"] == 1
            assert second.produce("t", "x" * (64 << 10))["count"] == 1
            answer = first.answer()
        assert answer is not None and answer.status == 200
        store = daemon.status()["store"]
    assert store["puts"] == 2


def fill(daemon: Daemon, lines: list[Line], used_bytes: int) -> int:
    """Fills the ring of every shard to ``used_bytes``. Returns the number of requests."""
    sent = 0
    for shard, line in enumerate(lines):
        goal = -(-used_bytes // (32 << 10))
        for number in range(goal):
            line.send(f"t{shard}", f"{number:06}" + "x" * (32 << 10), ack_timeout_ms=600_000)
        sent += goal
        wait_until(
            lambda shard=shard: daemon.status()["shards"][shard]["ring_used_bytes"] >= used_bytes,  # type: ignore[misc]  # bound now
            f"the ring of shard {shard} to fill",
        )
    return sent


@pytest.mark.slow
def test_a_flood_splits_the_group_and_silence_merges_it(data: Path, bucket: Bucket) -> None:
    settings = {
        "ring_bytes": "1MiB", "object_bytes_target": "64KiB", "body_bytes_max": "64KiB",
        "uploads_in_flight_max": 1, **fixed_window(20),
    }  # fmt: skip
    maps: list[list[dict[str, Any]]] = []

    with store_proxy(bucket.endpoint_url) as proxy:
        options = on_s3(bucket, proxy.endpoint_url, **settings)
        with running(data, shards=4, **options) as daemon, contextlib.ExitStack() as stack:

            def look() -> list[dict[str, Any]]:
                maps.append(daemon.status()["groups"])
                return maps[-1]

            lines = [stack.enter_context(connect_to(daemon, shard)) for shard in range(4)]
            for shard, line in enumerate(lines):
                line.produce(f"t{shard}", "first")
            proxy.delay_s = 0.02
            proxy.decide = object_puts(Fault.DELAY)
            # Uploads wait for the ledger: a PUT without an answer is a failing store after 2 s.
            with locked_ledger(daemon):
                # 4 x 800 KiB of backlog is over 2 x target x members, for four members and two.
                sent = fill(daemon, lines, 800 << 10)
            # Its halves may have merged again by the time of a look.
            wait_until(lambda: any(each["splits"] for each in look()), "the group to split")
            for shard, line in enumerate(lines):
                for number in range(sent // 4):
                    answer = line.answer()
                    assert answer is not None and answer.json["first_seq"] == number + 2, shard
                look()
            wait_until(lambda: len(look()) == 1, "the groups to merge")
            assert lines[3].produce("t3", "after")["count"] == 1

    for groups in maps:
        check_map(groups, 4)
    assert maps[-1][0]["splits"] >= 1 and maps[-1][0]["merges"] >= 1
