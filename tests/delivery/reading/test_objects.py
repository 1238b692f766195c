"""Reading extents from a real store by a real ledger: checked, cached within bounds, once."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from delivery.reading.objects import L0Reader
from ledger import reads
from ledger.types import Extent
from tests.delivery.node import Node, l0_reader, node_in
from uploader.l0 import L0Error, records_of
from uploader.l0.records import Record
from uploader.stores.base import ObjectMissing, StoreError
from uploader.stores.retry import Budget


def fill(node: Node, objects: int, partitions: int = 1, size: int = 400) -> list[Extent]:
    """Objects with one record of about ``size`` bytes in each of the partitions."""
    for number in range(objects):
        text = f'"{number:0{size}}"'
        node.produce(0, {partition: [Record(text)] for partition in range(partitions)})
        node.commit()
    extents = [
        extent
        for partition in range(partitions)
        for extent in node.ledger.read(reads.extents_from, *node.key(partition), 1, 1000)
    ]
    assert len(extents) == objects * partitions
    return extents


async def read(reader: L0Reader, extent: Extent) -> list[object]:
    data = await reader.bytes_of(extent)
    found = records_of(data, extent.first_offset, extent.voids, 1, key=extent.locator)
    return [record.data for _, _, record in found]


async def test_an_extent_is_fetched_once_and_then_kept(tmp_path: Path) -> None:
    with node_in(tmp_path) as node, l0_reader(node) as (reader, counted):
        extents = fill(node, 3)
        for _ in range(3):
            for number, extent in enumerate(extents):
                assert await read(reader, extent) == [f'"{number:0400}"']
        assert node.store.gets == [(e.locator, e.byte_start) for e in extents]
        assert counted == [e.byte_length for e in extents]


async def test_readers_of_one_extent_wait_for_one_fetch(tmp_path: Path) -> None:
    """All begin while the store holds the first fetch back."""
    may_go = threading.Event()
    with node_in(tmp_path) as node, l0_reader(node) as (reader, _):
        extents = fill(node, 1, partitions=3)
        node.store.before = lambda: may_go.wait(60)
        tasks = [asyncio.create_task(read(reader, extent)) for extent in extents * 4]
        await asyncio.to_thread(node.store.asked.wait, 60)
        for _ in range(100):  # another fetch would have begun by now
            await asyncio.sleep(0)
        may_go.set()
        for found in await asyncio.gather(*tasks):
            assert found == [f'"{0:0400}"']
        assert len(node.store.gets) == 3, "one for each extent"


async def test_different_objects_are_fetched_at_the_same_time(tmp_path: Path) -> None:
    together = threading.Barrier(3, timeout=60)
    with node_in(tmp_path) as node, l0_reader(node) as (reader, _):
        extents = fill(node, 3)
        node.store.before = together.wait
        await asyncio.gather(*(read(reader, extent) for extent in extents))
        assert node.store.under_way_max == 1


async def test_the_cache_drops_the_least_recently_read_extent(tmp_path: Path) -> None:
    with node_in(tmp_path) as node:
        extents = fill(node, 3)
        room = 2 * extents[0].byte_length
        with l0_reader(node, cache_bytes_max=room) as (reader, _):
            a, b, c = extents
            for extent in (a, b, a, c):  # c takes the place of b
                await read(reader, extent)
            assert len(node.store.gets) == 3
            for extent in (a, c):
                await read(reader, extent)
            assert len(node.store.gets) == 3
            await read(reader, b)
            assert len(node.store.gets) == 4
            assert reader._cache.kept.size == room


async def test_an_extent_larger_than_the_cache_is_read_and_not_kept(tmp_path: Path) -> None:
    with node_in(tmp_path) as node:
        extents = fill(node, 1)
        room = extents[0].byte_length - 1
        with l0_reader(node, cache_bytes_max=room) as (reader, _):
            for _ in range(2):
                await read(reader, extents[0])
                assert reader._cache.kept.size == 0
            assert len(node.store.gets) == 2


def damage(directory: Path, text: bytes) -> None:
    """Changes one byte of the only segment file, within ``text``."""
    (file,) = (
        path for path in directory.rglob("*") if path.is_file() and text in path.read_bytes()
    )
    stored = bytearray(file.read_bytes())
    stored[stored.index(text)] ^= 1
    file.write_bytes(stored)


async def test_a_changed_byte_in_the_store_is_noticed_and_named(tmp_path: Path) -> None:
    with node_in(tmp_path) as node, l0_reader(node) as (reader, _):
        extents = fill(node, 2)
        damage(tmp_path / "store", f'"{1:0400}"'.encode())
        for _ in range(2):  # nothing damaged is kept
            with pytest.raises(L0Error) as caught:
                await read(reader, extents[1])
            assert caught.value.key == extents[1].locator
            assert caught.value.byte == extents[1].byte_start
        assert await read(reader, extents[0]) == [f'"{0:0400}"']


def test_a_read_is_repeated_while_the_store_fails(tmp_path: Path) -> None:
    def fail() -> None:
        if len(node.store.gets) < 3:
            raise StoreError("not now", retryable=True)

    with node_in(tmp_path) as node, l0_reader(node) as (reader, counted):
        extents = fill(node, 1)
        node.store.before = fail
        assert asyncio.run(read(reader, extents[0])) == [f'"{0:0400}"']
        assert len(node.store.gets) == len(counted) == 3, "failures cost requests too"


def test_a_store_that_keeps_failing_is_an_error_for_the_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise StoreError("never", retryable=True)

    monkeypatch.setattr("delivery.reading.store_threads.READER", Budget("reader", 4, 0.001, 0.001))
    with node_in(tmp_path) as node, l0_reader(node) as (reader, _):
        extents = fill(node, 1)
        node.store.before = fail
        with pytest.raises(StoreError, match="never"):
            asyncio.run(read(reader, extents[0]))
        assert len(node.store.gets) == 4


def test_a_final_error_is_not_retried(tmp_path: Path) -> None:
    def fail() -> None:
        raise ObjectMissing("gone")

    with node_in(tmp_path) as node, l0_reader(node) as (reader, _):
        extents = fill(node, 1)
        node.store.before = fail
        with pytest.raises(ObjectMissing):
            asyncio.run(read(reader, extents[0]))
        assert len(node.store.gets) == 1


async def test_a_cancelled_reader_does_not_block_the_others(tmp_path: Path) -> None:
    """The one whose fetch it is goes away; another takes over, and nobody waits for good."""
    may_go = threading.Event()
    with node_in(tmp_path) as node, l0_reader(node) as (reader, _):
        extents = fill(node, 1)
        node.store.before = lambda: may_go.wait(60)
        first = asyncio.create_task(read(reader, extents[0]))
        second = asyncio.create_task(read(reader, extents[0]))
        await asyncio.to_thread(node.store.asked.wait, 60)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        may_go.set()
        assert await second == [f'"{0:0400}"']


def test_bytes_spoiled_by_one_connection_are_read_again_on_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with node_in(tmp_path) as node, l0_reader(node) as (reader, _):
        (extent,) = fill(node, 1)
        node.store.spoil = lambda body: body[:-1] + b"?"

        def reconnect() -> None:
            node.store.spoil = lambda body: body

        monkeypatch.setattr(node.store, "reconnect", reconnect)
        assert asyncio.run(read(reader, extent)) == [f'"{0:0400}"']
        assert len(node.store.gets) == 2
