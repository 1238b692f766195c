"""Routers copy a large batch that is in a ring."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from delivery.reading import partition
from delivery.reading.tail import PIECE_RECORDS
from tests.delivery.routers.test_shard_routers import World, produce, run
from uploader.l0 import payloads
from uploader.l0.records import Record


def test_of_a_large_batch_in_a_ring_each_record_is_decoded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, decoded = 5 * PIECE_RECORDS, []

    def counted(codec: int, payload: bytes, records: int) -> list[Record]:
        found = payloads.decode(codec, payload, records)
        decoded.append(len(found))
        return found

    async def body(world: World) -> None:
        world.create()
        world.add()
        await world.until(lambda: len(world.shards[0][0]))
        produce(world, *(f"{n}" for n in range(count)))
        world.commit()
        monkeypatch.setattr(partition, "payloads", SimpleNamespace(decode=counted))
        await world.until(world.done)
        monkeypatch.undo()
        assert sum(decoded) == count and max(decoded) == PIECE_RECORDS
        assert world.copies() == sorted(f"{n}" for n in range(count))
        assert not world.node.store.gets, "the rings held everything"

    run(tmp_path, body)
