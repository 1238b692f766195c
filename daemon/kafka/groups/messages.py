"""The requests of consumer groups and their answers, for all versions that are served.

As in ``daemon/kafka/messages.py``, and compared with the same other implementation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from daemon.kafka.groups.group import Joined, Joining, MemberSaid, Protocols, Synced
from daemon.kafka.messages import NO_OPERATIONS, Broker
from daemon.kafka.wire import KafkaRequest, Malformed, WireReader

CONSUMERS, TRANSACTIONS = 0, 1  # of what a coordinator is asked for


# FindCoordinator


class CoordinatorsAsked(NamedTuple):
    """The ids of groups, or of something else."""

    kind: int
    keys: list[str]


class CoordinatorSaid(NamedTuple):
    """The shard that coordinates a group, or an error."""

    key: str
    error: int
    broker: Broker = Broker(-1, "", -1)
    message: str | None = None


def read_find_coordinator(asked: KafkaRequest) -> CoordinatorsAsked:
    """Raises Malformed."""
    body, version = asked.body, asked.version
    if version >= 4:
        kind = body.int8()
        return CoordinatorsAsked(kind, body.array(WireReader.name) or [])
    key = body.name()
    return CoordinatorsAsked(body.int8() if version >= 1 else CONSUMERS, [key])


def found_coordinators(asked: KafkaRequest, said: Sequence[CoordinatorSaid]) -> bytearray:
    """The answer with the coordinator of each."""
    version, answer = asked.version, asked.throttled(1)

    def broker(each: Broker) -> None:
        answer.int32(each.node)
        answer.string(each.host)
        answer.int32(each.port)

    def coordinator(each: CoordinatorSaid) -> None:
        answer.string(each.key)
        broker(each.broker)
        answer.int16(each.error)
        answer.string(each.message)

    if version >= 4:
        answer.structs(said, coordinator)
    else:
        (only,) = said
        answer.int16(only.error)
        if version >= 1:
            answer.string(only.message)
        broker(only.broker)
    return answer.end()


# JoinGroup


class JoinAsked(NamedTuple):
    """A group, and what a member says of itself."""

    group: str
    joining: Joining


def read_join(asked: KafkaRequest) -> JoinAsked:
    """Without the client's host. Raises Malformed."""
    body, version = asked.body, asked.version

    def protocol(reader: WireReader) -> tuple[str, bytes]:
        return reader.name(), reader.blob() or b""

    group, session_ms = body.name(), body.int32()
    rebalance_ms = body.int32() if version >= 1 else session_ms
    member_id = body.name()
    instance = body.string() if version >= 5 else None
    protocol_type = body.name()
    protocols: Protocols = tuple(body.structs(protocol) or ())
    joining = Joining(
        member_id, instance, asked.client_id or "", "", session_ms, rebalance_ms, protocol_type,
        protocols, needs_known_id=version >= 4, may_skip_assignment=version >= 9,
    )  # fmt: skip
    return JoinAsked(group, joining)


def joined(asked: KafkaRequest, said: Joined) -> bytearray:
    """The answer with the generation; the leader's has the members."""
    version, answer = asked.version, asked.throttled(2)
    answer.int16(said.error)
    answer.int32(said.generation)
    if version >= 7:
        answer.string(said.protocol_type)
    answer.string(said.protocol if version >= 7 else said.protocol or "")
    answer.string(said.leader)
    if version >= 9:
        answer.int8(said.skip_assignment)
    answer.string(said.member_id)

    def member(each: MemberSaid) -> None:
        answer.string(each.member_id)
        if version >= 5:
            answer.string(each.instance)
        answer.blob(each.metadata)

    answer.structs(said.members, member)
    return answer.end()


# SyncGroup


class SyncAsked(NamedTuple):
    """``protocols``: the type and the name that the member believes were chosen."""

    group: str
    generation: int
    member_id: str
    instance: str | None
    protocols: tuple[str | None, str | None]
    assignments: dict[str, bytes]


def read_sync(asked: KafkaRequest) -> SyncAsked:
    """Raises Malformed."""
    body, version = asked.body, asked.version

    def assignment(reader: WireReader) -> tuple[str, bytes]:
        return reader.name(), reader.blob() or b""

    group, generation, member_id = body.name(), body.int32(), body.name()
    instance = body.string() if version >= 3 else None
    protocols = (body.string(), body.string()) if version >= 5 else (None, None)
    return SyncAsked(
        group, generation, member_id, instance, protocols, dict(body.structs(assignment) or ())
    )


def synced(asked: KafkaRequest, said: Synced) -> bytearray:
    """The answer with what a member reads."""
    answer = asked.throttled(1)
    answer.int16(said.error)
    if asked.version >= 5:
        answer.string(said.protocol_type)
        answer.string(said.protocol)
    answer.blob(said.assignment)
    return answer.end()


# Heartbeat


class HeartbeatAsked(NamedTuple):
    """A member lives."""

    group: str
    generation: int
    member_id: str
    instance: str | None


def read_heartbeat(asked: KafkaRequest) -> HeartbeatAsked:
    """Raises Malformed."""
    body = asked.body
    return HeartbeatAsked(
        body.name(), body.int32(), body.name(), body.string() if asked.version >= 3 else None
    )


def only_error(asked: KafkaRequest, error: int) -> bytearray:
    """The answer to a heartbeat."""
    answer = asked.throttled(1)
    answer.int16(error)
    return answer.end()


# LeaveGroup


class LeaveAsked(NamedTuple):
    """``members``: (id, instance)."""

    group: str
    members: list[tuple[str, str | None]]


def read_leave(asked: KafkaRequest) -> LeaveAsked:
    """Raises Malformed."""
    body, version = asked.body, asked.version

    def member(reader: WireReader) -> tuple[str, str | None]:
        found = reader.name(), reader.string()
        if version >= 5:
            reader.string()  # why
        return found

    group = body.name()
    if version < 3:
        return LeaveAsked(group, [(body.name(), None)])
    return LeaveAsked(group, body.structs(member) or [])


def left(
    asked: KafkaRequest, error: int, members: Sequence[tuple[str, str | None, int]]
) -> bytearray:
    """The answer with an error of all, and (id, instance, error) of each."""
    answer = asked.throttled(1)
    if asked.version < 3:
        answer.int16(error or members[0][2])
        return answer.end()

    def member(each: tuple[str, str | None, int]) -> None:
        answer.string(each[0])
        answer.string(each[1])
        answer.int16(each[2])

    answer.int16(error)
    answer.structs(members, member)
    return answer.end()


# OffsetCommit


class CommitPlace(NamedTuple):
    """A partition, the offset to read on at, and a text of the client's."""

    partition: int
    offset: int
    metadata: str


class CommitAsked(NamedTuple):
    """``topics``: (name, places)."""

    group: str
    generation: int
    member_id: str
    instance: str | None
    topics: list[tuple[str, list[CommitPlace]]]


def read_offset_commit(asked: KafkaRequest) -> CommitAsked:
    """Raises Malformed."""
    body, version = asked.body, asked.version

    def place(reader: WireReader) -> CommitPlace:
        partition, offset = reader.int32(), reader.int64()
        if version >= 6:
            reader.int32()  # leader's epoch
        return CommitPlace(partition, offset, reader.string() or "")

    group, generation, member_id = body.name(), body.int32(), body.name()
    instance = body.string() if version >= 7 else None
    if version <= 4:
        body.int64()  # for how long to keep it
    return CommitAsked(group, generation, member_id, instance, body.topics(place) or [])


def committed(
    asked: KafkaRequest, topics: Iterable[tuple[str, list[tuple[int, int]]]]
) -> bytearray:
    """The answer with (partition, error) of each topic."""
    answer = asked.throttled(3)

    def partition(each: tuple[int, int]) -> None:
        answer.int32(each[0])
        answer.int16(each[1])

    answer.topics(topics, partition)
    return answer.end()


# OffsetFetch


class CommitsAsked(NamedTuple):
    """The partitions of topics that a group may have committed; None: all that it has."""

    group: str
    topics: list[tuple[str, list[int]]] | None


class CommitSaid(NamedTuple):
    """What a group has committed of a partition; -1: nothing."""

    partition: int
    offset: int = -1
    metadata: str = ""
    error: int = 0


class CommitsSaid(NamedTuple):
    """What a group has committed, or an error."""

    group: str
    error: int
    topics: list[tuple[str, list[CommitSaid]]]


def read_offset_fetch(asked: KafkaRequest) -> list[CommitsAsked]:
    """A group that is named twice is asked for the partitions of both. Raises Malformed."""
    body, version = asked.body, asked.version

    def topic(reader: WireReader) -> tuple[str, list[int]]:
        return reader.name(), reader.array(WireReader.int32) or []

    def group(reader: WireReader) -> CommitsAsked:
        name = reader.name()
        if version >= 9:
            reader.string()  # member, of a protocol that is not served
            reader.int32()
        return CommitsAsked(name, reader.structs(topic))

    if version >= 8:
        once: dict[str, list[tuple[str, list[int]]] | None] = {}
        for name, topics in body.structs(group) or ():
            known = once.setdefault(name, [])
            if known is None or topics is None:
                once[name] = None
            else:
                known += topics
        return [CommitsAsked(name, _once(topics)) for name, topics in once.items()]
    name, topics = body.name(), body.structs(topic)
    return [CommitsAsked(name, _once(topics if version >= 2 else topics or []))]


def _once(topics: list[tuple[str, list[int]]] | None) -> list[tuple[str, list[int]]] | None:
    if topics is None:
        return None
    once: dict[str, dict[int, None]] = {}
    for name, partitions in topics:
        once.setdefault(name, {}).update(dict.fromkeys(partitions))
    return [(name, list(partitions)) for name, partitions in once.items()]


def fetched_offsets(asked: KafkaRequest, groups: Sequence[CommitsSaid]) -> bytearray:
    """The answer with what each group has committed."""
    version, answer = asked.version, asked.throttled(3)

    def partition(each: CommitSaid) -> None:
        answer.int32(each.partition)
        answer.int64(each.offset)
        if version >= 5:
            answer.int32(-1)
        answer.string(each.metadata)
        answer.int16(each.error)

    def group(each: CommitsSaid) -> None:
        answer.string(each.group)
        answer.topics(each.topics, partition)
        answer.int16(each.error)

    if version >= 8:
        answer.structs(groups, group)
    else:
        (only,) = groups
        answer.topics(only.topics, partition)
        if version >= 2:
            answer.int16(only.error)
    return answer.end()


# DescribeGroups, ListGroups, DeleteGroups


class MemberShown(NamedTuple):
    """A member, as tools show it."""

    member_id: str
    instance: str | None
    client_id: str
    host: str
    metadata: bytes
    assignment: bytes


class GroupShown(NamedTuple):
    """A group, as tools show it."""

    group: str
    error: int
    state: str = ""
    protocol_type: str = ""
    protocol: str = ""
    members: Sequence[MemberShown] = ()
    message: str | None = None


def read_groups(asked: KafkaRequest) -> list[str]:
    """Of a DescribeGroups or a DeleteGroups. Raises Malformed."""
    return list(dict.fromkeys(asked.body.array(WireReader.name) or ()))


def described_groups(asked: KafkaRequest, groups: Iterable[GroupShown]) -> bytearray:
    """The answer with all of each group."""
    version, answer = asked.version, asked.throttled(1)

    def member(each: MemberShown) -> None:
        answer.string(each.member_id)
        if version >= 4:
            answer.string(each.instance)
        answer.string(each.client_id)
        answer.string(each.host)
        answer.blob(each.metadata)
        answer.blob(each.assignment)

    def group(each: GroupShown) -> None:
        answer.int16(each.error)
        if version >= 6:
            answer.string(each.message)
        answer.string(each.group)
        answer.string(each.state)
        answer.string(each.protocol_type)
        answer.string(each.protocol)
        answer.structs(each.members, member)
        if version >= 3:
            answer.int32(NO_OPERATIONS)

    answer.structs(groups, group)
    return answer.end()


class GroupsAsked(NamedTuple):
    """Groups in these states and of these types; none: of all."""

    states: list[str]
    types: list[str]


def read_list_groups(asked: KafkaRequest) -> GroupsAsked:
    """Raises Malformed."""
    body, version = asked.body, asked.version
    states = body.array(WireReader.name) if version >= 4 else None
    types = body.array(WireReader.name) if version >= 5 else None
    return GroupsAsked(states or [], types or [])


def listed_groups(asked: KafkaRequest, error: int, groups: Iterable[GroupShown]) -> bytearray:
    """The answer with the name and the state of each group."""
    version, answer = asked.version, asked.throttled(1)

    def group(each: GroupShown) -> None:
        answer.string(each.group)
        answer.string(each.protocol_type)
        if version >= 4:
            answer.string(each.state)
        if version >= 5:
            answer.string("classic")

    answer.int16(error)
    answer.structs(groups, group)
    return answer.end()


def deleted_groups(asked: KafkaRequest, groups: Iterable[tuple[str, int]]) -> bytearray:
    """The answer with the error of each group."""
    answer = asked.throttled()

    def group(each: tuple[str, int]) -> None:
        answer.string(each[0])
        answer.int16(each[1])

    answer.structs(groups, group)
    return answer.end()


# OffsetDelete


class OffsetDeleteAsked(NamedTuple):
    """Partitions of which the commits of a group are to be deleted."""

    group: str
    topics: list[tuple[str, list[int]]]


def read_offset_delete(asked: KafkaRequest) -> OffsetDeleteAsked:
    """Raises Malformed."""

    def topic(reader: WireReader) -> tuple[str, list[int]]:
        return reader.name(), reader.array(WireReader.int32) or []

    return OffsetDeleteAsked(asked.body.name(), asked.body.array(topic) or [])


def deleted_offsets(
    asked: KafkaRequest, error: int, topics: Iterable[tuple[str, list[tuple[int, int]]]]
) -> bytearray:
    """The answer with an error of the group, and (partition, error) of each topic."""
    answer = asked.answer()

    def partition(each: tuple[int, int]) -> None:
        answer.int32(each[0])
        answer.int16(each[1])

    answer.int16(error)
    answer.int32(asked.throttle_ms)
    answer.topics(topics, partition)
    return answer.end()


def subscribed_topics(metadata: bytes) -> set[str] | None:
    """The topics that a member of the type ``consumer`` reads, by what it said when it joined;
    None if that cannot be read."""
    reader = WireReader(metadata)
    try:
        reader.int16()
        return set(reader.array(WireReader.name) or [])
    except Malformed:
        return None
