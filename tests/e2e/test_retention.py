"""Full topics, trims and what subscriptions hold, in a real daemon.

What a limit evicts is in ``tests/ledger/test_retention.py``, and who is told of it in
``tests/delivery/reading/test_readable.py``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import cli
from tests.e2e.daemon import Daemon, running, wait_until
from tests.e2e.subscribing import Subscription
from tests.e2e.wire import wire_of_each_shard

SOON = {"retention_interval_ms": 100}


def state(daemon: Daemon, topic: str, partition: int = 0) -> Any:
    return daemon.get(f"/v0/topics/{topic}").json["partitions"][partition]


def until_count(daemon: Daemon, topic: str, count: int) -> Any:
    """The partition when it has ``count`` records."""
    return wait_until(
        lambda: (now := state(daemon, topic))["count"] == count and now, f"{count} records"
    )


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


def test_a_repeat_gets_its_first_answer_from_a_full_topic_too(daemon: Daemon, topic: str) -> None:
    daemon.json("PUT", f"/v0/topics/{topic}", {"cap_records": 2, "discard": "reject"})
    first = daemon.produce(topic, 1, 2, idempotency_key="k")
    assert first.json["deduped"] is False
    again = daemon.produce(topic, 1, 2, idempotency_key="k")
    assert again.json == {**first.json, "deduped": True}
    assert daemon.produce(topic, 1, 2, idempotency_key="other").status == 422
    assert state(daemon, topic)["count"] == 2


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


@pytest.mark.slow
def test_what_is_not_finished_stays_up_to_a_limit_and_what_goes_beyond_it_is_told(
    data: Path,
) -> None:
    caps = {"cap_records": 5}
    with running(data, settings=SOON) as daemon:
        daemon.json("PUT", "/v0/topics/held", {**caps, "retain_for_subscriptions": 1_000_000})
        daemon.json("PUT", "/v0/topics/tight", {**caps, "retain_for_subscriptions": 1})
        held = Subscription(daemon, "held", start="earliest")
        tight = Subscription(daemon, "tight", start="earliest", paused=True)
        held.produce(*"abcdefghijkl")
        for key in "abcdefghijkl":  # each in an extent of its own, which goes as a whole
            tight.produce(key)
        until_count(daemon, "tight", 5)
        assert state(daemon, "held")["count"] == 12

        messages = held.take("c", 12)
        held.ack("c", messages[:4])
        now = until_count(daemon, "held", 8)
        assert (now["earliest_seq"], now["lost_reason"]) == (5, "cap")
        held.ack("c", messages[4:])
        until_count(daemon, "held", 5)

        tight.set(paused=False)
        asked = tight.ask("c", wait_ms=30_000).json
        assert [message["seq"] for message in asked["messages"]] == [8, 9, 10, 11, 12]
        assert asked["gaps"] == [{"partition": 0, "gap_from": 1, "gap_to": 7, "reason": "cap"}]
