"""The requests that are served: a row for each says which versions, who may send it, what reads it
and what answers it.

A reader makes values of a request's body; a thread reads a long one. A handler takes these, almost
always in the turn of its answer, when the answers before it are written (``in_turn``). It is a
method of one of the parts of a shard, and checks each topic and group by the ``Allowed`` that it
gets.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

from daemon.access.token_file import Scope
from daemon.kafka import messages, sasl
from daemon.kafka.admin import messages as admin
from daemon.kafka.admin.administration import Administration
from daemon.kafka.budget import Said, Turn, aside
from daemon.kafka.connection import Answer, KafkaConnection
from daemon.kafka.error_codes import TRANSACTIONAL_ID_AUTHORIZATION_FAILED
from daemon.kafka.fetching import KafkaReads
from daemon.kafka.groups import messages as groups
from daemon.kafka.groups.coordinator import Coordinator
from daemon.kafka.messages import FetchAsked, ProduceAsked
from daemon.kafka.producing import KafkaProducer
from daemon.kafka.rights import Allowed
from daemon.kafka.topics import KafkaTopics
from daemon.kafka.wire import ITEMS_MAX, NEVER_FLEXIBLE, KafkaRequest, ServedVersions, WireReader

T = TypeVar("T")


class KafkaParts(NamedTuple):
    """What answers the requests of a shard."""

    topics: KafkaTopics
    producer: KafkaProducer
    reads: KafkaReads
    coordinator: Coordinator
    administration: Administration


Begin = Callable[
    [KafkaParts, KafkaConnection, KafkaRequest, T, Allowed], Awaitable[Answer | None]
]  # fmt: skip


class ServedRequest(NamedTuple, Generic[T]):
    """A kind of request, by Kafka's name and number. Its sender needs one of the ``scopes``, or
    none if it is OPEN. ``begin`` takes what ``read`` has read, and returns the answer; None: the
    client wants none.

    One that ``is_alone`` waits for other clients, for minutes, and what it holds is counted where
    it waits: nothing else of its connection is under way meanwhile."""

    name: str
    key: int
    versions: ServedVersions
    scopes: tuple[Scope, ...] | None
    read: Callable[[KafkaRequest], T]
    begin: Begin[T]
    is_alone: bool = False


def in_turn(
    handler_of: Callable[[KafkaParts], Callable[[KafkaRequest, T, Allowed], Awaitable[Said]]],
) -> Begin[T]:
    """A handler that is called in the turn of its answer."""

    async def begin(
        parts: KafkaParts, _: KafkaConnection, head: KafkaRequest, asked: T, allowed: Allowed
    ) -> Turn:
        return partial(handler_of(parts), head, asked, allowed)

    return begin


def _produce(
    parts: KafkaParts, connection: KafkaConnection, head: KafkaRequest, asked: ProduceAsked,
    allowed: Allowed,
) -> Awaitable[Answer | None]:  # fmt: skip
    return parts.producer.take(head, asked, connection.refusals, allowed, connection.fail)


async def _fetch(
    parts: KafkaParts, connection: KafkaConnection, head: KafkaRequest, asked: FetchAsked,
    allowed: Allowed,
) -> Turn:  # fmt: skip
    return partial(_fetched, parts.reads, connection, head, asked, allowed)


async def _fetched(
    reads: KafkaReads, connection: KafkaConnection, head: KafkaRequest, asked: FetchAsked,
    allowed: Allowed,
) -> None:  # fmt: skip
    """Writes its answer itself, because what was read counts until then."""
    async with reads.fetch(asked, allowed) as (error, read):
        items = sum(1 + len(some) for _, some in read)
        connection.charge_out(sum(len(each.records) for _, some in read for each in some))
        head = head._replace(throttle_ms=connection.throttle_ms)
        answer = await aside(items, messages.fetched, head, error, read)
        read.clear()  # the answer has it
        await connection.write(answer)


async def _init_producer_id(
    _: KafkaParts, __: KafkaConnection, head: KafkaRequest, transactional_id: str | None,
    allowed: Allowed,
) -> bytearray:  # fmt: skip
    error = allowed.error_of_cluster()
    if transactional_id is not None:
        error = TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    # By chance, so that none is given twice, whatever a recovery has lost.
    return messages.init_producer_id(head, error, secrets.randbits(63))


async def _handshake(
    _: KafkaParts, connection: KafkaConnection, head: KafkaRequest, mechanism: str, __: Allowed
) -> bytearray:
    return connection.exchange.begin(head, mechanism)


async def _authenticate(
    _: KafkaParts, connection: KafkaConnection, head: KafkaRequest, said: bytes, __: Allowed
) -> bytearray:
    return connection.exchange.authenticate(head, said)


def _nothing(_: KafkaRequest) -> None:
    """What a client says of itself means nothing here."""


async def _api_versions(
    _: KafkaParts, __: KafkaConnection, head: KafkaRequest, ___: None, ____: Allowed
) -> bytearray:
    return said_versions(head)


def said_versions(head: KafkaRequest, error: int = 0) -> bytearray:
    """The answer that says what is served."""
    return messages.api_versions(head, {row.key: row.versions for row in SERVED.values()}, error)


OPEN: Final = None  # of scopes: before a client is authenticated, and whatever its token allows
PRODUCE: Final = ServedRequest(
    # librdkafka before 2.11.1 sends gzip, snappy and lz4 uncompressed to a broker whose oldest
    # Produce is not 0, so clients are told of 0.
    "Produce", 0, ServedVersions(3, 11, 9, told_from=0), (Scope.PRODUCE,),
    messages.read_produce, _produce,
)  # fmt: skip
API_VERSIONS: Final = ServedRequest(
    "ApiVersions", 18, ServedVersions(0, 4, 3), OPEN, _nothing, _api_versions
)
_ROWS = (
    PRODUCE,
    ServedRequest(
        "Fetch", 1, ServedVersions(4, 17, 12), (Scope.READ,), messages.read_fetch, _fetch
    ),
    ServedRequest(
        "ListOffsets", 2, ServedVersions(1, 9, 6), (Scope.READ, Scope.METRICS),
        messages.read_list_offsets, in_turn(lambda parts: parts.reads.list_offsets),
    ),
    ServedRequest(
        "Metadata", 3, ServedVersions(0, 13, 9),
        (Scope.PRODUCE, Scope.READ, Scope.CONSUME, Scope.MANAGE, Scope.METRICS),
        messages.read_metadata, in_turn(lambda parts: parts.topics.metadata),
    ),
    ServedRequest(
        "OffsetCommit", 8, ServedVersions(2, 9, 8), (Scope.CONSUME,),
        groups.read_offset_commit, in_turn(lambda parts: parts.coordinator.offsets.commit),
    ),
    ServedRequest(
        "OffsetFetch", 9, ServedVersions(1, 9, 6), (Scope.CONSUME, Scope.METRICS),
        groups.read_offset_fetch, in_turn(lambda parts: parts.coordinator.offsets.fetch),
    ),
    ServedRequest(
        "FindCoordinator", 10, ServedVersions(0, 6, 3),
        (Scope.CONSUME, Scope.MANAGE, Scope.METRICS),
        groups.read_find_coordinator, in_turn(lambda parts: parts.coordinator.find),
    ),
    ServedRequest(
        "JoinGroup", 11, ServedVersions(0, 9, 6), (Scope.CONSUME,),
        groups.read_join, in_turn(lambda parts: parts.coordinator.join), is_alone=True,
    ),
    ServedRequest(
        "Heartbeat", 12, ServedVersions(0, 4, 4), (Scope.CONSUME,),
        groups.read_heartbeat, in_turn(lambda parts: parts.coordinator.heartbeat),
    ),
    ServedRequest(
        "LeaveGroup", 13, ServedVersions(0, 5, 4), (Scope.CONSUME,),
        groups.read_leave, in_turn(lambda parts: parts.coordinator.leave),
    ),
    ServedRequest(
        "SyncGroup", 14, ServedVersions(0, 5, 4), (Scope.CONSUME,),
        groups.read_sync, in_turn(lambda parts: parts.coordinator.sync), is_alone=True,
    ),
    ServedRequest(
        "DescribeGroups", 15, ServedVersions(0, 6, 5),
        (Scope.CONSUME, Scope.MANAGE, Scope.METRICS),
        groups.read_groups, in_turn(lambda parts: parts.coordinator.describe),
    ),
    ServedRequest(
        "ListGroups", 16, ServedVersions(0, 5, 3), (Scope.CONSUME, Scope.MANAGE, Scope.METRICS),
        groups.read_list_groups, in_turn(lambda parts: parts.coordinator.list_groups),
    ),
    ServedRequest(
        "SaslHandshake", 17, ServedVersions(0, 1, NEVER_FLEXIBLE), OPEN,
        sasl.read_mechanism, _handshake,
    ),
    API_VERSIONS,
    ServedRequest(
        "CreateTopics", 19, ServedVersions(2, 7, 5), (Scope.MANAGE,),
        admin.read_create_topics, in_turn(lambda parts: parts.administration.create_topics),
    ),
    ServedRequest(
        "DeleteTopics", 20, ServedVersions(1, 6, 4), (Scope.MANAGE,),
        admin.read_delete_topics, in_turn(lambda parts: parts.administration.delete_topics),
    ),
    ServedRequest(
        "InitProducerId", 22, ServedVersions(0, 5, 2), (Scope.PRODUCE,),
        messages.read_init_producer_id, _init_producer_id,
    ),
    ServedRequest(
        "DescribeConfigs", 32, ServedVersions(1, 4, 4), (Scope.READ, Scope.MANAGE),
        admin.read_describe_configs, in_turn(lambda parts: parts.administration.describe_configs),
    ),
    ServedRequest(
        "SaslAuthenticate", 36, ServedVersions(0, 2, 2), OPEN, sasl.read_said, _authenticate
    ),
    ServedRequest(
        "CreatePartitions", 37, ServedVersions(0, 3, 2), (Scope.MANAGE,),
        admin.read_create_partitions,
        in_turn(lambda parts: parts.administration.create_partitions),
    ),
    ServedRequest(
        "DeleteGroups", 42, ServedVersions(0, 2, 2), (Scope.MANAGE,),
        groups.read_groups, in_turn(lambda parts: parts.coordinator.delete),
    ),
    ServedRequest(
        "OffsetDelete", 47, ServedVersions(0, 0, NEVER_FLEXIBLE), (Scope.MANAGE,),
        groups.read_offset_delete, in_turn(lambda parts: parts.coordinator.delete_offsets),
    ),
)  # fmt: skip
SERVED: Final[dict[int, ServedRequest[Any]]] = {each.key: each for each in _ROWS}


def row_of(key: int, version: int) -> ServedRequest[Any] | None:
    """The row of a request, if its version is one that is answered."""
    found = SERVED.get(key)
    if found is None or not found.versions.oldest <= version <= found.versions.newest:
        return None
    return found


def read_request(frame: bytes, items_max: int = ITEMS_MAX) -> KafkaRequest:
    """The head of a request, without its length; its body has at most ``items_max`` topics and
    partitions. Raises Malformed."""
    reader = WireReader(frame, items_max=items_max)
    key, version, correlation = reader.int16(), reader.int16(), reader.int32()
    found = row_of(key, version)
    client_id = None
    if found is not None:
        client_id = reader.string()  # which is never compact
        reader.flexible = version >= found.versions.flexible_from
        reader.tags()
    return KafkaRequest(key, version, correlation, reader, client_id)
