"""A topic gets more partitions while it is consumed: keys move to them, and their order stays."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from delivery.subscriptions.window.messages import Place
from ledger import topics
from ledger.delivery import subscriptions
from ledger.delivery.record_filter import RecordFilter
from tests.delivery.node import Node
from tests.delivery.subscriptions.lives import Lives, Step, steps_of
from tests.delivery.subscriptions.owning import Owner, data, record, run
from tests.long import examples
from uploader.l0.records import Record

PARTITIONS_MAX = 7


class GrowingLives(Lives):
    """Of each key comes the first message that is not finished, if any."""

    first = "x"

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.config = node.topic.config
        self.of_key: dict[str, list[Place]] = {}  # in the order in which they were produced
        self.heads: dict[int, int] = {}

    def judge(self, place: Place, event: dict[str, Any]) -> None:
        left = [at for at in self.of_key[event["key"]] if at not in self.finished]
        assert left[0] == place, f"{place} of {event['key']!r} came before {left[0]}"
        assert place not in self.out

    def produced(self) -> set[Place]:
        return {place for places in self.of_key.values() for place in places}

    async def change(self, kind: str, *values: Any) -> None:
        if kind == "grow":
            await self.grow(values[0])
            return
        for key in values[0]:
            partition = ord(key) % self.config.partitions
            seq = self.heads[partition] = self.heads.get(partition, 0) + 1
            self.of_key.setdefault(key, []).append((partition, seq))
            self.owner.produce(Record("1", key=key), partition=partition)

    async def grow(self, more: int) -> None:
        count = min(PARTITIONS_MAX, self.config.partitions + more)
        self.config = msgspec.structs.replace(self.config, partitions=count)
        topic = self.node.ledger.write(topics.alter, self.node.topic.name, self.config)
        self.owner.subscriptions.topic_changed(topic)
        await self.owner.later(0.1)  # the owner hears of it


# The key d moves from partition 1 to 0, c from 4 to 1: both are older ones.
MOVED = [("grow", 1), ("produce", ["f", "d", "b"]), ("dies",), ("produce", ["d"])]
MOVED_BACK = [("grow", 2), ("produce", ["c"]), ("grow", 2), ("produce", ["c"])]
# The key a goes from partition 1 to 2 and back, while its first message is not finished.
THERE_AND_BACK = [("produce", ["a"]), ("grow", 2), ("produce", ["a"]), ("grow", 1)]

steps = steps_of(
    "xy",
    st.tuples(st.just("produce"), st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4)),
    st.tuples(st.just("grow"), st.integers(1, 2)),
)


@settings(max_examples=examples(60), deadline=None)
@given(steps)
@example([("leave", "x"), ("produce", ["d"]), *MOVED, ("join", "y")])
@example([("leave", "x"), *MOVED_BACK, ("dies",)])
@example([*THERE_AND_BACK, ("produce", ["a"])])
def test_keys_that_move_to_new_partitions_stay_in_order_and_nothing_is_lost(
    todo: list[Step],
) -> None:
    GrowingLives.run(todo)


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
