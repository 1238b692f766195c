"""Evictions keep to their limits, and no offset comes back; decisions against plain counting."""

from __future__ import annotations

import tempfile
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger import commits, epochs, reads, topics
from ledger.checks import invariants
from ledger.errors import ColumnsRefused, PartitionMissing, TopicMissing, TrimBeyondHead
from ledger.lake import lake_tables, quarantine, runs
from ledger.lake.types import Evicted, LakeRange, NewFile, TableSwitch
from ledger.ledger import Ledger
from ledger.log import backup, recovery
from ledger.log.backup import Mark
from ledger.space import deletions, marking, retention, unreferenced
from ledger.space.retention import NEVER_MS, EvictionStep, KeptFrom, first_kept, kept_from
from ledger.types import PartitionState, Topic, TopicConfig
from tests.ledger.lakes import commit, compact
from tests.ledger.requests import Request
from tests.ledger.upkeep import evict_all
from tests.long import examples

NOW_MS = 100_000


def topic_of(ledger: Ledger, name: str = "t", **settings: object) -> Topic:
    return ledger.write(topics.create, name, TopicConfig(**settings), 1)[0]  # type: ignore[arg-type]


def write(ledger: Ledger, topic: Topic, *counts: int, timestamp_ms: int = NOW_MS) -> None:
    """An object for each count of records, in partition 0."""
    for count in counts:
        counter = ledger.read(commits.latest_number) + 1
        commit(ledger, counter, Request(topic.topic_id, ((0, count),), timestamp_ms=timestamp_ms))


def state(ledger: Ledger, topic: Topic, partition: int = 0) -> PartitionState:
    return ledger.read(reads.partition_states, topic.topic_id)[partition]


# The decisions


@given(
    lengths=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 4)), max_size=6),
    tail=st.integers(0, 5),
    keep=st.integers(1, 30),
)
def test_exactly_the_newest_records_are_kept_whatever_gaps_lie_between(
    lengths: list[tuple[int, int]], tail: int, keep: int
) -> None:
    gaps: list[tuple[int, int]] = []
    records: list[int] = []
    next_seq = 1
    for live, gap in lengths:
        records += range(next_seq, next_seq + live)
        next_seq += live
        if gaps and gaps[-1][1] == next_seq - 1:
            gaps[-1] = (gaps[-1][0], next_seq + gap - 1)
        else:
            gaps.append((next_seq, next_seq + gap - 1))
        next_seq += gap
    records += range(next_seq, next_seq + tail)
    next_seq += tail
    found = kept_from(next_seq, keep, gaps)
    assert [offset for offset in records if offset >= found] == records[-keep:]


@st.composite
def step_lists(draw: st.DrawFn) -> list[EvictionStep]:
    """Pieces that share offsets as files of several days do."""
    offset = 1
    made: list[EvictionStep] = []
    for _ in range(draw(st.integers(0, 7))):
        back = draw(st.integers(0, 3))
        first = max(1, offset - back)
        last = first + draw(st.integers(back, back + 4))
        made.append(EvictionStep(first, last, draw(st.integers(1, 5)), draw(st.integers(0, 9))))
        offset = max(offset, last + 1)
    return sorted(made)


@given(steps=step_lists(), cap=st.integers(1, 20), older_than_ms=st.integers(0, 10))
def test_what_goes_lies_wholly_outside_the_limits(
    steps: list[EvictionStep], cap: int, older_than_ms: int
) -> None:
    total = sum(step.bytes for step in steps)
    spare = total - cap if total > cap else None
    by_bytes, by_time = first_kept(steps, spare, older_than_ms)

    begun = [step for step in steps if step.first_offset < by_bytes.from_offset]
    assert spare is not None or by_bytes == KeptFrom(1, 0)
    assert total - sum(step.bytes for step in begun) >= cap or not begun
    old = [step for step in steps if step.first_offset < by_time.from_offset]
    assert all(step.last_timestamp_ms < older_than_ms for step in old)
    # One step more, and something would go that is within.
    staying = [step for step in steps if step.first_offset >= by_bytes.from_offset]
    if spare is not None and staying:
        next_ones = [p.bytes for p in staying if p.first_offset == staying[0].first_offset]
        assert total - sum(step.bytes for step in begun) - sum(next_ones) < cap
    young = [step for step in steps if step.first_offset >= by_time.from_offset]
    if young:
        assert young[0].first_offset == by_time.from_offset
        assert older_than_ms <= by_time.until_ms <= max(p.last_timestamp_ms for p in young)
    else:
        assert by_time.until_ms == NEVER_MS


# In the ledger


def test_a_cap_of_records_keeps_exactly_as_many(ledger: Ledger) -> None:
    topic = topic_of(ledger, cap_records=7)
    write(ledger, topic, 5, 5, 5)
    assert evict_all(ledger, NOW_MS) == [Evicted("t", topic.topic_id, 0, 9, 8, "cap")]
    assert evict_all(ledger, NOW_MS) == []
    now = state(ledger, topic)
    assert (now.earliest_seq, now.count, now.bytes) == (9, 7, 100)
    assert (now.lost_seq, now.lost_reason, now.head_seq) == (8, "cap", 15)


def test_a_cap_of_bytes_keeps_what_is_within_it_and_at_most_an_extent_more(ledger: Ledger) -> None:
    topic = topic_of(ledger, cap_bytes=75)
    write(ledger, topic, 5, 5, 5)
    (evicted,) = evict_all(ledger, NOW_MS)
    assert (evicted.earliest_seq, evicted.reason) == (6, "cap")
    assert state(ledger, topic).bytes == 100
    ledger.write(topics.alter, "t", TopicConfig(cap_bytes=50))
    (evicted,) = evict_all(ledger, NOW_MS)
    assert evicted.earliest_seq == 11 and state(ledger, topic).bytes == 50
    assert evict_all(ledger, NOW_MS) == [], "the last extent is within or it would be all there is"


def test_time_to_live_goes_by_the_greatest_timestamp_so_far(ledger: Ledger) -> None:
    topic = topic_of(ledger, ttl_ms=1_000)
    for timestamp_ms in (1_000, 5_000, 2_000, 6_000):
        write(ledger, topic, 2, timestamp_ms=timestamp_ms)
    assert evict_all(ledger, 2_000) == []
    assert ledger.read(retention.due_evictions, topic, 2_000).due_ms == 2_001
    (evicted,) = evict_all(ledger, 2_001)
    assert (evicted.earliest_seq, evicted.reason) == (3, "ttl")
    assert evict_all(ledger, 3_500) == [], "an older record after a younger one waits for it"
    (evicted,) = evict_all(ledger, 6_001)
    assert evicted.earliest_seq == 7
    (evicted,) = evict_all(ledger, 7_001)
    now = state(ledger, topic)
    assert (evicted.earliest_seq, now.count, now.bytes, now.next_seq) == (9, 0, 0, 9)


def test_without_a_trusted_time_only_caps_evict(ledger: Ledger) -> None:
    topic = topic_of(ledger, ttl_ms=1, cap_records=3)
    write(ledger, topic, 5, timestamp_ms=0)
    (eviction,) = ledger.read(retention.due_evictions, topic, None).evictions
    assert (eviction.earliest_seq, eviction.reason) == (3, "cap")
    (eviction,) = ledger.read(retention.due_evictions, topic, NOW_MS).evictions
    assert (eviction.earliest_seq, eviction.reason) == (6, "ttl")


def test_a_topic_that_rejects_loses_nothing_by_its_caps(ledger: Ledger) -> None:
    topic = topic_of(ledger, cap_records=1, cap_bytes=1, ttl_ms=1_000, discard="reject")
    write(ledger, topic, 5)
    assert evict_all(ledger, NOW_MS) == []
    assert [one.reason for one in evict_all(ledger, NOW_MS + 1_001)] == ["ttl"]


def test_limits_are_of_each_partition(ledger: Ledger) -> None:
    topic = topic_of(ledger, partitions=2, cap_records=3)
    commit(ledger, 1, Request(topic.topic_id, ((0, 5), (1, 2))))
    (evicted,) = evict_all(ledger, NOW_MS)
    assert (evicted.partition, evicted.earliest_seq) == (0, 3)
    assert [s.count for s in ledger.read(reads.partition_states, topic.topic_id)] == [3, 2]


def test_gaps_are_no_records(ledger: Ledger) -> None:
    topic = topic_of(ledger, cap_records=4)
    write(ledger, topic, 3)
    ledger.write(recovery.prepare, Mark(), [], {(topic.topic_id, 0): 5}, 0, 1)
    write(ledger, topic, 3)
    evict_all(ledger, NOW_MS)
    now = state(ledger, topic)
    assert (now.earliest_seq, now.count) == (3, 4)
    ledger.write(topics.alter, "t", TopicConfig(cap_records=3))
    evict_all(ledger, NOW_MS)
    now = state(ledger, topic)
    assert (now.earliest_seq, now.count, now.bytes) == (9, 3, 30)


def test_holes_count_until_they_are_evicted(ledger: Ledger) -> None:
    topic = topic_of(ledger, cap_bytes=55)
    write(ledger, topic, 2, 2, 2, 2)
    compact(ledger, "r", bad_keys={ledger.read(reads.objects)[1].key}, to_commit=3)
    assert (state(ledger, topic).count, state(ledger, topic).bytes) == (8, 80)
    # The file's rows lie around the hole, so they stay while it does.
    assert evict_all(ledger, NOW_MS) == []
    retention.trim(ledger, "t", 0, 7)
    assert (state(ledger, topic).count, state(ledger, topic).bytes) == (2, 20)


def test_ranges_of_files_go_as_extents_do(ledger: Ledger) -> None:
    topic = topic_of(ledger, cap_bytes=40)
    for number in range(3):
        write(ledger, topic, 2, 1, timestamp_ms=10 * number)
        compact(ledger, f"r{number}")
    write(ledger, topic, 1)
    (evicted,) = evict_all(ledger, NOW_MS)
    now = state(ledger, topic)
    assert (evicted.earliest_seq, now.count, now.bytes) == (7, 4, 40)
    ledger.write(topics.alter, "t", TopicConfig(ttl_ms=10))
    (evicted,) = evict_all(ledger, 31)
    assert evicted.earliest_seq == 10 and evicted.reason == "ttl"


def test_files_of_two_days_go_together(ledger: Ledger) -> None:
    topic = topic_of(ledger, cap_bytes=10)
    write(ledger, topic, 6)
    compact(ledger, "r", days=2)
    write(ledger, topic, 1)
    (evicted,) = evict_all(ledger, NOW_MS)
    assert (evicted.earliest_seq, state(ledger, topic).bytes) == (7, 10)


def test_a_hole_at_the_front_goes_by_its_own_bytes(ledger: Ledger) -> None:
    topic = topic_of(ledger, cap_bytes=40)
    write(ledger, topic, 2, 2, 2)
    compact(ledger, "r", bad_keys={ledger.read(reads.objects)[0].key}, to_commit=2)
    compact(ledger, "s")
    (evicted,) = evict_all(ledger, NOW_MS)
    assert (evicted.earliest_seq, state(ledger, topic).bytes) == (3, 40)


def test_a_file_that_ends_late_and_begins_early_is_looked_at_first(ledger: Ledger) -> None:
    topic = topic_of(ledger, ttl_ms=10)
    write(ledger, topic, 10)
    ranges = (LakeRange(0, 3, 5, 3, 30, 0, 50), LakeRange(0, 1, 10, 7, 70, 0, 50))
    files = tuple(NewFile(f"file:///{one.last_offset}", 1, one.rows, (one,)) for one in ranges)
    ledger.write(runs.begin, "r", "test", 1)
    ledger.write(
        lake_tables.switch, "r", [TableSwitch(topic.topic_id, "t", "m", {0: 10}, files)], 1
    )
    assert evict_all(ledger, 60) == [], "the first record may be 50 ms old"
    assert [one.earliest_seq for one in evict_all(ledger, 61)] == [11]


def test_what_was_decided_before_another_change_is_not_done(ledger: Ledger) -> None:
    topic = topic_of(ledger, cap_records=3)
    write(ledger, topic, 5)
    found = ledger.read(retention.due_evictions, topic, NOW_MS).evictions
    ledger.write(topics.alter, "t", TopicConfig())
    assert ledger.write(retention.evict, found) == [] and state(ledger, topic).earliest_seq == 1
    found = ledger.read(retention.due_evictions, topic, NOW_MS).evictions
    ledger.write(topics.delete, "t", 5)
    assert ledger.write(retention.evict, found) == []
    assert ledger.read(retention.due_evictions, topic, NOW_MS).evictions == []


def test_commits_meanwhile_do_not_hinder_an_eviction(ledger: Ledger) -> None:
    topic = topic_of(ledger, cap_records=3)
    write(ledger, topic, 5)
    found = ledger.read(retention.due_evictions, topic, NOW_MS).evictions
    write(ledger, topic, 4)
    assert [one.earliest_seq for one in ledger.write(retention.evict, found)] == [3]
    now = state(ledger, topic)
    assert (now.count, now.bytes, now.head_seq) == (7, 90, 9)


def test_more_extents_than_one_look_walks_over_go_in_several(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ledger.space.retention.STEPS_MAX", 4)
    topic = topic_of(ledger, ttl_ms=10)
    write(ledger, topic, *([1] * 10), timestamp_ms=0)
    assert [one.earliest_seq for one in evict_all(ledger, NOW_MS)] == [4, 7, 10, 11]


ACTIONS = st.one_of(
    st.tuples(st.just("write"), st.integers(1, 4), st.integers(0, 30)),
    st.tuples(st.just("compact"), st.integers(1, 2), st.booleans()),
    st.tuples(st.just("gap"), st.integers(1, 3), st.none()),
    st.tuples(st.just("trim"), st.integers(0, 40), st.none()),
    st.tuples(st.just("evict"), st.integers(0, 60), st.none()),
    st.tuples(
        st.just("limits"),
        st.tuples(*[st.none() | st.integers(1, 20)] * 2, st.none() | st.integers(1, 40)),
        st.none(),
    ),
)


class History:
    """A topic of one partition, and what its records are, one by one."""

    def __init__(self, directory: str) -> None:
        self.ledger = Ledger(Path(directory) / "ledger.db", nullcontext())
        self.ledger.write(epochs.begin_incarnation, 1)
        self.topic = topic_of(self.ledger)
        self.config = TopicConfig()
        self.times: dict[int, int] = {}  # of readable records, by offset
        self.runs = 0

    def do(self, action: str, first: Any, second: Any) -> None:
        before = state(self.ledger, self.topic)
        if action == "write":
            write(self.ledger, self.topic, first, timestamp_ms=second)
            self.times |= {before.next_seq + n: second for n in range(first)}
        elif action == "compact":
            self.runs += 1
            bad = (
                {self.ledger.read(reads.objects)[-1].key}
                if second and self.ledger.read(reads.objects)
                else set()
            )
            compact(self.ledger, f"r{self.runs}", bad_keys=bad, days=first)
        elif action == "gap":
            self.ledger.write(recovery.prepare, Mark(), [], {(self.topic.topic_id, 0): first}, 0, 1)
        elif action == "trim":
            retention.trim(self.ledger, "t", 0, min(first, before.next_seq))
        elif action == "evict":
            evict_all(self.ledger, first)
            self.check_eviction(before, first)
        elif action == "limits":
            records, tens, ttl_ms = first
            caps = (records, None if tens is None else 10 * tens)
            self.config = TopicConfig(cap_records=caps[0], cap_bytes=caps[1], ttl_ms=ttl_ms)
            self.topic = self.ledger.write(topics.alter, "t", self.config)
        now = state(self.ledger, self.topic)
        assert now.earliest_seq >= before.earliest_seq
        self.times = {o: t for o, t in self.times.items() if o >= now.earliest_seq}
        assert now.count == len(self.times)
        # Files of two days hold a record's bytes as long as one of theirs is readable.
        assert now.bytes >= 10 * len(self.times) or self.runs
        self.ledger.read(invariants.check)

    def check_eviction(self, before: PartitionState, now_ms: int) -> None:
        now = state(self.ledger, self.topic)
        offsets = sorted(self.times)
        young = False  # a record that no cap evicts, and that holds back what is after it
        for index, offset in enumerate(offsets):
            if offset >= now.earliest_seq:
                break
            behind = len(offsets) - index
            over_a_cap = behind > (self.config.cap_records or len(offsets)) or 10 * behind > (
                self.config.cap_bytes or 10 * len(offsets)
            )
            is_old = (
                self.config.ttl_ms is not None and self.times[offset] < now_ms - self.config.ttl_ms
            )
            young = young or not (over_a_cap or is_old)
            assert not young, f"{offset} was within all limits"
        if self.config.cap_records is not None:
            assert now.count <= self.config.cap_records
        if now.earliest_seq > before.earliest_seq:
            assert now.lost_seq == now.earliest_seq - 1 and now.lost_reason in ("cap", "ttl")
        else:
            assert now.lost_seq == before.lost_seq


@settings(max_examples=examples(150), deadline=None)
@given(actions=st.lists(ACTIONS, max_size=20))
def test_whatever_happens_only_what_is_outside_a_limit_goes(
    actions: list[tuple[str, Any, Any]],
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        history = History(directory)
        with closing(history.ledger):
            for action in actions:
                history.do(*action)


# Trims


def test_a_trim_is_exact_and_never_taken_back(ledger: Ledger) -> None:
    topic = topic_of(ledger)
    write(ledger, topic, 5, 5)
    trimmed = retention.trim(ledger, "t", 0, 8)
    assert (trimmed.earliest_seq, trimmed.count, trimmed.bytes) == (8, 3, 50)
    assert (trimmed.lost_seq, trimmed.lost_reason) == (0, ""), "it was asked for"
    assert retention.trim(ledger, "t", 0, 3) == trimmed == retention.trim(ledger, "t", 0, 8)
    assert retention.trim(ledger, "t", 0, 11).count == 0
    write(ledger, topic, 1)
    assert (state(ledger, topic).earliest_seq, state(ledger, topic).count) == (11, 1)


def test_a_trim_keeps_what_was_lost_before_it(ledger: Ledger) -> None:
    topic = topic_of(ledger, cap_records=3)
    write(ledger, topic, 5)
    evict_all(ledger, NOW_MS)
    trimmed = retention.trim(ledger, "t", 0, 5)
    assert (trimmed.earliest_seq, trimmed.lost_seq, trimmed.lost_reason) == (5, 2, "cap")


def test_a_trim_of_what_is_not_there_is_refused(ledger: Ledger) -> None:
    topic = topic_of(ledger)
    write(ledger, topic, 5)
    with pytest.raises(TrimBeyondHead, match=r"is 7, but the next offset .* is 6"):
        retention.trim(ledger, "t", 0, 7)
    with pytest.raises(PartitionMissing, match="partitions 0 to 0"):
        retention.trim(ledger, "t", 1, 1)
    with pytest.raises(TopicMissing):
        retention.trim(ledger, "u", 0, 1)


def test_the_owners_log_is_told_of_an_eviction(ledger: Ledger, tmp_path: Path) -> None:
    topic = topic_of(ledger, cap_records=3)
    write(ledger, topic, 5)
    with closing(Ledger(tmp_path / "other.db", nullcontext())) as other:
        mark, changes = ledger.read(backup.changes_since, Mark())
        other.write(backup.apply, changes)
        evict_all(ledger, NOW_MS)
        assert ledger.read(backup.mark) != mark, "it is news"
        _, changes = ledger.read(backup.changes_since, mark)
        other.write(backup.apply, changes)
        assert state(other, topic) == state(ledger, topic)


# What becomes free


def free_keys(ledger: Ledger) -> set[str]:
    while marking.mark_unreferenced(ledger, NOW_MS):
        pass
    rule = ledger.read(deletions.policy, NOW_MS, 0, 1 << 60)
    return {one.key for one in ledger.read(unreferenced.page, rule, (0, 0))}


def test_an_object_is_free_when_the_last_of_its_extents_goes(ledger: Ledger) -> None:
    first, second = topic_of(ledger, "a"), topic_of(ledger, "b")
    commit(ledger, 1, Request(first.topic_id), Request(second.topic_id))
    commit(ledger, 2, Request(first.topic_id), Request(second.topic_id))
    keys = [row.key for row in ledger.read(reads.objects)]
    assert free_keys(ledger) == set()
    retention.trim(ledger, "a", 0, 3)
    assert free_keys(ledger) == set()
    retention.trim(ledger, "b", 0, 2)
    assert free_keys(ledger) == {keys[0]}


def test_a_deleted_topic_frees_its_objects_some_at_a_time(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ledger.space.marking.EXTENTS_MAX", 3)
    topic, other = topic_of(ledger), topic_of(ledger, "other")
    write(ledger, topic, *([1] * 10))
    write(ledger, other, 1)
    ledger.write(topics.delete, "t", 5)
    looks = 1
    while marking.mark_unreferenced(ledger, NOW_MS):
        looks += 1
    assert looks == 4
    assert free_keys(ledger) == {row.key for row in ledger.read(reads.objects)[:10]}


def test_an_object_in_quarantine_is_never_free(ledger: Ledger) -> None:
    first, second = topic_of(ledger, "a"), topic_of(ledger, "b")
    for counter in (1, 2, 3):
        commit(ledger, counter, Request(first.topic_id), Request(second.topic_id))
    keys = [row.key for row in ledger.read(reads.objects)]
    compact(ledger, "r", bad_keys={keys[0]}, topic_ids=frozenset({first.topic_id}))
    retention.trim(ledger, "b", 0, 4)
    assert free_keys(ledger) == {keys[1]}  # and the last commit's stays, as ever
    assert ledger.read(quarantine.object_count) == 1


def test_an_object_of_void_records_alone_is_found(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ledger.space.marking.EXTENTS_MAX", 1)
    topic = topic_of(ledger)
    for counter in range(1, 4):
        commit(ledger, counter, Request(topic.topic_id, key="same"))
    write(ledger, topic, 1)
    assert free_keys(ledger) == set()
    after: int | None = 0
    while after is not None:
        after = marking.mark_void(ledger, NOW_MS, after)
    assert free_keys(ledger) == {row.key for row in ledger.read(reads.objects)[1:3]}


# Columns


def test_a_column_keeps_its_type(ledger: Ledger) -> None:
    topic_of(ledger, columns={"a": "long"})
    ledger.write(topics.alter, "t", TopicConfig(columns={"a": "long", "b": "string"}))
    with pytest.raises(ColumnsRefused, match="'a' of topic 't' is long and cannot become double"):
        ledger.write(topics.alter, "t", TopicConfig(columns={"a": "double"}))
    assert ledger.write(topics.alter, "t", TopicConfig(columns={"b": "string"})).config.columns == {
        "b": "string"
    }
