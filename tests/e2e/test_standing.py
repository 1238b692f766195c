"""A blocked key and a held router are alarms: in status, metrics, `headgate status` and the log."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.e2e.daemon import Daemon, running, wait_until
from tests.e2e.subscribing import Subscription
from tests.standing import assert_nothing_stands, assert_stands, standing


@pytest.mark.slow
def test_what_stands_still_is_an_alarm_until_it_goes_on(tmp_path: Path) -> None:
    with running(tmp_path, shards=2, settings={"standstill_after_ms": 1_000}) as daemon:
        full = {"partitions": 1, "cap_records": 2, "discard": "reject"}
        assert daemon.json("PUT", "/v0/topics/full", full).status < 300
        assert daemon.json("PUT", "/v0/topics/source", {"partitions": 1}).status < 300
        found = Subscription(daemon, "source", redeliveries_max=0)
        router = {"source": "source", "dest": "full", "from": "earliest"}
        assert daemon.json("PUT", "/v0/routers/r", router).status == 201
        found.produce("a", "b", "c")
        sent = found.take("c", 3)
        found.nack("c", sent[:1], reason="bad address")
        found.ack("c", sent[1:])
        wait_until(lambda: len(standing(daemon.status())) == 2, "both to stand still")
        status = daemon.status()
        assert_stands(status, "source", "s", "message 0:1 of the key 'a'", "blocked", "bad address")
        assert_stands(status, "source", "r", "record 0:", "full")
        assert status["routers"]["held"] == 1 and status["routers"]["lag"] >= 1
        assert status["subscriptions"]["oldest_unfinished_ms"] > 0
        page = daemon.get("/metrics").body.decode()
        assert 'headgate_alarm_active{alarm="stands_still"} 1.0' in page
        assert daemon.json("POST", f"{found.path}/skip", {"key": "a"}).status == 200
        is_held = "router r from topic source to topic full is held"
        wait_until(lambda: is_held in daemon.text, "a line that it is held")
        assert daemon.ask("DELETE", "/v0/routers/r").status == 200
        wait_until(lambda: not standing(daemon.status()), "nothing to stand still")
        assert_nothing_stands(daemon.status())
        wait_until(lambda: "s of topic source stood still for" in daemon.text, "a line at its end")
        assert daemon.ask("DELETE", found.path).status == 200
        assert daemon.ask("DELETE", "/v0/topics/source").status == 200
        for line in (
            "subscription s of topic source was created",
            "subscription s of topic source was deleted",
            "router r from topic source to topic full was created",
            "router r was deleted",
            "topic source was created (id",
            "topic source was deleted (id",
            "subscription s of topic source stands still",
            "router r of topic source stands still",
            is_held,
        ):
            wait_until(partial(_is_told, daemon, line), f"a line: {line}")
            assert daemon.text.count(line) == 1, (line, daemon.text)


def _is_told(daemon: Daemon, line: str) -> bool:
    return line in daemon.text
