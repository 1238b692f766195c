"""Hedged PUTs: when a second one is sent, who wins, and that the loser does no harm."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest
from crc32c import crc32c

from shards import layout as at
from shards.clock import monotonic_ns
from tests.e2e.daemon import wait_until
from tests.minio import Bucket
from tests.uploader.upload_world import Pipeline, key_of, pipeline
from uploader.pipeline import upload
from uploader.pipeline.hedge import SAMPLES_MAX, SAMPLES_MIN, HedgedPut, Hedging
from uploader.pipeline.outage import DOWN_AFTER_NS
from uploader.stores import open_store
from uploader.stores.base import ForeignObject, StoreBusy, StoreError
from uploader.stores.faults import FaultyStore, parse

MS = 1_000_000
GIVES_UP_S = 60.0


# The decision


def test_nothing_is_hedged_before_there_are_enough_latencies() -> None:
    hedging = Hedging()
    for _ in range(SAMPLES_MIN - 1):
        assert hedging.begins() is None
        hedging.succeeded(10 * MS)
    assert hedging.begins() is None
    hedging.succeeded(10 * MS)
    assert hedging.begins() == 10 * MS


def test_a_put_is_hedged_after_the_99th_percentile_of_the_recent_ones() -> None:
    hedging = Hedging()
    for latency_ms in range(1, 201):
        hedging.succeeded(latency_ms * MS)
    assert hedging.begins() == 198 * MS


def test_old_latencies_are_forgotten() -> None:
    hedging = Hedging()
    for _ in range(SAMPLES_MAX):
        hedging.succeeded(900 * MS)
    for _ in range(SAMPLES_MAX):
        hedging.succeeded(20 * MS)
    assert hedging.begins() == 20 * MS


def test_at_most_one_put_in_fifty_is_hedged_and_two_after_a_quiet_time() -> None:
    hedging = Hedging()
    spent = 0
    for _ in range(5_000):
        hedging.begins()
        spent += hedging.spend()
    assert 100 <= spent <= 102
    for _ in range(1_000):
        hedging.begins()
    assert [hedging.spend() for _ in range(3)] == [True, True, False]


# The race


class Attempts:
    """A put whose attempts wait for what the test lets happen."""

    def __init__(self) -> None:
        self.outcomes: list[threading.Event] = []
        self.results: dict[int, str | BaseException] = {}
        self.ended = 0
        self._mutex = threading.Lock()
        self.blocking = False

    def put(self, key: str, body: bytes, crc: int) -> str:
        if not self.blocking:
            return "quick"
        with self._mutex:
            number = len(self.outcomes)
            self.outcomes.append(threading.Event())
        assert self.outcomes[number].wait(GIVES_UP_S)
        with self._mutex:
            self.ended += 1
        result = self.results[number]
        if isinstance(result, BaseException):
            raise result
        return result

    def let(self, number: int, result: str | BaseException) -> None:
        wait_until(lambda: len(self.outcomes) > number, f"attempt {number} to be made")
        self.results[number] = result
        self.outcomes[number].set()


class Contest:
    """A hedged put that has seen only quick ones, and now meets slow ones."""

    def __init__(self, losers_max: int = 4) -> None:
        self.attempts = Attempts()
        # Each look at the clock is 50 ms after the one before, and so is a hedge.
        self.hedged = HedgedPut(self.attempts.put, losers_max, count(0, 50 * MS).__next__)
        for _ in range(SAMPLES_MIN):  # one more could already be hedged
            self.put()
        self.attempts.blocking = True

    def put(self) -> str:
        return self.hedged.put("k", b"body", 1)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as made:
        yield made


def test_the_second_put_wins_when_the_first_is_slow(pool: ThreadPoolExecutor) -> None:
    contest = Contest()
    answer = pool.submit(contest.put)
    contest.attempts.let(1, "second")
    assert answer.result(GIVES_UP_S) == "second"
    assert contest.hedged.hedges == 1
    contest.attempts.let(0, "first")  # the loser ends some time later
    wait_until(lambda: contest.attempts.ended == 2, "the loser to end")


def test_the_first_put_may_still_win(pool: ThreadPoolExecutor) -> None:
    contest = Contest()
    answer = pool.submit(contest.put)
    wait_until(lambda: len(contest.attempts.outcomes) == 2, "the hedge")
    contest.attempts.let(0, "first")
    assert answer.result(GIVES_UP_S) == "first"
    contest.attempts.let(1, StoreBusy("503"))


def test_a_failure_waits_for_the_other_attempt(pool: ThreadPoolExecutor) -> None:
    contest = Contest()
    answer = pool.submit(contest.put)
    wait_until(lambda: len(contest.attempts.outcomes) == 2, "the hedge")
    contest.attempts.let(1, StoreBusy("503"))
    wait_until(lambda: contest.attempts.ended == 1, "the hedge to fail")
    assert not answer.done()
    contest.attempts.let(0, "first")
    assert answer.result(GIVES_UP_S) == "first"


def test_only_when_both_fail_the_put_fails(pool: ThreadPoolExecutor) -> None:
    contest = Contest()
    answer = pool.submit(contest.put)
    wait_until(lambda: len(contest.attempts.outcomes) == 2, "the hedge")
    contest.attempts.let(0, StoreBusy("503"))
    contest.attempts.let(1, StoreError("reset", retryable=True))
    with pytest.raises(StoreError):
        answer.result(GIVES_UP_S)


def test_a_foreign_object_raises_the_alarm_immediately(pool: ThreadPoolExecutor) -> None:
    contest = Contest()
    answer = pool.submit(contest.put)
    contest.attempts.let(1, ForeignObject("not ours"))
    with pytest.raises(ForeignObject):
        answer.result(GIVES_UP_S)
    contest.attempts.let(0, ForeignObject("not ours"))


def test_losers_that_hang_are_bounded(pool: ThreadPoolExecutor) -> None:
    contest = Contest(losers_max=1)
    made = contest.attempts.outcomes
    first = pool.submit(contest.put)
    contest.attempts.let(1, "hedge")
    assert first.result(GIVES_UP_S) == "hedge"
    # The permit returns when both attempts have ended: while one hangs, there is no other.
    second, third = pool.submit(contest.put), pool.submit(contest.put)
    wait_until(lambda: len(made) == 4, "two more first attempts")
    contest.attempts.let(2, "2")
    contest.attempts.let(3, "3")
    assert {second.result(GIVES_UP_S), third.result(GIVES_UP_S)} == {"2", "3"}
    contest.attempts.let(0, "loser")
    wait_until(lambda: not attempts_running(), "the loser to end")
    assert contest.hedged.hedges == 1
    fourth = pool.submit(contest.put)
    contest.attempts.let(5, "hedge")
    assert fourth.result(GIVES_UP_S) == "hedge"
    contest.attempts.let(4, "first")


def attempts_running() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name == "put attempt"]


# The real thing


def test_the_loser_on_a_real_store_meets_its_own_bytes(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    store = open_store(bucket.url, endpoint_url=bucket.endpoint_url, threads=8)
    late = threading.Event()
    delays: list[float] = []

    def sleep(delay_s: float) -> None:
        delays.append(delay_s)
        assert late.wait(GIVES_UP_S)

    slow = FaultyStore(store, parse("latency=1s..2s"), random.Random(1), sleep, lambda: 0.0)
    landed: list[str] = []
    turns = iter([*[lambda *_: "quick"] * SAMPLES_MIN, slow.put, store.put])

    def put(key: str, data: bytes, crc: int) -> str:
        locator = next(turns)(key, data, crc)
        landed.append(locator)
        return locator

    hedged = HedgedPut(put, 1, monotonic_ns)
    body = b"the same bytes" * 1000
    for _ in range(SAMPLES_MIN):
        hedged.put("", b"", 0)
    landed.clear()
    assert hedged.put("l0/1/1-0-1", body, crc32c(body)) == "l0/1/1-0-1"
    assert delays and len(landed) == 1
    late.set()
    wait_until(lambda: len(landed) == 2, "the loser to land on what is there")
    assert landed == ["l0/1/1-0-1"] * 2
    assert [head.key for head in store.list("l0/")] == ["l0/1/1-0-1"]
    assert store.get("l0/1/1-0-1") == body
    store.close()


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Pipeline]:
    with pipeline(tmp_path) as opened:
        yield opened


def test_a_slow_upload_is_hedged_committed_once_and_both_puts_are_counted(line: Pipeline) -> None:
    line.uploads[0].stop()
    line.uploads[0] = uploads = line.uploads_of(0, hedge_puts=True)
    assert uploads.hedged is not None
    texts = []
    for number in range(SAMPLES_MIN):
        texts.append(str(number))
        line.stay_owner()
        pulled = line.lease_of(0, texts[-1])
        line.start(0, pulled)
        line.turn_until_done(pulled)
    slow = line.lease_of(0, "slow")
    let_go = threading.Event()
    first = threading.Lock()
    landed = threading.Event()

    def once_slow(real: Callable[[], str]) -> str:
        if not first.acquire(blocking=False):
            return real()
        assert let_go.wait(GIVES_UP_S)
        locator = real()
        landed.set()
        return locator

    line.store.around[key_of(slow)] = once_slow
    line.start(0, slow)
    line.turn_until_done(slow)
    assert uploads.hedged.hedges >= 1
    uploads.health.store_slowdown(monotonic_ns())
    hour_later_ns = monotonic_ns() + 3_600_000 * MS
    assert uploads.health.store_slowdown(hour_later_ns) < 1, "a loser is not a slow store"
    after = line.lease_of(0, "after")
    line.start(0, after)
    line.turn_until_done(after)
    let_go.set()
    assert landed.wait(GIVES_UP_S)
    assert line.committed() == [*texts, "slow", "after"]
    assert line.counter(0, at.S_OBJECTS_COMMITTED) == SAMPLES_MIN + 2
    wait_until(lambda: not attempts_running(), "all losers to end")
    assert line.counter(0, at.S_PUTS) == SAMPLES_MIN + 2 + uploads.hedged.hedges
    assert line.counter(0, at.S_PUT_FAILURES) == 0


def test_a_loser_that_fails_late_raises_no_alarm(
    line: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    line.uploads[0].stop()
    line.uploads[0] = uploads = line.uploads_of(0, hedge_puts=True)
    for number in range(SAMPLES_MIN):
        line.stay_owner()
        pulled = line.lease_of(0, str(number))
        line.start(0, pulled)
        line.turn_until_done(pulled)
    slow = line.lease_of(0, "slow")
    let_go = threading.Event()
    first = threading.Lock()

    def once_lost(real: Callable[[], str]) -> str:
        if not first.acquire(blocking=False):
            return real()
        assert let_go.wait(GIVES_UP_S)
        raise StoreBusy("no answer within 30 s")

    line.store.around[key_of(slow)] = once_lost
    line.start(0, slow)
    line.turn_until_done(slow)
    assert uploads.hedged is not None and uploads.hedged.hedges >= 1
    later_ns = monotonic_ns() + 2 * DOWN_AFTER_NS
    monkeypatch.setattr(upload, "monotonic_ns", lambda: later_ns)
    let_go.set()
    wait_until(lambda: not attempts_running(), "the loser to end")
    assert line.counter(0, at.S_PUT_FAILURES) == 1
    assert line.alarms() == []  # the gate would stay closed, and no PUT come that ends it
