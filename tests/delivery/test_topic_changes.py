"""Changes of topics, as streams and routers hear of them, over a real ledger."""

from __future__ import annotations

import asyncio
from pathlib import Path

from delivery.topic_changes import TopicChanges
from ledger import topics
from ledger.types import TopicConfig
from tests.delivery.node import ledger_thread, node_in


async def settled(changes: TopicChanges) -> None:
    if changes._asking is not None:
        await changes._asking


def test_each_change_after_the_start_is_told_once_and_none_after_the_end(tmp_path: Path) -> None:
    told: list[tuple[str, bool]] = []
    word = 1

    async def run() -> None:
        nonlocal word
        with node_in(tmp_path) as node, ledger_thread(node) as ledger:
            changes = TopicChanges(
                ledger, lambda: word, lambda t: told.append((t.name, t.deleted_ms is not None))
            )
            node.ledger.write(topics.create, "early", TopicConfig(), 1)
            changes.look()
            await settled(changes)
            assert told == [("early", False)], "and nothing of what was there before"
            told.clear()
            node.ledger.write(topics.create, "new", TopicConfig(), 1)
            node.ledger.write(topics.delete, "t", 2)
            changes.look()
            assert changes._asking is None, "the word has not changed yet"
            word = 2
            changes.look()
            await settled(changes)
            changes.look()
            await settled(changes)
            assert told == [("new", False), ("t", True)]
            word = 3
            changes.look()
            changes.close()
            await settled(changes)
            word = 4
            changes.look()
            assert changes._asking is None
            assert len(told) == 2

    asyncio.run(run())
