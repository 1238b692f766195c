"""What an owner tells on the board: all of its subscriptions, but few in a heartbeat."""

from __future__ import annotations

import asyncio
from pathlib import Path

from delivery.subscriptions.shown.rows import ROWS_AT_ONCE
from tests.delivery.node import node_in
from tests.delivery.subscriptions.owning import messages, owning, record


def test_the_rows_of_many_subscriptions_are_written_over_several_heartbeats(tmp_path: Path) -> None:
    count = ROWS_AT_ONCE + 10

    async def run() -> None:
        with node_in(tmp_path, shards=1, ring_bytes=1 << 16) as node, owning(node) as owner:
            owner.start()
            made = [owner.create(f"s{number}") for number in range(count)]
            owner.subscriptions.look()
            await owner.rest()
            assert not owner.board.rows()
            await owner.later(0.1)
            assert len(owner.board.rows()) == ROWS_AT_ONCE
            await owner.later(0.1)
            assert len(owner.board.rows()) == count
            owner.produce(record(1))
            client = await owner.consume(made[-1], "c")
            await owner.ack(made[-1], "c", *messages(client))
            for _ in range(2):
                await owner.later(0.1)
            rows = {each.row.subscription: each.row for each in owner.board.rows()}
            assert rows[f"s{count - 1}"].acknowledged == 1
            assert [rows[f"s{number}"].lag for number in range(count)] == [1] * (count - 1) + [0]
            assert rows["s0"].topic == node.topic.name
            await owner.stop()

    asyncio.run(run())
