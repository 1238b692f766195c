"""The consumer groups that a shard coordinates: their requests, their time, and their bounds.

A group belongs to one shard, by the hash of its id. What its members agree on is in memory. When a
shard dies, its successor knows no members: they join again, and continue after what they have
committed, which is in the ledger (``commits.py``). A group is kept while it has members.

Bounds: HELD_BYTES_MAX of groups and members, as ``group.py`` counts them, and OF_TOKEN_BYTES_MAX of
the groups that the bearers of one token have begun; of one member MEMBER_BYTES_MAX; of an answer
SAID_BYTES_MAX, and the group with which it gets longer. Whoever writes the answers
(``daemon/kafka/server.py``) bounds those that clients have not taken.
"""

from __future__ import annotations

import asyncio
from binascii import crc32
from collections import Counter
from collections.abc import Callable
from functools import partial

from daemon.intake.object_limits import ObjectLimits
from daemon.kafka.budget import Breaths, Said
from daemon.kafka.error_codes import (
    COORDINATOR_NOT_AVAILABLE,
    GROUP_ID_NOT_FOUND,
    GROUP_MAX_SIZE_REACHED,
    GROUP_SUBSCRIBED_TO_TOPIC,
    ILLEGAL_GENERATION,
    INVALID_GROUP_ID,
    INVALID_REQUEST,
    NON_EMPTY_GROUP,
    NONE,
    NOT_COORDINATOR,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    UNKNOWN_MEMBER_ID,
)
from daemon.kafka.groups import messages
from daemon.kafka.groups.commits import GroupCommits
from daemon.kafka.groups.group import (
    GROUP_BYTES,
    ConsumerGroup,
    GroupMember,
    Joined,
    Joining,
    Synced,
)
from daemon.kafka.groups.messages import CoordinatorSaid, GroupShown, MemberShown
from daemon.kafka.groups.offsets import SAID_BYTES_MAX, GroupOffsets
from daemon.kafka.rights import Allowed
from daemon.kafka.topics import KafkaTopics, missing
from daemon.kafka.wire import KafkaRequest
from daemon.schemas.errors import ApiError
from ledger.errors import LedgerError

GROUP_ID_CHARACTERS_MAX = 255
MEMBER_BYTES_MAX = 1 << 20
HELD_BYTES_MAX = 16 << 20
OF_TOKEN_BYTES_MAX = HELD_BYTES_MAX // 2
# The groups, and the longest answer, which has all of them and is there twice when it is written.
BYTES_MAX = 3 * HELD_BYTES_MAX


class Coordinator:
    """The groups of one shard. ``new_id`` makes an id that no other member has."""

    def __init__(
        self,
        shard: int,
        names: KafkaTopics,
        commits: GroupCommits,
        new_id: Callable[[], str],
        monotonic_ns: Callable[[], int],
        objects: ObjectLimits | None = None,
    ) -> None:
        self._shard = shard
        self._names = names
        self._commits = commits
        self.offsets = GroupOffsets(names, commits, self._error_of, self._may_commit, objects)
        self._new_id = new_id
        self._monotonic_ns = monotonic_ns
        self._groups: dict[str, ConsumerGroup] = {}
        self._held: dict[str, int] = {}
        self._held_bytes = 0
        self._begun_by: dict[str, str] = {}  # a token, where there are any
        self._of_tokens = Counter[str]()  # the bytes of the groups that they have begun
        self._counted: dict[str, int] = {}  # members
        self._members = 0
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._has_ended = False

    def close(self) -> None:
        """Sends all members away, and coordinates nothing any more."""
        self._has_ended = True
        for name, group in list(self._groups.items()):
            group.end()
            self._settle(name, group)

    # Members

    async def join(self, head: KafkaRequest, asked: messages.JoinAsked, allowed: Allowed) -> Said:
        """Answers a JoinGroup, when the generation begins."""
        said = await self._join(asked, allowed)
        size = sum(len(each.metadata) + 2 * len(each.member_id) + 100 for each in said.members)
        return Said(size, len(said.members), partial(messages.joined, head, said))

    def _join(self, asked: messages.JoinAsked, allowed: Allowed) -> asyncio.Future[Joined]:
        name, joining = asked
        client_id = joining.client_id[:GROUP_ID_CHARACTERS_MAX]
        joining = joining._replace(client_id=client_id, host=allowed.address)
        waiter: asyncio.Future[Joined] = asyncio.get_running_loop().create_future()
        new_id = f"{joining.client_id[:64] or 'consumer'}-{self._new_id()}"
        error = self._error_of(name, allowed)
        token = self._begun_by.get(name) if name in self._groups else _token_of(allowed)
        if not error and not self._has_room(name, joining, new_id, token):
            error = GROUP_MAX_SIZE_REACHED
        if error:
            waiter.set_result(Joined(error, joining.member_id))
            return waiter
        group = self._groups.setdefault(name, ConsumerGroup())
        if token is not None:
            self._begun_by[name] = token
        group.join(joining, new_id, waiter, self._now_ms())
        self._settle(name, group)
        return waiter

    async def sync(self, head: KafkaRequest, asked: messages.SyncAsked, allowed: Allowed) -> Said:
        """Answers a SyncGroup, when the leader has said who reads what."""
        said = await self._sync(asked, allowed)
        return Said(len(said.assignment), 0, partial(messages.synced, head, said))

    def _sync(self, asked: messages.SyncAsked, allowed: Allowed) -> asyncio.Future[Synced]:
        waiter: asyncio.Future[Synced] = asyncio.get_running_loop().create_future()
        group, error = self._found(asked.group, allowed)
        size = sum(map(len, asked.assignments.values()))
        if not error and not self._may_hold(size, self._begun_by.get(asked.group)):
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

    async def heartbeat(
        self, head: KafkaRequest, asked: messages.HeartbeatAsked, allowed: Allowed
    ) -> Said:
        """Answers a Heartbeat."""
        group, error = self._found(asked.group, allowed)
        if group is not None:
            error = group.heartbeat(
                asked.member_id, asked.instance, asked.generation, self._now_ms()
            )
        return Said(0, 0, partial(messages.only_error, head, error))

    async def leave(self, head: KafkaRequest, asked: messages.LeaveAsked, allowed: Allowed) -> Said:
        """Answers a LeaveGroup."""
        group, error = self._found(asked.group, allowed)
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

    def _may_commit(self, asked: messages.CommitAsked, allowed: Allowed) -> int:
        error = self._error_of(asked.group, allowed)
        if error:
            return error
        group = self._groups.get(asked.group)
        if group is None:
            return ILLEGAL_GENERATION if asked.generation >= 0 else NONE
        return group.may_commit(asked.member_id, asked.instance, asked.generation, self._now_ms())

    # Tools

    async def find(
        self, head: KafkaRequest, asked: messages.CoordinatorsAsked, allowed: Allowed
    ) -> Said:
        """Answers a FindCoordinator."""
        brokers = self._names.brokers(head.host)

        def one(key: str) -> CoordinatorSaid:
            if asked.kind != messages.CONSUMERS:
                is_producer = asked.kind == messages.TRANSACTIONS
                error = TRANSACTIONAL_ID_AUTHORIZATION_FAILED if is_producer else INVALID_REQUEST
                return CoordinatorSaid(
                    key, error, message="only consumer groups have coordinators here"
                )
            if not _is_group_id(key):
                return CoordinatorSaid(key, INVALID_GROUP_ID, message="not the id of a group")
            error = allowed.error_of_group(key)
            if error:
                return CoordinatorSaid(key, error, message="the token is not for this group")
            return CoordinatorSaid(key, NONE, brokers[self._shard_of(key)])

        said = [one(key) for key in asked.keys]
        size = sum(len(each.key) + len(each.broker.host) + 100 for each in said)
        return Said(size, len(said), partial(messages.found_coordinators, head, said))

    async def describe(self, head: KafkaRequest, asked: list[str], allowed: Allowed) -> Said:
        """Answers a DescribeGroups."""
        breaths, groups, size, items = Breaths(), list[GroupShown](), 0, 0
        for name in asked:
            await breaths.item()
            if size < SAID_BYTES_MAX:
                one = await self._shown(name, head.version, allowed)
            else:
                why = "the answer is too long already; ask for this group again"
                one = GroupShown(name, COORDINATOR_NOT_AVAILABLE, message=why)
            groups.append(one)
            items += 1 + len(one.members)
            for each in one.members:
                await breaths.item()
                size += len(each.metadata) + len(each.assignment) + len(each.instance or "") + 200
        return Said(size, items, partial(messages.described_groups, head, groups))

    async def _shown(self, name: str, version: int, allowed: Allowed) -> GroupShown:
        error = self._error_of(name, allowed)
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

    async def list_groups(
        self, head: KafkaRequest, asked: messages.GroupsAsked, allowed: Allowed
    ) -> Said:
        """Answers a ListGroups."""
        found = [
            GroupShown(name, NONE, group.state.value, group.protocol_type or "")
            for name, group in self._groups.items()
        ]
        error = allowed.error_of_cluster() or (NOT_COORDINATOR if self._has_ended else NONE)
        try:
            committed = await self._commits.groups()
        except LedgerError:
            committed, error = set(), COORDINATOR_NOT_AVAILABLE
        found += [
            GroupShown(name, NONE, "Empty", "consumer")
            for name in sorted(committed - self._groups.keys())
            if self.is_ours(name)
        ]
        states = {each.lower() for each in asked.states}
        types = {each.lower() for each in asked.types}
        if types and "classic" not in types:
            found = []
        shown = [
            each for each in found
            if (not states or each.state.lower() in states) and allowed.covers(each.group)
        ]  # fmt: skip
        size = sum(len(each.group) + 60 for each in shown)
        return Said(size, len(shown), partial(messages.listed_groups, head, error, shown))

    async def delete(self, head: KafkaRequest, asked: list[str], allowed: Allowed) -> Said:
        """Answers a DeleteGroups."""
        outcomes = [(name, await self._deleted(name, allowed)) for name in asked]
        return Said(0, len(outcomes), partial(messages.deleted_groups, head, outcomes))

    async def _deleted(self, name: str, allowed: Allowed) -> int:
        error = self._error_of(name, allowed)
        if error:
            return error
        if name in self._groups:
            return NON_EMPTY_GROUP
        try:
            with allowed.change(name):
                return NONE if await self._commits.delete(name) else GROUP_ID_NOT_FOUND
        except (LedgerError, ApiError):
            return COORDINATOR_NOT_AVAILABLE

    async def delete_offsets(
        self, head: KafkaRequest, asked: messages.OffsetDeleteAsked, allowed: Allowed
    ) -> Said:
        """Answers an OffsetDelete."""
        error, read = self._error_of(asked.group, allowed), self._topics_read(asked.group)
        if not error and read is None:
            error = NON_EMPTY_GROUP
        topics: list[tuple[str, list[tuple[int, int]]]] = []
        places: dict[int, set[int]] = {}
        for name, partitions in asked.topics if not error else ():
            code = GROUP_SUBSCRIBED_TO_TOPIC if name in (read or ()) else NONE
            try:
                topic_id = (await self._names.entry(name, allowed)).topic_id
            except ApiError as refusal:
                code = missing(refusal)
            if not code:
                places.setdefault(topic_id, set()).update(partitions)
            topics.append((name, [(each, code) for each in partitions]))
        if not error:
            try:
                with allowed.change(asked.group):
                    if not await self._commits.delete_places(asked.group, places):
                        error = NONE if asked.group in self._groups else GROUP_ID_NOT_FOUND
            except (LedgerError, ApiError):
                error = COORDINATOR_NOT_AVAILABLE
        said = [] if error else topics
        items = sum(1 + len(some) for _, some in said)
        return Said(0, items, partial(messages.deleted_offsets, head, error, said))

    def _topics_read(self, name: str) -> set[str] | None:
        """The topics that members of a group read; None if that is not known."""
        group, found = self._groups.get(name), set[str]()
        if group is None:
            return found
        for each in group.members.values():
            topics = messages.subscribed_topics(each.metadata(group.protocol))
            if group.protocol_type != "consumer" or group.protocol is None or topics is None:
                return None
            found |= topics
        return found

    # Groups

    def has_members(self, name: str) -> bool:
        """Whether a group has members here."""
        return name in self._groups

    def is_ours(self, name: str) -> bool:
        """Whether this shard coordinates a group."""
        return self._shard_of(name) == self._shard

    @property
    def counts(self) -> tuple[int, int]:
        """How many groups have members, and how many these are."""
        return len(self._counted), self._members

    def _now_ms(self) -> int:
        return self._monotonic_ns() // 1_000_000

    def _shard_of(self, name: str) -> int:
        return crc32(name.encode()) % self._names.shards

    def _error_of(self, name: str, allowed: Allowed) -> int:
        if not _is_group_id(name):
            return INVALID_GROUP_ID
        error = allowed.error_of_group(name)
        if error:
            return error
        if self._has_ended or not self.is_ours(name):
            return NOT_COORDINATOR
        return NONE

    def _found(self, name: str, allowed: Allowed) -> tuple[ConsumerGroup | None, int]:
        """A group, or why a member of it is not known."""
        error = self._error_of(name, allowed)
        if error:
            return None, error
        group = self._groups.get(name)
        return group, NONE if group is not None else UNKNOWN_MEMBER_ID

    def _may_hold(self, more: int, token: str | None) -> bool:
        return self._held_bytes + more <= HELD_BYTES_MAX and (
            token is None or self._of_tokens[token] + more <= OF_TOKEN_BYTES_MAX
        )

    def _has_room(self, name: str, joining: Joining, new_id: str, token: str | None) -> bool:
        size = GroupMember(joining.member_id or new_id, joining).held_bytes
        group = self._groups.get(name)
        more = size + GROUP_BYTES if group is None else size - group.replaced_bytes(joining)
        return size <= MEMBER_BYTES_MAX and self._may_hold(more, token)

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
        more = held_bytes - self._held.pop(name, 0)
        self._held_bytes += more
        token = self._begun_by.get(name)
        if token is not None:
            self._of_tokens[token] += more
            if not self._of_tokens[token]:
                del self._of_tokens[token]
        self._members += len(group.members) - self._counted.pop(name, 0)
        if group.members:
            self._counted[name] = len(group.members)
        if group.is_vacant:
            self._groups.pop(name, None)
            self._begun_by.pop(name, None)
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


def _token_of(allowed: Allowed) -> str | None:
    token = allowed.rights.token
    return None if token is None else token.id


def _is_group_id(name: str) -> bool:
    return 0 < len(name) <= GROUP_ID_CHARACTERS_MAX and name.isprintable()
