"""A consumer group of Kafka: its members agree on who reads what, in generations.

The rules are those of Kafka's own coordinator. States::

    EMPTY -> PREPARING: a member joins; others have until the rebalance timeout to join again
    PREPARING -> COMPLETING: all have joined, or those that have not are out; a generation begins
    COMPLETING -> STABLE: the leader has sent who gets what
    COMPLETING, STABLE -> PREPARING: a member joins, leaves, or is silent for its session
    any -> EMPTY: nobody is left;  any -> DEAD: this shard does not coordinate it any more

A *waiter* is whoever waits for the answer to a join or a sync. Calls put answers, with their
waiters, into ``answers``; whoever calls takes them out. Nothing here reads a clock or does I/O:
``now_ms`` only grows, and ``advance`` is to be called at ``next_ms``.

- A member has at most one waiter of a kind: a later request replaces it, and the former one is told
  REBALANCE_IN_PROGRESS (its client has given it up).
- In PREPARING no member waits for a sync, in STABLE and EMPTY nobody waits at all.
- Only a member with the current generation commits offsets, and none while COMPLETING: it has been
  told to read from its new partitions.
- A member that waits does not expire, since its client cannot send heartbeats. One that has never
  been in a generation expires nonetheless, after NEW_MEMBER_MS: its client may be gone.
- A static member (with an ``instance`` id) that comes again takes its former place without a
  rebalance, and fences the former one. It may be away for the length of its session.
- ``held_bytes`` is what the group takes in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from daemon.kafka.error_codes import (
    FENCED_INSTANCE_ID,
    GROUP_MAX_SIZE_REACHED,
    ILLEGAL_GENERATION,
    INCONSISTENT_GROUP_PROTOCOL,
    INVALID_SESSION_TIMEOUT,
    MEMBER_ID_REQUIRED,
    NONE,
    NOT_COORDINATOR,
    REBALANCE_IN_PROGRESS,
    UNKNOWN_MEMBER_ID,
)

SESSION_MIN_MS = 1_000
SESSION_MAX_MS = 1_800_000  # as Kafka has it
NEW_MEMBER_MS = 300_000  # as Kafka has it
FIRST_REBALANCE_MS = 500  # consumers that start together get one generation; Kafka waits for 3 s
MEMBERS_MAX = 1_000  # some steps look at all of them
PROTOCOLS_MAX = 64
GROUP_BYTES = 2_000
MEMBER_BYTES = 2_000  # measured: 1.3 KB without its texts

Waiter = Hashable
Protocols = tuple[tuple[str, bytes], ...]


class State(Enum):
    """The values are Kafka's names."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Joining(NamedTuple):
    """What a member asks to join with. ``protocols``: names, the preferred first, with metadata."""

    member_id: str
    instance: str | None
    client_id: str
    host: str
    session_ms: int
    rebalance_ms: int
    protocol_type: str
    protocols: Protocols
    needs_known_id: bool = False  # versions that join again with the id that they are given
    may_skip_assignment: bool = False


class MemberSaid(NamedTuple):
    """A member, as its leader is told of it."""

    member_id: str
    instance: str | None
    metadata: bytes


class Joined(NamedTuple):
    """The answer to a join."""

    error: int
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: Sequence[MemberSaid] = ()
    skip_assignment: bool = False


class Synced(NamedTuple):
    """The answer to a sync: what this member reads."""

    error: int
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class GroupMember:
    """One member; its texts and metadata are the client's."""

    __slots__ = (
        "assignment", "expires_ms", "has_to_sync", "is_new", "joining", "member_id", "said",
        "syncing",
    )  # fmt: skip

    def __init__(self, member_id: str, said: Joining) -> None:
        self.member_id = member_id
        self.said = said
        self.assignment = b""
        self.expires_ms = 0
        self.is_new = True  # has never been in a generation
        self.has_to_sync = False
        self.joining: Waiter | None = None
        self.syncing: Waiter | None = None

    @property
    def may_expire(self) -> bool:
        """Whether it is expected to send something."""
        return self.is_new or (self.joining is None and self.syncing is None)

    @property
    def held_bytes(self) -> int:
        """What it takes in memory."""
        said = self.said
        texts = len(self.member_id) + len(said.client_id) + len(said.host)
        texts += len(said.instance or "") + len(said.protocol_type)
        protocols = sum(100 + len(name) + len(metadata) for name, metadata in said.protocols)
        return MEMBER_BYTES + 4 * texts + protocols + len(self.assignment)

    def metadata(self, protocol: str | None) -> bytes:
        """What it said with this protocol."""
        return dict(self.said.protocols).get(protocol or "", b"")


class ConsumerGroup:
    """One group."""

    def __init__(self) -> None:
        self.state = State.EMPTY
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, GroupMember] = {}
        self.answers: list[tuple[Waiter, Joined | Synced]] = []
        self._given: dict[str, int] = {}  # ids that were given and have not joined, until when
        self._static: dict[str, str] = {}
        self._rebalance_ends_ms: int | None = None
        self._is_first_rebalance = False
        self._sync_ends_ms: int | None = None

    # What clients ask for

    def join(self, asked: Joining, new_id: str, waiter: Waiter, now_ms: int) -> None:
        """A member joins, under ``new_id`` if it has none. The answer comes when the generation
        begins, or immediately."""
        refusal = self._refusal(asked)
        if refusal:
            self._say(waiter, Joined(refusal, asked.member_id))
        elif not self._has_place(asked.member_id):
            self._say(waiter, Joined(GROUP_MAX_SIZE_REACHED, asked.member_id))
        elif not asked.member_id:
            self._join_new(asked, new_id, waiter, now_ms)
        else:
            self._join_known(asked, waiter, now_ms)
        self._complete_if_all_joined(now_ms)

    def sync(
        self,
        member_id: str,
        instance: str | None,
        generation: int,
        protocols: tuple[str | None, str | None],
        assignments: Mapping[str, bytes],
        waiter: Waiter,
        now_ms: int,
    ) -> None:
        """A member asks for its part. The leader's ``assignments`` say who gets what.
        ``protocols``: the type and the name that it believes were chosen."""
        error = self._error_of(member_id, instance, generation)
        chosen = (self.protocol_type, self.protocol)
        if not error and any(
            each is not None and each != ours for each, ours in zip(protocols, chosen, strict=True)
        ):
            error = INCONSISTENT_GROUP_PROTOCOL
        if not error and self.state == State.PREPARING:
            error = REBALANCE_IN_PROGRESS
        if error:
            self._say(waiter, Synced(error))
            return
        member = self.members[member_id]
        member.has_to_sync = False
        self._heard(member, now_ms)
        if self.state == State.STABLE:
            self._say(waiter, self._synced(member))
            return
        self._answer_sync(member, Synced(REBALANCE_IN_PROGRESS))
        member.syncing = waiter
        if member_id != self.leader:
            return
        self.state = State.STABLE
        for each in self.members.values():
            each.assignment = assignments.get(each.member_id, b"")
            if each.syncing is not None:
                self._heard(each, now_ms)
                self._say(each.syncing, self._synced(each))
                each.syncing = None

    def heartbeat(self, member_id: str, instance: str | None, generation: int, now_ms: int) -> int:
        """A member lives. Returns an error, REBALANCE_IN_PROGRESS if it is to join again."""
        error = self._error_of(member_id, instance, generation)
        if error:
            return error
        self._heard(self.members[member_id], now_ms)
        return REBALANCE_IN_PROGRESS if self.state == State.PREPARING else NONE

    def leave(self, member_id: str, instance: str | None, now_ms: int) -> int:
        """A member leaves; without its id, a static one is removed. Returns an error."""
        if not member_id:
            member_id = self._static.get(instance or "", "")
        if member_id in self._given:
            del self._given[member_id]
            self._complete_if_all_joined(now_ms)
            return NONE
        error = self._error_of(member_id, instance, self.generation)
        if not error:
            self._remove([member_id], now_ms)
        return error

    def may_commit(self, member_id: str, instance: str | None, generation: int, now_ms: int) -> int:
        """Whether offsets may be committed, as an error. Clients without a group's protocol commit
        with no id and a negative generation, while nobody is a member."""
        if generation < 0 and not member_id and instance is None:
            return NONE if not self.members else UNKNOWN_MEMBER_ID
        error = self._error_of(member_id, instance, generation)
        if error:
            return error
        if self.state == State.COMPLETING:
            return REBALANCE_IN_PROGRESS
        # Also while others join: a member commits before it gives its partitions up.
        self._heard(self.members[member_id], now_ms)
        return NONE

    # Time

    def next_ms(self) -> int | None:
        """When ``advance`` has something to do, unless something is heard before."""
        times = [each.expires_ms for each in self.members.values() if each.may_expire]
        times += self._given.values()
        times += [
            each for each in (self._rebalance_ends_ms, self._sync_ends_ms) if each is not None
        ]
        return min(times, default=None)

    def advance(self, now_ms: int) -> None:
        """Ends what has lasted too long."""
        for member_id in [each for each, until in self._given.items() if until <= now_ms]:
            del self._given[member_id]
        silent = [
            each.member_id
            for each in self.members.values()
            if each.may_expire and each.expires_ms <= now_ms
        ]
        if self._sync_ends_ms is not None and self._sync_ends_ms <= now_ms:
            self._sync_ends_ms = None
            silent += [
                each.member_id
                for each in self.members.values()
                if each.has_to_sync and each.member_id not in silent
            ]
        self._remove(silent, now_ms)
        if self._rebalance_ends_ms is not None and self._rebalance_ends_ms <= now_ms:
            self._complete_rebalance(now_ms)

    def end(self) -> None:
        """This shard does not coordinate it any more; clients look for who does."""
        for each in self.members.values():
            self._answer_join(each, Joined(NOT_COORDINATOR, each.member_id))
            self._answer_sync(each, Synced(NOT_COORDINATOR))
        self.members.clear()
        self._given.clear()
        self._static.clear()
        self.leader = None
        self._rebalance_ends_ms = self._sync_ends_ms = None
        self.state = State.DEAD

    # What is held

    @property
    def is_vacant(self) -> bool:
        """Whether there is nothing to remember."""
        return not self.members and not self._given

    @property
    def held_bytes(self) -> int:
        """What it takes in memory."""
        return (
            GROUP_BYTES + 300 * len(self._given)
            + sum(each.held_bytes for each in self.members.values())
        )  # fmt: skip

    def replaced_bytes(self, asked: Joining) -> int:
        """What it holds already for a member that joins, and then holds no more."""
        member_id = asked.member_id
        if not member_id and asked.instance is not None:
            member_id = self._static.get(asked.instance, "")
        member = self.members.get(member_id)
        return 0 if member is None else member.held_bytes - len(member.assignment)

    # Members

    def _refusal(self, asked: Joining) -> int:
        if self.state == State.DEAD:
            return NOT_COORDINATOR
        if not SESSION_MIN_MS <= asked.session_ms <= SESSION_MAX_MS or asked.rebalance_ms < 0:
            return INVALID_SESSION_TIMEOUT
        if not asked.protocol_type or not 1 <= len(asked.protocols) <= PROTOCOLS_MAX:
            return INCONSISTENT_GROUP_PROTOCOL
        if not self.members:
            return NONE
        if asked.protocol_type != self.protocol_type:
            return INCONSISTENT_GROUP_PROTOCOL
        common = self._common_protocols()
        return NONE if any(name in common for name, _ in asked.protocols) else (
            INCONSISTENT_GROUP_PROTOCOL
        )  # fmt: skip

    def _has_place(self, member_id: str) -> bool:
        return (
            member_id in self.members
            or member_id in self._given
            or len(self.members) + len(self._given) < MEMBERS_MAX
        )

    def _error_of(self, member_id: str, instance: str | None, generation: int) -> int:
        if self.state == State.DEAD:
            return NOT_COORDINATOR
        if instance is not None:
            there = self._static.get(instance)
            if there is None:
                return UNKNOWN_MEMBER_ID
            if there != member_id:
                return FENCED_INSTANCE_ID
        if member_id not in self.members:
            return UNKNOWN_MEMBER_ID
        return NONE if generation == self.generation else ILLEGAL_GENERATION

    def _join_new(self, asked: Joining, new_id: str, waiter: Waiter, now_ms: int) -> None:
        former = None if asked.instance is None else self._static.get(asked.instance)
        if former is not None:
            self._replace(former, asked, new_id, waiter, now_ms)
        elif asked.needs_known_id and asked.instance is None:
            self._given[new_id] = now_ms + asked.session_ms
            self._say(waiter, Joined(MEMBER_ID_REQUIRED, new_id))
        else:
            self._add(asked, new_id, waiter, now_ms)

    def _join_known(self, asked: Joining, waiter: Waiter, now_ms: int) -> None:
        member_id = asked.member_id
        if self._given.pop(member_id, None) is not None:
            self._add(asked, member_id, waiter, now_ms)
            return
        error = self._error_of(member_id, asked.instance, self.generation)
        if error:
            self._say(waiter, Joined(error, member_id))
            return
        member = self.members[member_id]
        is_same = member.said.protocols == asked.protocols
        may_stay = self.state == State.COMPLETING or (
            self.state == State.STABLE and member_id != self.leader
        )
        if may_stay and is_same:  # it has not got the answer
            self._heard(member, now_ms)
            self._say(waiter, self._joined(member))
            return
        self._wait(member, asked, waiter, now_ms)
        self._prepare(now_ms)

    def _add(self, asked: Joining, member_id: str, waiter: Waiter, now_ms: int) -> None:
        if not self.members:
            self.protocol_type = asked.protocol_type
        member = self.members[member_id] = GroupMember(member_id, asked)
        if asked.instance is not None:
            self._static[asked.instance] = member_id
        self._wait(member, asked, waiter, now_ms)
        self._prepare(now_ms)

    def _wait(self, member: GroupMember, asked: Joining, waiter: Waiter, now_ms: int) -> None:
        self._answer_join(member, Joined(REBALANCE_IN_PROGRESS, member.member_id))
        member.said = asked
        member.joining = waiter
        self._heard(member, now_ms)

    def _replace(
        self, former_id: str, asked: Joining, new_id: str, waiter: Waiter, now_ms: int
    ) -> None:
        """A static member comes again, as another process or after a restart of it."""
        assert asked.instance is not None
        member = self.members[former_id]
        self._answer_join(member, Joined(FENCED_INSTANCE_ID, former_id))
        self._answer_sync(member, Synced(FENCED_INSTANCE_ID))
        former_leader = self.leader
        # In its former place, so that assignments in the order of members stay as they are.
        self.members = {
            new_id if each == former_id else each: one for each, one in self.members.items()
        }
        member.member_id = self._static[asked.instance] = new_id
        if self.leader == former_id:
            self.leader = new_id
        self._wait(member, asked, waiter, now_ms)
        if self.state == State.PREPARING:
            return
        if self.state == State.COMPLETING or self._chosen_protocol() != self.protocol:
            self._prepare(now_ms)
            return
        joined = self._joined(member)
        if self.leader == new_id and not asked.may_skip_assignment:
            # Old versions would compute an assignment that nobody waits for.
            joined = joined._replace(leader=former_leader or "", members=())
        elif self.leader == new_id:
            joined = joined._replace(skip_assignment=True)
        self._answer_join(member, joined)

    def _remove(self, member_ids: Sequence[str], now_ms: int) -> None:
        for member_id in member_ids:
            self._forget(member_id)
        if member_ids and self.state in (State.COMPLETING, State.STABLE):
            self._prepare(now_ms)
        self._complete_if_all_joined(now_ms)

    def _forget(self, member_id: str) -> None:
        member = self.members.pop(member_id)
        if member.said.instance is not None:
            del self._static[member.said.instance]
        self._answer_join(member, Joined(UNKNOWN_MEMBER_ID))
        self._answer_sync(member, Synced(UNKNOWN_MEMBER_ID))
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)

    # Generations

    def _prepare(self, now_ms: int) -> None:
        """Asks all members to join again, unless they are asked already."""
        if self.state == State.PREPARING:
            return
        self._is_first_rebalance = self.state == State.EMPTY
        for each in self.members.values():
            self._answer_sync(each, Synced(REBALANCE_IN_PROGRESS))
            each.has_to_sync = False
        self._sync_ends_ms = None
        self.state = State.PREPARING
        self._rebalance_ends_ms = now_ms + (
            min(FIRST_REBALANCE_MS, self._rebalance_ms())
            if self._is_first_rebalance
            else self._rebalance_ms()
        )

    def _complete_if_all_joined(self, now_ms: int) -> None:
        if self.state != State.PREPARING or (self._is_first_rebalance and self.members):
            return
        all_joined = all(each.joining is not None for each in self.members.values())
        if not self.members or (all_joined and not self._given):
            self._complete_rebalance(now_ms)

    def _complete_rebalance(self, now_ms: int) -> None:
        for each in list(self.members.values()):
            if each.joining is None and each.said.instance is None:
                self._forget(each.member_id)
        if self.members and not self._elect():
            # Only static members are left, and they are away: their sessions decide.
            self._rebalance_ends_ms = now_ms + max(1, self._rebalance_ms())
            return
        self._rebalance_ends_ms = None
        self._is_first_rebalance = False
        self.generation += 1
        if not self.members:
            self.state = State.EMPTY
            self.protocol = self.protocol_type = self.leader = None
            return
        self.state = State.COMPLETING
        self.protocol = self._chosen_protocol()
        self._sync_ends_ms = now_ms + max(1, self._rebalance_ms())
        for each in self.members.values():
            each.assignment = b""
            each.has_to_sync = True
            each.is_new = False
            self._heard(each, now_ms)
            self._answer_join(each, self._joined(each))

    def _elect(self) -> bool:
        """Whether there is a leader that has joined. The former leader stays."""
        leader = self.members.get(self.leader or "")
        if leader is None or leader.joining is None:
            joined = (each.member_id for each in self.members.values() if each.joining is not None)
            self.leader = next(joined, self.leader)
            leader = self.members.get(self.leader or "")
        return leader is not None and leader.joining is not None

    def _rebalance_ms(self) -> int:
        return max((each.said.rebalance_ms for each in self.members.values()), default=0)

    def _common_protocols(self) -> set[str]:
        counts = Counter(
            name for each in self.members.values() for name in dict(each.said.protocols)
        )
        return {name for name, count in counts.items() if count == len(self.members)}

    def _chosen_protocol(self) -> str | None:
        """Each member votes for the first one in its list that all have."""
        common = self._common_protocols()
        votes = Counter(
            next(name for name, _ in each.said.protocols if name in common)
            for each in self.members.values()
            if common
        )
        return max(votes, key=lambda name: votes[name], default=None)

    # Answers

    def _heard(self, member: GroupMember, now_ms: int) -> None:
        member.expires_ms = now_ms + (NEW_MEMBER_MS if member.is_new else member.said.session_ms)

    def _joined(self, member: GroupMember) -> Joined:
        everyone: Sequence[MemberSaid] = ()
        if member.member_id == self.leader:
            everyone = [
                MemberSaid(each.member_id, each.said.instance, each.metadata(self.protocol))
                for each in self.members.values()
            ]
        return Joined(
            NONE, member.member_id, self.generation, self.protocol_type, self.protocol,
            self.leader or "", everyone,
        )  # fmt: skip

    def _synced(self, member: GroupMember) -> Synced:
        return Synced(NONE, self.protocol_type, self.protocol, member.assignment)

    def _answer_join(self, member: GroupMember, joined: Joined) -> None:
        if member.joining is not None:
            self._say(member.joining, joined)
            member.joining = None

    def _answer_sync(self, member: GroupMember, synced: Synced) -> None:
        if member.syncing is not None:
            self._say(member.syncing, synced)
            member.syncing = None

    def _say(self, waiter: Waiter, answer: Joined | Synced) -> None:
        self.answers.append((waiter, answer))

    def check_invariants(self) -> None:
        """Raises AssertionError unless it is as the head of the module says."""
        state, members = self.state, self.members.values()
        assert all(each.member_id == key for key, each in self.members.items())
        assert not self._given.keys() & self.members.keys()
        assert self._static == {
            each.said.instance: each.member_id for each in members if each.said.instance is not None
        }
        assert len(self.members) + len(self._given) <= MEMBERS_MAX
        assert self.leader is None or self.leader in self.members
        assert (state in (State.EMPTY, State.DEAD)) == (not self.members)
        assert (self._rebalance_ends_ms is not None) == (state == State.PREPARING)
        assert state == State.COMPLETING or all(each.syncing is None for each in members)
        assert state == State.PREPARING or all(each.joining is None for each in members)
        for each in members:
            assert each.said.protocol_type == self.protocol_type
            assert each.joining is None or each.syncing is None
            assert not (each.has_to_sync and each.syncing is not None)
        if state in (State.COMPLETING, State.STABLE):
            assert self.leader is not None and self.protocol in self._common_protocols()
            assert self.generation > 0
            assert not any(each.is_new for each in members)
        if state == State.COMPLETING:
            assert self._sync_ends_ms is not None
            leader = self.members[self.leader or ""]
            assert leader.syncing is None
        if state in (State.PREPARING, State.EMPTY):
            assert self._sync_ends_ms is None
        if state == State.PREPARING and not self._is_first_rebalance and not self._given:
            assert any(each.joining is None for each in members)
        if self.members and not self._is_first_rebalance:
            assert self.next_ms() is not None or all(not each.may_expire for each in members)
