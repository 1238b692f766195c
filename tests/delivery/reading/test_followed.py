"""What one shard knows of the newest commits: the head never falls, the tail has no hole."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from delivery.reading import followed
from delivery.reading.followed import FollowedPartitions, Key, TooManyPinned
from ledger.types import Commit, ExtentRun, LeasedRange, LeaseId, PartitionHead, Verdict

KEY: Key = (1, 0)
OTHER: Key = (1, 1)


class History:
    """Commits that give offsets one after the other."""

    def __init__(self) -> None:
        self.commits: list[Commit] = []
        self.heads: dict[Key, int] = {KEY: 0, OTHER: 0}
        self._position = 0

    def commit(self, counts: Mapping[Key, tuple[int, ...]]) -> Commit:
        """The next commit: live records by partition and shard; 0 is a run that is all void."""
        runs, heads, verdicts = [], [], []
        shards = 1
        for (topic_id, partition), by_shard in sorted(counts.items()):
            shards = max(shards, len(by_shard))
            for shard, count in enumerate(by_shard):
                head = self.heads[topic_id, partition]
                runs.append(ExtentRun(shard, topic_id, partition, head + 1, max(count, 1)))
                if not count:
                    verdicts.append(Verdict(shard, self._position, "deduped"))
                self.heads[topic_id, partition] += count
            heads.append(PartitionHead(topic_id, partition, self.heads[topic_id, partition]))
        sources = tuple(
            LeasedRange(shard, self._position, self._position + 8) for shard in range(shards)
        )
        self._position += 8
        number = len(self.commits) + 1
        lease_id = LeaseId(1, 1, 0, number)
        commit = Commit(number, lease_id, sources, tuple(runs), tuple(heads), tuple(verdicts))
        self.commits.append(commit)
        return commit


def spans(partitions: FollowedPartitions, offset: int, key: Key = KEY) -> list[tuple[int, int]]:
    return [(e.first_offset, e.last_offset) for e in partitions.tail(key, offset)]


def test_a_head_that_is_loaded_a_second_time_hides_no_commit_from_who_follows() -> None:
    partitions, history = FollowedPartitions(), History()
    partitions.follow(KEY)
    partitions.head_loaded(KEY, 0)
    commit = history.commit({KEY: (3,)})
    # Another reader had asked for the head too, and the ledger was faster than the commit log.
    partitions.head_loaded(KEY, 3)
    assert partitions.head(KEY) == 0
    assert partitions.apply(commit) == [KEY], "or nobody would wake the readers that are at 0"
    assert partitions.head(KEY) == 3


def test_a_partition_without_readers_costs_nothing_and_is_unknown() -> None:
    partitions, history = FollowedPartitions(), History()
    assert partitions.apply(history.commit({KEY: (3,)})) == []
    assert partitions.head(KEY) is None
    assert list(partitions.tail(KEY, 1)) == []


def test_commits_move_the_head_and_add_to_the_tail() -> None:
    partitions, history = FollowedPartitions(), History()
    partitions.follow(KEY)
    assert partitions.head(KEY) is None, "the ledger was not asked yet"
    partitions.head_loaded(KEY, 0)
    assert partitions.head(KEY) == 0

    assert partitions.apply(history.commit({KEY: (3,), OTHER: (1,)})) == [KEY]
    assert partitions.apply(history.commit({OTHER: (1,)})) == []
    assert partitions.apply(history.commit({KEY: (1, 2)})) == [KEY]
    assert partitions.head(KEY) == 6
    assert spans(partitions, 1) == [(1, 3), (4, 6)]
    assert spans(partitions, 4) == [(4, 6)]
    assert spans(partitions, 7) == []


def test_the_tail_names_the_runs_of_its_own_partition_and_the_void_requests() -> None:
    partitions, history = FollowedPartitions(), History()
    partitions.follow(KEY)
    commit = history.commit({KEY: (2, 0), OTHER: (1,)})
    partitions.apply(commit)
    (extent,) = partitions.tail(KEY, 1)
    assert [(r.shard, r.partition) for r in extent.runs] == [(0, 0), (1, 0)]
    assert extent.ranges == {0: commit.ranges[0], 1: commit.ranges[1]}
    assert extent.void_positions == {(1, 0)}


def test_a_commit_of_void_records_only_moves_nothing() -> None:
    partitions, history = FollowedPartitions(), History()
    partitions.follow(KEY)
    partitions.head_loaded(KEY, 0)
    partitions.apply(history.commit({KEY: (2,)}))
    assert partitions.apply(history.commit({KEY: (0,)})) == []
    assert (partitions.head(KEY), spans(partitions, 1)) == (2, [(1, 2)])


def test_a_new_reader_gets_the_tail_that_the_log_still_has() -> None:
    history = History()
    partitions = FollowedPartitions(lambda: history.commits[2:])
    for _ in range(5):
        history.commit({KEY: (2,)})
    partitions.follow(KEY)
    assert partitions.head(KEY) == 10, "the ledger need not be asked"
    assert spans(partitions, 5) == [(5, 6), (7, 8), (9, 10)]
    assert spans(partitions, 4) == [], "what is not among them is read from objects"


def test_a_late_answer_from_the_ledger_does_not_lower_the_head() -> None:
    partitions, history = FollowedPartitions(), History()
    partitions.follow(KEY)
    partitions.apply(history.commit({KEY: (5,)}))
    partitions.head_loaded(KEY, 2)
    assert partitions.head(KEY) == 5


def test_a_head_that_the_ledger_knows_first_ends_the_tail() -> None:
    partitions, history = FollowedPartitions(), History()
    partitions.follow(KEY)
    first, second = history.commit({KEY: (2,)}), history.commit({KEY: (2,)})
    partitions.apply(first)
    partitions.head_loaded(KEY, 4)  # the ledger was asked after the second commit
    assert (partitions.head(KEY), spans(partitions, 1), spans(partitions, 3)) == (4, [], [])
    partitions.apply(second)
    partitions.apply(history.commit({KEY: (2,)}))
    assert (partitions.head(KEY), spans(partitions, 5), spans(partitions, 3)) == (6, [(5, 6)], [])


def test_a_forgotten_tail_begins_anew() -> None:
    partitions, history = FollowedPartitions(), History()
    partitions.follow(KEY)
    partitions.apply(history.commit({KEY: (2,)}))
    partitions.forget_tail(KEY)
    assert spans(partitions, 1) == []
    partitions.apply(history.commit({KEY: (2,)}))
    assert (spans(partitions, 1), spans(partitions, 3)) == ([], [(3, 4)])


def test_a_tail_keeps_a_bounded_number_of_extents() -> None:
    partitions, history = FollowedPartitions(), History()
    partitions.follow(KEY)
    for _ in range(followed.TAIL_MAX + 10):
        partitions.apply(history.commit({KEY: (1,)}))
    assert len(spans(partitions, 11)) == followed.TAIL_MAX
    assert spans(partitions, 10) == []


def test_the_least_recently_read_partition_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(followed, "FOLLOWED_MAX", 3)
    partitions = FollowedPartitions()
    keys = [(n, 0) for n in range(4)]
    for key in keys[:3]:
        partitions.follow(key)
        partitions.head_loaded(key, 7)
    partitions.follow(keys[0])  # asked for again: the second is now the oldest
    partitions.follow(keys[3])
    assert [partitions.head(key) for key in keys] == [7, None, 7, None]
    partitions.head_loaded(keys[1], 9)
    assert partitions.head(keys[1]) is None, "an answer for a forgotten partition is dropped"


class FollowerMachine(RuleBasedStateMachine):
    """Any order of commits, late news, ledger reads and misses: what is said is always true."""

    @initialize()
    def start(self) -> None:
        self.history = History()
        self.kept = 0
        self.partitions = FollowedPartitions(
            lambda: self.history.commits[max(0, self.applied - self.kept) : self.applied]
        )
        self.applied = 0
        self.asked = 0  # a ledger's answer on its way: the head when it was asked
        self.following = False

    @rule(mine=st.lists(st.integers(0, 3), max_size=3), others=st.integers(0, 2))
    def commit(self, mine: list[int], others: int) -> None:
        counts: dict[Key, tuple[int, ...]] = {OTHER: (others,)}
        if mine:
            counts[KEY] = tuple(mine)
        self.history.commit(counts)

    @rule(most=st.integers(1, 4))
    def apply(self, most: int) -> None:
        for commit in self.history.commits[self.applied : self.applied + most]:
            before = self.partitions.head(KEY)
            moved = self.partitions.apply(commit)
            self.applied += 1
            assert OTHER not in moved
            if moved and before is not None:
                assert self.partitions.head(KEY) != before

    @rule(kept=st.integers(0, 5))
    def follow(self, kept: int) -> None:
        self.kept = kept
        self.partitions.follow(KEY)
        self.following = True

    @rule()
    def ask_ledger(self) -> None:
        self.asked = self.history.heads[KEY]

    @precondition(lambda self: self.following)
    @rule()
    def answer_of_ledger(self) -> None:
        # As DiffReader does: the partition is followed before the ledger is asked.
        self.partitions.head_loaded(KEY, max(self.asked, self.head_of(self.applied)))

    @rule()
    def forget(self) -> None:
        self.partitions.forget_tail(KEY)

    def head_of(self, applied: int) -> int:
        heads = [
            h.head_seq
            for commit in self.history.commits[:applied]
            for h in commit.heads
            if (h.topic_id, h.partition) == KEY
        ]
        return heads[-1] if heads else 0

    @invariant()
    def what_is_said_is_true(self) -> None:
        head = self.partitions.head(KEY)
        if head is not None:
            assert self.head_of(self.applied) <= head <= self.history.heads[KEY]
        self.partitions.check_invariants()
        for offset in range(1, self.history.heads[KEY] + 2):
            tail = list(self.partitions.tail(KEY, offset))
            if not tail:
                continue
            assert tail[0].first_offset <= offset <= tail[0].last_offset
            for one, next_one in pairwise(tail):
                assert next_one.first_offset == one.last_offset + 1
            for extent in tail:
                commit = self.history.commits[extent.commit_number - 1]
                assert PartitionHead(*KEY, extent.last_offset) in commit.heads
                assert all((r.topic_id, r.partition) == KEY for r in extent.runs)


TestFollowerMachine = FollowerMachine.TestCase


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=20), st.data())
def test_extents_of_the_tail_hold_exactly_the_offsets_of_their_commits(
    counts: list[tuple[int, int]], data: st.DataObject
) -> None:
    partitions, history = FollowedPartitions(), History()
    partitions.follow(KEY)
    expected: list[tuple[int, int]] = []
    for count in counts:
        before = history.heads[KEY]
        partitions.apply(history.commit({KEY: count}))
        if sum(count):
            expected.append((before + 1, before + sum(count)))
    offset = data.draw(st.integers(1, history.heads[KEY] + 1))
    assert spans(partitions, offset) == [span for span in expected if span[1] >= offset]


def test_all_tails_together_keep_the_extents_of_the_newest_commits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(followed, "RUNS_MAX", 5)
    partitions, history = FollowedPartitions(), History()
    partitions.follow(KEY)
    partitions.follow(OTHER)
    for _ in range(3):
        partitions.apply(history.commit({KEY: (1,), OTHER: (1,)}))
        partitions.check_invariants()
    partitions.apply(history.commit({OTHER: (1,)}))
    assert spans(partitions, 3) == [(3, 3)]
    assert spans(partitions, 2) == [(2, 2), (3, 3)]
    assert spans(partitions, 1) == []
    assert spans(partitions, 2, OTHER) == [(2, 2), (3, 3), (4, 4)]
    assert spans(partitions, 1, OTHER) == []
    partitions.check_invariants()


@given(st.sets(st.integers(0, 39), max_size=40), st.data())
def test_a_commit_of_many_partitions_moves_the_followed_ones_whatever_their_number(
    of: set[int], data: st.DataObject
) -> None:
    history = History()
    history.heads = {(n // 4, n % 4): 0 for n in range(40)}
    partitions = FollowedPartitions()
    keys = {(n // 4, n % 4) for n in of}
    for key in keys:
        partitions.follow(key)
    for _ in range(3):
        counts = data.draw(
            st.dictionaries(
                st.sampled_from(sorted(history.heads)),
                st.tuples(st.integers(0, 2), st.integers(0, 2)),
                min_size=1,
            )
        )
        commit = history.commit(counts)
        moved = partitions.apply(commit)
        assert set(moved) == {key for key in keys if sum(counts.get(key, ()))}
        for key in moved:
            *_, last = partitions.tail(key, history.heads[key])
            assert last.runs == tuple(r for r in commit.runs if (r.topic_id, r.partition) == key)
            assert last.last_offset == history.heads[key]
        partitions.check_invariants()


class PinningMachine(RuleBasedStateMachine):
    """Readers that poll and streams that stay: pinned partitions are kept, the others by use."""

    keys = st.integers(0, 7).map(lambda n: (n, 0))

    @initialize()
    def start(self) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(followed, "FOLLOWED_MAX", 5)
        self.patch.setattr(followed, "PINNED_MAX", 3)
        self.partitions = FollowedPartitions()
        self.pins: Counter[Key] = Counter()
        self.polled: OrderedDict[Key, None] = OrderedDict()

    def teardown(self) -> None:
        self.patch.undo()

    def used(self, key: Key) -> None:
        self.partitions.head_loaded(key, 7)
        if not self.pins[key]:
            self.polled[key] = None
            self.polled.move_to_end(key)
        if len(self.polled) + len(+self.pins) > 5:
            self.polled.popitem(last=False)

    @rule(key=keys)
    def poll(self, key: Key) -> None:
        self.partitions.follow(key)
        self.used(key)

    @rule(key=keys)
    def pin(self, key: Key) -> None:
        if not self.pins[key] and len(+self.pins) == 3:
            with pytest.raises(TooManyPinned, match="3 partitions"):
                self.partitions.pin(key)
            return
        self.partitions.pin(key)
        self.pins[key] += 1
        self.polled.pop(key, None)
        self.used(key)

    @rule(key=keys)
    def unpin(self, key: Key) -> None:
        if not self.pins[key]:
            with pytest.raises((KeyError, ValueError)):
                self.partitions.unpin(key)
            return
        self.partitions.unpin(key)
        self.pins[key] -= 1
        if not self.pins[key]:
            self.polled[key] = None

    @invariant()
    def what_is_followed(self) -> None:
        known = {(n, 0) for n in range(8) if self.partitions.head((n, 0)) is not None}
        assert known == set(self.polled) | set(+self.pins)
        self.partitions.check_invariants()


TestPinning = PinningMachine.TestCase
