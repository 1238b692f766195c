"""The topics of a shard as Kafka's clients see them: by name or id, each partition led by a shard.

Each shard is a broker with a port of its own. A partition has one leader, so a batch that a client
sends again meets the first one in its ring, and batches stay in order. The leader says who takes
records in; records are read from any shard.
"""

from __future__ import annotations

import hashlib
from functools import partial
from uuid import UUID

from daemon.intake.object_limits import ObjectLimits
from daemon.intake.topic_cache import TopicCache, TopicEntry
from daemon.kafka import messages
from daemon.kafka.budget import Breaths, Said
from daemon.kafka.error_codes import (
    INVALID_REQUEST,
    INVALID_TOPIC_EXCEPTION,
    KAFKA_STORAGE_ERROR,
    POLICY_VIOLATION,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from daemon.kafka.messages import Broker, MetadataAsked, TopicSaid
from daemon.kafka.rights import EVERYTHING, Allowed
from daemon.kafka.wire import KafkaRequest
from daemon.schemas.errors import ApiError
from daemon.schemas.names import check_topic_name
from ledger.types import TopicConfig

PAGE = 1_000
SAID_MAX = 10_000  # partitions of one answer; its first topic may have more
SAID_BYTES = 48  # in an answer, at most, of a topic or partition
_CODES = {
    "unknown_topic": UNKNOWN_TOPIC_OR_PARTITION,
    "invalid_topic": INVALID_TOPIC_EXCEPTION,
    "forbidden": TOPIC_AUTHORIZATION_FAILED,
    "audit_log": KAFKA_STORAGE_ERROR,
    "table_name_taken": INVALID_TOPIC_EXCEPTION,  # as two names that differ in . and _ only
}


def code_of(error: ApiError) -> int:
    """Kafka's error code for a refusal that concerns a topic."""
    return _CODES.get(error.code, POLICY_VIOLATION)


def missing(error: ApiError) -> int:
    """The same where a topic is only looked for: then any other refusal says that it is not
    there."""
    code = code_of(error)
    return code if code == TOPIC_AUTHORIZATION_FAILED else UNKNOWN_TOPIC_OR_PARTITION


class KafkaTopics:
    """The topics of one shard, for clients that reach its brokers at ``ports``, and at the host
    that is ``advertised`` or at which they have reached this one. A topic has ``partitions`` if its
    client does not say how many; ``objects`` limits how many are created."""

    def __init__(
        self, topics: TopicCache, ports: tuple[int, ...], store_url: str, *, auto_create: bool,
        partitions: int = 1, objects: ObjectLimits | None = None, advertised: str | None = None,
    ) -> None:  # fmt: skip
        self._topics = topics
        self._objects = objects
        self._ports = ports
        self._advertised = advertised
        self._auto_create = auto_create
        self.partitions = partitions
        # Names the store, so that no client takes a topic of another daemon for one of this.
        self._prefix = hashlib.blake2b(store_url.encode(), digest_size=8).digest()
        self.cluster = self._prefix.hex()

    def brokers(self, reached: str) -> list[Broker]:
        """The shards, for a client that has reached this one at a host."""
        host = self._advertised or reached
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

    async def entry(self, name: str, allowed: Allowed) -> TopicEntry:
        """A living topic that a request is allowed. Raises ApiError."""
        allowed.check_topic(name)
        return self._topics.known(name) or await self._topics.entry(name)

    async def by_id(self, topic_id: UUID, allowed: Allowed) -> TopicEntry | None:
        """The living topic of this id; none if the token is not for it. Raises ApiError if the
        token lacks the scope."""
        if topic_id.bytes[:8] != self._prefix:
            return None
        found = await self._topics.by_id(int.from_bytes(topic_id.bytes[8:], "big"))
        if found is None or not allowed.rights.covers(found.name):
            return None
        allowed.check_topic(found.name)
        try:
            entry = await self.entry(found.name, allowed)
        except ApiError:
            return None
        return entry if entry.topic_id == found.topic_id else None

    async def metadata(self, head: KafkaRequest, asked: MetadataAsked, allowed: Allowed) -> Said:
        """Answers a Metadata. Raises LedgerError."""
        brokers, said = self.brokers(head.host), await self.asked(asked, allowed)
        items = sum(1 + len(each.leaders) for each in said)
        size = SAID_BYTES * items + sum(len(each.name or "") for each in said)
        return Said(size, items, partial(messages.metadata, head, brokers, self.cluster, said))

    async def asked(self, asked: MetadataAsked, allowed: Allowed = EVERYTHING) -> list[TopicSaid]:
        """What is said of the topics that a client asks for. Raises LedgerError."""
        if asked.topics is None:
            return await self._all(allowed)
        said: list[TopicSaid] = []
        breaths, left = Breaths(), SAID_MAX
        for name, topic_id in asked.topics:
            await breaths.item()
            one = await self._one(name, topic_id, asked.may_create, allowed)
            left -= max(1, len(one.leaders))
            said.append(_too_many(one) if left < 0 and said else one)
        return said

    async def _all(self, allowed: Allowed) -> list[TopicSaid]:
        said: list[TopicSaid] = []
        after, left = "", SAID_MAX
        while True:
            page = await self._topics.page(after, PAGE)
            for topic in page:
                if not allowed.covers(topic.name):
                    continue
                one = self._said(TopicEntry(topic))
                left -= max(1, len(one.leaders))
                said.append(_too_many(one) if left < 0 and said else one)
            if len(page) < PAGE or len(said) >= SAID_MAX:
                return said
            after = page[-1].name

    async def _one(
        self, name: str | None, topic_id: UUID, may_create: bool, allowed: Allowed
    ) -> TopicSaid:
        if name is None:
            try:
                found = await self.by_id(topic_id, allowed)
            except ApiError as error:
                return TopicSaid(code_of(error), None, topic_id)
            if found is None:
                return TopicSaid(UNKNOWN_TOPIC_ID, None, topic_id)
            return self._said(found)
        try:
            check_topic_name(name)
            allowed.check_topic(name)
            try:
                entry = await self.entry(name, allowed)
            except ApiError:
                if not (may_create and self._auto_create and allowed.may_create):
                    raise
                entry = await self._create(name, allowed)
        except ApiError as error:
            return TopicSaid(code_of(error), name, UUID(int=0))
        return self._said(entry)

    async def _create(self, name: str, allowed: Allowed) -> TopicEntry:
        if self._objects is not None:
            await self._objects.check(allowed.rights, "topics", name, self.partitions)
        with allowed.change(name):
            entry, _ = await self._topics.create(name, TopicConfig(partitions=self.partitions))
        return entry

    def _said(self, topic: TopicEntry) -> TopicSaid:
        leaders = [self.leader(topic.topic_id, each) for each in range(topic.partitions)]
        return TopicSaid(0, topic.name, self.id_of(topic.topic_id), leaders)


def _too_many(topic: TopicSaid) -> TopicSaid:
    """The answer in place of a topic whose partitions would make it too long: ask for fewer
    topics."""
    return TopicSaid(INVALID_REQUEST, topic.name, topic.id)
