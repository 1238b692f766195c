"""A topic gets more partitions while it is consumed: keys move to them, and their order stays."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from daemon.intake.topic_cache import TopicCache
from delivery.reading import followed
from delivery.reading.followed import FollowedPartitions, Key, TooManyPinned
from delivery.subscriptions.requests import OwnerRefused
from delivery.subscriptions.window.messages import Place
from ledger import changes, topics
from ledger.delivery import subscriptions
from ledger.delivery.record_filter import RecordFilter
from ledger.delivery.subscriptions import Subscription, SubscriptionConfig
from ledger.types import TopicConfig
from shards import layout as at
from tests.delivery.node import Node
from tests.delivery.subscriptions.lives import Lives, Step, steps_of
from tests.delivery.subscriptions.owning import Owner, data, record, run
from tests.long import examples
from uploader.l0.records import Record

PARTITIONS_MAX = 7


async def grow(owner: Owner, partitions: int, name: str = "t") -> None:
    """A topic gets more partitions, as a client asks for it at another shard."""
    topic = owner.node.ledger.read(topics.find, name)
    assert topic is not None
    config = msgspec.structs.replace(topic.config, partitions=partitions)
    await TopicCache(owner.node.segment, owner.ledger, nullcontext()).alter(name, config)


class GrowingLives(Lives):
    """Of each key comes the first message that is not finished, if any."""

    first = "x"

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.partitions = node.topic.config.partitions
        self.of_key: dict[str, list[Place]] = {}  # in the order in which they were produced
        self.heads: dict[int, int] = {}
        self.crowd: tuple[FollowedPartitions, list[Key]] | None = None

    def judge(self, place: Place, event: dict[str, Any]) -> None:
        left = [at for at in self.of_key[event["key"]] if at not in self.finished]
        assert left[0] == place, f"{place} of {event['key']!r} came before {left[0]}"
        assert place not in self.out

    def produced(self) -> set[Place]:
        return {place for places in self.of_key.values() for place in places}

    async def change(self, kind: str, *values: Any) -> None:
        if kind == "grow":
            await self.grow(*values)
            return
        if kind == "crowd":
            await self.come_or_go()
            return
        for key in values[0]:
            partition = ord(key) % self.partitions
            seq = self.heads[partition] = self.heads.get(partition, 0) + 1
            self.of_key.setdefault(key, []).append((partition, seq))
            self.owner.produce(Record("1", key=key), partition=partition)

    async def grow(self, more: int, is_heard: bool = True) -> None:
        self.partitions = min(PARTITIONS_MAX, self.partitions + more)
        await grow(self.owner, self.partitions)
        if is_heard:
            await self.owner.later(0.1)

    @property
    def is_crowded(self) -> bool:
        """Whether others have all the room. It comes back when the owner dies."""
        return self.crowd is not None and self.crowd[0] is self.owner.partitions.followed

    async def come_or_go(self) -> None:
        """Others take all the room for partitions, or give it back."""
        pins = self.owner.partitions.followed
        if self.is_crowded:
            assert self.crowd is not None
            for key in self.crowd[1]:
                pins.unpin(key)
            self.crowd = None
            for _ in range(2):
                await self.owner.later(0.1)
            return
        self.crowd = pins, []
        with suppress(TooManyPinned):
            for number in range(PARTITIONS_MAX):
                pins.pin(key := (1_000, number))
                self.crowd[1].append(key)

    async def _end(self) -> None:
        if self.is_crowded:
            await self.come_or_go()
        await super()._end()


class LetteredLives(GrowingLives):
    """A message that is refused becomes a dead letter, and is finished then."""

    settings: ClassVar[dict[str, Any]] = {
        **Lives.settings, "poison": "dead_letter", "dead_letter_topic": "dead",
        "redeliveries_max": 0,
    }  # fmt: skip

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        node.ledger.write(topics.create, "dead", TopicConfig(), 1)

    async def carry_out(self, kind: str, *values: Any) -> None:
        before = set(self.out)
        await super().carry_out(kind, *values)
        if kind == "nack" and before:
            self.finished |= before - set(self.out)
            self.node.commit(0)
            self.owner.tell()
            await self.owner.rest()
            self.look()


# The key d moves from partition 1 to 0, c from 4 to 1: both are older ones.
MOVED = [("grow", 1), ("produce", ["f", "d", "b"]), ("dies",), ("produce", ["d"])]
MOVED_BACK = [("grow", 2), ("produce", ["c"]), ("grow", 2), ("produce", ["c"])]
# The key a goes from partition 1 to 2 and back, while its first message is not finished.
THERE_AND_BACK = [("produce", ["a"]), ("grow", 2), ("produce", ["a"]), ("grow", 1)]

# While there is no room for what is added, d moves from partition 1 to 0, and b from 3 to 2.
NO_ROOM = [("leave", "x"), ("crowd",), ("produce", ["d"]), ("grow", 1), ("produce", ["d"])]
NO_ROOM_TWICE = [("crowd",), ("grow", 2), ("produce", ["b"]), ("grow", 1), ("produce", ["b"])]
# The key d is in partition 0 now, where there is something else to read, too.
UNHEARD = [("leave", "x"), ("produce", ["f", "d"]), ("grow", 1, False), ("produce", ["d"])]

steps = steps_of(
    "xy",
    st.tuples(st.just("produce"), st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4)),
    st.tuples(st.just("grow"), st.integers(1, 2), st.booleans()),
    st.just(("crowd",)),
)


@settings(max_examples=examples(60), deadline=None)
@given(steps)
@example([("leave", "x"), ("produce", ["d"]), *MOVED, ("join", "y")])
@example([("leave", "x"), *MOVED_BACK, ("dies",)])
@example([*THERE_AND_BACK, ("produce", ["a"])])
@example([*NO_ROOM, ("join", "y")])
@example(NO_ROOM_TWICE)
@example([*UNHEARD, ("join", "y")])
def test_keys_that_move_to_new_partitions_stay_in_order_and_nothing_is_lost(
    todo: list[Step],
) -> None:
    run_with_little_room(GrowingLives, todo)


@settings(max_examples=examples(30), deadline=None)
@given(steps)
@example([*THERE_AND_BACK, ("produce", ["a"]), ("nack", 0), ("nack", 0), ("nack", 0)])
def test_a_key_that_moved_stays_in_order_while_its_messages_become_dead_letters(
    todo: list[Step],
) -> None:
    run_with_little_room(LetteredLives, todo)


def run_with_little_room(lives: type[GrowingLives], todo: list[Step]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(followed, "PINNED_MAX", PARTITIONS_MAX)
        lives.run(todo)


@pytest.mark.parametrize("name", ["t", "other"])
def test_a_growth_holds_what_its_topic_sends_until_it_is_heard_of_and_no_other(
    node: Node, name: str
) -> None:
    async def use(owner: Owner) -> None:
        made = owner.create()
        node.ledger.write(topics.create, "other", TopicConfig(), 1)
        config = SubscriptionConfig()
        node.ledger.write(subscriptions.create, "other", "o", config, "earliest", 1)
        owner.changes += 1
        await owner.later(0.1)
        client = await owner.consume(made, "c")
        await grow(owner, 5, name)
        owner.produce(record(1, "a"))
        await owner.rest()
        assert data(client) == ([] if name == "t" else [1])
        for _ in range(2):
            await owner.later(0.1)
        assert data(client) == [1]

    run(node, use)


def test_a_growth_that_was_told_and_not_made_holds_nothing_for_long(node: Node) -> None:
    """Its transaction was taken back, or its process died in it."""

    async def use(owner: Owner) -> None:
        made = owner.create()
        await owner.later(0.1)
        client = await owner.consume(made, "c")
        word = at.grown(made.topic_id)
        node.segment.words[word] = node.ledger.read(changes.latest) + 1
        owner.produce(record(1, "a"))
        await owner.rest()
        assert data(client) == []
        for _ in range(2):
            await owner.later(0.1)
        assert data(client) == [1]
        assert node.segment.words[word] <= node.ledger.read(changes.latest)

    run(node, use)


def test_a_growth_counts_once_whatever_settings_change_before_it_is_passed(node: Node) -> None:
    async def use(owner: Owner) -> None:
        made = owner.create()
        await owner.later(0.1)
        await owner.consume(made, "c")
        owner.produce(record(1, "a"), partition=1)
        await grow(owner, 5)
        await owner.later(0.1)
        window = owner.subscriptions._running[made.subscription_id].window
        for redeliveries_max in range(3):
            owner.produce(record(2, "a"), partition=2)
            await owner.rest()
            change = {"redeliveries_max": redeliveries_max}
            node.ledger.write(subscriptions.alter, "t", "s", change)
            owner.changes += 1
            await owner.later(0.1)
        queue = window.queue_of("a")
        assert queue is not None and queue.others is not None
        assert [(part.head, part.tail) for part in queue.others] == [(1, 3)]

    run(node, use)


@pytest.mark.parametrize("has_owner", [False, True])
def test_a_topic_grows_while_no_owner_serves_it(
    node: Node, monkeypatch: pytest.MonkeyPatch, has_owner: bool
) -> None:
    """The owner has died, or its successor has no room."""
    made: list[Subscription] = []

    async def begin(owner: Owner) -> None:
        made.append(owner.create())
        await owner.later(0.1)
        owner.produce(record(1, "f"), partition=0)
        owner.produce(record(2, "d"), partition=1)
        owner.dies()
        monkeypatch.setattr(followed, "PINNED_MAX", 0)
        if not has_owner:
            await grow(owner, 4)
            owner.produce(record(3, "d"), partition=0)

    async def go_on(owner: Owner) -> None:
        with pytest.raises(OwnerRefused, match="already keeps the tails"):
            await owner.consume(made[0], "c")
        if has_owner:
            await grow(owner, 4)
            await owner.later(0.1)
            owner.produce(record(3, "d"), partition=0)
        owner.tell()
        monkeypatch.setattr(followed, "PINNED_MAX", PARTITIONS_MAX)
        for _ in range(2):
            await owner.later(0.1)
        client = await owner.consume(made[0], "c")
        assert data(client) == [1, 2]
        await owner.take_all(made[0], client)
        assert data(client) == [1, 2, 3]

    run(node, begin, go_on)


@pytest.mark.parametrize("change", [{"filter": RecordFilter(key="a")}, {"mode": "shared"}])
def test_a_topic_grows_and_another_window_is_wanted_between_two_looks(
    node: Node, change: dict[str, Any]
) -> None:
    async def use(owner: Owner) -> None:
        made = owner.create()
        await owner.later(0.1)
        client = await owner.consume(made, "c")
        config = node.topic.config
        grown = msgspec.structs.replace(config, partitions=config.partitions + 1)
        owner.subscriptions.topic_changed(node.ledger.write(topics.alter, node.topic.name, grown))
        node.ledger.write(subscriptions.alter, node.topic.name, "s", change)
        owner.changes += 1
        await owner.later(0.1)
        owner.produce(record(7, "a"), partition=config.partitions)
        await owner.rest()
        assert data(client) == [7]

    run(node, use)
