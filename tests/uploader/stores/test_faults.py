"""A store that fails on purpose: the spec, the probabilities, and what each fault leaves."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from uploader.stores.base import StoreBusy, StoreError, StoreRefused
from uploader.stores.faults import (
    TIMEOUT_S,
    WRITES_ONLY,
    ChaosSpecError,
    Fault,
    FaultPlan,
    FaultyStore,
    Latency,
    When,
    parse,
    require_possible,
)
from uploader.stores.file import FileStore
from uploader.stores.s3 import S3Store

BODY = b"forty-two bytes of an object that is kept."


class Trial:
    """A faulty store over a real one, its clock and what it slept."""

    def __init__(self, folder: Path) -> None:
        self.inner = FileStore(folder / "store")
        self.now_s = 0.0
        self.slept_s: list[float] = []

    def store(self, spec: str, seed: int = 1) -> FaultyStore:
        return FaultyStore(
            self.inner, parse(spec), random.Random(seed), self.slept_s.append, lambda: self.now_s
        )

    def keys(self) -> list[str]:
        return [head.key for head in self.inner.list("")]


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    made = Trial(tmp_path)
    yield made
    made.inner.close()


def put(store: FaultyStore, key: str = "k") -> str:
    return store.put(key, BODY, crc32c(BODY))


def test_a_spec_is_parsed_fault_by_fault() -> None:
    plan = parse("latency=20ms..2s@0.1, busy=30s/120s,torn=0.001,reset_after=1,full,read_only=0.5")
    assert plan.latency == Latency(0.02, 2.0, 0.1)
    assert dict(plan.faults) == {
        Fault.BUSY: When(length_s=30, period_s=120),
        Fault.TORN: When(0.001),
        Fault.RESET_AFTER: When(1.0),
        Fault.FULL: When(1.0),
        Fault.READ_ONLY: When(0.5),
    }


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("", "'' in the chaos spec is not a fault; the faults are latency, busy, reset_before"),
        ("busy=1s/2s,slow=1", "'slow=1' in the chaos spec is not a fault"),
        ("none", "'none' in the chaos spec is not a fault"),
        ("busy=3s/2s", "'busy=3s/2s' in the chaos spec lasts 3s, longer than its period 2s"),
        ("busy=1s/2", "has '2' instead of a duration such as 20ms or 1.5s"),
        ("busy=0s/2s", "has the duration 0s; it must be over 0"),
        ("busy=1s/90000s", "has the duration 90000s; it must be over 0 and at most a day"),
        ("busy=", "has '' instead of a probability over 0 and up to 1"),
        ("torn", "'torn' in the chaos spec needs a probability, such as torn=0.01"),
        ("torn=1s/2s", "needs a probability, such as torn=0.01"),
        ("reset_after=1.5", "has '1.5' instead of a probability over 0 and up to 1"),
        ("reset_after=0", "has '0' instead of a probability"),
        ("reset_after=nan", "has 'nan' instead of a probability"),
        ("latency=20ms", "needs a range, such as latency=20ms..2s@0.1"),
        ("latency=2s..20ms", "begins at 2s, after its end 20ms"),
        ("latency=1ms..2ms@2", "has '2' instead of a probability"),
        ("latency=1ms..2ms,latency=1ms..2ms", "is given twice"),
        ("full,full", "'full' in the chaos spec is given twice"),
    ],
)
def test_a_spec_that_cannot_be_parsed_is_refused_and_the_part_is_named(
    spec: str, sentence: str
) -> None:
    with pytest.raises(ChaosSpecError) as refused:
        parse(spec)
    assert sentence in str(refused.value)


@given(st.integers(), st.floats(0, 1e6))
def test_latency_stays_in_its_range_and_most_of_it_is_short(seed: int, now_s: float) -> None:
    rng = random.Random(seed)
    plan = parse("latency=20ms..2s")
    delays_s = sorted(plan.decide(now_s, rng, writes=False).delay_s for _ in range(400))
    assert delays_s[0] >= 0.02 and delays_s[-1] <= 2.0 + 1e-9
    assert delays_s[200] < 0.06  # the median of the distribution is 34 ms
    assert delays_s[-1] > 0.1  # and it has a tail


def test_some_of_the_calls_are_late() -> None:
    rng = random.Random(7)
    plan = parse("latency=1ms..2ms@0.1")
    late = sum(plan.decide(0, rng, writes=True).delay_s > 0 for _ in range(10_000))
    assert 900 < late < 1_100


def test_a_burst_holds_at_the_end_of_each_period() -> None:
    rng = random.Random(1)
    plan = parse("busy=30s/120s")
    at_s = [0.0, 89.9, 90.0, 119.9, 120.0, 209.9, 210.5]
    fates = [plan.decide(now_s, rng, writes=True).fault for now_s in at_s]
    no, busy = Fault.NONE, Fault.BUSY
    assert fates == [no, no, busy, busy, no, no, busy]


def test_reads_meet_no_fault_of_writes() -> None:
    rng = random.Random(1)
    plan = FaultPlan(None, tuple((fault, When(1.0)) for fault in WRITES_ONLY))
    assert plan.decide(0, rng, writes=False).fault is Fault.NONE
    assert plan.decide(0, rng, writes=True).fault is Fault.READ_ONLY


def test_the_same_seed_gives_the_same_faults(trial: Trial) -> None:
    def story(seed: int) -> list[object]:
        store = trial.store("reset_before=0.3,reset_after=0.3,latency=1ms..9ms@0.5", seed)
        told: list[object] = []
        for number in range(30):
            try:
                put(store, f"{seed}-{number}")
                told.append("kept")
            except StoreError as error:
                told.append(str(error).replace(store.url, ""))
        told += trial.slept_s
        trial.slept_s.clear()
        return told

    assert story(5) == story(5)
    assert story(5) != story(6)


def test_a_busy_store_keeps_nothing_and_asks_to_slow_down(trial: Trial) -> None:
    store = trial.store("busy=1s/10s")
    put(store, "before")
    trial.now_s = 9.5
    with pytest.raises(StoreBusy):
        put(store, "during")
    with pytest.raises(StoreBusy):
        store.get("whatever")
    with pytest.raises(StoreBusy):
        store.list("")
    with pytest.raises(StoreBusy):
        store.delete([])
    with pytest.raises(StoreBusy):
        store.put_if_absent("entry", b"x")
    trial.now_s = 10.0
    assert store.get(put(store, "after")) == BODY
    assert trial.keys() == ["after", "before"]
    assert store.met[Fault.BUSY] == 5


def test_a_reset_before_the_body_keeps_nothing(trial: Trial) -> None:
    with pytest.raises(StoreError) as failed:
        put(trial.store("reset_before=1"))
    assert failed.value.retryable and failed.value.outcome_unknown
    assert trial.keys() == []


@pytest.mark.parametrize(
    ("spec", "slept_s"), [("reset_after=1", []), ("timeout_after=1", [TIMEOUT_S])]
)
def test_after_a_lost_answer_the_object_is_kept(
    trial: Trial, spec: str, slept_s: list[float]
) -> None:
    store = trial.store(spec)
    with pytest.raises(StoreError) as failed:
        put(store)
    with pytest.raises(StoreError):
        store.put_if_absent("entry", b"x")
    assert failed.value.retryable and failed.value.outcome_unknown
    assert trial.keys() == ["entry", "k"]
    assert trial.slept_s == slept_s * 2


def test_a_full_disk_and_a_read_only_bucket_keep_nothing_but_can_be_read(trial: Trial) -> None:
    locator = trial.inner.put("k", BODY, crc32c(BODY))
    full, read_only = trial.store("full"), trial.store("read_only")
    with pytest.raises(StoreError) as failed:
        put(full, "other")
    assert failed.value.retryable
    with pytest.raises(StoreRefused):
        put(read_only, "other")
    assert full.get(locator) == read_only.get(locator) == BODY
    assert trial.keys() == ["k"]


def test_a_torn_write_leaves_half_a_frame_that_does_not_count(trial: Trial) -> None:
    with pytest.raises(StoreError) as failed:
        put(trial.store("torn=1"))
    assert failed.value.retryable and failed.value.outcome_unknown
    (torn,) = (trial.inner.directory / "segments").iterdir()
    left = torn.read_bytes()
    assert BODY[:8] in left or b"k" in left
    assert BODY not in left
    assert trial.keys() == []
    assert trial.inner.damage() == ()
    # A later put of the same thread goes elsewhere, whole; a start tidies the torn one away.
    assert trial.inner.get(trial.inner.put("k", BODY, crc32c(BODY))) == BODY
    trial.inner.check()
    assert not torn.exists()


def test_writes_to_s3_cannot_be_torn() -> None:
    store = S3Store("bucket", endpoint_url="http://127.0.0.1:1", region="eu-central-1")
    try:
        with pytest.raises(ChaosSpecError, match=r"'torn' .* s3://bucket keeps objects whole"):
            require_possible(parse("torn=0.1"), store)
        require_possible(parse("busy"), store)
    finally:
        store.close()


def test_latency_is_slept_before_the_call(trial: Trial) -> None:
    store = trial.store("latency=20ms..2s,reset_before=1")
    with pytest.raises(StoreError):
        put(store)
    (slept_s,) = trial.slept_s
    assert 0.02 <= slept_s <= 2.0
