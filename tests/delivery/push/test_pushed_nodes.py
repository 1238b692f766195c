"""A push subscription with ``key_fallback`` = ``node`` sends a node in order, and no key for it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.delivery.node import Node
from tests.delivery.push.sending import started_senders
from uploader.l0.records import Record


def of(number: int, node: str, key: str | None = None) -> Record:
    return Record(str(number), key=key, node=node)


async def test_a_node_has_one_post_under_way_and_headers_tell_of_no_key(
    node: Node, tmp_path: Path
) -> None:
    async with started_senders(node, tmp_path) as them:
        receiver = them.receiver
        receiver.gate.clear()
        made = them.create({"connections_max": 8}, key_fallback="node")
        them.owner.produce(of(1, "n"), of(2, "n"), of(3, "m"), of(4, "n", "k"), of(5, "n"))
        await them.until(lambda: receiver.under_way == 3, made)
        receiver.gate.set()
        await them.until_finished(made, 5)
        told = [(int(each["ce-seq"]), each["ce-node"], each.get("ce-key")) for each, _ in
                receiver.posts]  # fmt: skip
        assert sorted(told[:3]) == [(1, "n", None), (3, "m", None), (4, "n", "k")]
        assert told[3:] == [(2, "n", None), (5, "n", None)]
        assert receiver.under_way_max == 3


async def test_a_batch_has_several_records_of_a_node_in_their_order(
    node: Node, tmp_path: Path
) -> None:
    async with started_senders(node, tmp_path) as them:
        them.receiver.answer = lambda _, body: "400 No" if b'"seq":"7"' in body else "200 OK"
        made = them.create(
            {"format": "batch", "batch_max": 50, "batch_wait_ms": 100, "connections_max": 4},
            key_fallback="node", poison="drop", redeliveries_max=0,
        )  # fmt: skip
        them.owner.produce(*(of(n, f"n{n % 2}") for n in range(20)))
        await them.until_finished(made, 20)
        posts = [json.loads(body) for _, body in them.receiver.posts]
        assert len(posts[0]) == 20
        assert not any("key" in event for each in posts for event in each)
        seqs = [[int(event["seq"]) for event in each] for each in posts]
        taken = [seq for each in seqs if 7 not in each for seq in each]
        for odd in range(2):
            mine = [seq for seq in taken if seq % 2 == odd]
            assert mine == sorted(mine)
        assert sorted(taken) == [n for n in range(1, 21) if n != 7]


async def test_a_sender_follows_when_nodes_count_as_keys_no_more(
    node: Node, tmp_path: Path
) -> None:
    async with started_senders(node, tmp_path) as them:
        receiver = them.receiver
        receiver.gate.clear()
        made = them.create({"connections_max": 4}, key_fallback="node")
        them.owner.produce(*(of(number, "n") for number in range(1, 5)))
        await them.until(lambda: receiver.under_way == 1, made)
        them.alter(key_fallback="none")
        await them.until(lambda: made.subscription_id in them.senders._ending, made)
        receiver.gate.set()  # the POST under way is answered, and those that follow wait
        receiver.gate.clear()
        await them.until(lambda: set(receiver.seqs()) == {1, 2, 3, 4}, made)
        receiver.gate.set()
        await them.until_finished(made, 4)
