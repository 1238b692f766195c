"""Changes as shards follow them, over a real ledger."""

from __future__ import annotations

import asyncio
from pathlib import Path

from delivery.changes import ChangesFound, FollowedChanges
from delivery.tasks import Tasks
from ledger import topics
from ledger.errors import LedgerUnusable
from ledger.types import Topic, TopicConfig
from tests.delivery.node import ledger_thread, node_in, raise_it


async def settled(changes: FollowedChanges[Topic]) -> None:
    if changes._asking is not None:
        await changes._asking


async def test_each_change_after_the_start_is_told_once_and_none_after_the_end(
    tmp_path: Path,
) -> None:
    told: list[tuple[str, bool]] = []
    word = 1

    async def take(topic: Topic) -> None:
        told.append((topic.name, topic.deleted_ms is not None))

    with node_in(tmp_path) as node, ledger_thread(node) as ledger:

        async def read(heard: int, stale: set[int]) -> ChangesFound[Topic]:
            version, found = await ledger.read(topics.changed_since, heard, 1)
            return ChangesFound(version, found, not found)

        heard = ledger.read_now(topics.catalog_version)
        changes = FollowedChanges("topics", lambda: word, read, take, Tasks(raise_it), heard)
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
        assert told == [("new", False), ("t", True)], "although one is read at a time"
        changes.look()
        assert changes._asking is None
        word = 3
        changes.look()
        changes.close()
        await asyncio.gather(settled(changes), return_exceptions=True)
        word = 4
        changes.look()
        assert changes._asking is None
        assert len(told) == 2


async def test_who_waits_for_something_stale_waits_until_it_was_taken_whoever_asks() -> None:
    ends: list[asyncio.Event] = []
    taken: list[set[int]] = []

    async def read(heard: int, stale: set[int]) -> ChangesFound[Topic]:
        ends.append(asyncio.Event())
        await ends[-1].wait()
        taken.append(stale)
        return ChangesFound(heard, ())

    async def take(_: Topic) -> None:
        raise AssertionError("nothing has changed")

    changes = FollowedChanges("topics", lambda: 1, read, take, Tasks(raise_it))
    changes.look()
    first = changes._asking
    assert first is not None
    first.add_done_callback(lambda _: changes.look())  # a heartbeat is quicker than who waits
    await asyncio.sleep(0)
    waiting = asyncio.ensure_future(changes.read_again(7))
    await asyncio.sleep(0)
    ends[0].set()
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(ends) == 2 and not waiting.done(), "the second question is under way"
    ends[1].set()
    await waiting
    assert taken == [set(), {7}]


async def test_who_waits_does_not_ask_a_ledger_that_cannot_be_read_all_the_time() -> None:
    asked = 0

    async def read(heard: int, stale: set[int]) -> ChangesFound[Topic]:
        nonlocal asked
        asked += 1
        raise LedgerUnusable(Path("ledger"), "the disk is full")

    async def take(_: Topic) -> None:
        raise AssertionError("nothing has changed")

    changes = FollowedChanges("topics", lambda: 1, read, take, Tasks(raise_it))
    waiting = asyncio.ensure_future(changes.read_again(7))
    for _ in range(50):
        await asyncio.sleep(0)
    assert asked == 1 and not waiting.done()
    changes.close()
    await waiting


async def test_what_is_stale_is_asked_until_the_ledger_can_be_read() -> None:
    asked: list[set[int]] = []

    async def read(heard: int, stale: set[int]) -> ChangesFound[Topic]:
        asked.append(stale)
        if len(asked) == 2:
            changes.stale.add(8)  # while the question is under way
            raise LedgerUnusable(Path("ledger"), "the disk is full")
        return ChangesFound(heard + 1, ())

    async def take(_: Topic) -> None:
        raise AssertionError("nothing has changed")

    changes = FollowedChanges("topics", lambda: 1, read, take, Tasks(raise_it))
    await changes.asked()
    assert changes.is_current and changes.heard == 1
    changes.stale.add(7)
    await changes.asked()
    assert changes.stale == {7, 8} and changes.heard == 1
    changes.look()
    await settled(changes)
    assert asked == [set(), {7}, {7, 8}] and not changes.stale and changes.heard == 2
