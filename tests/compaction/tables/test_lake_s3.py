"""The lifecycle of a table in a bucket, read back with pyiceberg."""

from __future__ import annotations

from pathlib import Path

import pytest

from compaction.inputs.place import Place
from compaction.tables.commit import TableCommit, commit_table, switch_of
from compaction.tables.expire import expire
from compaction.tables.fileio import requests_of
from compaction.tables.lake import Lake
from compaction.tables.lake_listing import LakeListing
from compaction.tables.reconcile import reconcile
from tests.compaction.lakes import (
    Book,
    catalog_properties,
    commit_of,
    compacted,
    data_files,
    prepared,
    pyiceberg_rows,
    rows,
    topic,
    written,
)
from tests.minio import Bucket


def test_a_table_in_a_bucket_is_made_committed_rewritten_expired_and_read(
    tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch, book: Book
) -> None:
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    place = Place(bucket.url, endpoint_url=bucket.endpoint_url, region=bucket.region)
    orders = topic()
    listing = LakeListing(place)
    with Lake(place, catalog_properties(tmp_path)) as lake:
        for n in range(1, 4):
            location = compacted(lake, book, orders, f"run{n}", rows(0, n, n))
        assert location.startswith(f"{bucket.url}/lake/orders-1/metadata/")
        small = data_files(lake, "headgate.orders")
        assert all(path.startswith(f"{bucket.url}/lake/orders-1/data/") for path in small)

        wider = topic(columns={"n": "long"})
        table = prepared(lake, wider, book)
        files = written(place, table, "run4", rows(0, 1, 5), typed={"n": [1, 2, 3, 4, 5]})
        commit_table(lake, "run4", TableCommit(table, files, {0: 5}, sorted(small)))
        ((switch,), failures) = reconcile(lake, [wider], book)
        assert not failures and set(switch.dropped) == small
        book.switch(switch, "run4")

        found = expire(lake, "headgate.orders", older_than_ms=2**50, read_files={files[0][0].path})
        assert found is not None and set(found.data) == small
        listing.remove([*found.data, *found.metadata])
        left = {each.location for each in listing.below(f"{place.lake}/orders-1/data")}
        assert left == {files[0][0].path}

        table = prepared(lake, wider, book)
        commit = commit_of(place, table, "run5", rows(0, 6, 7), typed={"n": [6, None]})
        before = requests_of(place)
        book.switch(switch_of(commit, commit_table(lake, "run5", commit)), "run5")
        cost = requests_of(place)
        assert cost.puts - before.puts == 3  # manifest, manifest list, metadata
        assert pyiceberg_rows(lake, "headgate.orders") == rows(0, 1, 7)
        scanned = lake.catalog.load_table("headgate.orders").scan().to_arrow()
        assert sorted(scanned["n"].to_pylist(), key=str) == [1, 2, 3, 4, 5, 6, None]
    listing.close()
