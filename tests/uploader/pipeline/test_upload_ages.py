"""Idempotency keys while the wall clock is set."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ledger import reads
from shards.clock import boottime_ns, wall_ns
from tests.uploader.upload_world import Pipeline, pipeline


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Pipeline]:
    with pipeline(tmp_path) as opened:
        yield opened


@pytest.mark.parametrize("step_s", [130, 3_600, -3_600])
def test_a_step_of_the_wall_clock_forgets_no_idempotency_key(
    line: Pipeline, monkeypatch: pytest.MonkeyPatch, step_s: int
) -> None:
    ahead_ns = wall_ns() - boottime_ns() + step_s * 10**9
    for _ in range(2):
        line.publish(0, "a", key="k")
        pulled = line.pull(0)
        line.start(0, pulled)
        line.turn_until_done(pulled)
        monkeypatch.setattr("time.time_ns", lambda: boottime_ns() + ahead_ns)
        line.stay_owner()  # an entry after the gap in time
    assert line.ledger.read(reads.partition_states, line.topic.topic_id)[0].count == 1
