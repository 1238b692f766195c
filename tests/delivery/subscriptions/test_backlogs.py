"""What a backlog costs: each record is loaded about once, and a commit looks at what it moved."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from delivery.subscriptions import admission
from delivery.subscriptions.budget import ADMIT_LOT
from delivery.subscriptions.requests import Describe, SkipKey
from ledger import topics
from tests.delivery.node import Node, node_in
from tests.delivery.subscriptions.owning import Owner, messages, owning, record
from tests.delivery.watch.watching import Client
from uploader.l0.records import Record


def run(node: Node, partitions: int, use: Callable[[Owner], Awaitable[None]]) -> None:
    async def with_owner() -> None:
        changed = msgspec.structs.replace(node.topic.config, partitions=partitions)
        node.ledger.write(topics.alter, node.topic.name, changed)
        with owning(node) as owner:
            owner.start()
            await use(owner)
            await owner.stop()

    asyncio.run(with_owner())


async def drain(owner: Owner, made: Any, client: Client) -> int:
    """Takes and acknowledges until nothing more comes; returns how many came."""
    done = 0
    while True:
        batches = {each["epoch"]: None for each in messages(client)}
        if not batches:
            return done
        done += len(messages(client))
        client.data, client.writes = b"", []
        await owner.ack_batch(made, "c", *batches)


def test_a_backlog_over_many_partitions_is_loaded_about_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K14."""
    partitions, each = 32, 800

    async def use(owner: Owner) -> None:
        for at in range(0, each, 40):
            for first in range(0, partitions, 8):
                owner.node.produce(0, {
                    partition: [
                        Record('"' + "x" * 200 + '"', key=f"{partition}-{n}")
                        for n in range(at, at + 40)
                    ]
                    for partition in range(first, first + 8)
                })  # fmt: skip
                owner.node.commit(0)
        loaded = 0
        page = owner.partitions.page

        async def counted(*asked: Any, **how: Any) -> Any:
            nonlocal loaded
            found = await page(*asked, **how)
            loaded += len(found.items)
            return found

        monkeypatch.setattr(owner.partitions, "page", counted)
        owner.tell()
        made = owner.create()
        client = await owner.consume(made, "c")
        assert await drain(owner, made, client) == partitions * each
        assert loaded <= 1.2 * partitions * each

    with node_in(tmp_path, shards=1, ring_bytes=1 << 18) as node:
        run(node, partitions, use)


def test_what_is_at_hand_of_a_partition_is_admitted_before_others_have_their_turn(
    tmp_path: Path,
) -> None:
    """K14: partitions that took turns after each lot would all have to be at hand together."""

    async def use(owner: Owner) -> None:
        for partition in range(3):
            owner.produce(
                *(record(n, f"{partition}-{n}") for n in range(2 * ADMIT_LOT)),
                partition=partition, tell=False,
            )  # fmt: skip
        owner.tell()
        made = owner.create(consumer_max=3 * ADMIT_LOT)
        client = await owner.consume(made, "c")
        found = [message["partition"] for message in messages(client)]
        assert found == [0] * 2 * ADMIT_LOT + [1] * ADMIT_LOT

    with node_in(tmp_path, shards=1, ring_bytes=1 << 18) as node:
        run(node, 3, use)


@pytest.mark.parametrize("mode", ["key_shared", "shared", "exclusive"])
def test_a_commit_looks_at_the_partitions_that_it_moved(tmp_path: Path, mode: str) -> None:
    async def use(owner: Owner) -> None:
        made = owner.create(mode=mode)
        client = await owner.consume(made, "c")
        owner.produce(record(0), partition=7)
        await owner.rest()
        looked: list[int] = []
        admitted = owner.subscriptions._running[made.subscription_id].admission
        head = admitted.head

        def counted(partition: int) -> int:
            looked.append(partition)
            return head(partition)

        admitted.head = counted  # type: ignore[method-assign]
        for n in range(1, 4):
            owner.produce(record(n), partition=100 + n)
            await owner.rest()
        assert [message["data"] for message in messages(client)] == [0, 1, 2, 3]
        assert set(looked) == {101, 102, 103} and len(looked) < 30

    with node_in(tmp_path, shards=1, ring_bytes=1 << 16) as node:
        run(node, 300, use)


def test_what_is_far_waits_while_there_is_enough_to_do_and_comes_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("FAR_MESSAGES", 600), ("FAR_EACH", 300), ("BUSY_MESSAGES", 50)):
        monkeypatch.setattr(admission, name, value)

    async def use(owner: Owner) -> None:
        for at in range(0, 6_000, 200):
            owner.produce(*(record(n, f"k{n % 100}") for n in range(at, at + 200)), tell=False)
        owner.tell()
        made = owner.create()
        client = await owner.consume(made, "c")
        state = await owner.ask(Describe(made.subscription_id))
        assert state["in_flight"] == 100, "all keys, so the consumer has room"
        waiting = state["waiting"]
        assert waiting <= 600 + 300 + 256
        for _ in range(3):
            await owner.later(0.1)
            state = await owner.ask(Describe(made.subscription_id))
            assert waiting < state["waiting"] <= waiting + 300 + 256
            waiting = state["waiting"]
        assert await drain(owner, made, client) == 6_000

    with node_in(tmp_path, shards=1, ring_bytes=1 << 20) as node:
        run(node, 3, use)


def test_of_an_exclusive_partition_little_is_known_that_cannot_be_sent_yet(tmp_path: Path) -> None:
    async def use(owner: Owner) -> None:
        made = owner.create(mode="exclusive", redeliveries_max=0)
        client = await owner.consume(made, "c")
        owner.produce(record(0))
        await owner.rest()
        await owner.nack(made, "c", *messages(client))
        for _ in range(10):
            owner.produce(*[record(n) for n in range(500)])
            await owner.rest()
        window = owner.subscriptions._running[made.subscription_id].window
        assert len(window.blocked.stuck) == 1 and window.unfinished < 4_000
        owner.produce(record(7), partition=1)
        await owner.rest()
        assert [message["partition"] for message in messages(client)] == [0, 1]
        await owner.ask(SkipKey(made.subscription_id, None, (0, 1)))
        await owner.rest()
        await owner.take_all(made, client)
        assert len(messages(client)) == 5_002

    with node_in(tmp_path, shards=1, ring_bytes=1 << 20) as node:
        run(node, 3, use)
