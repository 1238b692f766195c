"""A known request costs what it costs: the steps are measured, and their calls are counted."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import pytest

from bench import bodies, hot, report
from bench.hot import HotResult
from bench.results import Machine, Results
from shards.clock import wall_ms

# Calls from the bytes of a request to its place in the ring, those of C included. Each costs 50 to
# 100 ns. Unlike a time, their number is the same on every machine.
CALLS_MAX = 34

# Calls from a commit that is known to its answer, also in C.
ANSWER_CALLS_MAX = 28


def calls_of(step: Callable[[], None], first: str) -> list[str]:
    """The calls that this step makes, from the first of this name."""
    found: list[str] = []

    def note(frame: FrameType, event: str, what: Any) -> None:
        if event == "call":
            found.append(frame.f_code.co_qualname)
        elif event == "c_call":
            found.append(what.__qualname__)

    sys.setprofile(note)
    try:
        step()
    finally:
        sys.setprofile(None)
    return found[found.index(first) : -1]


def test_a_request_with_a_known_head_makes_no_more_calls_than_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = bodies.size_named("1KiB")
    request = hot.request_of(bodies.of(size, bodies.NDJSON))
    with hot.way_in(tmp_path) as (way, topic_id):
        way.receive(request)
        way.commit(topic_id, size.records)
        # The first in a millisecond is a sample, whose time is noted: on a slow machine each would
        # be, so this one stays.
        now_ns = wall_ms() * 1_000_000
        monkeypatch.setattr("time.time_ns", lambda: now_ns)
        receive, answer = [], []
        for _ in range(30):
            receive.append(calls_of(lambda: way.receive(request), first="Connection.data_received"))
            answer.append(
                calls_of(lambda: way.commit(topic_id, size.records), first="WayIn.commit")
            )
    fewest = min(receive, key=len)
    assert len(fewest) <= CALLS_MAX, "\n".join(fewest)
    fewest = min(answer, key=len)
    assert len(fewest) <= ANSWER_CALLS_MAX, "\n".join(fewest)


def test_all_steps_are_measured_and_compared_with_the_last_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hot, "PASSES", 1)
    steps = hot.measure(bodies.size_named("64KiB"), tmp_path)
    assert [each.step for each in steps] == list(hot.STEPS)
    inside = sum(each.cpu_us for each in steps if each.step in hot.INSIDE)
    assert inside > 0 and all(each.cpu_us > 0 for each in steps)
    cpu_us = {each.step: each.cpu_us for each in steps}
    before = [
        HotResult("64KiB", hot.YARDSTICK, cpu_us[hot.YARDSTICK] * 3),  # a slow minute
        HotResult("64KiB", "receive", cpu_us["receive"] * 3 / 2),
    ]
    results = Results(Machine("cpu", 2, "3.11", "wrk"), "now", hot=steps, hot_before=before)
    text = report.text(msgspec.json.decode(msgspec.json.encode(results), type=Results))
    assert text.count(" x") == 2 and "1.00 x" in text and "2.00 x" in text
