"""Streams of a real daemon: every record once, wherever it was written, whatever is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.e2e.daemon import Daemon, running, wait_until
from tests.e2e.processes import shard_pids
from tests.e2e.streams import WatchLine
from tests.e2e.wire import wire_of_each_shard


def test_a_watcher_on_any_shard_sees_what_is_written_on_every_shard(
    shared_daemon: Daemon,
) -> None:
    daemon = shared_daemon
    daemon.produce("everywhere", 0)
    with (
        WatchLine(daemon, "/v0/topics/everywhere/watch?from_seq=0") as first,
        WatchLine(daemon, "/v0/topics/everywhere/watch?from_seq=0") as second,
        wire_of_each_shard(daemon, "everywhere") as writers,
    ):
        already = daemon.diff("everywhere", tail=True)["head_seq"]
        for number in range(10):
            for writer in writers:
                batch = {"records": [{"data": number}]}
                assert writer.json("POST", "/v0/topics/everywhere", batch).status == 200
        last = already + 10 * len(writers)
        for line in first, second:
            line.read_until(lambda: bool(line.records) and line.records[-1]["seq"] == last)  # noqa: B023
            assert [record["seq"] for record in line.records] == list(range(1, last + 1))
            assert line.told == ["caught-up"]


def test_the_tail_of_a_stream_costs_no_request_to_the_store(data: Path) -> None:
    with running(data, shards=2) as daemon:
        daemon.produce("t", 0)
        with WatchLine(daemon, "/v0/topics/t/watch") as line:
            line.read_until(lambda: bool(line.told))
            for number in range(50):
                daemon.produce("t", number)
            line.read_until(lambda: len(line.records) == 50)
        assert daemon.status()["store"]["gets"] == 0


def test_a_stream_resumes_where_it_was_after_its_shard_and_then_the_daemon_was_killed(
    data: Path,
) -> None:
    with running(data, shards=2) as daemon:
        seen = []
        daemon.produce("t", 0)
        line = WatchLine(daemon, "/v0/topics/t/watch?from_seq=0")
        for number in range(1, 20):
            assert daemon.produce("t", number).status == 200
            if number % 5 == 0:
                for pid in shard_pids(daemon):
                    os.kill(pid, signal.SIGKILL)
                line.read_to_end()
                seen += line.records
                line.close()
                wait_until(lambda: daemon.status()["ready"], "the shards to be back")
                line = WatchLine(daemon, "/v0/topics/t/watch", line.position)
        line.read_until(lambda: len(seen) + len(line.records) >= 20)
        position = line.position
        seen += line.records
        line.close()
        daemon.kill_everything()
    with running(data, shards=1) as daemon:
        daemon.produce("t", 20)
        with WatchLine(daemon, "/v0/topics/t/watch", position) as line:
            line.read_until(lambda: bool(line.records))
            seen += line.records
    assert [record["data"] for record in seen] == list(range(21))


def test_a_stop_ends_streams_with_a_last_event(data: Path) -> None:
    with running(data) as daemon:
        daemon.produce("t", 1)
        with WatchLine(daemon, "/v0/topics/t/watch") as line:
            line.read_until(lambda: bool(line.told))
            assert daemon.stop() == 0
            line.read_to_end()
            assert line.told == ["caught-up", "closing"]


def test_a_deleted_topic_ends_its_streams_and_a_new_one_of_its_name_is_told_apart(
    shared_daemon: Daemon,
) -> None:
    daemon = shared_daemon
    daemon.produce("phoenix", 1, 2)
    with WatchLine(daemon, "/v0/topics/phoenix/watch?from_seq=0") as line:
        line.read_until(lambda: line.told == ["caught-up"])
        daemon.json("DELETE", "/v0/topics/phoenix")
        line.read_to_end()
        assert line.told == ["caught-up", "topic-deleted"]
        position = line.position
    assert daemon.get("/v0/topics/phoenix/watch").status == 404
    daemon.produce("phoenix", 3)
    with WatchLine(daemon, "/v0/topics/phoenix/watch", position) as line:
        line.read_until(lambda: bool(line.records))
        assert line.events[0]["reason"] == "recreated"
        assert [record["data"] for record in line.records] == [3]


def test_partitions_are_added_to_an_open_stream(shared_daemon: Daemon) -> None:
    daemon = shared_daemon
    daemon.produce("growing", 1)
    with WatchLine(daemon, "/v0/topics/growing/watch?from_seq=0") as line:
        line.read_until(lambda: line.told == ["caught-up"])
        assert daemon.json("PUT", "/v0/topics/growing", {"partitions": 3}).status == 200
        assert daemon.produce("growing", 2, partition=2).status == 200
        line.read_until(lambda: len(line.records) == 2)
        assert (line.records[1]["partition"], line.records[1]["data"]) == (2, 2)


@pytest.mark.parametrize(
    ("query", "status", "said"),
    [
        ("?from_seq=9", 416, "the last offset"),
        ("?from_seq=1&tail=true", 400, "only one of"),
        ("?from_seq=x", 400, "from_seq must be an integer"),
        ("?partition=3", 400, "has partitions 0 to 0, got partition 3"),
        ("?key=a%5C", 400, "ends with a backslash"),
        ("?last_event_id=7", 400, "is not an event id"),
    ],
)
def test_a_bad_beginning_is_refused_with_a_sentence(
    shared_daemon: Daemon, query: str, status: int, said: str
) -> None:
    shared_daemon.produce("watched", 1)
    answer = shared_daemon.get(f"/v0/topics/watched/watch{query}")
    assert answer.status == status
    assert said in answer.json["error"]["message"]


def test_a_format_that_is_not_known_is_refused(shared_daemon: Daemon) -> None:
    shared_daemon.produce("watched", 1)
    answer = shared_daemon.ask("GET", "/v0/topics/watched/watch", accept="image/png")
    assert (answer.status, answer.code) == (406, "not_acceptable")
