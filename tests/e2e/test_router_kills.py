"""Routers copy exactly once, whatever is killed, and after a recovery from the store alone."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shards.clock import monotonic_ns
from tests.e2e.daemon import Daemon, running, wait_until
from tests.e2e.processes import unlisted
from tests.e2e.routing import add_router, assert_copied, feeding, wait_routed
from tests.e2e.test_recovery import log_entries, recovered

ROUTES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "all": ("src", "all", {}),
    "tagged": ("src", "tagged", {"tag": "t[01]"}),
    "some": ("src", "some", {"tag": "t1"}),
    "keyed": ("all", "keyed", {"key": "k?"}),
    "none": ("src", "none", {"tag": "nothing"}),
}


def passes(filters: dict[str, Any]) -> Any:
    def look(record: dict[str, Any]) -> bool:
        if "key" in filters:
            return record.get("key") is not None
        return not filters or filters["tag"] == record["tag"]

    return look


def set_up(daemon: Daemon) -> None:
    for topic, partitions in (("src", 2), ("all", 3), ("tagged", 1), ("some", 2), ("keyed", 1),
                              ("none", 1)):  # fmt: skip
        assert daemon.json("PUT", f"/v0/topics/{topic}", {"partitions": partitions}).status == 201
    for name, (source, dest, filters) in ROUTES.items():
        add_router(daemon, name, source, dest, filter=filters)


def check(daemon: Daemon) -> int:
    """Every destination has exactly the filtered source, in order; the records of the source."""
    for name in ROUTES:
        wait_routed(daemon, name)
    wait_routed(daemon, "keyed")  # again, because the records of "all" came last
    counts = {
        name: assert_copied(daemon, source, dest, passes(filters))
        for name, (source, dest, filters) in ROUTES.items()
    }
    assert counts["some"] > 0 and counts["keyed"] > 0 and counts["none"] == 0
    return counts["all"]


@pytest.mark.slow
def test_a_downtime_of_any_length_doubles_and_loses_no_copy(data: Path) -> None:
    """No window makes copies exact: that of idempotency keys is over before each start."""
    settings = {"dedupe_window_ms": 1_000}
    for round_ in range(4):
        with running(data, shards=1 + round_ % 2, settings=settings) as daemon:
            if not round_:
                set_up(daemon)
            with feeding(daemon, "src", "src") as wait_more:
                wait_more(30)
                if round_ < 3:
                    daemon.kill_everything()
            if round_ == 3:
                check(daemon)
        wait_until(partial(is_after, monotonic_ns() + 1_100_000_000), "the window to be over")


def is_after(end_ns: int) -> bool:
    return monotonic_ns() > end_ns


def has_entries_after(options: dict[str, Any], count: int) -> bool:
    return len(log_entries(options)) > count


@pytest.mark.slow
def test_after_recoveries_from_the_store_alone_the_copies_are_exact(
    data: Path, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"store": f"file://{tmp_path}/store"}
    for round_ in range(2):
        with running(data, shards=2, **options) as daemon:
            if not round_:
                set_up(daemon)
            with feeding(daemon, "src", "src") as wait_more:
                seen = len(log_entries(options))
                wait_until(partial(has_entries_after, options, seen + 1), "an entry")
                wait_more(40)
                with unlisted(daemon):
                    wait_more(5)
                    daemon.kill_everything()
        shutil.rmtree(data)
        report = recovered(data, options)
        assert report.sound and report.objects_listed and report.objects_taken
    with running(data, shards=1, **options) as daemon:
        with feeding(daemon, "src") as wait_more:
            wait_more(10)
        assert check(daemon) > 100
