"""Scheduler or not, whatever the priorities: the same log, and the same streams (T14)."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from delivery.ready import PriorityInputs, ReadySet
from delivery.scheduler.scheduler import BandedReadySet
from ledger import topics
from ledger.types import TopicConfig
from shards.ring import RingFull
from tests.delivery.fifo import FifoReadySet
from tests.delivery.node import Node, node_in
from tests.delivery.watch.watching import Client, Watching, watching
from tests.long import examples
from uploader.l0.records import Record

MS = 1_000_000
TOPICS = 3
PARTITIONS = 2
Step = tuple[Any, ...]
Log = dict[tuple[int, int], list[str]]

topic_numbers = st.integers(0, TOPICS - 1)
steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("produce"), topic_numbers, st.integers(0, PARTITIONS - 1), st.integers(1, 4)
        ),
        st.just(("commit",)),
        st.tuples(st.just("tell"), st.integers(1, 3)),
        st.tuples(st.just("watch"), topic_numbers),
        st.tuples(st.just("stuck"), st.integers(0, 9)),
        st.tuples(st.just("take"), st.integers(0, 9)),
        st.tuples(
            st.just("priority"), topic_numbers, st.sampled_from([None, -1000, -1, 0, 500, 1000])
        ),
        st.tuples(st.just("pressure"), st.sampled_from([0, 5, 20]), st.booleans()),
        st.tuples(st.just("wait"), st.integers(0, 12_000)),
        st.tuples(st.just("turn"), st.integers(1, 20)),
    ),
    max_size=60,
)


async def carry_out(made: Watching, todo: list[Step]) -> list[Client]:
    """The same steps for any ready set; ends when everything is delivered."""
    node = made.node
    there = [node.topic]
    there += [
        node.ledger.write(topics.create, f"t{n}", TopicConfig(partitions=PARTITIONS), 1)[0]
        for n in range(1, TOPICS)
    ]
    clients: list[Client] = []
    for number, (kind, *values) in enumerate(todo):
        if kind == "produce":
            node.topic, partition, count = there[values[0]], *values[1:]
            try:
                node.produce(0, {partition: [Record(str(number))] * count})
            except RingFull:
                node.commit()
        elif kind == "commit":
            node.commit()
        elif kind == "tell":
            made.tell(values[0])
        elif kind == "watch":
            node.topic = there[values[0]]
            clients.append(made.watch(Client(), dict.fromkeys(range(PARTITIONS), 0)))
        elif kind == "priority":
            inputs = PriorityInputs(priority=values[1])
            made.priorities[there[values[0]].topic_id] = inputs
        elif kind == "pressure":
            made.dispatcher.set_pressure(values[0] * MS, values[1])
        elif kind == "wait":
            made.now_ns += values[0] * MS
        elif kind == "turn":
            for _ in range(values[0]):
                await asyncio.sleep(0)
        elif clients and kind == "stuck":
            clients[values[0] % len(clients)].stuck = True
        elif clients:
            clients[values[0] % len(clients)].take()
    node.commit()
    made.tell()
    for client in clients:
        client.take()
    made.dispatcher.set_pressure(0, False)
    await made.rest()
    return clients


def log_of(node: Node) -> Log:
    return {key: [str(r.data) for _, r in records] for key, records in node.records.items()}


def run(ready: ReadySet, todo: list[Step]) -> tuple[Log, list[Log]]:
    """What was committed, by partition, and what each client was told."""

    async def main(node: Node) -> list[Client]:
        with watching(node, ready) as made:
            made.start()
            clients = await carry_out(made, todo)
            made.hub.close()
            return clients

    with tempfile.TemporaryDirectory() as directory, node_in(Path(directory)) as node:
        clients = asyncio.run(main(node))
        told: list[Log] = []
        for client in clients:
            topic_id = int(client.position.partition(":")[0])
            told.append({})
            for event in client.events:
                if "seq" in event:
                    records = told[-1].setdefault((topic_id, event["partition"]), [])
                    records.append(str(event["data"]))
                    assert event["seq"] == len(records), "in order, without a gap"
        return log_of(node), told


@settings(max_examples=examples(40))
@given(steps)
def test_the_log_and_all_streams_are_the_same_with_the_scheduler_and_without(
    todo: list[Step],
) -> None:
    log, told = run(BandedReadySet(), todo)
    assert (log, told) == run(FifoReadySet(), todo)
    for each in told:
        assert each == {key: log[key] for key in each}
        for topic_id in {key[0] for key in each}:
            assert {key for key in log if key[0] == topic_id} == set(each)
