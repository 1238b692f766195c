"""What groups commit, and what they have committed: OffsetCommit and OffsetFetch.

Whether a member may commit says the coordinator. Of an answer there are SAID_BYTES_MAX, and the
group with which it gets longer; of one group as much, in slices of the ledger.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from daemon.intake.object_limits import ObjectLimits
from daemon.kafka.budget import Breaths, Said
from daemon.kafka.error_codes import (
    COORDINATOR_NOT_AVAILABLE,
    INVALID_REQUEST,
    NONE,
    OFFSET_METADATA_TOO_LARGE,
    OFFSET_OUT_OF_RANGE,
    POLICY_VIOLATION,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from daemon.kafka.groups import messages
from daemon.kafka.groups.commits import GroupCommits
from daemon.kafka.groups.messages import CommitSaid, CommitsAsked, CommitsSaid
from daemon.kafka.rights import Allowed
from daemon.kafka.topics import KafkaTopics, missing
from daemon.kafka.wire import KafkaRequest
from daemon.schemas.errors import ApiError
from ledger.delivery import group_commits
from ledger.delivery.group_commits import GroupCommit, RefusedCommits
from ledger.errors import LedgerError

METADATA_BYTES_MAX = 4_096  # of a commit, as Kafka has it
SAID_BYTES_MAX = 8 << 20  # of an answer: groups after that are to be asked for again


class GroupOffsets:
    """Those of the groups of one shard. ``error_of`` says why a group is not for a request."""

    def __init__(
        self,
        names: KafkaTopics,
        commits: GroupCommits,
        error_of: Callable[[str, Allowed], int],
        may_commit: Callable[[messages.CommitAsked, Allowed], int],
        objects: ObjectLimits | None,
    ) -> None:
        self._names = names
        self._commits = commits
        self._error_of = error_of
        self._may_commit = may_commit
        self._objects = objects

    async def commit(
        self, head: KafkaRequest, asked: messages.CommitAsked, allowed: Allowed
    ) -> Said:
        """Answers an OffsetCommit."""
        wanted: list[tuple[str, list[tuple[int, int]]]] = []
        commits: list[GroupCommit] = []
        ids: dict[str, int] = {}
        breaths = Breaths()
        for name, places in asked.topics:
            await breaths.item()
            try:
                entry = await self._names.entry(name, allowed)
            except ApiError as refusal:
                wanted.append((name, [(each.partition, missing(refusal)) for each in places]))
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
        begun, over = await self._begun(asked.group, ids, allowed)
        if over:
            commits = [each for each in commits if each.topic_id not in over]
            wanted = [
                (name, [(each, error or POLICY_VIOLATION) for each, error in some]
                 if ids.get(name) in over else some)
                for name, some in wanted
            ]  # fmt: skip
        # No await from here on until they wait to be written.
        error = self._may_commit(asked, allowed)
        if error:
            wanted = [(name, [(each.partition, error) for each in places])
                      for name, places in asked.topics]  # fmt: skip
            return _committed(head, wanted)
        if allowed.rights.allowance is not None:
            for _ in begun:
                allowed.rights.allowance.charge_setting()
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

    async def _begun(
        self, group: str, ids: dict[str, int], allowed: Allowed
    ) -> tuple[set[int], set[int]]:
        """The topics of which it has committed nothing: those in which it may begin to, which
        counts as a change of settings, and those in which it may not. What is committed already
        may always move."""
        if self._objects is None or allowed.rights.allowance is None:
            return set(), set()
        try:
            absent = await self._commits.absent(group, list(ids.values()))
            names = [group_commits.cursor_name(group, each) for each in absent]
            over = await self._objects.over(allowed.rights, "cursors", names)
        except LedgerError:
            return set(), set()  # which the commit meets too
        refused = {each for each, name in zip(absent, names, strict=True) if name in over}
        return set(absent) - refused, refused

    async def fetch(self, head: KafkaRequest, asked: list[CommitsAsked], allowed: Allowed) -> Said:
        """Answers an OffsetFetch."""
        breaths, said, size, items = Breaths(), list[CommitsSaid](), 0, 0
        for each in asked:
            await breaths.item()
            if size < SAID_BYTES_MAX:
                one = await self._of_group(each, allowed, breaths)
            else:
                one = _no_offsets(each, COORDINATOR_NOT_AVAILABLE)
            said.append(one)
            for _, some in one.topics:
                await breaths.item()
                size += sum(len(each.metadata) + group_commits.SAID_BYTES for each in some)
                items += 1 + len(some)
        return Said(size, items, partial(messages.fetched_offsets, head, said))

    async def _of_group(
        self, asked: CommitsAsked, allowed: Allowed, breaths: Breaths
    ) -> CommitsSaid:
        error = self._error_of(asked.group, allowed)
        if error:
            return _no_offsets(asked, error)
        errors: dict[str, int] = {}
        try:
            if asked.topics is None:
                ids = {
                    name: topic_id
                    for name, topic_id in await self._commits.topics_of(asked.group)
                    if allowed.covers(name)
                }
            else:
                ids = {}
                for name, _ in asked.topics:
                    await breaths.item()
                    try:
                        ids[name] = (await self._names.entry(name, allowed)).topic_id
                    except ApiError as refusal:
                        code = missing(refusal)
                        if code != UNKNOWN_TOPIC_OR_PARTITION:  # then nothing is committed
                            errors[name] = code
            found, size = dict[tuple[int, int], tuple[int, str]](), 0
            wanted = {
                (ids[name], each)
                for name, partitions in asked.topics or () if name in ids
                for each in partitions
            }  # fmt: skip
            async for some in self._commits.of_topics(asked.group, list(ids.values())):
                for place, said in some.items():
                    await breaths.item()
                    if asked.topics is None or place in wanted:
                        found[place] = said
                        size += group_commits.SAID_BYTES + len(said[1])
                if size > SAID_BYTES_MAX:
                    return _no_offsets(asked, INVALID_REQUEST)
        except LedgerError:
            return _no_offsets(asked, COORDINATOR_NOT_AVAILABLE)
        if asked.topics is None:
            by_id: dict[int, list[CommitSaid]] = {}
            for (topic_id, partition), (offset, metadata) in found.items():
                await breaths.item()
                by_id.setdefault(topic_id, []).append(CommitSaid(partition, offset, metadata))
            topics = [(name, by_id.get(topic_id, [])) for name, topic_id in ids.items()]
        else:
            topics = []
            for name, partitions in asked.topics:
                topic_id, places = ids.get(name, 0), list[CommitSaid]()
                for each in partitions:
                    await breaths.item()
                    offset, metadata = found.get((topic_id, each), (-1, ""))
                    places.append(CommitSaid(each, offset, metadata, errors.get(name, NONE)))
                topics.append((name, places))
        return CommitsSaid(asked.group, NONE, topics)


def _committed(head: KafkaRequest, topics: list[tuple[str, list[tuple[int, int]]]]) -> Said:
    items = sum(1 + len(some) for _, some in topics)
    size = sum(len(name) + 12 * len(some) for name, some in topics)
    return Said(size, items, partial(messages.committed, head, topics))


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
