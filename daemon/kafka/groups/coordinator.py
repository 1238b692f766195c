"""The consumer groups that a shard coordinates: their requests, their time, and their bounds.

A group belongs to one shard, by the hash of its id. What its members agree on is in memory: when a
shard dies, its successor knows nobody, members join again, and go on at what they have committed,
which is in the ledger (``commits.py``). A group is kept while it has members.

Bounds: HELD_BYTES_MAX of groups and members, as ``group.py`` counts them; of one member
MEMBER_BYTES_MAX. Whoever writes the answers (``daemon/kafka/server.py``) bounds those that clients
have not taken.
"""

from __future__ import annotations

import asyncio
from binascii import crc32
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

from daemon.kafka.budget import Breaths
from daemon.kafka.groups import messages
from daemon.kafka.groups.commits import GroupCommits
from daemon.kafka.groups.group import (
    GROUP_BYTES,
    GROUP_MAX_SIZE_REACHED,
    ILLEGAL_GENERATION,
    MEMBER_BYTES,
    NONE,
    NOT_COORDINATOR,
    UNKNOWN_MEMBER_ID,
    ConsumerGroup,
    Joined,
    Joining,
    Synced,
)
from daemon.kafka.groups.messages import (
    CommitSaid,
    CommitsAsked,
    CommitsSaid,
    CoordinatorSaid,
    GroupShown,
    MemberShown,
)
from daemon.kafka.topics import (
    POLICY_VIOLATION,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
    KafkaTopics,
)
from daemon.kafka.wire import KafkaRequest, Key
from daemon.schemas.errors import ApiError
from ledger.delivery.group_commits import GroupCommit, RefusedCommits
from ledger.errors import LedgerError

OFFSET_OUT_OF_RANGE = 1
OFFSET_METADATA_TOO_LARGE = 12
COORDINATOR_NOT_AVAILABLE = 15
INVALID_GROUP_ID = 24
INVALID_REQUEST = 42
NON_EMPTY_GROUP = 68
GROUP_ID_NOT_FOUND = 69

GROUP_ID_CHARACTERS_MAX = 255
METADATA_BYTES_MAX = 4_096  # of a commit, as Kafka has it
MEMBER_BYTES_MAX = 1 << 20
HELD_BYTES_MAX = 16 << 20
# The groups, and the longest answer, which has all of them and is there twice when it is written.
BYTES_MAX = 3 * HELD_BYTES_MAX


class Said(NamedTuple):
    """An answer that is not made yet: about how many bytes and items it has."""

    size: int
    items: int
    make: Callable[[], bytearray]


Turn = Callable[[], Awaitable[Said]]

READERS: dict[int, Callable[[KafkaRequest], Any]] = {
    Key.FIND_COORDINATOR: messages.read_find_coordinator,
    Key.JOIN_GROUP: messages.read_join,
    Key.SYNC_GROUP: messages.read_sync,
    Key.HEARTBEAT: messages.read_heartbeat,
    Key.LEAVE_GROUP: messages.read_leave,
    Key.OFFSET_COMMIT: messages.read_offset_commit,
    Key.OFFSET_FETCH: messages.read_offset_fetch,
    Key.DESCRIBE_GROUPS: messages.read_describe_groups,
    Key.LIST_GROUPS: messages.read_list_groups,
    Key.DELETE_GROUPS: messages.read_delete_groups,
}


class Coordinator:
    """The groups of one shard. ``new_id`` gives what no other member is named by."""

    def __init__(
        self,
        shard: int,
        names: KafkaTopics,
        commits: GroupCommits,
        new_id: Callable[[], str],
        monotonic_ns: Callable[[], int],
    ) -> None:
        self._shard = shard
        self._names = names
        self._commits = commits
        self._new_id = new_id
        self._monotonic_ns = monotonic_ns
        self._groups: dict[str, ConsumerGroup] = {}
        self._held: dict[str, int] = {}
        self._held_bytes = 0
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._has_ended = False

    def begin(self, head: KafkaRequest, asked: Any, host: str, peer: str) -> Turn:
        """Takes what the reader of a request has read. Its client is at ``peer``, and has reached
        this shard at ``host``."""
        if head.key == Key.FIND_COORDINATOR:
            return partial(self._find, head, asked, host)
        if head.key == Key.JOIN_GROUP:
            return partial(self._joined, head, self._join(asked, peer))
        if head.key == Key.SYNC_GROUP:
            return partial(self._synced, head, self._sync(asked))
        turns: dict[int, Callable[[KafkaRequest, Any], Awaitable[Said]]] = {
            Key.HEARTBEAT: self._heartbeat,
            Key.LEAVE_GROUP: self._leave,
            Key.OFFSET_COMMIT: self._commit,
            Key.OFFSET_FETCH: self._fetch_offsets,
            Key.DESCRIBE_GROUPS: self._describe,
            Key.LIST_GROUPS: self._list,
            Key.DELETE_GROUPS: self._delete,
        }
        return partial(turns[head.key], head, asked)

    def close(self) -> None:
        """Sends all members away, and coordinates nothing any more."""
        self._has_ended = True
        for name, group in list(self._groups.items()):
            group.end()
            self._settle(name, group)

    # Members

    def _join(self, asked: messages.JoinAsked, peer: str) -> asyncio.Future[Joined]:
        """At its arrival, so that what it holds is counted."""
        name, joining = asked
        client_id = joining.client_id[:GROUP_ID_CHARACTERS_MAX]
        joining = joining._replace(client_id=client_id, host=peer)
        waiter: asyncio.Future[Joined] = asyncio.get_running_loop().create_future()
        error = self._error_of(name)
        if not error and not self._has_room(name, joining):
            error = GROUP_MAX_SIZE_REACHED
        if error:
            waiter.set_result(Joined(error, joining.member_id))
            return waiter
        group = self._groups.setdefault(name, ConsumerGroup())
        new_id = f"{joining.client_id[:64] or 'consumer'}-{self._new_id()}"
        group.join(joining, new_id, waiter, self._now_ms())
        self._settle(name, group)
        return waiter

    async def _joined(self, head: KafkaRequest, waiter: asyncio.Future[Joined]) -> Said:
        said = await waiter
        size = sum(len(each.metadata) + 2 * len(each.member_id) + 100 for each in said.members)
        return Said(size, len(said.members), partial(messages.joined, head, said))

    def _sync(self, asked: messages.SyncAsked) -> asyncio.Future[Synced]:
        waiter: asyncio.Future[Synced] = asyncio.get_running_loop().create_future()
        group, error = self._found(asked.group)
        size = sum(map(len, asked.assignments.values()))
        if not error and self._held_bytes + size > HELD_BYTES_MAX:
            error = GROUP_MAX_SIZE_REACHED
        if group is None or error:
            waiter.set_result(Synced(error))
            return waiter
        group.sync(
            asked.member_id, asked.instance, asked.generation, asked.protocols, asked.assignments,
            waiter, self._now_ms(),
        )  # fmt: skip
        self._settle(asked.group, group)
        return waiter

    async def _synced(self, head: KafkaRequest, waiter: asyncio.Future[Synced]) -> Said:
        said = await waiter
        return Said(len(said.assignment), 0, partial(messages.synced, head, said))

    async def _heartbeat(self, head: KafkaRequest, asked: messages.HeartbeatAsked) -> Said:
        group, error = self._found(asked.group)
        if group is not None:
            error = group.heartbeat(
                asked.member_id, asked.instance, asked.generation, self._now_ms()
            )
        return Said(0, 0, partial(messages.only_error, head, error))

    async def _leave(self, head: KafkaRequest, asked: messages.LeaveAsked) -> Said:
        group, error = self._found(asked.group)
        members: list[tuple[str, str | None, int]] = []
        for member_id, instance in asked.members:
            if group is not None:
                error_of = group.leave(member_id, instance, self._now_ms())
            else:
                error_of = error
            members.append((member_id, instance, error_of))
        if group is not None:
            self._settle(asked.group, group)
        general = NONE if error == UNKNOWN_MEMBER_ID else error
        return Said(0, len(members), partial(messages.left, head, general, members))

    # Offsets

    async def _commit(self, head: KafkaRequest, asked: messages.CommitAsked) -> Said:
        wanted: list[tuple[str, list[tuple[int, int]]]] = []
        commits: list[GroupCommit] = []
        ids: dict[str, int] = {}
        breaths = Breaths()
        for name, places in asked.topics:
            await breaths.item()
            try:
                entry = await self._names.entry(name)
            except ApiError:
                wanted.append((name, [(each.partition, UNKNOWN_TOPIC_OR_PARTITION)
                                      for each in places]))  # fmt: skip
                continue
            ids[name] = entry.topic_id
            some: list[tuple[int, int]] = []
            for place in places:
                await breaths.item()
                error = _error_of_place(place, entry.partitions)
                some.append((place.partition, error))
                if not error:
                    commits.append(GroupCommit(asked.group, entry.topic_id, *place))
            wanted.append((name, some))
        # No await from here on until they wait to be written.
        error = self._may_commit(asked)
        if error:
            wanted = [(name, [(each.partition, error) for each in places])
                      for name, places in asked.topics]  # fmt: skip
            return _committed(head, wanted)
        try:
            refused = await self._commits.put(commits)
        except LedgerError:
            wanted = [(name, [(each, error or COORDINATOR_NOT_AVAILABLE) for each, error in some])
                      for name, some in wanted]  # fmt: skip
        else:
            wanted = [
                (name, [(each, error or _error_of_topic(refused, asked.group, ids[name]))
                        for each, error in some] if name in ids else some)
                for name, some in wanted
            ]  # fmt: skip
        return _committed(head, wanted)

    def _may_commit(self, asked: messages.CommitAsked) -> int:
        error = self._error_of(asked.group)
        if error:
            return error
        group = self._groups.get(asked.group)
        if group is None:
            return ILLEGAL_GENERATION if asked.generation >= 0 else NONE
        return group.may_commit(asked.member_id, asked.instance, asked.generation, self._now_ms())

    async def _fetch_offsets(self, head: KafkaRequest, asked: list[CommitsAsked]) -> Said:
        said = [await self._committed(each) for each in asked]
        size = sum(len(each.metadata) + 40 for one in said for _, some in one.topics
                   for each in some)  # fmt: skip
        items = sum(1 + len(some) for one in said for _, some in one.topics)
        return Said(size, items, partial(messages.fetched_offsets, head, said))

    async def _committed(self, asked: CommitsAsked) -> CommitsSaid:
        error = self._error_of(asked.group)
        if error:
            return _no_offsets(asked, error)
        try:
            if asked.topics is None:
                ids = dict(await self._commits.topics_of(asked.group))
            else:
                ids = {}
                for name, _ in asked.topics:
                    try:
                        ids[name] = (await self._names.entry(name)).topic_id
                    except ApiError:
                        continue  # nothing is committed
            found = await self._commits.of_topics(asked.group, list(ids.values()))
        except LedgerError:
            return _no_offsets(asked, COORDINATOR_NOT_AVAILABLE)
        if asked.topics is None:
            by_id: dict[int, list[CommitSaid]] = {}
            for (topic_id, partition), (offset, metadata) in found.items():
                by_id.setdefault(topic_id, []).append(CommitSaid(partition, offset, metadata))
            topics = [(name, by_id.get(topic_id, [])) for name, topic_id in ids.items()]
        else:
            topics = [
                (name, [CommitSaid(each, *found.get((ids.get(name, 0), each), (-1, "")))
                        for each in partitions])
                for name, partitions in asked.topics
            ]  # fmt: skip
        return CommitsSaid(asked.group, NONE, topics)

    # Tools

    async def _find(self, head: KafkaRequest, asked: messages.CoordinatorsAsked, host: str) -> Said:
        brokers = self._names.brokers(host)

        def one(key: str) -> CoordinatorSaid:
            if asked.kind != messages.CONSUMERS:
                is_producer = asked.kind == messages.TRANSACTIONS
                error = TRANSACTIONAL_ID_AUTHORIZATION_FAILED if is_producer else INVALID_REQUEST
                return CoordinatorSaid(
                    key, error, message="only consumer groups have coordinators here"
                )
            if not _is_group_id(key):
                return CoordinatorSaid(key, INVALID_GROUP_ID, message="not the id of a group")
            return CoordinatorSaid(key, NONE, brokers[self._shard_of(key)])

        said = [one(key) for key in asked.keys]
        size = sum(len(each.key) + len(host) + 100 for each in said)
        return Said(size, len(said), partial(messages.found_coordinators, head, said))

    async def _describe(self, head: KafkaRequest, asked: list[str]) -> Said:
        groups = [await self._shown(name, head.version) for name in asked]
        size = sum(
            len(each.metadata) + len(each.assignment) + 200
            for group in groups for each in group.members
        )  # fmt: skip
        items = sum(1 + len(group.members) for group in groups)
        return Said(size, items, partial(messages.described_groups, head, groups))

    async def _shown(self, name: str, version: int) -> GroupShown:
        error = self._error_of(name)
        if error:
            return GroupShown(name, error)
        group = self._groups.get(name)
        if group is None:
            try:
                is_there = bool(await self._commits.topics_of(name))
            except LedgerError:
                return GroupShown(name, COORDINATOR_NOT_AVAILABLE)
            if is_there:
                return GroupShown(name, NONE, "Empty", "consumer")
            if version >= 6:
                return GroupShown(
                    name, GROUP_ID_NOT_FOUND, "Dead", message="there is no such group"
                )
            return GroupShown(name, NONE, "Dead")
        return GroupShown(
            name, NONE, group.state.value, group.protocol_type or "", group.protocol or "",
            [
                MemberShown(each.member_id, each.said.instance, each.said.client_id, each.said.host,
                            each.metadata(group.protocol), each.assignment)
                for each in group.members.values()
            ],
        )  # fmt: skip

    async def _list(self, head: KafkaRequest, asked: messages.GroupsAsked) -> Said:
        found = [
            GroupShown(name, NONE, group.state.value, group.protocol_type or "")
            for name, group in self._groups.items()
        ]
        error = NOT_COORDINATOR if self._has_ended else NONE
        try:
            committed = await self._commits.groups()
        except LedgerError:
            committed, error = set(), COORDINATOR_NOT_AVAILABLE
        found += [
            GroupShown(name, NONE, "Empty", "consumer")
            for name in sorted(committed - self._groups.keys())
            if self._shard_of(name) == self._shard
        ]
        states = {each.lower() for each in asked.states}
        types = {each.lower() for each in asked.types}
        if types and "classic" not in types:
            found = []
        shown = [each for each in found if not states or each.state.lower() in states]
        size = sum(len(each.group) + 60 for each in shown)
        return Said(size, len(shown), partial(messages.listed_groups, head, error, shown))

    async def _delete(self, head: KafkaRequest, asked: list[str]) -> Said:
        outcomes = [(name, await self._deleted(name)) for name in asked]
        return Said(0, len(outcomes), partial(messages.deleted_groups, head, outcomes))

    async def _deleted(self, name: str) -> int:
        error = self._error_of(name)
        if error:
            return error
        if name in self._groups:
            return NON_EMPTY_GROUP
        try:
            return NONE if await self._commits.delete(name) else GROUP_ID_NOT_FOUND
        except LedgerError:
            return COORDINATOR_NOT_AVAILABLE

    # Groups

    def _now_ms(self) -> int:
        return self._monotonic_ns() // 1_000_000

    def _shard_of(self, name: str) -> int:
        return crc32(name.encode()) % self._names.shards

    def _error_of(self, name: str) -> int:
        if not _is_group_id(name):
            return INVALID_GROUP_ID
        if self._has_ended or self._shard_of(name) != self._shard:
            return NOT_COORDINATOR
        return NONE

    def _found(self, name: str) -> tuple[ConsumerGroup | None, int]:
        """A group, or why a member of it is not known."""
        error = self._error_of(name)
        if error:
            return None, error
        group = self._groups.get(name)
        return group, NONE if group is not None else UNKNOWN_MEMBER_ID

    def _has_room(self, name: str, joining: Joining) -> bool:
        texts = len(joining.member_id) + len(joining.instance or "") + len(joining.protocol_type)
        size = (
            MEMBER_BYTES
            + 4 * texts
            + sum(100 + len(protocol) + len(metadata) for protocol, metadata in joining.protocols)
        )
        if name not in self._groups:
            size += GROUP_BYTES
        return size <= MEMBER_BYTES_MAX and self._held_bytes + size <= HELD_BYTES_MAX

    def _settle(self, name: str, group: ConsumerGroup) -> None:
        """After each step of a group but heartbeats, which only put its time off: passes its
        answers on, and notes what it holds and when it is to be looked at."""
        for waiter, answer in group.answers:
            assert isinstance(waiter, asyncio.Future)
            if not waiter.done():  # its client is there
                waiter.set_result(answer)
        group.answers.clear()
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()
        held_bytes = 0 if group.is_vacant else group.held_bytes
        self._held_bytes += held_bytes - self._held.pop(name, 0)
        if group.is_vacant:
            self._groups.pop(name, None)
            return
        self._held[name] = held_bytes
        next_ms = group.next_ms()
        if next_ms is not None:
            self._timers[name] = asyncio.get_running_loop().call_later(
                max(0, next_ms - self._now_ms()) / 1_000, self._advance, name, group
            )

    def _advance(self, name: str, group: ConsumerGroup) -> None:
        group.advance(self._now_ms())
        self._settle(name, group)


def _committed(head: KafkaRequest, topics: list[tuple[str, list[tuple[int, int]]]]) -> Said:
    items = sum(1 + len(some) for _, some in topics)
    size = sum(len(name) + 12 * len(some) for name, some in topics)
    return Said(size, items, partial(messages.committed, head, topics))


def _is_group_id(name: str) -> bool:
    return 0 < len(name) <= GROUP_ID_CHARACTERS_MAX and name.isprintable()


def _error_of_place(place: messages.CommitPlace, partitions: int) -> int:
    if not 0 <= place.partition < partitions:
        return UNKNOWN_TOPIC_OR_PARTITION
    if place.offset < 0:
        return OFFSET_OUT_OF_RANGE
    if len(place.metadata.encode()) > METADATA_BYTES_MAX:
        return OFFSET_METADATA_TOO_LARGE
    return NONE


def _error_of_topic(refused: RefusedCommits, group: str, topic_id: int) -> int:
    if topic_id in refused.topics:
        return UNKNOWN_TOPIC_OR_PARTITION
    return POLICY_VIOLATION if (group, topic_id) in refused.full else NONE


def _no_offsets(asked: CommitsAsked, error: int) -> CommitsSaid:
    topics = [
        (name, [CommitSaid(each, error=error) for each in partitions])
        for name, partitions in asked.topics or ()
    ]
    return CommitsSaid(asked.group, error, topics)
