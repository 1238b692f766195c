"""Random histories of the ledger against the model: answers, extents, heads, repeats."""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from pathlib import Path

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ledger import commits, epochs, reads, topics
from ledger.checks import invariants
from ledger.dedupe import DedupeLimits
from ledger.ledger import Ledger
from ledger.types import Commit, CommitDraft, TopicConfig
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


shapes = st.builds(
    RequestShape,
    topic=st.integers(0, 5),
    partitions=st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple),
    count=st.integers(1, 4),
    key=st.sampled_from([None, None, "x", "y", "z"]),
    expected_delta=st.sampled_from([None, None, 0, 0, 1, 2, 3, -1]),
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

    @rule(name=st.sampled_from(NAMES), more=st.integers(0, 1))
    def grow(self, name: str, more: int) -> None:
        if name in self.live:
            topic_id = self.live[name]
            config = TopicConfig(self.config[topic_id].partitions + more)
            self.ledger.write(topics.alter, name, config)
            self.config[topic_id] = config
            self.model.grow(topic_id, config.partitions)

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
            expected_seq = max(0, self.model.head(topic_id, partitions[0]) + shape.expected_delta)
        parts = tuple((partition, shape.count) for partition in partitions)
        return Request(topic_id, parts, shape.key, expected_seq, shard, self.now_ms)

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
