"""A subscription goes on from what is durable, whatever has ended: an owner without a successor, or
a daemon with its directory."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.daemon import running, wait_until
from tests.e2e.processes import alive, shard_pids, stopped
from tests.e2e.subscribing import Subscription, seqs
from tests.e2e.test_recovery import log_entries, recovered


def test_what_a_dead_owner_acknowledged_stays_so_if_the_daemon_ends_before_its_successor_begins(
    tmp_path: Path,
) -> None:
    with running(tmp_path / "data", shards=1) as daemon:
        daemon.json("PUT", "/v0/topics/orders", {})
        found = Subscription(daemon, "orders", start="earliest")
        found.produce(*"abc")
        first, second, _ = found.take("c", 3)
        (pid,) = shard_pids(daemon)
        with stopped(daemon.process.pid):  # so the supervisor hears of both simultaneously
            found.ack("c", [first, second])
            os.kill(pid, signal.SIGKILL)
            daemon.process.send_signal(signal.SIGTERM)
            wait_until(lambda: not alive(pid), "the shard to end")
        assert daemon.stop() == 0
    with running(tmp_path / "data", shards=1) as daemon:
        assert seqs(Subscription(daemon, "orders").take("c", 1)) == [3]


@pytest.mark.slow
def test_a_recovered_subscription_delivers_what_no_entry_lists_as_finished(tmp_path: Path) -> None:
    options = {"store": f"file://{tmp_path}/store"}
    policy: dict[str, Any] = {
        "poison": "dead_letter", "dead_letter_topic": "dead", "redeliveries_max": 0,
    }  # fmt: skip

    def listed() -> int:
        """How many finished offsets above the floor the last entry that has any tells of."""
        rows = [row for entry in log_entries(options) if entry.changes is not None
                for row in entry.changes.rows.get("finished_rows", [])]  # fmt: skip
        return int.from_bytes(rows[-1][3], "little").bit_count() if rows else 0

    with running(tmp_path / "data", shards=2, **options) as daemon:
        for topic in ("orders", "dead"):
            daemon.json("PUT", f"/v0/topics/{topic}", {})
        found = Subscription(daemon, "orders", start="earliest", **policy)
        found.produce(*"abcdefghij")
        first = found.take("c", 10)
        found.nack("c", [first[6]])
        wait_until(lambda: daemon.read_all("dead"), "the dead letter")
        found.ack("c", [first[0], first[1], first[4]])
        wait_until(lambda: listed() == 2, "an entry with what is finished")
        found.ack("c", first[7:9])
        daemon.kill_everything()
    shutil.rmtree(tmp_path / "data")
    report = recovered(tmp_path / "data", options, take_over=True)
    assert report.sound and not report.topics_restored
    with running(tmp_path / "data", **options) as daemon:
        again = Subscription(daemon, "orders")
        assert again.set().json["config"]["poison"] == "dead_letter"
        seqs = [message["seq"] for message in again.take("c", 5)]
        # The last two may have been listed in time; all before them were.
        assert seqs[:3] == [3, 4, 6] and set(seqs) <= {3, 4, 6, 8, 9, 10}
        (letter,) = daemon.read_all("dead")
        assert letter["data"] == 6 and letter["meta"]["headgate"]["seq"] == 7
