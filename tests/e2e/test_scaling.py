"""One scaling signal, three ways to ask for it: JSON, metrics, and KEDA's gRPC contract.

The scaler is the command, run as a process; it is called with KEDA's messages over real gRPC.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from commands.keda import contract
from commands.keda.trigger import METRIC
from tests.e2e.daemon import HANG_S, ROOT, Daemon, running, wait_until
from tests.e2e.subscribing import Subscription


class Scaler:
    """``headgate scaler``, and a connection to it."""

    def __init__(self, daemon: Daemon) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cli", "scaler", "--listen", "127.0.0.1:0", "--url", daemon.url],
            cwd=ROOT, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        found = re.fullmatch(r"scaler listens on (127\.0\.0\.1:\d+) and asks (.+)\n", line)
        assert found is not None, line + self.process.stderr.read()
        assert found[2] == daemon.url
        self.channel = grpc.insecure_channel(found[1])
        self.daemon = daemon

    def ask(self, method: str, request: Any, answer: Any) -> Any:
        call = self.channel.unary_unary(
            f"/externalscaler.ExternalScaler/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )

        def answers() -> list[Any]:
            try:
                return [call(request, timeout=HANG_S)]
            except grpc.RpcError as error:
                is_slow = self.daemon.process.poll() is None  # it has two seconds for the scaler
                if error.code() is grpc.StatusCode.UNAVAILABLE and is_slow:
                    return []
                raise

        (found,) = wait_until(answers, f"an answer to {method}")
        return found

    def lag(self, of: Subscription) -> float:
        request = contract.GetMetricsRequest(scaledObjectRef=reference(of), metricName=METRIC)
        (value,) = self.ask("GetMetrics", request, contract.GetMetricsResponse).metricValues
        return float(value.metricValueFloat)

    def is_active(self, of: Subscription) -> bool:
        return bool(self.ask("IsActive", reference(of), contract.IsActiveResponse).result)

    def target(self, of: Subscription) -> float:
        found = self.ask("GetMetricSpec", reference(of), contract.GetMetricSpecResponse)
        return float(found.metricSpecs[0].targetSizeFloat)


def reference(of: Subscription) -> Any:
    """A ScaledObject that names a subscription."""
    metadata = {"topic": of.topic, "subscription": of.name, "scalerAddress": "scaler:7441"}
    return contract.ScaledObjectRef(name="w", namespace="n", scalerMetadata=metadata)


@contextmanager
def scaling(daemon: Daemon) -> Iterator[Scaler]:
    """A scaler that ends with code 0 when it is told to."""
    scaler = Scaler(daemon)
    try:
        yield scaler
        scaler.process.terminate()
        assert scaler.process.wait(HANG_S) == 0
    finally:
        scaler.channel.close()
        scaler.process.kill()
        scaler.process.wait()
        assert scaler.process.stderr is not None
        scaler.process.stderr.close()


@pytest.fixture(scope="module")
def scaler(daemon: Daemon) -> Iterator[Scaler]:
    with scaling(daemon) as started:
        yield started


def subscribed(daemon: Daemon, topic: str, **settings: Any) -> Subscription:
    """A subscription of a new topic."""
    assert daemon.json("PUT", f"/v0/topics/{topic}", {}).status == 201
    return Subscription(daemon, topic, "billing", **settings)


def row(of: Subscription) -> Any:
    """The subscription in ``/v0/scaling``; None before its owner has told of it."""
    rows = of.daemon.get("/v0/scaling").json["subscriptions"]
    found = [each for each in rows if (each["topic"], each["subscription"]) == (of.topic, of.name)]
    return found[0] if found else None


def gauge(of: Subscription, name: str) -> float | None:
    """A metric of the subscription."""
    page = of.daemon.get("/metrics").body.decode()
    labels = (
        rf'subscription="{of.name}",topic="{of.topic}"|topic="{of.topic}",subscription="{of.name}"'
    )
    found = re.search(rf"^{name}{{(?:{labels})}} (\S+)$", page, re.MULTILINE)
    return None if found is None else float(found[1])


def all_say(scaler: Scaler, of: Subscription, lag: int, value: int) -> None:
    """Waits until JSON, metrics and gRPC agree on this; what the scaler says is up to 1 s old."""

    def told() -> bool:
        found = row(of)
        return (
            found is not None
            and (found["drainable_lag"], found["value"]) == (lag, value)
            and gauge(of, "headgate_subscription_drainable_lag_records") == lag
            and gauge(of, "headgate_subscription_scaling_ratio") == value / 100
            and knows(scaler, of)
            and scaler.lag(of) == lag
            and scaler.is_active(of) is (lag > 0)
        )

    try:
        wait_until(told, f"all to say {lag} and {value}")
    except AssertionError as error:
        raise AssertionError(f"{error}; it is {row(of)} and {scaler.lag(of)}") from error


def knows(scaler: Scaler, of: Subscription) -> bool:
    """Whether the scaler has heard of the subscription."""
    try:
        scaler.lag(of)
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.NOT_FOUND:
            return False
        raise
    return True


def test_json_metrics_and_keda_say_the_same(daemon: Daemon, scaler: Scaler) -> None:
    found = subscribed(daemon, "orders", consumer_max=4)
    all_say(scaler, found, 0, 0)
    found.produce(*(f"k{n}" for n in range(10)), *(f"k{n}" for n in range(10)))
    all_say(scaler, found, 1, 100)  # nobody knows its keys yet: the first consumer is wanted
    sent = found.take("first", 4)
    wait_until(lambda: (row(found)["consumers"], row(found)["in_flight"]) == (1, 4), "the consumer")
    assert row(found)["value"] > 0
    others = found.take("second", 2)
    assert scaler.target(found) == 4
    for consumer in ("first", "second", "third"):
        found.poll(consumer)
    all_say(scaler, found, 10, 0)  # three consumers of four messages each hold all ten keys
    found.ack("first", sent)
    found.ack("second", others)
    assert row(found)["consumer_max"] == 4


def test_consumers_that_poll_for_few_messages_are_wanted_accordingly(
    daemon: Daemon, scaler: Scaler
) -> None:
    found = subscribed(daemon, "slow-work", consumer_max=8)
    found.produce(*"abcdef")
    sent = found.take("worker", 3)
    all_say(scaler, found, 6, 50)  # another one like it would help; one of eight has room for all
    assert scaler.target(found) == row(found)["consumer_max"] == 3
    found.ack("worker", sent)
    found.leave("worker")
    wait_until(lambda: row(found)["consumer_max"] == 8, "the setting to count again")


@pytest.mark.slow
def test_lag_that_more_consumers_cannot_drain_asks_for_none(daemon: Daemon, scaler: Scaler) -> None:
    found = subscribed(daemon, "events", redeliveries_max=0)
    found.join("only")
    found.produce(*["hot"] * 50)
    sent = found.take("only", 1)
    assert found.gets_nothing("only")
    all_say(scaler, found, 1, 0)  # one hot key
    found.nack("only", sent)
    found.gets_nothing("only")
    all_say(scaler, found, 0, 0)  # one blocked key
    assert row(found)["lag"] == 50 and row(found)["blocked_keys"] == 1
    found.produce(*"abc")
    assert len(found.take("only", 3)) == 3
    all_say(scaler, found, 3, 0)
    assert found.set(paused=True).status == 200
    all_say(scaler, found, 0, 0)
    assert row(found)["held"] == "paused"


@pytest.mark.slow
def test_a_daemon_that_is_away_is_an_error_and_not_zero(tmp_path: Path) -> None:
    with running(tmp_path / "data") as daemon:
        found = subscribed(daemon, "orders")
        with scaling(daemon) as scaler:
            wait_until(lambda: row(found), "the owner to tell of it")
            assert scaler.lag(found) == 0
            daemon.kill_everything()
            with pytest.raises(grpc.RpcError) as caught:
                wait_until(lambda: scaler.lag(found), "a call that fails")
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
