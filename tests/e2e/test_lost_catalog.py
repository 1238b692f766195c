"""The Iceberg catalog of a lost machine: tables are registered again, and nothing complains."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest

from compaction.tables.catalog import _end_threads as end_threads
from shards.clock import wall_ms
from tests.e2e.daemon import running
from tests.e2e.lake import produce_some
from tests.e2e.orphans import Place
from tests.e2e.test_compact import compact

SOON = {"gc_grace_ms": 0}


def counts(data: Path) -> dict[str, int]:
    """The rows of each table, as pyiceberg alone finds them in the data directory's catalog."""
    from pyiceberg.catalog import load_catalog

    opened = load_catalog("headgate", uri=f"sqlite:///{data}/catalog.db")
    with contextlib.ExitStack() as stack:
        stack.callback(end_threads)
        stack.callback(opened.close)
        return {
            name: opened.load_table(("headgate", name)).scan().to_arrow().num_rows
            for _, name in opened.list_tables("headgate")
        }


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_tables_are_registered_by_recover_by_a_start_and_by_compact(
    data: Path, tmp_path: Path
) -> None:
    store = f"file://{tmp_path}/store"
    place = Place(data, {"store": store, "settings": SOON})
    rng = random.Random(1)
    with running(data, store=store, settings=SOON) as daemon:
        produce_some(daemon, rng, "orders", 20, wall_ms())
        produce_some(daemon, rng, "clicks", 20, wall_ms())
        compact(place)
        assert daemon.ask("DELETE", "/v0/topics/orders").status in (200, 204)
        produce_some(daemon, rng, "orders", 30, wall_ms())
        compact(place)
    wanted = counts(data)
    assert sorted(wanted) == ["clicks", "orders", "orders__1"]

    other = Place(tmp_path / "other", {"store": store, "settings": SOON})
    other.data.mkdir()
    report = other.json("recover")
    assert sorted(report["tables_registered"]) == sorted(f"headgate.{name}" for name in wanted)
    assert counts(other.data) == wanted
    assert other.json("gc")["problems"] == []

    catalog = other.data / "catalog.db"
    catalog.unlink()
    report = compact(other)  # without a daemon and with nothing new
    assert sorted(report["registered"]) == sorted(f"headgate.{name}" for name in wanted)
    assert report["failed"] == [] and report["java"] == "" and counts(other.data) == wanted
    catalog.unlink()
    with running(other.data, store=store, settings=SOON):
        assert counts(other.data) == wanted
        assert other.json("gc")["problems"] == []
        catalog.unlink()
        assert sorted(compact(other)["registered"]) == sorted(f"headgate.{n}" for n in wanted)
        assert counts(other.data) == wanted
    assert compact(other)["registered"] == []
