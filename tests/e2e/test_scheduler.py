"""The scheduler in a real daemon: what is shown of it, and that it changes no log."""

from __future__ import annotations

import random
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.daemon import Daemon, running, wait_until
from tests.e2e.streams import WatchLine


def test_watchers_of_all_shards_are_counted_and_what_they_get_is_recent(
    shared_daemon: Daemon,
) -> None:
    daemon = shared_daemon
    daemon.json("PUT", "/v0/topics/counted", {"priority": 300})
    with ExitStack() as open_streams:
        lines = [
            open_streams.enter_context(WatchLine(daemon, "/v0/topics/counted/watch"))
            for _ in range(5)
        ]
        for line in lines:
            line.read_until(lambda: bool(line.told))  # noqa: B023
        state = daemon.get("/v0/topics/counted").json
        assert (state["watchers"], state["recency"]) == (5, 0)
        daemon.produce("counted", 1)
        for line in lines:
            line.read_until(lambda: bool(line.records))  # noqa: B023
        state = wait_until(
            lambda: (found := daemon.get("/v0/topics/counted").json)["recency"] and found,
            "the delivery to be noted",
        )
        assert (state["effective_priority"], state["band"]) == (300, 2)
    wait_until(
        lambda: daemon.get("/v0/topics/counted").json["watchers"] == 0, "the clients to be gone"
    )
    listed = daemon.get("/v0/topics?limit=1000").json["topics"]
    assert [each["watchers"] for each in listed if each["topic"] == "counted"] == [0]


def play(daemon: Daemon, seed: int) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    """Random operations of one client; what can be read of each topic then, and what its watcher
    was told."""
    rng = random.Random(seed)
    names = ["a", "b", "c"]
    for name in names:
        daemon.json("PUT", f"/v0/topics/{name}", {"partitions": 2})
    with ExitStack() as open_streams:
        lines = {
            name: open_streams.enter_context(WatchLine(daemon, f"/v0/topics/{name}/watch"))
            for name in names
        }
        for line in lines.values():
            line.read_until(lambda: bool(line.told))  # noqa: B023
        heads: dict[str, int] = dict.fromkeys(names, 0)
        for number in range(60):
            name = rng.choice(names)
            step = rng.random()
            if step < 0.75:
                count = rng.randint(1, 5)
                partition = rng.randint(0, 1)
                answer = daemon.produce(name, *[number] * count, partition=partition)
                assert answer.status == 200
                heads[name] += count
            else:
                priority = rng.choice([None, -1000, -300, 0, 400, 1000])
                answer = daemon.json("PUT", f"/v0/topics/{name}", {"priority": priority})
                assert answer.status == 200
        for name, line in lines.items():
            line.read_until(lambda: len(line.records) == heads[name])  # noqa: B023
        told = {
            name: [
                [(record["seq"], record["data"]) for record in line.records
                 if record["partition"] == partition]
                for partition in range(2)
            ]
            for name, line in lines.items()
        }  # fmt: skip
    read = {
        name: [
            [(record["seq"], record["data"]) for record in daemon.read_all(name, partition)]
            for partition in range(2)
        ]
        for name in names
    }
    return read, told


@pytest.mark.slow
def test_the_log_is_the_same_with_the_scheduler_and_without(tmp_path: Path) -> None:
    """T14, over HTTP."""
    found = []
    for scheduler in "on", "off":
        with running(tmp_path / scheduler, shards=2, settings={"scheduler": scheduler}) as daemon:
            found.append(play(daemon, seed=5))
    (read, told), other = found
    assert told == read, "watchers are told every record, in the order of their partitions"
    assert (read, told) == other
