"""The topics of a shard as Kafka's clients see them: by name or id, led by a shard each partition.

Each shard is a broker with a port of its own. A partition has one leader, so what a client sends
again meets the ring where the first one is, and its batches stay in order. The leader says who
takes records in; records are read from any shard.
"""

from __future__ import annotations

import hashlib
from uuid import UUID

from daemon.intake.topic_cache import TopicCache, TopicEntry
from daemon.kafka.budget import Breaths
from daemon.kafka.messages import Broker, MetadataAsked, TopicSaid
from daemon.schemas.errors import ApiError
from daemon.schemas.names import check_topic_name
from ledger.types import TopicConfig

UNKNOWN_TOPIC_OR_PARTITION = 3
INVALID_TOPIC = 17
INVALID_REQUEST = 42
POLICY_VIOLATION = 44
TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53  # after which no client tries again
KAFKA_STORAGE_ERROR = 56
UNKNOWN_TOPIC_ID = 100
PAGE = 1_000
SAID_MAX = 10_000  # partitions of one answer; its first topic may have more
_CODES = {"unknown_topic": UNKNOWN_TOPIC_OR_PARTITION, "invalid_topic": INVALID_TOPIC}


def code_of(error: ApiError) -> int:
    """Kafka's error code for a refusal that concerns a topic."""
    return _CODES.get(error.code, POLICY_VIOLATION)


class KafkaTopics:
    """The topics of one shard, for clients that reach its brokers at ``ports``."""

    def __init__(
        self, topics: TopicCache, ports: tuple[int, ...], store_url: str, *, auto_create: bool
    ) -> None:
        self._topics = topics
        self._ports = ports
        self._auto_create = auto_create
        # Names the store, so that no client takes a topic of another daemon for one of this.
        self._prefix = hashlib.blake2b(store_url.encode(), digest_size=8).digest()
        self.cluster = self._prefix.hex()

    def brokers(self, host: str) -> list[Broker]:
        """The shards, at the host by which they are reached."""
        return [Broker(shard, host, port) for shard, port in enumerate(self._ports)]

    @property
    def shards(self) -> int:
        """How many brokers there are."""
        return len(self._ports)

    def leader(self, topic_id: int, partition: int) -> int:
        """The shard that takes records of a partition in."""
        return (topic_id + partition) % len(self._ports)

    def id_of(self, topic_id: int) -> UUID:
        """A topic's id as clients know it."""
        return UUID(bytes=self._prefix + topic_id.to_bytes(8, "big"))

    async def entry(self, name: str) -> TopicEntry:
        """A living topic. Raises ApiError."""
        return self._topics.known(name) or await self._topics.entry(name)

    async def by_id(self, topic_id: UUID) -> TopicEntry | None:
        """The living topic of this id."""
        if topic_id.bytes[:8] != self._prefix:
            return None
        found = await self._topics.by_id(int.from_bytes(topic_id.bytes[8:], "big"))
        if found is None:
            return None
        try:
            entry = await self.entry(found.name)
        except ApiError:
            return None
        return entry if entry.topic_id == found.topic_id else None

    async def asked(self, asked: MetadataAsked) -> list[TopicSaid]:
        """What is said of the topics that a client asks for. Raises LedgerError."""
        if asked.topics is None:
            return await self._all()
        said: list[TopicSaid] = []
        breaths, left = Breaths(), SAID_MAX
        for name, topic_id in asked.topics:
            await breaths.item()
            one = await self._one(name, topic_id, asked.may_create)
            left -= max(1, len(one.leaders))
            said.append(_too_many(one) if left < 0 and said else one)
        return said

    async def _all(self) -> list[TopicSaid]:
        said: list[TopicSaid] = []
        after, left = "", SAID_MAX
        while True:
            page = await self._topics.page(after, PAGE)
            for topic in page:
                one = self._said(TopicEntry(topic))
                left -= max(1, len(one.leaders))
                said.append(_too_many(one) if left < 0 and said else one)
            if len(page) < PAGE or len(said) >= SAID_MAX:
                return said
            after = page[-1].name

    async def _one(self, name: str | None, topic_id: UUID, may_create: bool) -> TopicSaid:
        if name is None:
            found = await self.by_id(topic_id)
            if found is None:
                return TopicSaid(UNKNOWN_TOPIC_ID, None, topic_id)
            return self._said(found)
        try:
            check_topic_name(name)
            try:
                entry = await self.entry(name)
            except ApiError:
                if not (may_create and self._auto_create):
                    raise
                entry, _ = await self._topics.create(name, TopicConfig())
        except ApiError as error:
            return TopicSaid(code_of(error), name, UUID(int=0))
        return self._said(entry)

    def _said(self, topic: TopicEntry) -> TopicSaid:
        leaders = [self.leader(topic.topic_id, each) for each in range(topic.partitions)]
        return TopicSaid(0, topic.name, self.id_of(topic.topic_id), leaders)


def _too_many(topic: TopicSaid) -> TopicSaid:
    """Instead of a topic whose partitions make the answer too long: ask for fewer topics."""
    return TopicSaid(INVALID_REQUEST, topic.name, topic.id)
