"""Blocks give each record once, from the rings or from the store, and keep to their bound."""

from __future__ import annotations

import asyncio
import random
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from daemon import memory
from daemon.config import Override
from daemon.config import load as load_config
from delivery.reading.blocks import (
    BLOCK_BYTES,
    BLOCK_BYTES_MAX,
    BLOCKS_BYTES,
    LOAD_RECORDS,
    MISSING,
    Blocks,
    Loaded,
)
from delivery.reading.followed import Key
from delivery.reading.lake import Item
from delivery.reading.tail import PIECE_RECORDS
from delivery.subscriptions.runtime import LOADS_AT_ONCE
from ledger.log import recovery
from ledger.log.backup import Mark
from tests.delivery.node import Node, node_in
from tests.delivery.reading.test_diff import Told, rec, told_reader
from uploader.l0 import records as l0_records
from uploader.l0.records import Record


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A node of one shard, whose ring is soon full."""
    with node_in(tmp_path, shards=1, ring_bytes=1 << 16) as made:
        yield made


def commit(node: Node, first: int, last: int) -> None:
    """Records whose data are their offsets."""
    node.produce(0, {0: rec(*(str(offset) for offset in range(first, last + 1)))})
    assert node.commit(0) is not None


def run(node: Node, use: Callable[[Told], Awaitable[None]]) -> None:
    async def with_reader() -> None:
        with told_reader(node) as told:
            await use(told)

    asyncio.run(with_reader())


async def records(blocks: Blocks, key: Key, first: int, last: int, head: int) -> list[Item | None]:
    """All of them, loaded where they are not at hand."""
    found: list[Item | None] = []
    while first + len(found) <= last:
        at = first + len(found)
        known = blocks.known(key, at, last - at + 1)
        blocks.check_invariants()
        for offset in range(at, at + (len(known.records) or known.gone)):
            item = blocks.find(key, offset)
            assert item is not MISSING
            found.append(item)
        if not known.records and not known.gone:
            await blocks.load(key, at, LOAD_RECORDS, head)
    return found


def bound_bytes() -> int:
    """What the daemon says that they take in one shard at most."""
    return memory.bounds(load_config(None, {}, [Override("shards", "1")]))["blocks"]


def kept(blocks: Blocks, key: Key, first: int, count: int) -> list[object]:
    """What is at hand."""
    return [int(str(record.data)) for record in blocks.known(key, first, count).records]


def data(items: list[Item | None]) -> list[object]:
    return [None if item is None else int(str(item[2].data)) for item in items]


async def test_a_new_record_comes_from_the_rings_and_an_old_one_from_the_store(node: Node) -> None:
    commit(node, 1, 300)

    with told_reader(node) as told:
        told.partitions.follow(node.key())
        blocks = Blocks(told.partitions)
        assert kept(blocks, node.key(), 1, 10) == []
        await blocks.load(node.key(), 1, LOAD_RECORDS, 300)
        assert data(await records(blocks, node.key(), 1, 300, 300)) == list(range(1, 301))
        commit(node, 301, 400)
        told.tell()
        gets = len(node.store.gets)
        assert data(await records(blocks, node.key(), 301, 400, 400)) == list(range(301, 401))
        assert len(node.store.gets) == gets
        # What is longer ago than what is kept, and then what follows it.
        fresh = Blocks(told.partitions)
        assert kept(fresh, node.key(), 350, 10) == list(range(350, 360))
        assert data(await records(fresh, node.key(), 255, 400, 400)) == list(range(255, 401))


async def test_what_is_gone_is_known_as_gone(node: Node) -> None:
    commit(node, 1, 2)
    node.ledger.write(recovery.prepare, Mark(), [], {node.key(): 3}, 0, 1)
    commit(node, 6, 7)

    with told_reader(node) as told:
        blocks = Blocks(told.partitions)
        assert data(await records(blocks, node.key(), 1, 7, 7)) == [1, 2, None, None, None, 6, 7]
        loaded = await Blocks(told.partitions).load(node.key(), 3, LOAD_RECORDS, 7)
        assert loaded.tombstone is not None
        assert (loaded.tombstone.gap_from, loaded.tombstone.gap_to) == (3, 5)
        assert loaded.following == 6


async def test_records_in_quarantine_are_not_taken_for_gone(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(node, 1, 2)
    node.ledger.write(recovery.prepare, Mark(), [], {node.key(): 3}, 0, 1)
    commit(node, 6, 7)
    monkeypatch.setattr("delivery.reading.blocks.QUARANTINED", "recovery")

    with told_reader(node) as told:
        blocks = Blocks(told.partitions)
        loaded: Loaded = await blocks.load(node.key(), 3, LOAD_RECORDS, 7)
        assert loaded.tombstone is not None and loaded.tombstone.reason == "recovery"
        assert blocks.known(node.key(), 3, 1) == ((), 0)


async def test_the_least_recently_used_block_goes_first(node: Node) -> None:
    commit(node, 1, 1000)
    commit(node, 1001, 2000)

    with told_reader(node) as told:
        limit = 2 * BLOCK_BYTES_MAX
        blocks = Blocks(told.partitions, limit)
        assert data(await records(blocks, node.key(), 1, 2000, 2000)) == list(range(1, 2001))
        assert blocks.bytes <= limit
        assert kept(blocks, node.key(), 2000, 1) == [2000]
        assert kept(blocks, node.key(), 1, 1) == []


async def test_a_gap_of_a_billion_offsets_is_one_block(node: Node) -> None:
    commit(node, 1, 2)
    node.ledger.write(recovery.prepare, Mark(), [], {node.key(): 1_000_000_000}, 0, 1)
    commit(node, 1_000_000_003, 1_000_000_004)

    with told_reader(node) as told:
        blocks = Blocks(told.partitions)
        head = 1_000_000_004
        assert data(await records(blocks, node.key(), 1, 2, head)) == [1, 2]
        assert (await blocks.load(node.key(), 500, LOAD_RECORDS, head)).following == 1_000_000_003
        assert blocks.known(node.key(), 777, 10) == ((), 1_000_000_003 - 777)
        assert blocks.find(node.key(), 900_000_000) is None
        assert (await blocks.load(node.key(), 3, LOAD_RECORDS, head)).following == 1_000_000_003
        assert blocks.known(node.key(), 3, 10) == ((), 1_000_000_000)
        assert kept(blocks, node.key(), 1_000_000_003, 10) == [1_000_000_003, 1_000_000_004]
        assert blocks.bytes < 5 * BLOCK_BYTES
        blocks.check_invariants()


@pytest.mark.parametrize("text", ["x", "x\N{SNOWMAN}", "x\N{GRINNING FACE}"])
def test_large_records_take_what_the_bound_says_whatever_their_characters(
    tmp_path: Path, text: str
) -> None:
    """One character beyond the usual ones makes all of a text take two or four bytes each."""
    size, count = 1_000_000, 20

    async def use(told: Told) -> None:
        told.partitions.follow(told.node.key())
        told.tell()
        blocks = Blocks(told.partitions)
        tracemalloc.start()
        try:
            for offset in range(1, count + 1):
                found = blocks.known(told.node.key(), offset, 100).records
                assert len(found) == 1 and len(found[0].data) == size + len(text)
                del found
                blocks.check_invariants()
            taken, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert BLOCKS_BYTES / 2 < blocks.bytes <= BLOCKS_BYTES
        assert taken <= BLOCKS_BYTES * 1.1
        assert peak <= bound_bytes()

    with node_in(tmp_path, shards=1, ring_bytes=1 << 25) as made:
        for _ in range(count):
            made.produce(0, {0: [Record('"' + "x" * (size - 2) + text + '"')]})
            made.commit(0)
        run(made, use)


def test_small_records_are_counted_as_they_are(tmp_path: Path) -> None:
    count = 10_000

    async def use(told: Told) -> None:
        told.partitions.follow(told.node.key())
        told.tell()
        tracemalloc.start()
        try:
            blocks = Blocks(told.partitions)
            await records(blocks, told.node.key(), 1, count, count)
            taken = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert 0.9 * taken <= blocks.bytes <= 1.5 * taken

    with node_in(tmp_path, shards=1, ring_bytes=1 << 22) as made:
        for _ in range(count // 100):
            made.produce(0, {0: [Record(f'"{"x" * 60}"', key=f"k{n}") for n in range(100)]})
            made.commit(0)
        run(made, use)


async def test_blocks_of_few_records_are_counted_as_they_are(node: Node) -> None:
    commit(node, 1, 200)

    with told_reader(node) as told:
        await told.partitions.head(node.key())
        tracemalloc.start()
        try:
            blocks = Blocks(told.partitions)
            offsets = [*range(1, 200, 2)]
            random.Random(5).shuffle(offsets)
            for offset in offsets:
                await blocks.load(node.key(), offset, 1, 200)
            taken = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert 0.9 * taken <= blocks.bytes <= 2 * taken
        blocks.check_invariants()


async def test_blocks_give_what_was_stored_whatever_was_read_before(node: Node) -> None:
    """In random orders, with little room."""
    commit(node, 1, 400)
    node.ledger.write(recovery.prepare, Mark(), [], {node.key(): 300}, 0, 1)
    commit(node, 701, 1000)
    rng = random.Random(21)

    with told_reader(node) as told:
        blocks = Blocks(told.partitions, 30_000)
        for _ in range(600):
            offset = rng.randrange(1, 1001)
            if rng.random() < 0.3:
                await blocks.load(node.key(), offset, rng.choice([1, 10, 500]), 1000)
            found = blocks.find(node.key(), offset)
            known = blocks.known(node.key(), offset, 50)
            if 400 < offset < 701:
                assert found in (None, MISSING) and known in (((), 0), ((), 701 - offset))
            else:
                assert found is MISSING or data([found]) == [offset]
                there = [int(str(record.data)) for record in known.records]
                assert there == [*range(offset, offset + len(there))]
            blocks.check_invariants()


def test_loads_take_what_the_bound_says(tmp_path: Path) -> None:
    """As many as are under way together, of records whose texts take four bytes a character."""
    size, each = 200_000, 10

    async def use(told: Told) -> None:
        blocks, keys = Blocks(told.partitions), [told.node.key(partition) for partition in range(3)]
        heads = [await told.partitions.head(key) for key in keys]
        wanted = [(key, 1 + each * n) for key in keys for n in range(3)]
        tracemalloc.start()
        try:
            for at in range(0, len(wanted), LOADS_AT_ONCE):
                loads = [
                    blocks.load(key, offset, LOAD_RECORDS, heads[0])
                    for key, offset in wanted[at : at + LOADS_AT_ONCE]
                ]
                await asyncio.gather(*loads)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert BLOCKS_BYTES / 2 < blocks.bytes <= BLOCKS_BYTES
        assert peak <= bound_bytes() + 9 * each * size, "and the bytes of the extents"

    with node_in(tmp_path, shards=1, ring_bytes=1 << 24) as made:
        for _ in range(3):
            texts = ['"' + "x" * size + "\N{GRINNING FACE}" + '"'] * each
            made.produce(0, {partition: rec(*texts) for partition in range(3)})
            made.commit(0)
        run(made, use)


def test_a_large_batch_in_a_ring_is_decoded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads all of it; for one record a reader decodes no more than what is near."""
    count, decoded = 4_000, []
    decode = l0_records.decode

    def counted(payload: bytes) -> list[Record]:
        found = decode(payload)
        decoded.append(len(found))
        return found

    async def use(told: Told) -> None:
        told.partitions.follow(told.node.key())
        told.tell()
        blocks = Blocks(told.partitions)
        monkeypatch.setattr(l0_records, "decode", counted)
        assert data([cast(Item, blocks.find(told.node.key(), 2_000))]) == [2_000]
        assert (decoded, blocks.bytes < 60_000) == ([PIECE_RECORDS], True)
        at = 1
        while at <= count:
            at += len(kept(blocks, told.node.key(), at, 256))
        assert sum(decoded) <= count + 3 * PIECE_RECORDS, "around the records that were there"

    with node_in(tmp_path, shards=1, ring_bytes=1 << 18) as made:
        made.produce(0, {0: rec(*map(str, range(1, count + 1)))})
        made.commit(0)
        run(made, use)
