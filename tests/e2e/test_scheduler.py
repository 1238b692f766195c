"""The scheduler in a real daemon: what is shown of it."""

from __future__ import annotations

from contextlib import ExitStack

from tests.e2e.daemon import Daemon, wait_until
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
