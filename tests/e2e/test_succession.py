"""A shard that replaces a dead one answers its own requests only."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.daemon import running, wait_until
from tests.e2e.processes import connect_to, kill_shards


@pytest.mark.slow
def test_offsets_are_right_where_a_predecessors_requests_are_committed_with_ours(
    data: Path,
) -> None:
    # Nothing goes for a minute after the first upload, unless the daemon stops.
    minute = {"commit_window_min_ms": 60_000, "commit_window_max_ms": 60_000}
    with running(data, shards=1, settings=minute) as daemon:
        daemon.produce("t", "first")

        def backlog() -> int:
            return int(daemon.status()["groups"][0]["backlog_bytes"])

        with connect_to(daemon, 0) as line:
            line.send("t", "left", "over", ack_timeout_ms=600_000)
            left_bytes = wait_until(backlog, "the request to be published")
            kill_shards(daemon, 0)
            assert line.answer() is None
        with connect_to(daemon, 0) as line:
            line.send("t", "ours", ack_timeout_ms=600_000)
            wait_until(lambda: backlog() > left_bytes, "the second request to be published")
            assert daemon.stop() == 0
            answer = line.answer()
    assert answer is not None
    assert (answer.status, answer.json["first_seq"], answer.json["head_seq"]) == (200, 4, 4)
    with running(data, shards=1) as daemon:
        found = [(record["seq"], record["data"]) for record in daemon.read_all("t")]
    assert found == [(1, "first"), (2, "left"), (3, "over"), (4, "ours")]
