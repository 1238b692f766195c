"""Topics as one shard knows them: a cache over the ledger, by name and by id.

Every change of topics changes a shared word; a shard that finds it changed forgets its names. The
word may be late, never early: what a stale entry can do is decided in the commit (records of a
deleted topic get no offsets).

Calls that read or change the ledger block, so they run in the shard's ledger thread, one at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeVar, cast

from daemon.intake.caps import CapTracker, CapTrackers
from daemon.schemas.errors import ApiError, invalid
from delivery.ledger_thread import LedgerThread
from delivery.push.secrets import SecretsFile, SecretsFileError
from ledger import changes, dedupe, reads, topics
from ledger.delivery import subscriptions
from ledger.errors import (
    ColumnsRefused,
    PartitionMissing,
    PartitionsFull,
    PartitionsRefused,
    TableNameTaken,
    TopicHoldsDeadLetters,
    TopicMissing,
    TrimBeyondHead,
)
from ledger.ledger import Ledger
from ledger.space import retention
from ledger.tx import WriteTx
from ledger.types import PartitionState, ProducerBatch, Topic, TopicConfig
from shards import layout as at
from shards.boards.namecounts import TopicTally
from shards.clock import boottime_ms, wall_ms
from shards.segment import Segment

# What is kept of topics; each cache is cleared when it is full. An entry takes 750 bytes with the
# longest name, as measured. A column has a name of up to 128 characters, so 200 of them take 43 KB.
ENTRIES_BYTES_MAX = 16 << 20
ENTRY_BYTES = 800
COLUMN_BYTES = 100
NAMES_MAX = 20_000
NAME_BYTES = 440
REFUSING_NAMED = 100  # subscriptions in the detail of a refused deletion
log = logging.getLogger("headgate.topics")

T = TypeVar("T")


class TopicEntry:
    """A live topic."""

    __slots__ = (
        "hook_secrets", "is_usual", "name", "next_partition", "partitions", "tally", "topic",
        "topic_id", "tracker",
    )  # fmt: skip

    def __init__(
        self,
        topic: Topic,
        tracker: CapTracker | None = None,
        hook_secrets: tuple[str, ...] | None = (),
    ) -> None:
        self.topic = topic
        self.hook_secrets = hook_secrets  # None: they should be there, and cannot be had
        self.tracker = tracker  # of a topic that refuses what exceeds its caps
        self.topic_id = topic.topic_id
        self.name = topic.name
        self.partitions = topic.config.partitions
        self.next_partition = 0
        # Nothing but the request decides whether and where it is stored.
        self.is_usual = self.partitions == 1 and tracker is None and topic.config.dedupe != "body"
        self.tally: TopicTally | None = None  # from the first acknowledgment on

    def take_partition(self) -> int:
        """The partition of the next request without keys, round robin."""
        chosen = self.next_partition % self.partitions
        self.next_partition = chosen + 1
        return chosen


class TopicCache:
    """The topics of one shard."""

    def __init__(
        self,
        segment: Segment,
        ledger: LedgerThread,
        ledger_lock: AbstractContextManager[None],
        trackers: CapTrackers | None = None,
        partitions_max: int | None = None,
        secrets: SecretsFile | None = None,
    ) -> None:
        self._words = segment.words
        self._secrets = secrets
        self.trackers = trackers or CapTrackers(segment.words, 0)
        self._ledger = ledger
        self._ledger_lock = ledger_lock
        self._partitions_max = partitions_max
        self._entries: dict[str, TopicEntry] = {}
        self._entries_bytes = 0
        self._names: dict[int, str] = {}
        self._version = 0

    def known(self, name: str) -> TopicEntry | None:
        """A live topic, if it is in the cache."""
        words = self._words
        version = words[at.G_TOPICS] + words[at.G_DEATHS]  # ``version``, once per request
        if version != self._version:
            self._forget_entries()
            self._version = version
        return self._entries.get(name)

    def version(self) -> int:
        """Changes with each change of topics."""
        # Both only grow. A shard may die between a change of topics and the change of the word.
        return self._words[at.G_TOPICS] + self._words[at.G_DEATHS]

    def name_of(self, topic_id: int) -> str:
        """A topic's name, also of a deleted one. For uploader threads; may read the ledger."""
        name = self._names.get(topic_id)
        if name is None:
            topic = self._ledger.read_now(topics.by_id, topic_id)
            if topic is None:
                raise LookupError(f"topic id {topic_id} is in a ring but not in the ledger")
            name = self._remember_name(topic)
        return name

    async def entry(self, name: str) -> TopicEntry:
        """A live topic. Raises ApiError 404."""
        return self.known(name) or await self.entry_now(name)

    async def entry_now(self, name: str) -> TopicEntry:
        """A live topic as the ledger has it, past the cache. Raises ApiError 404."""
        version = self.version()
        topic = await self._ledger.read(topics.find, name)
        if topic is None:
            raise unknown_topic(name)
        return await self._remember(topic, version)

    async def by_id(self, topic_id: int) -> Topic | None:
        """A topic as the ledger has it, also a deleted one."""
        return await self._ledger.read(topics.by_id, topic_id)

    async def load_tracker(self, tracker: CapTracker, now_ns: int) -> None:
        """Loads what the ledger holds now into a tracker. Raises LedgerError."""
        topic_id = tracker.topic.topic_id
        version = self.trackers.evicted(topic_id)
        tracker.begin_load()
        try:
            number, states = await self._ledger.read(reads.heads, [topic_id])
            await self.trackers.followed(number)
            by_partition = {partition: state for (_, partition), state in states.items()}
            tracker.load(number, by_partition, version, now_ns)
        finally:
            tracker.end_load()

    def age_ms(self) -> int:
        """Now, by the clock of ages (``ledger/ages.py``)."""
        return boottime_ms() + int(self._words[at.G_AGE_OFFSET_MS])

    async def answered(self, topic_id: int, key: str) -> bool:
        """Whether a request with this idempotency key was stored and is still remembered."""
        limits = self._ledger.ledger.dedupe_limits
        return await self._ledger.read(dedupe.knows, topic_id, key, self.age_ms(), limits)

    async def has_batch(self, topic_id: int, partition: int, batch: ProducerBatch) -> bool:
        """Whether an idempotent producer's batch was stored and is still remembered."""
        now_ms = self.age_ms()
        return await self._ledger.read(dedupe.knows_batch, topic_id, partition, batch, now_ms)

    async def create(
        self, name: str, config: TopicConfig, *, only_check: bool = False
    ) -> tuple[TopicEntry, bool]:
        """The topic of this name, created if there is none, and whether it was created.
        ``only_check``: whether it would be, and nothing changes.

        Raises ApiError 409 if another topic has its table, 422 if there are too many partitions.
        """
        version = self.version()
        try:
            topic, created = await self._change(
                lambda tx: topics.create(tx, name, config, wall_ms(), self._partitions_max),
                only_check=only_check,
            )
        except PartitionsFull as error:
            raise _partitions_full(error) from error
        except TableNameTaken as error:
            detail = {"topic": name, "table": error.table, "other": error.other}
            raise ApiError(
                409, "table_name_taken", str(error), detail, names=[error.other]
            ) from error
        if only_check:
            return TopicEntry(topic), created
        if created:
            log.info("topic %s was created (id %d)", name, topic.topic_id)
        return await self._remember(topic, version), created

    async def alter(self, name: str, config: TopicConfig) -> TopicEntry:
        """Changes a topic's settings. Raises ApiError."""
        return await self._alter(
            name, lambda tx: topics.alter(tx, name, config, self._partitions_max)
        )

    async def grow(self, name: str, partitions: int, *, only_check: bool = False) -> TopicEntry:
        """Gives a topic more partitions, or checks whether it could. Raises ApiError."""

        def change(tx: WriteTx) -> Topic:
            present = topics.find(tx, name)
            if present is None:
                raise TopicMissing(name)
            return topics.grow(tx, present, partitions, self._partitions_max)

        return await self._alter(name, change, only_check=only_check)

    async def _alter(
        self, name: str, change: Callable[[WriteTx], Topic], *, only_check: bool = False
    ) -> TopicEntry:
        def announced(tx: WriteTx) -> Topic:
            topic = change(tx)
            if not only_check:
                self._announce(tx, topic)
            return topic

        version = self.version()
        try:
            topic = await self._change(announced, self._tell_owners, only_check=only_check)
            return TopicEntry(topic) if only_check else await self._remember(topic, version)
        except PartitionsFull as error:
            raise _partitions_full(error) from error
        except TopicMissing as error:
            raise unknown_topic(name) from error
        except PartitionsRefused as error:
            raise invalid(str(error), field="partitions") from error
        except ColumnsRefused as error:
            raise invalid(str(error), field="columns", column=error.column) from error

    async def delete(self, name: str, *, force: bool = False, topic_id: int | None = None) -> Topic:
        """Deletes a topic; with a ``topic_id`` only that one, not another of its name. Raises
        ApiError 404, and 409 if it takes dead letters, unless forced."""
        try:
            topic = await self._ledger.run(lambda: self._delete(name, force, topic_id))
        except TopicMissing as error:
            raise unknown_topic(name) from error
        except TopicHoldsDeadLetters as error:
            detail = {"topic": name, "subscriptions": error.subscriptions[:REFUSING_NAMED]}
            of = [each.rpartition(" of ")[2] for each in error.subscriptions]
            raise ApiError(409, "dead_letter_topic", str(error), detail, names=of) from error
        self._entries.pop(name, None)
        log.info("topic %s was deleted (id %d)", name, topic.topic_id)
        return topic

    async def trim(self, name: str, partition: int, before_seq: int) -> PartitionState:
        """Raises a partition's first offset. Raises ApiError."""
        try:
            return await self._ledger.run(lambda: self._trim(name, partition, before_seq))
        except TopicMissing as error:
            raise unknown_topic(name) from error
        except PartitionMissing as error:
            raise invalid(str(error), field="partition") from error
        except TrimBeyondHead as error:
            raise invalid(str(error), field="before_seq") from error

    async def page(self, after_name: str, limit: int) -> list[Topic]:
        """Live topics after a name, in the order of names."""
        return await self._ledger.read(topics.page, after_name, limit)

    async def states(self, topic_id: int) -> list[PartitionState]:
        """A topic's partitions as the ledger has them."""
        return await self._ledger.read(reads.partition_states, topic_id)

    async def _change(
        self,
        change: Callable[[WriteTx], T],
        told: Callable[[T], object] = lambda _: None,
        *,
        only_check: bool = False,
    ) -> T:
        def changed() -> T:
            if only_check:
                return _checked(self._ledger.ledger, change)
            result = self._ledger.ledger.write(change)
            told(result)
            self._tell([at.G_TOPICS])
            return result

        return await self._ledger.run(changed)

    def _delete(self, name: str, force: bool, topic_id: int | None) -> Topic:
        topic = self._ledger.ledger.write(
            topics.delete, name, wall_ms(), force=force, topic_id=topic_id
        )
        self._tell([at.G_TOPICS])
        with self._ledger_lock:  # its subscriptions were deleted with it
            number = self._ledger.ledger.read(changes.latest)
            self._words[at.G_DELIVERY] = max(self._words[at.G_DELIVERY], number)
        return topic

    def _trim(self, name: str, partition: int, before_seq: int) -> PartitionState:
        ledger = self._ledger.ledger
        before = ledger.read(topics.find, name)
        state = retention.trim(ledger, name, partition, before_seq)
        after = ledger.read(topics.find, name)
        # The same one, unless it was created again meanwhile.
        self._tell([at.evicted(topic.topic_id) for topic in (before, after) if topic is not None])
        return state

    def _announce(self, tx: WriteTx, topic: Topic) -> None:
        """A topic may have grown. Owners of its subscriptions wait for the change from now on:
        producers who read it choose other partitions for some keys. If this transaction is not
        committed, the owners find out (``DeliveryChanges.forget_growth``)."""
        word = at.grown(topic.topic_id)
        number = subscriptions.last_change(tx, topic.topic_id)
        self._words[word] = max(self._words[word], number)

    def _tell_owners(self, topic: Topic) -> None:
        """The change is there to be read."""
        with self._ledger_lock:
            number = self._ledger.ledger.read(subscriptions.last_change, topic.topic_id)
            self._words[at.G_DELIVERY] = max(self._words[at.G_DELIVERY], number)

    def _tell(self, indices: Sequence[int]) -> None:
        """Raises words to the version of topics."""
        with self._ledger_lock:
            version = self._ledger.ledger.read(topics.catalog_version)
            for index in indices:
                self._words[index] = max(self._words[index], version)

    async def _remember(self, topic: Topic, version: int) -> TopicEntry:
        """Keeps what the ledger answered, unless topics have changed since ``version``: a stale
        entry would stay in the cache until the next change. Nor is one kept that lacks secrets,
        which may be put back."""
        self._remember_name(topic)
        hook = topic.config.hook
        secrets = () if hook is None else await self._hook_secrets(topic.name, hook.secrets_id)
        known = self._entries.get(topic.name)
        if known is not None and known.topic == topic:
            return known
        entry = TopicEntry(topic, self.trackers.tracker(topic), secrets)
        if version == self._version == self.version() and secrets is not None:
            size = _entry_bytes(topic)
            if self._entries_bytes + size > ENTRIES_BYTES_MAX:
                self._forget_entries()
            self._entries[topic.name] = entry
            self._entries_bytes += size
        return entry

    async def _hook_secrets(self, name: str, secrets_id: str) -> tuple[str, ...] | None:
        if self._secrets is None:
            return None
        try:
            found = await self._ledger.run(partial(self._secrets.load, secrets_id))
        except SecretsFileError as error:
            log.warning("the secrets for hooks of topic %s cannot be read: %s", name, error)
            return None
        return None if found is None else found.hook

    def _forget_entries(self) -> None:
        self._entries.clear()
        self._entries_bytes = 0

    def _remember_name(self, topic: Topic) -> str:
        if len(self._names) >= NAMES_MAX:
            self._names.clear()
        self._names[topic.topic_id] = topic.name
        return topic.name


class _Checked(Exception):
    """Takes a change back; ``result`` is what it would have returned."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result


def _checked(ledger: Ledger, change: Callable[[WriteTx], T]) -> T:
    """What a change would return."""
    try:
        with ledger.writing() as tx:
            raise _Checked(change(tx))
    except _Checked as checked:
        return cast(T, checked.result)


def _entry_bytes(topic: Topic) -> int:
    return ENTRY_BYTES + sum(len(name) + COLUMN_BYTES for name in topic.config.columns)


def _partitions_full(error: PartitionsFull) -> ApiError:
    return ApiError(
        422,
        "partitions_full",
        str(error),
        {
            "limit": "partitions_max",
            "max": error.maximum,
            "held": error.present,
            "asked": error.wanted,
        },
    )


def unknown_topic(name: str) -> ApiError:
    """404 ``unknown_topic``."""
    return ApiError(404, "unknown_topic", f"there is no topic {name!r}", {"topic": name})
