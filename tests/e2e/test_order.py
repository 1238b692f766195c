"""Offsets are ordered, dense and exact, across several shards and connections."""

from __future__ import annotations

from tests.e2e.daemon import Daemon, wait_for_heartbeats, wait_until
from tests.e2e.load import check_stored, load
from tests.e2e.processes import connect_to

PLACES = [("orders", 0), ("clicks", 0), ("clicks", 1), ("clicks", 2)]


def test_acknowledged_is_stored_once_at_its_offset_and_in_each_connections_order(
    shared_daemon: Daemon,
) -> None:
    daemon = shared_daemon
    daemon.json("PUT", "/v0/topics/clicks", {"partitions": 3})
    wait_for_heartbeats(daemon)  # what others did before is counted
    before = daemon.status()
    with load(daemon, PLACES, connections=9, requests_max=120) as run:
        run.join()
    counts = check_stored(daemon, PLACES, run)
    # Counters follow the answers, that of records last.
    stored = before["totals"]["records_acked"] + counts["acknowledged"]
    wait_until(lambda: daemon.status()["totals"]["records_acked"] == stored, "the counts")
    after = daemon.status()

    assert not run.unknown and not run.refused
    assert run.acknowledged_count == 9 * 120
    assert counts["acknowledged"] == sum(120 * (1 + number % 3) for number in range(9))
    requests = [
        sum(shard["requests_acked"] for shard in status["shards"]) for status in (before, after)
    ]
    assert requests[1] - requests[0] == 9 * 120


def test_requests_of_one_connection_keep_their_order_while_their_topics_are_being_made(
    shared_daemon: Daemon,
) -> None:
    places = [(f"made-{number}", 0) for number in range(5)]
    with load(shared_daemon, places, connections=6, depth=10, requests_max=20) as run:
        run.join()

    counts = check_stored(shared_daemon, places, run)
    assert run.acknowledged_count == 6 * 20 and not run.refused
    assert counts["acknowledged"] == 20 * (1 + 2 + 3) * 2


def test_requests_of_one_partition_through_different_shards_get_offsets_of_one_sequence(
    shared_daemon: Daemon,
) -> None:
    with connect_to(shared_daemon, 0) as first, connect_to(shared_daemon, 1) as second:
        answers = [
            line.produce("shared", number)
            for number, line in enumerate((first, second, first, second))
        ]

    assert [answer["first_seq"] for answer in answers] == [1, 2, 3, 4]
    assert [r["data"] for r in shared_daemon.read_all("shared")] == [0, 1, 2, 3]
