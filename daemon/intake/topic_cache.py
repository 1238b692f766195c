"""Topics as one shard knows them: a cache over the ledger, by name and by id.

The shared ``catalog`` word changes with every change of topics; a shard that finds it changed
forgets its names. What a stale entry can do is decided in the commit (a deleted topic's records
become void), so the word may be late, never early.

Calls that ask or change the ledger block; they run in the shard's ledger thread, one at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from typing import TypeVar

from daemon.api.errors import ApiError, invalid
from daemon.intake.caps import Room, Rooms
from ledger.errors import (
    ColumnsRefused,
    PartitionMissing,
    PartitionsRefused,
    TableNameTaken,
    TopicMissing,
    TrimBeyondHead,
)
from ledger.ledger import Ledger
from ledger.types import PartitionState, Topic, TopicConfig
from shards import layout as at
from shards.clock import boottime_ms, wall_ms
from shards.segment import Segment

NAMES_MAX = 100_000  # some 1 KB each; beyond it the cache starts anew
T = TypeVar("T")


class TopicEntry:
    """A live topic, and what its producers' answers begin with."""

    __slots__ = ("answer", "name", "next_partition", "partitions", "room", "topic", "topic_id")

    def __init__(self, topic: Topic, room: Room | None = None) -> None:
        self.topic = topic
        self.room = room  # of a topic that rejects what is over its caps
        self.topic_id = topic.topic_id
        self.name = topic.name
        self.partitions = topic.config.partitions
        self.next_partition = 0
        # Names are plain ASCII without quotes or percent signs, so this is a safe format.
        self.answer = (
            b'{"topic":"%s","partition":%%d,"first_seq":%%d,"last_seq":%%d,"count":%%d,'
            b'"head_seq":%%d,"deduped":%%s}' % topic.name.encode()
        )

    def take_partition(self) -> int:
        """The partition of the next request without keys, round robin."""
        chosen = self.next_partition % self.partitions
        self.next_partition = chosen + 1
        return chosen


class Catalog:
    """One shard's topics."""

    def __init__(
        self,
        segment: Segment,
        ledger: Ledger,
        ledger_lock: AbstractContextManager[None],
        ledger_thread: Executor,
        rooms: Rooms | None = None,
    ) -> None:
        self._words = segment.words
        self.rooms = rooms or Rooms(segment.words, 0)
        self._ledger = ledger
        self._ledger_lock = ledger_lock
        self._thread = ledger_thread
        self._entries: dict[str, TopicEntry] = {}
        self._names: dict[int, str] = {}
        self._version = 0

    def known(self, name: str) -> TopicEntry | None:
        """A live topic that is in the cache."""
        version = self._words[at.G_CATALOG] + self._words[at.G_DEATHS]
        if version != self._version:
            self._entries.clear()
            self._version = version
        return self._entries.get(name)

    def _now(self) -> int:
        # Both only grow. A shard may die between a change of topics and the word that tells of it.
        return self._words[at.G_CATALOG] + self._words[at.G_DEATHS]

    def name_of(self, topic_id: int) -> str:
        """A topic's name, deleted ones too; for uploader threads, may ask the ledger."""
        name = self._names.get(topic_id)
        if name is None:
            topic = self._thread.submit(self._ledger.topic_by_id, topic_id).result()
            if topic is None:
                raise LookupError(f"topic id {topic_id} is in a ring but not in the ledger")
            name = self._remember_name(topic)
        return name

    async def entry(self, name: str) -> TopicEntry:
        """A live topic. Raises ApiError 404."""
        return self.known(name) or await self.entry_now(name)

    async def entry_now(self, name: str) -> TopicEntry:
        """A live topic as the ledger has it, whatever is known here. Raises ApiError 404."""
        version = self._now()
        topic = await self._ask(lambda: self._ledger.topic(name))
        if topic is None:
            raise unknown_topic(name)
        return self._remember(topic, version)

    async def load_room(self, room: Room, now_ns: int) -> None:
        """Has a room know what the ledger holds now. Raises LedgerError."""
        topic_id = room.topic.topic_id
        version = self.rooms.evicted()
        room.begin_load()
        try:
            number, states = await self._ask(lambda: self._ledger.heads_snapshot(topic_id))
            await self.rooms.followed(number)
            by_partition = {partition: state for (_, partition), state in states.items()}
            room.load(number, by_partition, version, now_ns)
        finally:
            room.end_load()

    def age_ms(self) -> int:
        """Now, by the clock of ages (``ledger/ages.py``)."""
        return boottime_ms() + int(self._words[at.G_AGE_OFFSET_MS])

    async def answered(self, topic_id: int, key: str) -> bool:
        """Whether a request with this idempotency key was stored and is remembered."""
        return await self._ask(lambda: self._ledger.answered(topic_id, key, self.age_ms()))

    async def create(self, name: str, config: TopicConfig) -> tuple[TopicEntry, bool]:
        """The topic of this name, made if it is not there; whether it was made.

        Raises ApiError 409 where another topic has its table.
        """
        version = self._now()
        try:
            topic, created = await self._change(
                lambda: self._ledger.create_topic(name, config, wall_ms())
            )
        except TableNameTaken as error:
            detail = {"topic": name, "table": error.table, "other": error.other}
            raise ApiError(409, "table_name_taken", str(error), detail) from error
        return self._remember(topic, version), created

    async def alter(self, name: str, config: TopicConfig) -> TopicEntry:
        """Changes a topic's settings. Raises ApiError."""
        version = self._now()
        try:
            topic = await self._change(lambda: self._ledger.alter_topic(name, config))
            return self._remember(topic, version)
        except TopicMissing as error:
            raise unknown_topic(name) from error
        except PartitionsRefused as error:
            raise invalid(str(error), field="partitions") from error
        except ColumnsRefused as error:
            raise invalid(str(error), field="columns", column=error.column) from error

    async def delete(self, name: str) -> Topic:
        """Deletes a topic. Raises ApiError 404."""
        try:
            topic = await self._change(lambda: self._ledger.delete_topic(name, wall_ms()))
        except TopicMissing as error:
            raise unknown_topic(name) from error
        self._entries.pop(name, None)
        return topic

    async def trim(self, name: str, partition: int, before_seq: int) -> PartitionState:
        """Raises where a partition begins. Raises ApiError."""
        try:
            return await self._evicting(lambda: self._ledger.trim(name, partition, before_seq))
        except TopicMissing as error:
            raise unknown_topic(name) from error
        except PartitionMissing as error:
            raise invalid(str(error), field="partition") from error
        except TrimBeyondHead as error:
            raise invalid(str(error), field="before_seq") from error

    async def page(self, after_name: str, limit: int) -> list[Topic]:
        """Live topics behind a name, in order of names."""
        return await self._ask(lambda: self._ledger.topics(after_name, limit))

    async def states(self, topic_id: int) -> list[PartitionState]:
        """A topic's partitions as the ledger has them."""
        return await self._ask(lambda: self._ledger.partition_states(topic_id))

    async def _ask(self, question: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, question)

    async def _change(self, change: Callable[[], T]) -> T:
        return await self._telling(at.G_CATALOG, change)

    async def _evicting(self, change: Callable[[], T]) -> T:
        """A change after which topics are as they were, but for where their partitions begin."""
        return await self._telling(at.G_EVICTED, change)

    async def _telling(self, word: int, change: Callable[[], T]) -> T:
        def changed() -> T:
            result = change()
            with self._ledger_lock:
                version = self._ledger.catalog_version()
                self._words[word] = max(self._words[word], version)
            return result

        return await self._ask(changed)

    def _remember(self, topic: Topic, version: int) -> TopicEntry:
        """Keeps what the ledger said when it was asked at ``version``; what changed since then
        would otherwise stay in the cache until the next change."""
        self._remember_name(topic)
        known = self._entries.get(topic.name)
        if known is not None and known.topic == topic:
            return known
        entry = TopicEntry(topic, self.rooms.room(topic))
        if version == self._version == self._now():
            if len(self._entries) >= NAMES_MAX:
                self._entries.clear()
            self._entries[topic.name] = entry
        return entry

    def _remember_name(self, topic: Topic) -> str:
        if len(self._names) >= NAMES_MAX:
            self._names.clear()
        self._names[topic.topic_id] = topic.name
        return topic.name


def unknown_topic(name: str) -> ApiError:
    """404 ``unknown_topic``."""
    return ApiError(404, "unknown_topic", f"there is no topic {name!r}", {"topic": name})
