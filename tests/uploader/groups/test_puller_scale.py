"""What a look costs does not grow with what is pending, nor faster than the members."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shards import layout as at
from shards.ring import RequestAt, RingReader
from tests.uploader.crew import MS, TARGET, crew

NOW = 1_000_000 * MS


@pytest.mark.parametrize("shards", [2, 16])
def test_a_pull_reads_little_more_than_it_takes_from_many_full_members(
    shards: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = 0
    walk = RingReader.requests

    def watched(reader: RingReader, start: int, end: int) -> Iterator[RequestAt]:
        nonlocal looked_at
        for request in walk(reader, start, end):
            looked_at += 1
            yield request

    with crew(shards, tmp_path, lease_slots=1) as made:
        for shard in range(shards):
            made.fill(shard, NOW, 4 * TARGET)
        made.groups.store(0, at.P_LAST_CHANGE_NS, NOW)  # no split now
        puller = made.puller(0)
        monkeypatch.setattr(RingReader, "requests", watched)
        (pulled,) = puller.look(NOW).pulled
        # One of each member to see what is due, one of each to see what fits.
        assert len(pulled.requests) >= 7
        assert looked_at <= len(pulled.requests) + 2 * shards
        made.check()
