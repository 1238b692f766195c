"""Topics that are made, used and deleted again and again leave no rows, killed or not."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.e2e.daemon import HANG_S, Daemon, running, wait_until
from tests.e2e.orphans import Place
from tests.e2e.processes import kill_shards
from tests.e2e.streams import WatchLine
from tests.e2e.test_recovery import recovered
from tests.e2e.test_watch import wid_of

TABLES = ("topics", "partitions", "cursors", "subscriptions", "subscription_epochs", "routers",
          "partition_growth")  # fmt: skip
# An entry every 5 s, and a look of the upkeep every 10 s.
GONE_S = HANG_S + 20


def rows(data: Path) -> list[int]:
    """Rows of what is made and deleted, by table."""
    with closing(sqlite3.connect(f"file:{data}/ledger/ledger.db?mode=ro", uri=True)) as look:
        return [look.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in TABLES]


def made(daemon: Daemon) -> str:
    """Topics with all that hangs on them; the path of a stream of one of them, and of another."""
    for name, partitions in (("t", 3), ("copies", 1), ("dead", 1)):
        assert daemon.json("PUT", f"/v0/topics/{name}", {"partitions": partitions}).status == 201
    rules = {"poison": "dead_letter", "dead_letter_topic": "dead"}
    assert daemon.json("PUT", "/v0/topics/t/subscriptions/s", rules).status == 201
    assert daemon.json("PUT", "/v0/routers/r", {"source": "t", "dest": "copies"}).status == 201
    for number in range(3):
        assert daemon.produce("t", number).status == 200
    assert daemon.json("PUT", "/v0/topics/t", {"partitions": 4}).status == 200
    return wid_of(daemon, {"topic": "t"}, {"topic": "orders", "from_seq": 0})


def unmade(daemon: Daemon) -> None:
    assert daemon.ask("DELETE", "/v0/routers/r").status in (200, 204)
    for name in ("t", "copies", "dead"):
        assert daemon.ask("DELETE", f"/v0/topics/{name}").status in (200, 204), name


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_is_deleted_leaves_no_rows_whatever_is_killed_and_does_not_come_back(
    data: Path, tmp_path: Path
) -> None:
    store = f"file://{tmp_path}/store"
    place = Place(data, {"store": store})

    def collected(daemon: Daemon) -> None:
        assert daemon.produce("orders", "last").status == 200  # the last object always stays
        assert place.json("gc")["waiting"] == 0

    def gone(daemon: Daemon) -> None:
        wait_until(lambda: rows(data) == [1, 1, 0, 0, 0, 0, 0], "the rows to go", GONE_S)

    steps = (unmade, collected, gone)
    with running(data, shards=2, store=store) as daemon:
        collected(daemon)
        assert rows(data) == [1, 1, 0, 0, 0, 0, 0]
    for survived in range(len(steps) + 1):
        with running(data, shards=2, store=store) as daemon:
            path = made(daemon)
            for step in steps[:survived]:
                step(daemon)
            daemon.kill_everything()
        with running(data, shards=2, store=store) as daemon:
            for step in steps[survived:]:
                step(daemon)
                kill_shards(daemon, 0)
            with WatchLine(daemon, path) as line:  # nothing is known of one of its topics
                line.read_until(lambda: "caught-up" in line.told)
            assert daemon.produce("t", "new").json["first_seq"] == 1
            assert daemon.ask("DELETE", "/v0/topics/t").status in (200, 204)
    with running(data, shards=2, store=store) as daemon:
        collected(daemon)
        gone(daemon)
        daemon.kill_everything()
    shutil.rmtree(data)
    report = recovered(data, {"store": store}, take_over=True)
    assert report.sound and report.topics_restored == []
    with running(data, store=store) as daemon:
        assert [topic["topic"] for topic in daemon.get("/v0/topics").json["topics"]] == ["orders"]
        collected(daemon)
        gone(daemon)
