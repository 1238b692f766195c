"""Whatever happens in whatever order, a watcher gets every record once, or is told of the gap."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from delivery.filters import Filter
from delivery.watch.hub import LAGGED_NS
from delivery.watch.positions import parse_position
from shards.ring import RingFull
from tests.delivery.node import node_in
from tests.delivery.watch.watching import Client, Watching, watching
from tests.long import examples
from uploader.l0.records import Record

PARTITIONS = 2
Step = tuple[Any, ...]

steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("produce"),
            st.integers(0, 1),
            st.dictionaries(st.integers(0, PARTITIONS - 1), st.integers(1, 4), min_size=1),
            st.sampled_from(["a", "b"]),
            st.sampled_from([None, None, None, "key"]),
        ),
        st.just(("commit",)),
        st.tuples(st.just("tell"), st.integers(1, 3)),
        st.tuples(st.just("watch"), st.sampled_from([None, "a"])),
        st.tuples(st.just("stuck"), st.integers(0, 9)),
        st.tuples(
            st.just("take"), st.integers(0, 9), st.sampled_from([0, LAGGED_NS]), st.booleans()
        ),
        st.tuples(st.just("cut"), st.integers(0, 9)),
        st.tuples(st.just("turn"), st.integers(1, 30)),
    ),
    max_size=60,
)


class Reader:
    """A client that comes back after each cut with the last position that it got."""

    def __init__(self, made: Watching, tag: str | None) -> None:
        self.made = made
        self.filter = Filter(tag=tag)
        self.events: list[dict[str, Any]] = []
        self.client = made.watch(Client(), dict.fromkeys(range(PARTITIONS), 0), filter_=self.filter)

    def cut(self) -> None:
        """The connection is lost; what comes after the last position comes again."""
        self.keep()
        position = parse_position(self.client.position)
        self.client.go()
        cursors = {partition: seq for (_, partition), seq in position.items()}
        self.client = self.made.watch(Client(), cursors, filter_=self.filter)

    def keep(self) -> None:
        self.events += self.client.events

    def check(self) -> None:
        """Each record of each partition that passes is there once, in order, or in a gap."""
        self.keep()
        for partition in range(PARTITIONS):
            key = self.made.node.key(partition)
            due = [
                offset
                for offset, (_, record) in enumerate(self.made.node.records[key], 1)
                if self.filter.matches(record)
            ]
            seen = [e["seq"] for e in self.events if "seq" in e and e["partition"] == partition]
            gaps = [
                range(e["gap_from"], e["gap_to"] + 1)
                for e in self.events
                if e.get("event") == "tombstone" and e["partition"] == partition
            ]
            assert seen == [seq for seq in due if not any(seq in gap for gap in gaps)]


async def carry_out(made: Watching, todo: list[Step]) -> list[Reader]:
    readers: list[Reader] = []
    for kind, *values in todo:
        if kind == "produce":
            shard, counts, tag, key = values
            parts = {p: [Record("1", tag=tag)] * n for p, n in counts.items()}
            try:
                made.node.produce(shard, parts, idempotency_key=key)
            except RingFull:
                made.node.commit()
        elif kind == "commit":
            made.node.commit()
        elif kind == "tell":
            made.tell(values[0])
        elif kind == "watch":
            readers.append(Reader(made, values[0]))
        elif kind == "turn":
            for _ in range(values[0]):
                await asyncio.sleep(0)
        elif readers:
            reader = readers[values[0] % len(readers)]
            if kind == "stuck":
                reader.client.stuck = True
            elif kind == "cut":
                reader.cut()
            else:
                made.now_ns += values[1]
                if values[2]:
                    made.hub.tick()
                reader.client.take()
        made.hub.check_invariants()
    made.node.commit()
    made.tell()
    for reader in readers:
        reader.client.take()
    await made.rest()
    assert made.hub.lagged == 0, "all are at the end"
    return readers


@settings(max_examples=examples(100), deadline=None)
@given(todo=steps, lossy=st.booleans())
def test_every_watcher_gets_every_record_once_or_is_told_of_the_gap(
    todo: list[Step], lossy: bool
) -> None:
    async def run(directory: str) -> None:
        with node_in(Path(directory), ring_bytes=4096) as node:
            config = msgspec.structs.replace(node.topic.config, lossy=lossy)
            node.topic = msgspec.structs.replace(node.topic, config=config)
            with watching(node) as made:
                made.start()
                for reader in await carry_out(made, todo):
                    reader.check()
                    gaps = [e for e in reader.events if e.get("event") == "tombstone"]
                    assert lossy or not gaps
                made.hub.close()

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(run(directory))
