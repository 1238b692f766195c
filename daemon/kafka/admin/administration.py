"""Creates, grows and deletes topics for Kafka's tools, and tells their settings.

It goes through what the HTTP API goes through (``daemon/intake/topic_cache.py``), so both have the
same limits and refusals. Any shard does it; all shards know of it when the answer goes out.

The topics of a request are dealt with one by one, each whole or not at all. A topic for which the
client's time does not suffice is not begun, and is answered REQUEST_TIMED_OUT.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Protocol, TypeVar
from uuid import UUID

from daemon.intake.object_limits import ObjectLimits
from daemon.intake.topic_cache import TopicCache
from daemon.kafka.admin import messages
from daemon.kafka.admin.configs import ConfigRefused, Configs
from daemon.kafka.admin.messages import (
    ANY,
    ChangedTopic,
    ConfigsAsked,
    ConfigsSaid,
    MorePartitions,
    NewTopic,
)
from daemon.kafka.budget import Breaths, Said
from daemon.kafka.error_codes import (
    CLUSTER_AUTHORIZATION_FAILED,
    INVALID_CONFIG,
    INVALID_PARTITIONS,
    INVALID_REPLICA_ASSIGNMENT,
    INVALID_REPLICATION_FACTOR,
    INVALID_REQUEST,
    KAFKA_STORAGE_ERROR,
    REQUEST_TIMED_OUT,
    TOPIC_ALREADY_EXISTS,
    UNKNOWN_TOPIC_ID,
)
from daemon.kafka.messages import NO_ID
from daemon.kafka.rights import Allowed
from daemon.kafka.topics import KafkaTopics, code_of
from daemon.kafka.wire import KafkaRequest
from daemon.schemas.errors import ApiError
from daemon.schemas.names import check_topic_name
from ledger.errors import LedgerError
from ledger.types import PARTITIONS_MAX, TopicConfig

TOPIC, BROKER = 2, 4  # kinds of what has settings
TIMEOUT_MIN_MS = 1_000  # a client that sends 0 still expects its request to be carried out
OUTCOME_BYTES = 300  # in an answer, with a sentence
CONFIG_BYTES = 60
log = logging.getLogger("headgate.kafka")


class _Refused(Exception):
    """A refusal without a counterpart in HTTP."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


REFUSALS = (_Refused, ConfigRefused, ApiError, LedgerError)


class _Named(Protocol):
    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=_Named)


class Administration:
    """The topics of the daemon, for the clients of one shard."""

    def __init__(
        self,
        names: KafkaTopics,
        topics: TopicCache,
        configs: Configs,
        monotonic_ns: Callable[[], int],
        objects: ObjectLimits | None = None,
    ) -> None:
        """``objects`` limits how many topics and partitions there may be."""
        self._names = names
        self._topics = topics
        self._configs = configs
        self._monotonic_ns = monotonic_ns
        self._objects = objects

    # Topics

    async def create_topics(
        self, head: KafkaRequest, asked: messages.CreateAsked, allowed: Allowed
    ) -> Said:
        """Answers a CreateTopics."""
        said = await self._each_of(
            asked.topics,
            allowed,
            asked.timeout_ms,
            partial(self._create, allowed, only_check=asked.only_check),
        )
        return _said(messages.created_topics, head, said)

    async def _create(
        self, allowed: Allowed, wanted: NewTopic, *, only_check: bool
    ) -> ChangedTopic:
        check_topic_name(wanted.name)
        allowed.check_topic(wanted.name)
        _check_unassigned(wanted.is_assigned)
        if wanted.copies not in (ANY, 1):
            raise _Refused(
                INVALID_REPLICATION_FACTOR,
                f"the replication factor must be 1, or -1, got {wanted.copies}: the store keeps"
                " copies, brokers do not",
            )
        partitions = self._names.partitions if wanted.partitions == ANY else wanted.partitions
        _check_partitions(partitions)
        config = TopicConfig(partitions=partitions, **self._configs.read(wanted.configs))
        with await self._changing(wanted.name, partitions, allowed, only_check=only_check):
            entry, created = await self._topics.create(wanted.name, config, only_check=only_check)
        if not created:
            raise _Refused(TOPIC_ALREADY_EXISTS, f"there is a topic {wanted.name!r} already")
        if config.kafka_cleanup_policy != "delete" and not only_check:
            log.warning(
                "topic %s was created with cleanup.policy=%s: its clients are told so, but nothing"
                " is compacted by key", wanted.name, config.kafka_cleanup_policy,
            )  # fmt: skip
        topic_id = NO_ID if only_check else self._names.id_of(entry.topic_id)
        return ChangedTopic(
            wanted.name, 0, None, topic_id, partitions, self._configs.of_topic(config)
        )

    async def create_partitions(
        self, head: KafkaRequest, asked: messages.GrowAsked, allowed: Allowed
    ) -> Said:
        """Answers a CreatePartitions."""
        said = await self._each_of(
            asked.topics,
            allowed,
            asked.timeout_ms,
            partial(self._grow, allowed, only_check=asked.only_check),
        )
        return _said(messages.created_partitions, head, said)

    async def _grow(
        self, allowed: Allowed, wanted: MorePartitions, *, only_check: bool
    ) -> ChangedTopic:
        allowed.check_topic(wanted.name)
        there = (await self._topics.entry_now(wanted.name)).partitions
        _check_unassigned(wanted.is_assigned)
        _check_partitions(wanted.partitions)
        if wanted.partitions <= there:
            raise _Refused(
                INVALID_PARTITIONS,
                f"topic {wanted.name!r} has {there} partitions and can only get more, got"
                f" {wanted.partitions}",
            )
        with await self._changing(wanted.name, wanted.partitions, allowed, only_check=only_check):
            await self._topics.grow(wanted.name, wanted.partitions, only_check=only_check)
        return ChangedTopic(wanted.name)

    async def delete_topics(
        self, head: KafkaRequest, asked: messages.DeleteAsked, allowed: Allowed
    ) -> Said:
        """Answers a DeleteTopics."""
        said: list[ChangedTopic] = []
        is_late = self._clock(asked.timeout_ms)
        for name, topic_id in asked.topics:
            act = partial(self._delete, name, topic_id, allowed)
            found = await _outcome(name, is_late, allowed, act)
            said.append(found if found.id != NO_ID else found._replace(id=topic_id))
        return _said(messages.deleted_topics, head, said)

    async def _delete(self, name: str | None, topic_id: UUID, allowed: Allowed) -> ChangedTopic:
        if name is not None and topic_id != NO_ID:
            raise _Refused(INVALID_REQUEST, "a topic to delete is named or has an id, not both")
        if name is not None:
            allowed.check_topic(name)
            with allowed.change(name):
                deleted = await self._topics.delete(name)
        else:
            there = await self._names.by_id(topic_id, allowed)
            if there is None:
                raise _Refused(UNKNOWN_TOPIC_ID, f"there is no topic with the id {topic_id}")
            with allowed.change(there.name):
                deleted = await self._topics.delete(there.name, topic_id=there.topic_id)
        return ChangedTopic(deleted.name, id=self._names.id_of(deleted.topic_id))

    async def _each_of(
        self, topics: Iterable[N], allowed: Allowed, timeout_ms: int,
        act: Callable[[N], Awaitable[ChangedTopic]],
    ) -> list[ChangedTopic]:  # fmt: skip
        """What becomes of each. A topic that is named twice is refused: nobody knows which one is
        meant."""
        by_name: dict[str, list[N]] = {}
        for each in topics:
            by_name.setdefault(each.name, []).append(each)
        is_late = self._clock(timeout_ms)
        return [
            await _outcome(name, is_late, allowed, partial(act, some[0]))
            if len(some) == 1
            else ChangedTopic(
                name, INVALID_REQUEST, f"topic {name!r} is there {len(some)} times; name it once"
            )
            for name, some in by_name.items()
        ]

    async def _changing(
        self, name: str, partitions: int, allowed: Allowed, *, only_check: bool
    ) -> AbstractContextManager[None]:
        """While a topic is created or grows, within the limits. Raises ApiError."""
        if self._objects is not None:
            await self._objects.check(allowed.rights, "topics", name, partitions)
        return nullcontext() if only_check else allowed.change(name)

    def _clock(self, timeout_ms: int) -> Callable[[], bool]:
        """Says whether the time that a client has is over."""
        until_ns = self._monotonic_ns() + 1_000_000 * max(TIMEOUT_MIN_MS, timeout_ms)
        return lambda: self._monotonic_ns() > until_ns

    # Settings

    async def describe_configs(
        self, head: KafkaRequest, asked: list[ConfigsAsked], allowed: Allowed
    ) -> Said:
        """Answers a DescribeConfigs."""
        breaths, said = Breaths(), []
        for each in asked:
            await breaths.item()
            try:
                said.append(await self._described(each, allowed))
            except REFUSALS as error:
                said.append(ConfigsSaid(each, (), *_told(error, allowed)))
        items = sum(1 + len(each.configs) for each in said)
        size = CONFIG_BYTES * items + sum(
            len(each.asked.name) + len(each.message or "") for each in said
        )
        return Said(size, items, partial(messages.described_configs, head, said))

    async def _described(self, asked: ConfigsAsked, allowed: Allowed) -> ConfigsSaid:
        if asked.kind == TOPIC:
            entry = await self._names.entry(check_topic_name(asked.name), allowed)
            return ConfigsSaid(asked, self._configs.of_topic(entry.topic.config, asked.names))
        if asked.kind != BROKER:
            raise _Refused(
                INVALID_REQUEST, f"only topics ({TOPIC}) and brokers ({BROKER}) have settings here,"
                f" got the kind {asked.kind}",
            )  # fmt: skip
        if allowed.error_of_cluster():
            raise _Refused(CLUSTER_AUTHORIZATION_FAILED, "the token may not ask for settings")
        if asked.name == "":  # what is set for all brokers while they run
            return ConfigsSaid(asked)
        if asked.name not in map(str, range(self._names.shards)):
            raise _Refused(
                INVALID_REQUEST,
                f"there is no broker {asked.name[:20]!r}; there are 0 to {self._names.shards - 1}",
            )
        return ConfigsSaid(asked, self._configs.of_broker(asked.names))


async def _outcome(
    name: str | None, is_late: Callable[[], bool], allowed: Allowed,
    act: Callable[[], Awaitable[ChangedTopic]],
) -> ChangedTopic:  # fmt: skip
    """What becomes of one topic."""
    if is_late():
        return ChangedTopic(
            name, REQUEST_TIMED_OUT, "the time of the request was over before this topic's turn;"
            " nothing was changed, send it again",
        )  # fmt: skip
    try:
        return await act()
    except REFUSALS as error:
        return ChangedTopic(name, *_told(error, allowed))


def _told(error: Exception, allowed: Allowed) -> tuple[int, str]:
    """Kafka's code for a refusal, and its sentence."""
    if isinstance(error, ApiError):
        return code_of(error), allowed.rights.shown(error).message
    if isinstance(error, _Refused):
        return error.code, str(error)
    return INVALID_CONFIG if isinstance(error, ConfigRefused) else KAFKA_STORAGE_ERROR, str(error)


def _said(
    make: Callable[[KafkaRequest, Iterable[ChangedTopic]], bytearray],
    head: KafkaRequest,
    said: Sequence[ChangedTopic],
) -> Said:
    items = sum(1 + len(each.configs) for each in said)
    size = sum(
        OUTCOME_BYTES + len(each.name or "") + CONFIG_BYTES * len(each.configs) for each in said
    )
    return Said(size, items, partial(make, head, said))


def _check_unassigned(is_assigned: bool) -> None:
    if is_assigned:
        raise _Refused(
            INVALID_REPLICA_ASSIGNMENT,
            "which broker leads a partition cannot be chosen; leave the assignment out",
        )


def _check_partitions(partitions: int) -> None:
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise _Refused(
            INVALID_PARTITIONS,
            f"a topic has 1 to {PARTITIONS_MAX} partitions, got {partitions}",
        )
