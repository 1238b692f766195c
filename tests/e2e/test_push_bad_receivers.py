"""Receivers that do what none should: a daemon bounds, counts and names it, and loses nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.delivery.push.evil_process import EvilReceiver, evil
from tests.e2e.daemon import Daemon, running, wait_until
from tests.e2e.pushing import TIMES

__all__ = ["evil"]

RECORDS = 3
GOOD_RECORDS = 200
# What the attempts at each path are counted as.
TIMED_OUT = ("hang", "drip", "dripping-head", "deaf")
FAILS = {
    **dict.fromkeys(TIMED_OUT, "timed_out"),
    **dict.fromkeys(("nothing", "half", "many-headers", "continues", "garbage"), "answer_broken"),
    "upgrades": "answer_broken",
    "redirect/ok/inside": "redirected",
    "status/404": "receiver_refused",
    "status/503": "server_error",
    "status/429/3600": "held",
}
# What the log says of some of them, when they are left alone.
SAID = {
    "hang": "timeout: no answer within timeout_ms (1,000 ms)",
    "drip": "timeout: the answer was not complete within",
    "nothing": "closed: the connection was closed without an answer",
    "half": "closed: the connection was closed before the end of the answer",
    "many-headers": "too_large: the answer has more than 64 headers",
    "garbage": "not_http: the answer is not HTTP",
    "redirect/ok/inside": "the receiver answered 307 (redirects are not followed",
    "status/404": "the receiver answered 404 (mostly the endpoint or its credentials are wrong",
}
DELIVERED = ("ok", "gigabyte", "endless", "bomb", "until-closed", "leaves")
PATIENT_MS = 60_000
SHORT_MS = 1_000  # enough for a connection, also on a busy machine


class Pushes:
    """Push subscriptions of a daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon

    def topic(self, name: str, records: int) -> None:
        """A topic with records, each with a key of its own."""
        assert self.daemon.json("PUT", f"/v0/topics/{name}", {"partitions": 2}).status == 201
        lot = [{"data": number, "key": f"k{number}"} for number in range(records)]
        assert self.daemon.json("POST", f"/v0/topics/{name}", {"records": lot}).status == 200

    def create(
        self, topic: str, name: str, endpoint: str, timeout_ms: int = PATIENT_MS, **settings: Any
    ) -> None:
        push = {
            "endpoint": endpoint,
            "timeout_ms": timeout_ms,
            "rate_max": 1_000,
            "connections_max": 2,
        }
        wanted = {"start": "earliest", "backoff_ms": [50, 200], "push": push, **settings}
        answer = self.daemon.json("PUT", f"/v0/topics/{topic}/subscriptions/{name}", wanted)
        assert answer.status in (200, 201), answer.body

    def state(self, topic: str, name: str) -> Any:
        return self.daemon.get(f"/v0/topics/{topic}/subscriptions/{name}").json

    def wait_until_delivered(self, topic: str, name: str) -> None:
        wait_until(lambda: self.state(topic, name)["lag"] == 0, f"{name} to have all")

    def attempts(self, name: str, outcome: str) -> float:
        """How many attempts of a subscription were counted as this."""
        labels = f'outcome="{outcome}",subscription="{name}"'
        for line in self.daemon.get("/metrics").body.decode().splitlines():
            if line.startswith("headgate_push_attempts_total{") and labels in line:
                return float(line.rpartition(" ")[2])
        return 0.0


@pytest.fixture
def pushes(data: Path, evil: EvilReceiver) -> Iterator[Pushes]:
    settings: dict[str, object] = {**TIMES, "push_ca_file": evil.ca_file}
    settings["push_allow"] = "127.0.0.0/8,localhost"
    with running(data, shards=2, settings=settings) as daemon:
        yield Pushes(daemon)


def name_of(path: str) -> str:
    return path.replace("/", "-")


@pytest.mark.slow
def test_receivers_that_do_what_none_should_hurt_only_themselves(
    pushes: Pushes, evil: EvilReceiver
) -> None:
    pushes.topic("few", RECORDS)
    pushes.topic("many", GOOD_RECORDS)
    for path in FAILS:
        timeout_ms = SHORT_MS if path in TIMED_OUT else PATIENT_MS
        pushes.create("few", name_of(path), f"{evil.plain}/{path}", timeout_ms)
    for path in DELIVERED:
        pushes.create("few", name_of(path), f"{evil.plain}/{path}")
    pushes.create("few", "tls", f"{evil.tls}/ok/tls")
    pushes.create("few", "expired", f"{evil.expired}/ok/expired")
    pushes.create("few", "gone", f"{evil.plain}/status/410")
    pushes.create("few", "refuses", f"{evil.plain}/status/422", poison="drop", redeliveries_max=2)
    pushes.create("many", "good", f"{evil.plain}/slow/1")

    pushes.wait_until_delivered("many", "good")
    for name in (*map(name_of, DELIVERED), "tls", "refuses"):
        pushes.wait_until_delivered("few", name)
    for path, outcome in {**FAILS, "expired": "tls_failed"}.items():
        name = name_of(path)
        wait_until(
            lambda name=name, outcome=outcome: pushes.attempts(name, outcome) > 0,  # type: ignore[misc]
            f"an attempt of {name} to be counted as {outcome}",
        )
        state = pushes.state("few", name)
        assert (state["lag"], state["dropped"]) == (RECORDS, 0), (name, state)
    for path, sentence in SAID.items():
        said = re.compile(
            f"push subscription {name_of(path)} of topic few is in (slow|heartbeat) mode:"
            f" {re.escape(sentence)}"
        )
        wait_until(lambda said=said: said.search(pushes.daemon.text), f"{said.pattern} in the log")  # type: ignore[misc]
    assert pushes.attempts("refuses", "record_refused") == RECORDS * 3
    assert pushes.state("few", "refuses")["dropped"] == RECORDS
    wait_until(lambda: pushes.state("few", "gone")["config"]["paused"], "410 to pause")
    assert pushes.state("few", "gone")["lag"] == RECORDS
    # A gigabyte is far more than what is taken of it.
    shards = psutil.Process(pushes.daemon.process.pid).children()
    assert all(shard.memory_info().rss < 512 << 20 for shard in shards)
