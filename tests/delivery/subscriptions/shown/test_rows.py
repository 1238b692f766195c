"""What an owner tells on the board: all of its subscriptions, but few in a heartbeat."""

from __future__ import annotations

from pathlib import Path

from delivery.subscriptions.shown.inspection import _numbers, row_of
from delivery.subscriptions.shown.rows import ROWS_AT_ONCE
from delivery.subscriptions.window.messages import WindowCounts
from shards.boards.figures import SubscriptionCounts
from tests.delivery.node import Node, node_in
from tests.delivery.subscriptions.owning import messages, owning, record, started_owner


async def test_the_rows_of_many_subscriptions_are_written_over_several_heartbeats(
    tmp_path: Path,
) -> None:
    count = ROWS_AT_ONCE + 10

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


async def test_all_that_is_counted_is_shown_and_a_later_owner_counts_on(node: Node) -> None:
    names = WindowCounts.__slots__
    counted = {name: number for number, name in enumerate(names, 1)}

    async with started_owner(node) as owner:
        made = owner.create()
        await owner.consume(made, "c")
        running = owner.subscriptions._running[made.subscription_id]
        assert _numbers(running, 0).keys() == {*SubscriptionCounts.__struct_fields__}
        for name, number in counted.items():
            setattr(running.window.counts, name, number)
        row = row_of(running, None, 0, 0)
        assert {name: getattr(row, name) for name in names} == counted
        later = WindowCounts()
        later.count_on(row)
        assert later.counted() == counted
