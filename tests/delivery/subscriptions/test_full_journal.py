"""While the ledger cannot be written the journal fills: deliveries stop, acknowledgments do not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from delivery.subscriptions.requests import Acknowledge, Describe, MessageRef
from shards.journal import entry_bytes
from tests.delivery.node import Node, node_in
from tests.delivery.subscriptions.owning import messages, owning, record

IN_FLIGHT = 2_000  # one by one, their acknowledgments are more than a journal of 64 KiB holds


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with node_in(tmp_path, shards=1, ring_bytes=1 << 18) as made:
        yield made


async def test_a_journal_that_is_half_full_stops_deliveries_and_a_full_one_delays_answers(
    node: Node,
) -> None:
    with owning(node) as owner:
        owner.start()
        made = owner.create(mode="shared", consumer_max=IN_FLIGHT)
        for start in range(0, 4_000, 1_000):
            owner.produce(*(record(n) for n in range(start, start + 1_000)))
        client = await owner.consume(made, "c")
        assert len(messages(client)) == IN_FLIGHT
        waiting = iter(messages(client))

        async def ack_next() -> None:
            each = next(waiting)
            ref = MessageRef(each["partition"], each["seq"], each["epoch"])
            request = Acknowledge(made.subscription_id, "c", [ref], [])
            assert (await owner.ask(request))["accepted"] == 1

        owner.dies()  # the ledger takes nothing
        count = owner.journal.capacity // entry_bytes(1)
        for number in range(1, count + 1):
            await ack_next()
            if number in (count // 2 - 50, count // 2 + 50, count):
                await owner.rest()
                delivered = len(messages(client))
                is_held = number > count // 2
                # Until half of it was used, each acknowledgment made room for a message.
                assert (delivered < IN_FLIGHT + number) == is_held
                why = (await owner.ask(Describe(made.subscription_id)))["held"]
                assert ("half of the journal" in why) == is_held
        late = [asyncio.ensure_future(ack_next()) for _ in range(3)]
        await owner.rest()
        assert not any(each.done() for each in late), "it is full"
        owner.has_died = False
        await owner.rest()
        await asyncio.gather(*late)
        assert not owner.journal.used_bytes
        assert len(messages(client)) == IN_FLIGHT + count + 3, "deliveries go on"
        state = await owner.ask(Describe(made.subscription_id))
        assert (state["held"], state["lag"]) == ("", 4_000 - count - 3)
        await owner.stop()
