"""Other users of the machine read nothing of what a daemon and a compaction store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ledger.lake import catalog
from tests.compaction.lakes import Book, catalog_properties, compacted, place_in, rows, topic
from tests.e2e.daemon import running


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def readable(folder: Path) -> list[str]:
    """What in a folder has any right of others."""
    found = []
    for path in (folder, *folder.rglob("*")):
        with suppress(FileNotFoundError):  # a daemon that runs renames what it has written
            if path.lstat().st_mode & 0o077:
                found.append(str(path))
    return found


def test_a_daemons_files_are_private_and_those_of_a_former_version_become_so(
    tmp_path: Path,
) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    settings = {"push_allow": "127.0.0.1", "lake_url": f"file://{other}/lake"}
    options: dict[str, Any] = {"settings": settings, "store": f"file://{other}/store"}
    folders = [data, other / "store", other / "lake"]
    hook = {"push": {"endpoint": "http://127.0.0.1:9/", "headers": {"authorization": "x"}}}
    with umask(0), running(data, **options) as daemon:
        assert daemon.produce("orders", 1).status == 200
        made = daemon.json("PUT", "/v0/topics/orders/subscriptions/hook", hook)
        assert made.status == 201, made.body
        assert [readable(folder) for folder in folders[:2]] == [[], []]
        found = {path.name for path in data.rglob("*")}
        assert found >= {"ledger.db", "ledger.db-wal", "lock", "admin.sock", "push-secrets.json"}
        (other / "lake" / "orders-1").mkdir(parents=True)  # as a former version's compaction does
    for folder in folders:
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o777 if path.is_dir() else 0o666)
    with umask(0), running(data, **options) as daemon:
        assert [readable(folder) for folder in folders] == [[], [], []]
        assert "could read" in daemon.text
        assert [record["data"] for record in daemon.read_all("orders")] == [1]


def test_files_of_a_compaction_are_private(tmp_path: Path) -> None:
    from compaction.tables.lake import Lake

    with umask(0), Lake(place_in(tmp_path), catalog_properties(tmp_path)) as lake:
        compacted(lake, Book(), topic(), "run1", rows(0, 1, 3))
        with catalog.opened(tmp_path / "own.db", lake.place.lake) as tx:
            catalog.make_namespace(tx, "headgate")
    store = tmp_path / "store"
    assert len(list(store.rglob("*.parquet"))) == 1 and len(list(store.rglob("*.json"))) == 2
    assert readable(store) == [] and not (tmp_path / "own.db").stat().st_mode & 0o077
