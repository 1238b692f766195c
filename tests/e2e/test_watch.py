"""Streams of a real daemon: every record once, wherever it was written, whatever is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.e2e.daemon import Daemon, running, wait_for_heartbeats
from tests.e2e.processes import succession
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


def test_the_tail_of_a_stream_costs_no_request_to_the_store(shared_daemon: Daemon) -> None:
    daemon = shared_daemon
    daemon.produce("tailed", 0)
    wait_for_heartbeats(daemon)  # what others did before is counted
    before = daemon.status()
    with WatchLine(daemon, "/v0/topics/tailed/watch") as line:
        line.read_until(lambda: bool(line.told))
        for number in range(50):
            daemon.produce("tailed", number)
        line.read_until(lambda: len(line.records) == 50)
    wait_for_heartbeats(daemon)
    after = daemon.status()
    assert after["store"]["gets"] == before["store"]["gets"]
    delivery = after["delivery"]
    assert 1 <= delivery["deliveries"] - before["delivery"]["deliveries"] <= 50
    assert 0 < delivery["p50_ms"] <= delivery["p99_ms"]


@pytest.mark.slow
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
                with succession(daemon, 0, 1) as pids:
                    for pid in pids:
                        os.kill(pid, signal.SIGKILL)
                    line.read_to_end()
                seen += line.records
                line.close()
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


@pytest.mark.slow
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


def wid_of(daemon: Daemon, *topics: dict[str, object], **filters: str) -> str:
    """The path of a stream of several topics."""
    answer = daemon.json("POST", "/v0/watch", {"topics": topics, **filters})
    assert answer.status == 200, answer.body
    assert answer.json["stream_url"] == "/v0/watch/" + answer.json["wid"]
    assert [each["topic"] for each in answer.json["topics"]] == [each["topic"] for each in topics]
    return str(answer.json["stream_url"])


def test_a_stream_of_several_topics_tells_them_apart_and_resumes(shared_daemon: Daemon) -> None:
    daemon = shared_daemon
    daemon.json("PUT", "/v0/topics/many-b", {"partitions": 2})
    daemon.produce("many-a", 1)
    path = wid_of(daemon, {"topic": "many-a", "from_seq": 0}, {"topic": "many-b"})
    with WatchLine(daemon, path) as line:
        line.read_until(lambda: line.told == ["caught-up"])
        daemon.produce("many-b", 2, partition=1)
        daemon.produce("many-a", 3)
        line.read_until(lambda: len(line.records) == 3)
        found = [(each["topic"], each["partition"], each["data"]) for each in line.records]
        assert found[0] == ("many-a", 0, 1)
        assert sorted(found[1:]) == [("many-a", 0, 3), ("many-b", 1, 2)]
        position = line.position
    daemon.produce("many-b", 4, partition=0)
    with WatchLine(daemon, path, position) as line:
        line.read_until(lambda: bool(line.records))
        assert [each["data"] for each in line.records] == [4]


@pytest.mark.slow
def test_a_wid_outlives_the_daemon_and_begins_where_it_says(data: Path) -> None:
    with running(data, shards=2) as daemon:
        daemon.produce("t", 1, 2)
        path = wid_of(daemon, {"topic": "t", "from_seq": 1})
        daemon.kill_everything()
    with running(data, shards=1) as daemon, WatchLine(daemon, path) as line:
        line.read_until(lambda: bool(line.records))
        assert [each["data"] for each in line.records] == [2]


def test_a_stream_of_several_topics_goes_on_when_one_is_deleted(shared_daemon: Daemon) -> None:
    daemon = shared_daemon
    for topic in ("left", "gone"):
        daemon.produce(topic, 1)
    path = wid_of(daemon, {"topic": "left"}, {"topic": "gone"})
    with WatchLine(daemon, path) as line:
        line.read_until(lambda: line.told == ["caught-up"])
        before = line.position
        daemon.json("DELETE", "/v0/topics/gone")
        line.read_until(lambda: line.told == ["caught-up", "topic-deleted"])
        daemon.produce("left", 2)
        line.read_until(lambda: bool(line.records))
        assert [(each["topic"], each["data"]) for each in line.records] == [("left", 2)]
    with WatchLine(daemon, path, before) as line:
        line.read_until(lambda: bool(line.records))
        assert line.events[0]["event"] == "topic-deleted" and line.events[0]["topic"] == "gone"
        assert [(each["topic"], each["data"]) for each in line.records] == [("left", 2)]
    daemon.json("DELETE", "/v0/topics/left")
    refused = daemon.get(path)
    assert (
        refused.status == 404
        and "all topics of this wid were deleted" in refused.json["error"]["message"]
    )


def test_filters_of_a_wid_choose_by_tag_node_and_key(shared_daemon: Daemon) -> None:
    daemon = shared_daemon
    daemon.produce("chosen", 0)
    records = [
        {"data": 1, "tag": "red", "node": "n1", "key": "k"},
        {"data": 2, "tag": "rad", "node": "n22", "key": "k"},
        {"data": 3, "tag": "red", "node": "n22"},
        {"data": 4, "tag": "red", "node": "n23", "key": "key"},
    ]
    path = wid_of(daemon, {"topic": "chosen"}, tag="r?d", node="n2*", key="k*")
    with WatchLine(daemon, path) as line:
        line.read_until(lambda: line.told == ["caught-up"])
        assert daemon.json("POST", "/v0/topics/chosen", {"records": records}).status == 200
        line.read_until(lambda: len(line.records) == 2)
        assert [each["data"] for each in line.records] == [2, 4]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"topics": []}, "topics"),
        ({"topics": [{"topic": "spare"}, {"topic": "spare", "partition": 0}]}, "is named twice"),
        ({"topics": [{"topic": "spare", "partition": 5}]}, "has partitions 0 to 0, got"),
        ({"topics": [{"topic": "spare", "tail": True, "from_seq": 0}]}, "give only one of"),
        ({"topics": [{"topic": "/"}]}, "a topic's name must"),
        ({"topics": [{"topic": "spare", "from": 1}]}, "unknown field"),
        ({"topics": [{"topic": "spare"}], "tag": "a\\"}, "ends with a backslash"),
        ({"topics": [{"topic": "spare"}], "tag": "é" * 1_000, "key": "é" * 1_000}, "shorten"),
    ],
)
def test_a_stream_that_cannot_be_is_refused_when_it_is_described(
    shared_daemon: Daemon, body: dict[str, object], says: str
) -> None:
    shared_daemon.produce("spare", 1)
    refused = shared_daemon.json("POST", "/v0/watch", body)
    assert refused.status == 400 and says in refused.json["error"]["message"]


def test_a_wid_that_was_cut_and_a_position_of_another_stream_are_refused(
    shared_daemon: Daemon,
) -> None:
    shared_daemon.produce("spare", 1)
    path = wid_of(shared_daemon, {"topic": "spare"})
    refused = shared_daemon.get(path[:-3])
    assert refused.status == 400 and "is not a wid" in refused.json["error"]["message"]
    refused = shared_daemon.get(path + "?last_event_id=999:0=1")
    assert refused.status == 400
    assert "does not have: 999:0" in refused.json["error"]["message"]
    assert shared_daemon.json("POST", "/v0/watch", {"topics": [{"topic": "no"}]}).status == 404
