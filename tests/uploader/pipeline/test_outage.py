"""When the store counts as failing: nothing kept for a while, whatever fails now and then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from shards.alarms import Alarm, AlarmBoard, AlarmKind, raised
from shards.layout import Layout
from shards.segment import Segment
from tests.uploader.upload_world import key_of, pipeline
from uploader.pipeline import upload
from uploader.pipeline.health import UploadHealth
from uploader.pipeline.outage import DOWN_AFTER_NS, Outage, reason_of
from uploader.stores import open_store
from uploader.stores.base import StoreBusy, StoreError

MS = 1_000_000
S = 1_000 * MS
BUSY = StoreBusy("503 SlowDown")


@pytest.fixture
def segment() -> Iterator[Segment]:
    made = Segment.create(Layout(1, 4096))
    yield made
    made.close()


@pytest.fixture
def outage(segment: Segment) -> Outage:
    return Outage(AlarmBoard(segment, 0))


def alarm(segment: Segment) -> Alarm | None:
    return next(raised(segment), None)


def test_the_store_is_failing_when_nothing_was_kept_for_two_seconds(
    segment: Segment, outage: Outage
) -> None:
    outage.failed(BUSY, 10 * S, 10 * S + 5)
    outage.failed(BUSY, 11 * S, 10 * S + DOWN_AFTER_NS - 1)
    assert alarm(segment) is None
    outage.failed(BUSY, 11 * S, 10 * S + DOWN_AFTER_NS)
    found = alarm(segment)
    assert found is not None
    assert (found.kind, found.since_ns) == (AlarmKind.STORE_FAILING, 10 * S)
    outage.failed(StoreError("No space left", retryable=True), 12 * S, 13 * S)
    found = alarm(segment)
    assert found is not None
    assert (found.since_ns, found.count, found.text) == (10 * S, 2, "No space left")


def test_an_outage_ends_with_one_success_and_counts_anew_from_there(
    segment: Segment, outage: Outage
) -> None:
    outage.failed(BUSY, 10 * S, 15 * S)
    outage.kept(16 * S)
    assert alarm(segment) is None
    # A call that began before that success tells nothing about the time before it.
    outage.failed(BUSY, 10 * S, 16 * S + DOWN_AFTER_NS - 1)
    assert alarm(segment) is None
    outage.failed(BUSY, 17 * S, 16 * S + DOWN_AFTER_NS)
    found = alarm(segment)
    assert found is not None and found.since_ns == 16 * S


def test_failures_between_successes_are_not_an_outage(segment: Segment, outage: Outage) -> None:
    for second in range(100):
        outage.failed(BUSY, second * S, second * S + S // 2)
        outage.kept(second * S + S // 2 + 1)
        assert alarm(segment) is None


def test_one_call_that_hung_for_long_is_enough(segment: Segment, outage: Outage) -> None:
    outage.failed(BUSY, 10 * S, 70 * S)
    found = alarm(segment)
    assert found is not None and found.since_ns == 10 * S


def test_a_call_that_hangs_is_an_outage_after_two_seconds_although_it_has_not_failed_yet(
    segment: Segment, outage: Outage
) -> None:
    health = UploadHealth(outage.hangs)
    for _ in range(20):  # what is usual
        health.put_ends(health.put_begins(1_000, 9 * S), 1_000, 9 * S + 50 * MS, failed=False)
    outage.kept(9 * S + S // 2)
    call = health.put_begins(1_000, 10 * S)
    health.store_slowdown(12 * S - 1)
    assert alarm(segment) is None
    for tenth in range(100):
        health.store_slowdown(12 * S + tenth * 100 * MS)
    found = alarm(segment)
    assert found is not None
    assert (found.since_ns, found.count, found.text) == (10 * S, 1, "a PUT has no answer")
    outage.failed(BUSY, 10 * S, 31 * S)  # the client's own time-out
    found = alarm(segment)
    assert found is not None and (found.since_ns, found.text) == (10 * S, str(BUSY))
    health.put_ends(call, 1_000, 31 * S, failed=False)
    outage.kept(31 * S)
    health.store_slowdown(32 * S)
    assert alarm(segment) is None


def test_a_store_that_is_always_slow_does_not_hang(segment: Segment, outage: Outage) -> None:
    health = UploadHealth(outage.hangs)
    for _ in range(20):
        health.put_ends(health.put_begins(1_000, 9 * S), 1_000, 11 * S, failed=False)
    health.put_begins(1_000, 20 * S)
    health.store_slowdown(25 * S)
    assert alarm(segment) is None


def test_the_reason_of_a_disk_error_is_named_without_paths(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/store")
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "segments").write_text("no directory")
    with pytest.raises(StoreError) as refused:
        store.put("l0/1", b"x", 1)
    assert reason_of(refused.value) == "not a folder"
    assert reason_of(BUSY) == "503 SlowDown"


def test_uploads_that_fail_raise_the_alarm_say_nothing_else_and_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    halves = count(100)  # three looks at the clock for each attempt
    monkeypatch.setattr(upload, "monotonic_ns", lambda: next(halves) * S // 2)
    with pipeline(tmp_path) as line:
        pulled = line.lease_of(0, "a")
        seen: list[Alarm | None] = []

        def fails_three_times(real: Callable[[], str]) -> str:
            seen.append(alarm(line.crew.segment))
            if len(seen) < 4:
                raise BUSY
            return real()

        line.store.around[key_of(pulled)] = fails_three_times
        line.start(0, pulled)
        line.turn_until_done(pulled)
        assert [found is not None for found in seen] == [False, False, True, True]
        assert alarm(line.crew.segment) is None
    assert caplog.messages == []
