"""A PUT budget and a real daemon, with prices scaled up until a few PUTs cost what months would."""

from __future__ import annotations

import json
import re
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from shards.clock import monotonic_ns
from tests.e2e.daemon import Daemon, running, wait_for_heartbeats, wait_until
from tests.e2e.load import check_stored, load
from tests.e2e.proxy import Fault, StoreProxy, no_fault, object_puts, store_proxy
from tests.e2e.stores import on_s3
from tests.minio import Bucket
from uploader.stores.prices import SECONDS_PER_MONTH

PLACES = [("t", 0), ("u", 0)]
PRICES = {"mine": {"put_usd_per_1000": 1, "get_usd_per_1000": 0.1, "list_usd_per_1000": 1}}
BASE = """\
store_class = "mine"
ack_timeout_ms = 12000
[prices.mine]
put_usd_per_1000 = 1
get_usd_per_1000 = 0.1
list_usd_per_1000 = 1
"""


def budget_usd(puts_per_s: float) -> float:
    return puts_per_s * SECONDS_PER_MONTH / 1_000


def bill(daemon: Daemon) -> Any:
    return daemon.status()["bill"]


@pytest.mark.slow
def test_the_bill_is_what_an_s3_store_was_asked_for(data: Path, bucket: Bucket) -> None:
    def asked(proxy: StoreProxy) -> tuple[int, int, int]:
        """PUTs, GETs and LISTs that came to the store; DELETEs, HEADs and the probes that race at
        a start are left out."""
        kinds = Counter(
            "list" if "list-type=" in request.path or "uploads" in request.path
            else "delete" if "?delete" in request.path
            else "race" if re.search(r"/probe/[0-9a-f]+-\d", request.path)
            else request.method
            for request, _ in list(proxy.met)
        )  # fmt: skip
        return kinds["PUT"] + kinds["POST"], kinds["GET"], kinds["list"]

    def billed(daemon: Daemon) -> tuple[int, int, int]:
        found = bill(daemon)
        return found["puts"], found["gets"], found["lists"]

    with store_proxy(bucket.endpoint_url) as proxy:
        options = on_s3(bucket, proxy.endpoint_url, commit_window_min_ms=5)
        with running(data, shards=2, **options) as daemon:
            for number in range(5):
                assert daemon.produce("t", number).status == 200
            proxy.decide = object_puts(Fault.SLOW_DOWN)
            with load(daemon, PLACES, connections=1, depth=1, requests_max=1):
                wait_until(lambda: proxy.count(Fault.SLOW_DOWN) >= 2, "attempts that fail")
                proxy.decide = no_fault
            # Five objects, attempts that failed, the probe, and the owner's log.
            wait_until(lambda: asked(proxy) == billed(daemon), "the bill to be complete")
            assert asked(proxy)[0] >= 5 + 3 + 2 + 1
            found = bill(daemon)
            assert found["store_class"] == "standard" and found["budget"] is None
            put_class = (found["puts"] + found["lists"]) * 5e-6
            assert found["usd"] == pytest.approx(put_class + found["gets"] * 4e-7)
            assert found["usd_per_gib"] is None, "too little is acknowledged to say"
            # While all are one group, what they put is what one stream puts, repeats included.
            assert found["single_stream"]["puts"] <= found["puts"]


@pytest.mark.slow
def test_a_request_with_little_time_does_not_wait_for_a_long_window(data: Path) -> None:
    settings = {"commit_window_min_ms": 30_000, "commit_window_max_ms": 30_000}
    with running(data, shards=2, settings=settings) as daemon:
        assert daemon.produce("t", 1).status == 200  # the group was idle
        # Without a stop at a quarter of their time, each would be withdrawn after it.
        for number in range(2):
            answer = daemon.produce("t", number, ack_timeout_ms=16_000)
            assert answer.status == 200, answer.body


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_budget_is_held_within_5_percent(data: Path) -> None:
    wanted = 20.0
    connections = 16  # that one shard gets all of them does not happen
    settings = {
        "store_class": "mine", "prices": json.dumps(PRICES),
        "put_budget_usd_per_month": budget_usd(wanted),
    }  # fmt: skip
    with (
        running(data, shards=2, settings=settings) as daemon,
        load(daemon, PLACES, connections=connections, depth=1, pause_s=0.005) as run,
    ):
        wait_until(lambda: bill(daemon)["puts"] > 200, "the window to be found")
        began_ns = monotonic_ns()
        wait_for_heartbeats(daemon)  # what was put before counts as before
        before = bill(daemon)
        # What is owed while another window is found is a small part of as many.
        wait_until(lambda: bill(daemon)["puts"] - before["puts"] >= 1_200, "1,200 PUTs", 600)
        after = bill(daemon)
        seconds = (monotonic_ns() - began_ns) / 1e9
        spent = after["puts"] - before["puts"]
        assert spent / seconds <= 1.05 * wanted, (before, after)
        usd = (after["usd"] - before["usd"]) / seconds * SECONDS_PER_MONTH
        assert usd <= 1.05 * budget_usd(wanted), (before, after)
        # A slow machine spends less. It is not the budget that keeps it from more: with the window
        # that it comes back to, one group that uploads once in each would spend almost all.
        short_ms = 1.2e3 / wanted
        wait_until(lambda: bill(daemon)["budget"]["window_ms"] <= short_ms, "a short one", 600)
        assert after["budget"]["holds"]
        # The budget has one group of the two; each shard for itself would have put twice as much.
        assert after["per_shard"]["puts"] > 1.5 * after["single_stream"]["puts"]
        run.stop()
        assert not run.refused and not run.unknown
        check_stored(daemon, PLACES, run)


@pytest.mark.slow
def test_what_no_window_can_hold_raises_an_alarm_and_refuses_nobody(
    data: Path, tmp_path: Path
) -> None:
    file = tmp_path / "headgate.toml"
    file.write_text(f"put_budget_usd_per_month = {budget_usd(0.05)}\n{BASE}")
    with (
        running(data, shards=1, config_file=file) as daemon,
        load(daemon, PLACES, connections=4, depth=1) as run,
    ):
        alarm = daemon.alarm("budget_exceeded")
        assert not alarm["not_ready"]
        assert f"the budget is ${budget_usd(0.05):,.2f}" in alarm["message"]
        assert "raise put_budget_usd_per_month" in alarm["message"]
        found = bill(daemon)["budget"]
        # A quarter of ack_timeout_ms, so that nobody waits too long for a cheap PUT.
        assert (found["window_ms"], found["target_bytes"], found["holds"]) == (
            3_000,
            8 << 20,
            False,
        )
        run.wait_more(4)

        file.write_text(f"put_budget_usd_per_month = {budget_usd(5_000)}\n{BASE}")
        daemon.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "budget_exceeded" not in str(daemon.status()["alarms"]), "its end")
        wait_until(lambda: daemon.status()["window_ms"] < 100, "a shorter window")
        run.stop()
        assert not run.refused and not run.unknown
        check_stored(daemon, PLACES, run)
