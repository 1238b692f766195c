"""The benchmark of reading old offsets reads every record, from L0 and then from L1."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from bench import lake_reads
from bench.lake_reads import RECORD_BYTES, measure, produce, serving
from tests.compaction.by_hand import compact, delete_compacted


@pytest.mark.slow
def test_both_sources_are_measured_over_the_same_records(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serving(data, 1, [0]) as daemon:
        records = produce(daemon, 2, random.Random(1))
    assert records == 2048
    with serving(data, 1, [0]) as daemon:
        before = measure(daemon, records, random.Random(2))
    compact(data, "r1", [lake_reads.TOPIC])
    delete_compacted(data)
    with serving(data, 1, [0]) as daemon:
        after = measure(daemon, records, random.Random(2))
    for figures in (before, after):
        assert figures.cold_p95_ms >= figures.cold_p50_ms > 0
        assert figures.hot_p95_ms >= figures.hot_p50_ms > 0
        assert figures.scan_mib_s > 0
    assert before.get_mib > records * RECORD_BYTES / (1 << 20)
    assert 0 < after.get_mib < before.get_mib, "a third of it is noise, and the rest compresses"
