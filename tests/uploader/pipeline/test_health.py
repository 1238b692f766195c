"""The sensors of store and ledger: against what is usual, with failures, ages and silence."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from uploader.pipeline.health import (
    FAILED_MS,
    FAILED_UNITS,
    HOLD_NS,
    USUAL_AFTER,
    USUAL_MIN_NS,
    USUAL_UNKNOWN_NS,
    Calls,
    UploadHealth,
    Usual,
)

MS = 1_000_000
SECOND = 1000 * MS
START = 1000 * SECOND
SMALL, LARGE = 1_000, 4 << 20


class Shard:
    """Uploads whose calls take what the test says."""

    def __init__(self) -> None:
        self.health = UploadHealth()
        self.now_ns = START

    def put(self, took_ms: float, size_bytes: int = SMALL, *, failed: bool = False) -> None:
        call = self.health.put_begins(size_bytes, self.now_ns)
        self.now_ns += round(took_ms * MS)
        self.health.put_ends(call, size_bytes, self.now_ns, failed=failed)

    def slowdown(self, after_ms: float = 100) -> float:
        self.now_ns += round(after_ms * MS)
        return self.health.store_slowdown(self.now_ns)

    def learn(self, took_ms: float, size_bytes: int = SMALL) -> None:
        for _ in range(USUAL_AFTER):
            self.put(took_ms, size_bytes)
            self.slowdown()


def test_a_store_as_it_usually_is_has_a_slowdown_of_1_whatever_it_is_and_for_each_size() -> None:
    for usual_ms in (20, 300):
        shard = Shard()
        shard.learn(usual_ms)
        shard.learn(usual_ms * 10, LARGE)
        shard.put(usual_ms)
        shard.put(usual_ms * 10, LARGE)
        assert shard.slowdown(10_000) == pytest.approx(1, rel=0.01)


def test_a_store_that_becomes_ten_times_slower_shows_within_seconds() -> None:
    shard = Shard()
    shard.learn(30)
    seen = []
    for _ in range(10):
        shard.put(300)
        seen.append(shard.slowdown())
    assert seen == sorted(seen) and seen[-1] > 8


def test_a_store_that_stays_slower_is_usual_after_some_time() -> None:
    usual = Usual()
    for call in range(USUAL_AFTER):
        usual.learn(SMALL, 30 * MS, START + call)
    assert usual.of(SMALL) == pytest.approx(30 * MS, rel=0.01)
    minutes = []
    for minute in range(120):
        for step in range(6):
            usual.learn(SMALL, 90 * MS, START + (minute * 60 + step * 10) * SECOND)
        minutes.append(usual.of(SMALL) / MS)
    assert minutes[0] < 40 and minutes == sorted(minutes) and minutes[-1] > 89


def test_an_outage_is_not_the_new_usual() -> None:
    usual = Usual()
    for call in range(USUAL_AFTER):
        usual.learn(SMALL, 30 * MS, START + call)
    usual.learn(SMALL, 3600 * SECOND, START + 60 * SECOND)
    assert usual.of(SMALL) < 40 * MS


def test_milliseconds_of_a_local_disk_are_not_a_slowdown() -> None:
    shard = Shard()
    shard.learn(0.3)
    for _ in range(50):
        shard.put(5)
        assert shard.slowdown() <= 1.01


def test_of_a_size_that_was_never_put_100_ms_are_usual() -> None:
    assert Usual().of(LARGE) == USUAL_UNKNOWN_NS
    assert Usual().of(0) == USUAL_UNKNOWN_NS
    assert Usual().of(1 << 40) == USUAL_UNKNOWN_NS


@pytest.mark.parametrize(("share", "least"), [(0.0, 0.9), (0.3, 3.0), (1.0, 9.9)])
def test_each_failed_attempt_counts_as_ten_times_the_usual_time(share: float, least: float) -> None:
    shard = Shard()
    shard.learn(30)
    for attempt in range(100):
        shard.put(30, failed=(attempt % 10) < share * 10)
    assert least <= shard.slowdown(10_000) <= least + 1


def test_a_put_without_an_answer_counts_by_its_age() -> None:
    shard = Shard()
    shard.learn(30)
    call = shard.health.put_begins(SMALL, shard.now_ns)
    assert shard.slowdown(60) == pytest.approx(2, rel=0.1)
    assert shard.slowdown(540) == pytest.approx(20, rel=0.1)
    shard.health.put_ends(call, SMALL, shard.now_ns, failed=False)
    assert shard.slowdown() > 5, "and is not forgotten with its answer"


def test_between_two_failed_attempts_nothing_gets_better() -> None:
    shard = Shard()
    shard.put(30, failed=True)
    before = shard.slowdown()
    assert before == FAILED_UNITS
    assert shard.slowdown(HOLD_NS / MS - 200) == before
    assert shard.slowdown(HOLD_NS / MS) < before / 2


def test_without_uploads_the_last_slow_one_is_forgotten() -> None:
    """Otherwise an idle daemon would delay deliveries because of a store that it does not use."""
    shard = Shard()
    shard.learn(30)
    shard.put(3000)
    assert shard.slowdown() > 3
    assert shard.slowdown(10_000) < 0.01


def test_an_outage_of_an_hour_is_forgotten_as_fast_as_one_of_seconds() -> None:
    shard = Shard()
    shard.learn(30)
    call = shard.health.put_begins(SMALL, shard.now_ns)
    assert shard.slowdown(3_600_000) > 100_000
    shard.health.put_ends(call, SMALL, shard.now_ns, failed=False)
    shard.slowdown()
    for _ in range(30):
        shard.put(30)
        slowdown = shard.slowdown()
    assert slowdown < 3


def test_commits_are_measured_in_milliseconds_with_their_wait_for_the_lock() -> None:
    health, now_ns = UploadHealth(), START

    def clock_ns() -> int:
        return now_ns

    with health.commit(clock_ns):
        now_ns += 40 * MS
        assert health.commit_ms(now_ns) == 40, "it waits, and counts already"
    assert health.commit_ms(now_ns + 100 * SECOND) == pytest.approx(40)
    now_ns += 200 * SECOND
    with pytest.raises(OSError, match="locked"), health.commit(clock_ns):
        raise OSError("locked")
    assert health.commit_ms(now_ns + 100 * SECOND) == pytest.approx(FAILED_MS)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5 * SECOND), st.booleans())))
def test_the_value_is_never_negative_nor_broken_and_calls_are_forgotten(
    steps: list[tuple[int, int, bool]],
) -> None:
    calls, now_ns, running = Calls(FAILED_UNITS), START, list[int]()
    for step, passed_ns, failed in steps:
        now_ns += passed_ns
        if step < 2:
            running.append(calls.begin(USUAL_MIN_NS, now_ns))
        elif step == 2 and running:
            calls.end(running.pop(0), now_ns, failed=failed)
        value = calls.read(now_ns)
        assert value >= 0 and math.isfinite(value)
    for call in running:
        calls.end(call, now_ns, failed=False)
    assert calls.read(now_ns + 100 * SECOND) >= 0
    assert calls.read(now_ns + 200 * SECOND) < 1e-6
