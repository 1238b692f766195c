"""A pushed topic gets more partitions while a receiver fails: its keys' order stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.delivery.node import Node
from tests.delivery.push.sending import Receiver, Sending, sending, until_it_rests
from tests.delivery.subscriptions.owning import record
from tests.delivery.subscriptions.test_growth import grow


def places(receiver: Receiver) -> list[tuple[int, int]]:
    """What was POSTed, as partitions and offsets."""
    found = []
    for headers, body in receiver.posts:
        named = msgspec.json.decode(body) if "ce-seq" not in headers else [
            {"partition": headers["ce-partition"], "seq": headers["ce-seq"]}
        ]  # fmt: skip
        found += [(int(each["partition"]), int(each["seq"])) for each in named]
    return found


@pytest.mark.parametrize("push", [{}, {"format": "batch", "batch_max": 10, "batch_wait_ms": 0}])
def test_senders_post_a_key_that_moves_and_comes_back_in_its_order(
    node: Node, tmp_path: Path, push: dict[str, Any]
) -> None:
    async def use(them: Sending) -> None:
        owner, receiver = them.owner, them.receiver
        receiver.gate.clear()
        answers = iter(["500 No"])  # to the first POST
        receiver.answer = lambda *_: next(answers, "204 OK")
        made = them.create({"connections_max": 4, **push}, backoff_ms=(1, 1))
        owner.produce(record(1, "a"), partition=1)
        await them.until(lambda: receiver.under_way == 1, made)
        for partitions, partition in ((5, 2), (6, 1)):
            await grow(owner, partitions)
            owner.produce(record(2, "a"), record(3, "a"), partition=partition)
        await them.until(lambda: len(_look_aheads(them, made)) == 6, made)
        receiver.gate.set()
        await until_it_rests(them, made)
        await owner.later(100)
        await them.until(lambda: _look_aheads(them, made)[1].floor == 3, made)
        assert places(receiver) == [(1, 1), (1, 1), (2, 1), (2, 2), (1, 2), (1, 3)]

    sending(node, tmp_path, use)


def _look_aheads(them: Sending, made: Any) -> dict[int, Any]:
    running = them.owner.subscriptions._running[made.subscription_id]
    return running.window.look_aheads
