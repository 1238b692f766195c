"""The cache of cursors: what a frame carries of them, and how many there may be."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest

from daemon.intake.cursor_cache import CursorCache, CursorNotCached
from daemon.schemas.api import AdvanceRequest
from daemon.schemas.errors import ApiError
from delivery.ledger_thread import LedgerThread
from ledger import cursors
from ledger.cursors import Setting
from ledger.ledger import Ledger
from shards.layout import Layout
from shards.segment import Segment


@pytest.fixture
def caches(tmp_path: Path) -> Iterator[tuple[CursorCache, CursorCache]]:
    """Those of two shards."""
    segment = Segment.create(Layout(2, 1 << 20))
    ledger = Ledger(tmp_path / "ledger.db", nullcontext())
    with ThreadPoolExecutor(1) as thread:
        one, other = (
            CursorCache(segment, LedgerThread(ledger, thread), nullcontext()) for _ in range(2)
        )
        yield one, other
    ledger.close()
    segment.close()


def asked(expected: int = 0, partition: int = 0) -> AdvanceRequest:
    return AdvanceRequest("c", expected, expected + 1, partition)


async def test_a_frame_carries_the_last_setting_that_was_answered_on_any_shard(
    caches: tuple[CursorCache, CursorCache],
) -> None:
    one, other = caches

    await one.put("c", [])
    other_asked = asked(partition=1)
    with pytest.raises(CursorNotCached):
        other.advance(other_asked)
    await other.load(other_asked)
    found = other.advance(other_asked)
    assert (found.cursor_id, found.name, found.is_ours) == (1, "c", False)
    assert (found.set_change, found.set_seq) == (0, 0)
    await one.put("c", [Setting(1, 7)])
    with pytest.raises(CursorNotCached):
        other.advance(other_asked)
    await other.load(other_asked)
    found = other.advance(other_asked)
    assert found.set_change > 0
    assert found.set_seq == 7
    await one.delete("c")
    with pytest.raises(CursorNotCached):
        other.advance(other_asked)
    with pytest.raises(ApiError) as refused:
        await other.load(other_asked)
    assert refused.value.status == 404


async def test_a_cursor_beyond_the_limit_is_refused_with_the_limit(
    caches: tuple[CursorCache, CursorCache], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cursors, "CURSORS_MAX", 1)

    await caches[0].put("c", [])
    with pytest.raises(ApiError) as refused:
        await caches[0].put("d", [Setting(0, 3)])
    assert (refused.value.status, refused.value.code) == (409, "cursors_full")
    assert refused.value.detail == {"limit_cursors": 1}
    assert [cursor.name for cursor, _ in await caches[0].page("", 10)] == ["c"]
