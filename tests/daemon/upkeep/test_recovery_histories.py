"""Recovery without daemons: random histories of a node that is killed, recovered and goes on."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from ledger import commits, cursors, epochs, reads, topics
from ledger.cursors import Setting
from ledger.delivery import progress, subscriptions
from ledger.delivery.progress import SubscriptionFlush
from ledger.delivery.subscriptions import Subscription, SubscriptionConfig
from ledger.types import CursorKind, CursorMove, TopicConfig
from tests.daemon.upkeep.recovery_world import SETTLED_MAX, Request, Step, World
from tests.long import examples

NAMES = ("a", "b")
KINDS: dict[str, CursorKind] = {"c": "client", "router/r": "router"}
requests_ = st.lists(
    st.builds(Request, st.sampled_from(NAMES), st.integers(0, 1), st.integers(1, 3),
              st.sampled_from([None, None, "k", "l"]), st.none()),
    min_size=1, max_size=4,
)  # fmt: skip


class RecoveryMachine(RuleBasedStateMachine):
    """No offset ever names two records, whatever is killed, recovered and made again."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.world = World(Path(self.directory.name))

    @initialize()
    def topics(self) -> None:
        for name in (*NAMES, "kept"):
            self.create(name)

    def create(self, name: str) -> None:
        self.world.node.ledger.write(topics.create, name, TopicConfig(partitions=2), 1)

    @rule(requests=requests_)
    def produce(self, requests: list[Request]) -> None:
        self.world.produce(requests)

    @rule(
        name=st.sampled_from(NAMES), partition=st.integers(0, 1),
        behind=st.lists(st.integers(0, 1), min_size=1, max_size=3),
    )  # fmt: skip
    def append_if(self, name: str, partition: int, behind: list[int]) -> None:
        """Expectations of the head as it is before the lease, or as it was: some are void."""
        topic = self.world.node.ledger.read(topics.find, name)
        assert topic is not None
        head = self.world.node.ledger.read(reads.partition_states, topic.topic_id)[
            partition
        ].head_seq
        self.world.produce([Request(name, partition, 1, None, max(0, head - b)) for b in behind])

    @rule(
        partition=st.integers(0, 1), cursor=st.sampled_from(sorted(KINDS)),
        steps=st.lists(st.sampled_from([0, 0, 0, 3, -3]), min_size=1, max_size=4),
        shard=st.integers(0, 1),
    )  # fmt: skip
    def advance(self, partition: int, cursor: str, steps: list[int], shard: int) -> None:
        """Pipelined steps of a cursor; some do not expect it where it is, and are void."""
        at = self.world.at(cursor)
        if at is not None:
            requests = []
            for off in steps:
                expected = max(0, at + off)
                step = Step(cursor, expected, expected + 2)
                requests.append(Request("kept", partition, 1, step=step))
                at += 2 if expected == at else 0
            self.world.produce(requests, shard)

    @rule(cursor=st.sampled_from(sorted(KINDS)))
    def create_cursor(self, cursor: str) -> None:
        self.world.node.ledger.write(cursors.create, cursor, KINDS[cursor], 1)

    @rule(seq=st.integers(0, 9))
    def set_cursor(self, seq: int) -> None:
        if self.world.at("c") is not None:
            ledger = self.world.node.ledger
            ledger.write(cursors.set_positions, "c", "client", [Setting(0, seq)])

    @rule()
    def skip(self) -> None:
        """A router's filter lets nothing through."""
        cursor = self.world.node.ledger.read(cursors.find, "router/r")
        at = self.world.at("router/r")
        if cursor is not None and at is not None:
            move = CursorMove(cursor.cursor_id, 0, at, at + 5)
            assert self.world.node.ledger.write(cursors.flush, [move]) == {}

    @rule(cursor=st.sampled_from(sorted(KINDS)))
    def make_a_cursor_again(self, cursor: str) -> None:
        if self.world.at(cursor) is not None:
            self.world.node.ledger.write(cursors.delete, cursor, KINDS[cursor], 1)
            self.create_cursor(cursor)

    def subscription(self) -> Subscription | None:
        topic = self.world.node.ledger.read(topics.find, "kept")
        assert topic is not None
        return self.world.node.ledger.read(subscriptions.find, topic.topic_id, "s")

    @rule()
    def subscribe(self) -> None:
        if self.subscription() is None:
            config = SubscriptionConfig()
            ledger = self.world.node.ledger
            ledger.write(subscriptions.create, "kept", "s", config, "earliest", 1)

    @rule(offsets=st.lists(st.integers(1, SETTLED_MAX), min_size=1, max_size=3))
    def settle(self, offsets: list[int]) -> None:
        """Dead letters of a subscription, some of them sent again."""
        present = self.subscription()
        if present is not None:
            name = f"subscription/{present.topic_id}/s"
            self.world.produce(
                [Request("kept", 0, 1, step=Step(name, offset, offset)) for offset in offsets]
            )

    @rule(offset=st.integers(SETTLED_MAX + 1, 9))
    def acknowledge(self, offset: int) -> None:
        present = self.subscription()
        if present is not None:
            bits = (1 << offset).to_bytes(progress.ROW_BYTES, "little")
            flushed = SubscriptionFlush(
                present.subscription_id, present.generation, 1, [], [(0, 0, bits)]
            )
            assert self.world.node.ledger.write(progress.flush, [flushed]) == set()

    @rule()
    def seek(self) -> None:
        present = self.subscription()
        if present is not None:
            ledger = self.world.node.ledger
            ledger.write(subscriptions.seek, present.subscription_id, {0: 0}, 1)

    @rule(requests=requests_)
    def put_without_commit(self, requests: list[Request]) -> None:
        """The holder of this lease was killed before the transaction."""
        self.world.build(
            [msgspec.structs.replace(request, key=None) for request in requests], shard=1
        )

    @rule(naming=st.booleans())
    def tell(self, naming: bool) -> None:
        self.world.node.tell(naming=naming)

    @rule()
    def take_an_image(self) -> None:
        """Entries may come before the one that names it, or none ever does."""
        self.world.node.put_image(self.world.store)

    @rule(name=st.sampled_from(NAMES))
    def make_again(self, name: str) -> None:
        self.world.node.ledger.write(topics.delete, name, 2)
        self.create(name)

    @rule()
    def raise_epoch(self) -> None:
        self.world.node.epoch = self.world.node.ledger.write(epochs.advance)

    @rule()
    def kill_and_restart(self) -> None:
        self.world.restart()

    @rule(last=st.lists(requests_, max_size=2))
    def lose_the_directory(self, last: list[list[Request]]) -> None:
        for requests in last:
            self.world.produce(requests)  # no entry will list these
        report = self.world.recover()
        assert report.sound
        for name in (*NAMES, "kept"):
            self.create(name)  # one that was not listed and has no object is unknown
            topic = self.world.node.ledger.read(topics.find, name)
            assert topic is not None
            if topic.config.partitions < 2:
                self.world.node.ledger.write(topics.alter, name, TopicConfig(partitions=2))
        self.world.check()

    @precondition(lambda self: self.world.node.number)
    @rule()
    def stop_and_lose_the_directory(self) -> None:
        self.world.node.tell("release")
        before = self.world.node.ledger.read(commits.latest_number)
        report = self.world.recover()
        # What was put and never committed is the only thing that no entry lists.
        assert self.world.node.ledger.read(commits.latest_number) == before + report.objects_taken

    def teardown(self) -> None:
        try:
            self.world.check()
        finally:
            self.world.close()
            self.directory.cleanup()


TestRecoveryOfHistories = RecoveryMachine.TestCase
TestRecoveryOfHistories.settings = settings(
    max_examples=examples(25), stateful_step_count=20, deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
