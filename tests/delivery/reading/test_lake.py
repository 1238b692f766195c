"""Reading L1 in a loop: kept within bounds, fetched once, tried again while that can help."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from compaction.parquet import reader, writer
from compaction.parquet.reader import BlockRows
from delivery.reading import lake as lake_reader
from delivery.reading.lake import LakeReader
from delivery.reading.store_threads import StoreThreads
from ledger.lake import lake_files
from ledger.lake.types import FileRange
from tests.delivery.lakes import compact
from tests.delivery.node import Node, node_in
from uploader.l0.records import Record
from uploader.stores.base import ObjectMissing, StoreError
from uploader.stores.retry import Budget


class Sized:
    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes


class Store:
    """The real reads; counts them, and can make them wait or fail first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.footers: list[str] = []
        self.groups: list[int] = []
        self.under_way = 0
        self.under_way_max = 0
        self.asked = threading.Event()
        self.before: Callable[[], object] = lambda: None
        self._mutex = threading.Lock()
        read_footer, open_rows = reader.read_footer, reader.open_rows

        def footer(place: Any, path: str, size_bytes: int) -> Any:
            self.footers.append(path)
            return self._watched(lambda: read_footer(place, path, size_bytes))

        def rows(footer: Any, group: Any) -> Any:
            self.groups.append(group.index)
            return self._watched(lambda: open_rows(footer, group))

        monkeypatch.setattr(reader, "read_footer", footer)
        monkeypatch.setattr(reader, "open_rows", rows)

    def _watched(self, read: Callable[[], Any]) -> Any:
        with self._mutex:
            self.under_way += 1
            self.under_way_max = max(self.under_way_max, self.under_way)
        self.asked.set()
        try:
            self.before()
            return read()
        finally:
            with self._mutex:
                self.under_way -= 1


class Lake:
    """A topic of 40 compacted records, 10 a row group, in one file; and a reader of it."""

    def __init__(self, node: Node, reader: LakeReader, counted: list[int]) -> None:
        self.node = node
        self.reader = reader
        self.counted = counted
        self.ranges: list[FileRange] = node.ledger.read(lake_files.ranges_from, *node.key(), 1, 99)

    async def read(self, first: int, last: int) -> list[int]:
        return [
            offset
            async for chunk in self.reader.chunks(self.ranges, 0, first, last)
            for offset, _, _ in chunk.records()
        ]


@contextmanager
def lake_of(
    directory: Path, rows_bytes_max: int = 1 << 20, blocks_bytes_max: int = 1 << 20
) -> Iterator[Lake]:
    directory.mkdir(exist_ok=True)
    with node_in(directory, ring_bytes=1 << 16) as node, ThreadPoolExecutor(4) as threads:
        node.produce(0, {0: [Record(f'"{n:0100}"') for n in range(40)]})
        node.commit()
        compact(node)
        counted: list[int] = []
        reader = LakeReader(
            lambda: node.place,
            StoreThreads(threads, counted.append, Random(1)),
            rows_bytes_max,
            blocks_bytes_max,
        )
        yield Lake(node, reader, counted)


@pytest.fixture(autouse=True)
def several_row_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "ROW_GROUP_ROWS", 10)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    return Store(monkeypatch)


async def test_footers_and_row_groups_are_fetched_once_and_then_kept(
    tmp_path: Path, store: Store
) -> None:
    with lake_of(tmp_path) as lake:
        for _ in range(3):
            assert await lake.read(8, 25) == list(range(8, 26))
        assert store.footers == [lake.ranges[0].path]
        assert store.groups == [0, 1, 2]
        assert len(lake.counted) == 4 and sum(lake.counted) < 2 * lake.ranges[0].size_bytes
        assert lake.reader._rows.kept.size > 3 * 10 * 100


async def test_readers_of_one_row_group_wait_for_one_fetch(tmp_path: Path, store: Store) -> None:
    may_go = threading.Event()
    with lake_of(tmp_path) as lake:
        await lake.read(1, 1)
        store.asked.clear()
        store.before = lambda: may_go.wait(60)
        tasks = [asyncio.create_task(lake.read(11, 12)) for _ in range(8)]
        await asyncio.to_thread(store.asked.wait, 60)
        for _ in range(100):  # another fetch would have begun by now
            await asyncio.sleep(0)
        may_go.set()
        assert await asyncio.gather(*tasks) == [[11, 12]] * 8
        assert store.groups == [0, 1]


async def test_a_bounded_number_is_fetched_at_a_time(tmp_path: Path, store: Store) -> None:
    may_go = threading.Event()
    with lake_of(tmp_path) as lake:
        await lake.read(1, 1)
        store.before = lambda: may_go.wait(60)
        store.asked.clear()
        tasks = [asyncio.create_task(lake.read(first, first)) for first in (11, 21, 31)]
        await asyncio.to_thread(store.asked.wait, 60)
        for _ in range(100):
            await asyncio.sleep(0)
        may_go.set()
        assert await asyncio.gather(*tasks) == [[11], [21], [31]]
        assert store.under_way_max <= lake_reader.FETCHES_AT_ONCE


async def test_two_are_fetched_at_the_same_time(tmp_path: Path, store: Store) -> None:
    together = threading.Barrier(2, timeout=60)
    with lake_of(tmp_path) as lake:
        await lake.read(1, 1)
        store.before = lambda: together.wait()
        await asyncio.gather(lake.read(11, 11), lake.read(21, 21))
        assert store.under_way_max == 2


def test_the_least_recently_read_row_groups_are_dropped(tmp_path: Path, store: Store) -> None:
    async def go() -> None:
        for first in (1, 11, 1, 21):  # the third takes the place of the second
            await lake.read(first, first)
        assert store.groups == [0, 1, 2]
        await lake.read(1, 1)
        await lake.read(21, 21)
        assert store.groups == [0, 1, 2]
        await lake.read(11, 11)
        assert store.groups == [0, 1, 2, 1]

    with lake_of(tmp_path / "one") as lake:
        asyncio.run(lake.read(1, 1))
        one = lake.reader._rows.kept.size
    store.groups.clear()
    with lake_of(tmp_path / "two", rows_bytes_max=2 * one + 100) as lake:
        asyncio.run(go())
        assert lake.reader._rows.kept.size <= 2 * one + 100


def test_a_row_group_larger_than_the_bound_is_read_and_not_kept(
    tmp_path: Path, store: Store
) -> None:
    with lake_of(tmp_path, rows_bytes_max=10) as lake:
        for _ in range(2):
            assert asyncio.run(lake.read(1, 15)) == list(range(1, 16))
        assert store.groups == [0, 1, 0, 1]
        assert lake.reader._rows.kept.size == 0


async def test_blocks_are_decoded_once_and_kept_apart_from_their_row_group(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "BLOCK_BYTES", 300)  # two records or three
    decoded: list[int] = []
    block = BlockRows.block

    def counted(self: BlockRows, number: int) -> Any:
        decoded.append(number)
        return block(self, number)

    monkeypatch.setattr(BlockRows, "block", counted)
    with lake_of(tmp_path) as lake:
        for _ in range(3):
            assert await lake.read(1, 1) == [1]
        assert decoded == [0]
        assert await lake.read(1, 10) == list(range(1, 11))
        assert decoded == list(range(max(decoded) + 1)) and len(decoded) > 2
        lake.reader._rows.kept.clear()
        count = len(decoded)
        assert await lake.read(5, 6) == [5, 6]
        assert store.groups == [0, 0] and len(decoded) == count, "the index only"


def test_partitions_of_one_file_with_the_same_offsets_are_kept_apart(tmp_path: Path) -> None:
    """Row groups of 10, and 10 records in each partition: one row group for each."""

    async def go(node: Node, reader: LakeReader) -> None:
        for partition in (0, 1, 2):
            ranges = node.ledger.read(lake_files.ranges_from, *node.key(partition), 1, 9)
            found = [
                record.data
                async for chunk in reader.chunks(ranges, partition, 1, 99)
                for _, _, record in chunk.records()
            ]
            assert found == [f'"{partition}"'] * 10

    with node_in(tmp_path) as node, ThreadPoolExecutor(4) as threads:
        node.produce(0, {partition: [Record(f'"{partition}"')] * 10 for partition in range(3)})
        node.commit()
        compact(node)
        asyncio.run(
            go(
                node,
                LakeReader(lambda: node.place, StoreThreads(threads, lambda _: None, Random(1))),
            )
        )


async def test_the_least_recently_read_blocks_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lake_of(tmp_path, blocks_bytes_max=3_000) as lake:  # a block of 10 records has 1,100
        for first in (1, 11, 21, 31):
            await lake.read(first, first)
            assert 0 < lake.reader._blocks.kept.size <= 3_000
        assert len(lake.reader._blocks.kept) == 2


def test_a_read_is_repeated_while_the_store_fails(tmp_path: Path, store: Store) -> None:
    def fail() -> None:
        if len(store.footers) < 3:
            raise StoreError("not now", retryable=True)

    with lake_of(tmp_path) as lake:
        store.before = fail
        assert asyncio.run(lake.read(1, 1)) == [1]
        assert len(store.footers) == 3
        assert len(lake.counted) == 4, "failures cost requests too"


def test_a_store_that_keeps_failing_is_an_error_for_the_reader(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise StoreError("never", retryable=True)

    monkeypatch.setattr("delivery.reading.store_threads.READER", Budget("reader", 4, 0.001, 0.001))
    with lake_of(tmp_path) as lake:
        store.before = fail
        with pytest.raises(StoreError, match="never"):
            asyncio.run(lake.read(1, 1))
        assert len(store.footers) == 4


def test_a_read_of_a_missing_file_is_not_repeated(tmp_path: Path, store: Store) -> None:
    def fail() -> None:
        raise ObjectMissing("gone")

    with lake_of(tmp_path) as lake:
        store.before = fail
        with pytest.raises(ObjectMissing):
            asyncio.run(lake.read(1, 1))
        assert len(store.footers) == 1


async def test_a_cancelled_reader_does_not_block_the_others(tmp_path: Path, store: Store) -> None:
    may_go = threading.Event()
    with lake_of(tmp_path) as lake:
        store.before = lambda: may_go.wait(60)
        first = asyncio.create_task(lake.read(1, 1))
        second = asyncio.create_task(lake.read(2, 2))
        await asyncio.to_thread(store.asked.wait, 60)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        may_go.set()
        assert await second == [2]
        assert lake.reader._footers._loading == {}
