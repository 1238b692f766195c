"""A shard's cache of topics: never older than the last change that it could have heard of."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path

import msgspec
import pytest

from daemon.intake import topic_cache
from daemon.intake.topic_cache import TopicCache
from daemon.schemas.errors import ApiError
from delivery.ledger_thread import LedgerThread
from ledger import changes, topics
from ledger.delivery import subscriptions
from ledger.delivery.subscriptions import SubscriptionConfig
from ledger.ledger import Ledger
from ledger.tx import WriteTx
from ledger.types import TopicConfig
from shards import layout as at
from shards.layout import Layout
from shards.segment import Segment


class Shards:
    """The topic caches of two shards over one ledger; each has a connection and a thread."""

    def __init__(self, directory: Path) -> None:
        self.segment = Segment.create(Layout(shards=2, ring_bytes=4096))
        self.threads = [ThreadPoolExecutor(1) for _ in range(2)]
        self.ledgers = [Ledger(directory / "ledger.db", nullcontext()) for _ in range(2)]
        self.first, self.second = (
            TopicCache(self.segment, LedgerThread(ledger, thread), nullcontext())
            for ledger, thread in zip(self.ledgers, self.threads, strict=True)
        )


@contextmanager
def shards_in(directory: Path) -> Iterator[Shards]:
    shards = Shards(directory)
    try:
        yield shards
    finally:
        for thread in shards.threads:
            thread.shutdown()
        for ledger in shards.ledgers:
            ledger.close()
        shards.segment.close()


def run(directory: Path, go: Callable[[Shards], Coroutine[None, None, None]]) -> None:
    with shards_in(directory) as shards:
        asyncio.run(go(shards))


def test_a_topic_is_asked_for_once(tmp_path: Path) -> None:
    async def go(shards: Shards) -> None:
        await shards.first.create("t", TopicConfig())
        assert shards.second.known("t") is None
        entry = await shards.second.entry("t")
        assert shards.second.known("t") is entry
        assert await shards.second.entry("t") is entry

    run(tmp_path, go)


def test_what_is_kept_of_topics_with_long_columns_is_bounded_by_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit_bytes, count = 100_000, 20
    monkeypatch.setattr(topic_cache, "ENTRIES_BYTES_MAX", limit_bytes)

    async def go(shards: Shards) -> None:
        names = [f"t{number}" for number in range(count)]
        for name in names:
            columns = {f"c{number}".ljust(128, "x"): "long" for number in range(200)}
            await shards.first.create(name, msgspec.convert({"columns": columns}, TopicConfig))
        await shards.second.entry(names[0])  # what is loaded once
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        for name in names:
            await shards.second.entry(name)
            assert shards.second.known(name) is not None
        gc.collect()
        kept = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        assert kept < limit_bytes + count * topic_cache.NAME_BYTES
        assert shards.second.known(names[-2]) is not None, "it is not cleared for each"

    run(tmp_path, go)


def test_a_change_on_one_shard_is_known_to_the_other(tmp_path: Path) -> None:
    async def go(shards: Shards) -> None:
        await shards.first.create("t", TopicConfig())
        assert (await shards.second.entry("t")).partitions == 1
        await shards.first.alter("t", TopicConfig(partitions=3))
        assert shards.second.known("t") is None
        assert (await shards.second.entry("t")).partitions == 3
        await shards.first.delete("t")
        assert shards.second.known("t") is None
        with pytest.raises(ApiError, match="no topic"):
            await shards.second.entry("t")

    run(tmp_path, go)


def test_a_change_that_a_dead_shard_could_not_tell_of_is_found(tmp_path: Path) -> None:
    async def go(shards: Shards) -> None:
        await shards.first.create("t", TopicConfig())
        await shards.second.entry("t")
        shards.ledgers[0].write(topics.delete, "t", 1)
        shards.segment.words[at.G_DEATHS] += 1  # as the supervisor does
        assert shards.second.known("t") is None

    run(tmp_path, go)


def test_what_the_ledger_said_before_a_change_is_not_kept_after_it(tmp_path: Path) -> None:
    """Else a deleted topic would stay in the cache until the next change."""

    async def go(shards: Shards) -> None:
        await shards.first.create("t", TopicConfig())
        asking = asyncio.create_task(shards.second.entry("t"))
        await asyncio.sleep(0)
        shards.threads[1].submit(lambda: None).result()  # the answer is there, and not yet taken
        shards.ledgers[0].write(topics.delete, "t", 1)
        shards.segment.words[at.G_TOPICS] = shards.ledgers[0].read(topics.catalog_version)
        assert shards.second.known("something else") is None
        assert (await asking).name == "t"
        assert shards.second.known("t") is None

    run(tmp_path, go)


def test_names_of_deleted_topics_are_still_known_by_their_id(tmp_path: Path) -> None:
    async def go(shards: Shards) -> None:
        entry, _ = await shards.first.create("t", TopicConfig())
        await shards.first.delete("t")
        assert await asyncio.to_thread(shards.second.name_of, entry.topic_id) == "t"
        with pytest.raises(LookupError):
            await asyncio.to_thread(shards.second.name_of, entry.topic_id + 1)

    run(tmp_path, go)


def test_a_trim_is_told_to_readers_of_its_topic_and_empties_no_cache(tmp_path: Path) -> None:
    async def go(shards: Shards) -> None:
        for name in ("t", "other"):
            await shards.first.create(name, TopicConfig())
        entry, other = await shards.second.entry("t"), await shards.second.entry("other")
        evicted = shards.second.trackers.evicted
        before = evicted(entry.topic_id), evicted(other.topic_id)
        await shards.first.trim("t", 0, 1)
        assert evicted(entry.topic_id) > before[0]
        assert evicted(other.topic_id) == before[1]
        assert shards.second.known("t") is entry

    run(tmp_path, go)


def test_a_growth_is_told_to_owners_of_subscriptions_and_other_changes_are_not(
    tmp_path: Path,
) -> None:
    async def go(shards: Shards) -> None:
        ledger, words = shards.ledgers[0], shards.segment.words
        for name in ("t", "other"):
            await shards.first.create(name, TopicConfig())
        grown, other = map(at.grown, (1, 2))
        config = SubscriptionConfig()
        ledger.write(subscriptions.create, "t", "s", config, "earliest", 1)
        await shards.first.alter("t", TopicConfig(cap_records=5))
        heard = ledger.read(changes.latest)
        await shards.first.grow("other", 2)
        assert words[grown] <= heard and not words[other]
        await shards.first.grow("t", 2)
        assert words[at.G_DELIVERY] == words[grown] > heard and not words[other]
        _, (view,) = ledger.read(subscriptions.owned, 0, 1, heard)
        assert len(view.partitions) == 2
        told = words[grown]
        await shards.first.alter("t", TopicConfig(partitions=2, cap_records=6))
        assert words[grown] == told

    run(tmp_path, go)


def test_a_growth_is_told_to_owners_before_anybody_can_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go(shards: Shards) -> None:
        ledger, words = shards.ledgers[0], shards.segment.words
        await shards.first.create("t", TopicConfig())
        config = SubscriptionConfig()
        ledger.write(subscriptions.create, "t", "s", config, "earliest", 1)
        write, told = ledger.write, []

        def noted(change: Callable[[WriteTx], object]) -> object:
            result = write(change)
            told.append(words[at.grown(1)])
            return result

        monkeypatch.setattr(ledger, "write", noted)
        await shards.first.grow("t", 2)
        assert told == [ledger.read(changes.latest)]
        await shards.first.grow("t", 3, only_check=True)
        assert words[at.grown(1)] == ledger.read(changes.latest)

    run(tmp_path, go)
