"""Random histories of the ledger against the model: answers, extents, heads, repeats."""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from pathlib import Path

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ledger import commits, cursors, epochs, reads, topics
from ledger.checks import invariants
from ledger.cursors import Setting
from ledger.dedupe import DedupeLimits
from ledger.ledger import Ledger
from ledger.log import backup
from ledger.space import leftovers
from ledger.space.leftovers import Heard
from ledger.types import Advance, Commit, CommitDraft, CursorMove, CursorPosition, TopicConfig
from tests.ledger.model import Model, Record
from tests.ledger.requests import Request, answers, draft_of, lease
from tests.long import examples

LIMITS = DedupeLimits(window_ms=100)
NAMES = ("a", "b")


class RequestShape(msgspec.Struct, frozen=True):
    """A request before it is known which topics and heads there are."""

    topic: int
    partitions: tuple[int, ...]
    count: int
    key: str | None
    expected_delta: int | None
    cursor: int | None = None
    cursor_delta: int = 0


shapes = st.builds(
    RequestShape,
    topic=st.integers(0, 5),
    partitions=st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple),
    count=st.integers(1, 4),
    key=st.sampled_from([None, None, "x", "y", "z"]),
    expected_delta=st.sampled_from([None, None, 0, 0, 1, 2, 3, -1]),
    cursor=st.sampled_from([None, None, 0, 1, 2, 3]),
    cursor_delta=st.sampled_from([0, 0, 0, 2, 4, -2]),
)


class LedgerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.now_ms = 1_000
        self.counter = 0
        self.model = Model(LIMITS.window_ms)
        self.config: dict[int, TopicConfig] = {}
        self.live: dict[str, int] = {}
        self.cursor_ids: dict[str, int] = {}
        self.cursors_seen = 0
        self.objects: dict[tuple[str, int, int], list[Record]] = {}
        self.history: list[tuple[CommitDraft, Commit]] = []
        self.ledger = self.opened()

    def opened(self) -> Ledger:
        path = Path(self.directory.name) / "ledger.db"
        return Ledger(path, nullcontext(), dedupe_limits=LIMITS)

    def teardown(self) -> None:
        self.ledger.close()
        self.directory.cleanup()

    @initialize()
    def start(self) -> None:
        self.ledger.write(epochs.begin_incarnation, self.now_ms)
        self.create(NAMES[0], 2)

    @rule(name=st.sampled_from(NAMES), partitions=st.integers(1, 3))
    def create(self, name: str, partitions: int) -> None:
        topic, created = self.ledger.write(
            topics.create, name, TopicConfig(partitions), self.now_ms
        )
        assert created == (name not in self.live)
        if created:
            assert topic.topic_id not in self.config
            self.live[name] = topic.topic_id
            self.config[topic.topic_id] = topic.config
            self.model.grow(topic.topic_id, partitions)

    @rule(name=st.sampled_from(NAMES))
    def delete(self, name: str) -> None:
        if name in self.live:
            self.ledger.write(topics.delete, name, self.now_ms)
            self.model.deleted.add(self.live.pop(name))

    def heard(self) -> Heard:
        """All that was done."""
        mark = self.ledger.read(backup.mark)
        return Heard(mark.catalog_version, mark.change_number)

    @rule()
    def remove_leftovers(self) -> None:
        for topic_id in self.ledger.write(leftovers.remove, self.heard()).topics:
            assert topic_id in self.model.deleted
            for partition in range(self.config[topic_id].partitions):
                self.leave((topic_id, partition))

    def leave(self, key: tuple[int, int]) -> None:
        """The row of a partition has gone: here nothing but an empty one can."""
        assert not self.model.partitions.pop(key)

    @rule(name=st.sampled_from(NAMES), more=st.integers(0, 1))
    def grow(self, name: str, more: int) -> None:
        if name in self.live:
            topic_id = self.live[name]
            config = TopicConfig(self.config[topic_id].partitions + more)
            self.ledger.write(topics.alter, name, config)
            self.config[topic_id] = config
            self.model.grow(topic_id, config.partitions)

    @rule(name=st.sampled_from(NAMES))
    def create_cursor(self, name: str) -> None:
        cursor, created = self.ledger.write(cursors.create, name, "client", self.now_ms)
        assert created == (name not in self.cursor_ids)
        assert self.cursor_ids.setdefault(name, cursor.cursor_id) == cursor.cursor_id
        if created:
            self.cursors_seen += 1
            assert cursor.cursor_id == self.cursors_seen
            self.model.cursors[cursor.cursor_id] = {}

    @rule(name=st.sampled_from(NAMES))
    def delete_cursor(self, name: str) -> None:
        if name in self.cursor_ids:
            cursor = self.ledger.write(cursors.delete, name, "client", self.now_ms)
            assert self.cursor_ids.pop(name) == cursor.cursor_id
            del self.model.cursors[cursor.cursor_id]

    @rule(name=st.sampled_from(NAMES), partition=st.integers(0, 1), seq=st.integers(0, 20))
    def set_cursor(self, name: str, partition: int, seq: int) -> None:
        if name in self.cursor_ids:
            self.model.cursors[self.cursor_ids[name]][partition] = seq
            self.ledger.write(cursors.set_positions, name, "client", [Setting(partition, seq)])

    @rule(delta=st.sampled_from([0, 0, -1, 1]))
    def flush(self, delta: int) -> None:
        moves, refused = [], {}
        for cursor_id in range(1, self.cursors_seen + 1):
            there = self.model.cursors.get(cursor_id)
            at = None if there is None else there.get(1, 0)
            moves.append(CursorMove(cursor_id, 1, (at or 0) + delta, (at or 0) + delta + 5))
            if there is None or delta:
                refused[cursor_id, 1] = at
            else:
                there[1] = moves[-1].next
        assert self.ledger.write(cursors.flush, moves) == refused

    @rule(passed_ms=st.integers(1, 70))
    def wait(self, passed_ms: int) -> None:
        self.now_ms += passed_ms

    @rule(per_shard=st.lists(st.lists(shapes, min_size=1, max_size=5), min_size=1, max_size=3))
    def commit(self, per_shard: list[list[RequestShape]]) -> None:
        requests = [
            self.request(shape, shard) for shard, some in enumerate(per_shard) for shape in some
        ]
        self.counter += 1
        draft = draft_of(lease(self.counter, self.ledger.read(epochs.current)), requests)
        self.keep_object(draft, requests)
        expected = self.model.commit(requests, self.now_ms)
        published: list[Commit] = []
        commit = self.ledger.commit(draft, self.now_ms, published.append)
        assert published == [commit]
        assert commit.number == len(self.history) + 1
        assert answers(commit, requests) == expected
        for head in commit.heads:
            assert head.head_seq == self.model.head(head.topic_id, head.partition)
        self.history.append((draft, commit))

    def request(self, shape: RequestShape, shard: int) -> Request:
        topic_ids = sorted(self.config)
        topic_id = topic_ids[shape.topic % len(topic_ids)]
        count = self.config[topic_id].partitions
        partitions = tuple(dict.fromkeys(partition % count for partition in shape.partitions))
        expected_seq = None
        if shape.expected_delta is not None:
            partitions = partitions[:1]
            there = (topic_id, partitions[0])
            head = self.model.head(*there) if there in self.model.partitions else 0
            expected_seq = max(0, head + shape.expected_delta)
        parts = tuple((partition, shape.count) for partition in partitions)
        advance = None
        if shape.cursor is not None:
            # One after the last that was created: it never was.
            cursor_id, partition = 1 + shape.cursor % (self.cursors_seen + 1), shape.count % 2
            at = self.model.cursors.get(cursor_id, {}).get(partition, 0)
            expected = max(0, at + shape.cursor_delta)
            advance = Advance(cursor_id, partition, expected, expected + 2)
        return Request(topic_id, parts, shape.key, expected_seq, shard, self.now_ms, advance)

    def keep_object(self, draft: CommitDraft, requests: list[Request]) -> None:
        """The records of the object by extent, void ones included, as a store would have them."""
        for number, request in enumerate(requests, self.model.requests + 1):
            for partition, count in request.parts:
                key = (draft.locator, request.topic_id, partition)
                there = self.objects.setdefault(key, [])
                there.extend((number, partition, index) for index in range(count))

    @rule(which=st.integers(0, 10**6))
    def repeat(self, which: int) -> None:
        if self.history:
            draft, commit = self.history[which % len(self.history)]
            again = self.ledger.commit(draft, self.now_ms, lambda _: None)
            assert again == msgspec.structs.replace(commit, repeated=True)

    @rule()
    def restart(self) -> None:
        self.ledger.close()
        self.ledger = self.opened()
        self.ledger.write(epochs.begin_incarnation, self.now_ms)

    @invariant()
    def readers_get_each_record_at_its_offset(self) -> None:
        for (topic_id, partition), records in self.model.partitions.items():
            found: list[Record] = []
            for extent in self.ledger.read(reads.extents_from, topic_id, partition, 1, 10**6):
                assert extent.first_offset == len(found) + 1
                void = {at for start, count in extent.voids for at in range(start, start + count)}
                there = self.objects[extent.locator, topic_id, partition]
                found += [record for at, record in enumerate(there) if at not in void]
                assert extent.last_offset == len(found)
            assert found == records

    @invariant()
    def cursors_are_where_stored_requests_moved_them(self) -> None:
        for name, cursor_id in self.cursor_ids.items():
            there = self.model.cursors[cursor_id]
            expected = [CursorPosition(*each) for each in sorted(there.items())]
            assert self.ledger.read(cursors.positions, cursor_id) == expected
            cursor = self.ledger.read(cursors.find, name)
            assert cursor is not None
            assert cursor.cursor_id == cursor_id

    @invariant()
    def the_ledger_agrees_with_itself(self) -> None:
        self.ledger.read(invariants.check)
        assert self.ledger.read(commits.latest_number) == len(self.history)
        for draft, commit in self.history:
            assert self.ledger.read(commits.by_lease, draft.lease_id) == commit
            assert self.ledger.read(commits.by_number, commit.number) == commit


TestLedgerAgainstModel = LedgerMachine.TestCase
TestLedgerAgainstModel.settings = settings(
    max_examples=examples(40), stateful_step_count=25, deadline=None
)
