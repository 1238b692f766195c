"""Blocks give each record once, from the rings or from the store, and keep to their bound."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from delivery.followed import Key
from delivery.lake_reader import Item
from delivery.subscriptions.blocks import BLOCK_BYTES, RECORD_BYTES, Blocks, Loaded
from ledger.log import recovery
from tests.delivery.node import Node, node_in
from tests.delivery.test_diff import Told, rec, told_reader


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
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
        found += known
        if not known:
            await blocks.load(key, at, head)
    return found


def data(items: list[Item | None]) -> list[object]:
    return [None if item is None else int(str(item[2].data)) for item in items]


def test_a_new_record_comes_from_the_rings_and_an_old_one_from_the_store(node: Node) -> None:
    commit(node, 1, 300)

    async def use(told: Told) -> None:
        told.partitions.follow(node.key())
        blocks = Blocks(told.partitions)
        assert blocks.known(node.key(), 1, 10) == ()
        await blocks.load(node.key(), 1, 300)
        assert data(await records(blocks, node.key(), 1, 300, 300)) == list(range(1, 301))
        commit(node, 301, 400)
        told.tell()
        gets = len(node.store.gets)
        assert data(list(blocks.known(node.key(), 301, 500))) == list(range(301, 401))
        assert len(node.store.gets) == gets
        # What is longer ago than what is kept, and then what follows it.
        fresh = Blocks(told.partitions)
        assert data(list(fresh.known(node.key(), 350, 10))) == list(range(350, 360))
        assert data(await records(fresh, node.key(), 255, 400, 400)) == list(range(255, 401))

    run(node, use)


def test_what_is_gone_is_known_as_gone(node: Node) -> None:
    commit(node, 1, 2)
    node.ledger.write(recovery.prepare, [], {node.key(): 3}, 0, 1)
    commit(node, 6, 7)

    async def use(told: Told) -> None:
        blocks = Blocks(told.partitions)
        assert data(await records(blocks, node.key(), 1, 7, 7)) == [1, 2, None, None, None, 6, 7]
        loaded = await Blocks(told.partitions).load(node.key(), 3, 7)
        assert loaded.tombstone is not None
        assert (loaded.tombstone.gap_from, loaded.tombstone.gap_to) == (3, 5)

    run(node, use)


def test_records_in_quarantine_are_not_taken_for_gone(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(node, 1, 2)
    node.ledger.write(recovery.prepare, [], {node.key(): 3}, 0, 1)
    commit(node, 6, 7)
    monkeypatch.setattr("delivery.subscriptions.blocks.QUARANTINED", "recovery")

    async def use(told: Told) -> None:
        blocks = Blocks(told.partitions)
        loaded: Loaded = await blocks.load(node.key(), 3, 7)
        assert loaded.tombstone is not None and loaded.tombstone.reason == "recovery"
        assert blocks.known(node.key(), 3, 1) == ()

    run(node, use)


def test_the_least_recently_used_block_goes_first(node: Node) -> None:
    commit(node, 1, 1000)

    async def use(told: Told) -> None:
        limit = 2 * (BLOCK_BYTES + 256 * (RECORD_BYTES + 4))
        blocks = Blocks(told.partitions, limit)
        assert data(await records(blocks, node.key(), 1, 1000, 1000)) == list(range(1, 1001))
        assert blocks.bytes <= limit
        assert blocks.known(node.key(), 1000, 1)
        assert blocks.known(node.key(), 1, 1) == ()

    run(node, use)
