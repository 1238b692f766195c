"""The groups of a shard over a real ledger: what is refused, what is held, and what is durable."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from daemon.access.rights import Rights
from daemon.access.token_file import Scope, TokenFile
from daemon.intake.object_limits import ObjectLimits
from daemon.kafka.error_codes import (
    COORDINATOR_NOT_AVAILABLE,
    GROUP_ID_NOT_FOUND,
    GROUP_SUBSCRIBED_TO_TOPIC,
    INVALID_GROUP_ID,
    NON_EMPTY_GROUP,
    NOT_COORDINATOR,
    OFFSET_OUT_OF_RANGE,
)
from daemon.kafka.groups import coordinator as module
from daemon.kafka.groups import group, offsets
from daemon.kafka.groups.commits import GroupCommits
from daemon.kafka.groups.coordinator import Coordinator
from daemon.kafka.groups.group import FIRST_REBALANCE_MS
from daemon.kafka.groups.messages import CommitsAsked
from daemon.kafka.rights import EVERYTHING, Allowed
from daemon.kafka.served import read_request
from daemon.kafka.topics import KafkaTopics
from ledger import topics
from ledger.types import TopicConfig
from shards.clock import monotonic_ns, wall_ms
from tests.daemon.intake.test_copies import Outbox, outbox_in
from tests.daemon.kafka.frames import Key, answered, array, blob, text
from tests.daemon.kafka.test_messages import read

T = TypeVar("T")


def int16(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 2], "big", signed=True)


class Talk:
    """Requests in versions that are short to write, and their errors."""

    def __init__(self, made: Outbox, shards: int = 1, commits: Any = None) -> None:
        self.made = made
        names = KafkaTopics(made.topics, tuple(range(shards)), "file:///s", auto_create=True)
        self.commits = commits or GroupCommits(
            made.ledger.write, made.ledger, lambda: True, wall_ms, wall_ms, monotonic_ns
        )
        ids = iter(range(10_000))
        self.coordinator = Coordinator(
            0, names, self.commits, lambda: f"id{next(ids)}", monotonic_ns,
            ObjectLimits(made.ledger),
        )  # fmt: skip
        self.allowed = EVERYTHING

    async def ask(self, key: int, version: int, *fields: bytes) -> bytes:
        """The answer without its number."""
        head = struct.pack(">hhi", key, version, 9) + b"\xff\xff"
        asked = read_request(head + b"".join(fields))
        said = await answered(asked, self.allowed, coordinator=self.coordinator)
        return bytes(said.make()[4:])

    async def join(
        self, group: str = "g", member: str = "", metadata: bytes = b"m"
    ) -> tuple[int, int, bytes]:
        """Version 3: error, generation, and what follows."""
        answer = await self.ask(
            Key.JOIN_GROUP, 3, text(group), struct.pack(">ii", 10_000, 10_000), text(member),
            text("consumer"), array(text("range") + blob(metadata)),
        )  # fmt: skip
        return int16(answer, 4), int.from_bytes(answer[6:10], "big", signed=True), answer[10:]

    async def member(self, group: str = "g", metadata: bytes = b"m") -> str:
        """A member that has joined alone."""
        error, _, rest = await self.join(group, metadata=metadata)
        assert error == 0
        at = 2 + int16(rest, 0)
        return rest[at + 2 : at + 2 + int16(rest, at)].decode()

    async def sync(self, member: str, parts: dict[str, bytes], group: str = "g") -> int:
        answer = await self.ask(
            Key.SYNC_GROUP, 2, text(group), struct.pack(">i", 1), text(member),
            array(*(text(each) + blob(part) for each, part in parts.items())),
        )  # fmt: skip
        return int16(answer, 4)

    async def commit(self, places: list[tuple[int, int]], *, group: str = "g", topic: str = "dest",
                     generation: int = -1, member: str = "", metadata: str | None = None
                     ) -> list[int]:  # fmt: skip
        """Version 2: the error of each place."""
        answer = await self.ask(
            Key.OFFSET_COMMIT, 2, text(group), struct.pack(">i", generation), text(member),
            struct.pack(">q", -1), array(text(topic) + array(
                *(struct.pack(">iq", *each) + text(metadata) for each in places))),
        )  # fmt: skip
        at = 4 + 2 + len(topic) + 4
        return [int16(answer, at + 6 * each + 4) for each in range(len(places))]

    async def committed(self, group: str = "g", topic: str = "dest") -> tuple[int, int]:
        """Version 1: offset and error of partition 0."""
        answer = await self.ask(
            Key.OFFSET_FETCH, 1, text(group), array(text(topic) + array(struct.pack(">i", 0)))
        )
        at = 4 + 2 + len(topic) + 4 + 4
        offset = int.from_bytes(answer[at : at + 8], "big", signed=True)
        return offset, int16(answer, at + 8 + 2 + max(0, int16(answer, at + 8)))

    async def offset_delete(
        self, partitions: list[int], *, topic: str = "dest", group: str = "g"
    ) -> list[int]:
        """The error of the group, and that of each partition if it has none."""
        answer = await self.ask(
            Key.OFFSET_DELETE, 0, text(group),
            array(text(topic) + array(*(struct.pack(">i", each) for each in partitions))),
        )  # fmt: skip
        error, places = int16(answer, 0), answer[len(answer) - 6 * len(partitions) :]
        if error:
            return [error]
        return [0, *(int16(places, 6 * each + 4) for each in range(len(partitions)))]


def talk(directory: Path, test: Callable[[Talk], Coroutine[Any, Any, None]],
         **options: Any) -> None:  # fmt: skip
    async def run(made: Outbox) -> None:
        talking = Talk(made, **options)
        try:
            await test(talking)
            held = sum(talking.coordinator._held.values())
            assert talking.coordinator._held_bytes == held
            groups = [each for each in talking.coordinator._groups.values() if each.members]
            members = sum(len(each.members) for each in groups)
            assert talking.coordinator.counts == (len(groups), members)
        finally:
            talking.coordinator.close()
            assert talking.coordinator._held_bytes == 0 and not talking.coordinator._timers
            assert not talking.coordinator._of_tokens and not talking.coordinator._begun_by
            assert talking.coordinator.counts == (0, 0)

    with outbox_in(directory) as made:
        asyncio.run(run(made))


@pytest.mark.parametrize("group", ["", "x" * 256, "a\nb", "\0"])
def test_an_id_that_is_none_is_refused_by_each_request(tmp_path: Path, group: str) -> None:
    async def test(to: Talk) -> None:
        assert (await to.join(group))[0] == INVALID_GROUP_ID
        assert await to.sync("m", {}, group) == INVALID_GROUP_ID
        assert await to.commit([(0, 1)], group=group) == [INVALID_GROUP_ID]
        assert await to.committed(group) == (-1, INVALID_GROUP_ID)
        answer = await to.ask(Key.FIND_COORDINATOR, 0, text(group))
        assert int16(answer, 0) == INVALID_GROUP_ID
        answer = await to.ask(Key.DELETE_GROUPS, 0, array(text(group)))
        assert int16(answer, len(answer) - 2) == INVALID_GROUP_ID
        assert not to.coordinator._groups

    talk(tmp_path, test)


def test_only_the_shard_of_a_group_coordinates_it(tmp_path: Path) -> None:
    async def test(to: Talk) -> None:
        ours = [each for each in "abcdefgh" if to.coordinator._shard_of(each) == 0]
        assert 0 < len(ours) < 8
        for each in "abcdefgh":
            answer = await to.ask(Key.FIND_COORDINATOR, 0, text(each))
            node = int.from_bytes(answer[2:6], "big")
            assert (node == 0) == (each in ours)
            expected = 0 if each in ours else NOT_COORDINATOR
            assert await to.commit([(0, 1)], group=each) == [expected]
            assert (await to.committed(each))[1] == expected

    talk(tmp_path, test, shards=2)


@pytest.mark.parametrize(("kind", "code"), [(0, 0), (1, 53), (2, 42), (-1, 42)])
def test_only_groups_have_coordinators(tmp_path: Path, kind: int, code: int) -> None:
    async def test(to: Talk) -> None:
        answer = await to.ask(Key.FIND_COORDINATOR, 1, text("g"), struct.pack(">b", kind))
        assert int16(answer, 4) == code

    talk(tmp_path, test)


def test_a_member_commits_and_what_it_cannot_commit_has_a_code(tmp_path: Path) -> None:
    async def test(to: Talk) -> None:
        member = await to.member()
        assert await to.commit([(0, 5)]) == [25], "a member is there"
        assert await to.commit([(0, 5)], generation=1, member=member) == [27]
        assert await to.sync(member, {member: b"part"}) == 0
        assert await to.commit([(0, 5)], generation=0, member=member) == [22]
        assert await to.commit([(0, 5)], generation=1, member="x") == [25]
        places = [(0, 5), (1, 5), (-1, 5), (0, -7)]
        found = await to.commit(places, generation=1, member=member)
        assert found == [0, 3, 3, OFFSET_OUT_OF_RANGE]
        assert await to.committed() == (5, 0)
        long = "\u00e9" * 2_049
        assert await to.commit([(0, 6)], generation=1, member=member, metadata=long) == [12]
        assert await to.commit([(0, 6)], topic="no", generation=1, member=member) == [3]
        assert await to.committed() == (5, 0)
        assert await to.committed(topic="no") == (-1, 0)
        assert await to.commit([(0, 5)], group="h", generation=1, member="m") == [22]

    talk(tmp_path, test)


def test_offsets_are_deleted_unless_a_member_reads_their_topic(tmp_path: Path) -> None:
    async def test(to: Talk) -> None:
        await to.made.ledger.write(topics.alter, "dest", TopicConfig(partitions=3))
        await to.made.ledger.write(topics.create, "other", TopicConfig(), 5)
        for topic, places in (("dest", [(0, 5), (1, 6), (2, 7)]), ("other", [(0, 8)])):
            assert set(await to.commit(places, topic=topic)) == {0}
        assert await to.offset_delete([0, 2]) == [0, 0, 0]
        assert await to.committed() == (-1, 0)
        assert await to.committed(topic="other") == (8, 0)
        asked = [(to.made.dest.topic_id, each) for each in range(3)]
        (left,) = [each async for each in to.commits.of_topics("g", [to.made.dest.topic_id])]
        assert [left.get(each, (-1, ""))[0] for each in asked] == [-1, 6, -1]
        reads_dest = struct.pack(">h", 0) + array(text("dest")) + blob(b"")
        assert (await to.join(metadata=reads_dest))[0] == 0
        assert await to.offset_delete([1]) == [0, GROUP_SUBSCRIBED_TO_TOPIC]
        assert await to.offset_delete([0], topic="other") == [0, 0]
        assert await to.committed(topic="other") == (-1, 0)
        assert await to.offset_delete([0], topic="no") == [0, 3]
        await to.commit([(0, 5)], group="h")
        assert (await to.join("h"))[0] == 0  # with metadata that says nothing
        assert await to.offset_delete([0], group="h") == [NON_EMPTY_GROUP]
        assert await to.offset_delete([0], group="nobody") == [GROUP_ID_NOT_FOUND]
        assert await to.offset_delete([0], group="") == [INVALID_GROUP_ID]

    talk(tmp_path, test)


def test_what_members_hold_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELD_BYTES_MAX", 20_000)
    monkeypatch.setattr(module, "MEMBER_BYTES_MAX", 15_000)

    async def test(to: Talk) -> None:
        assert (await to.join(metadata=bytes(15_000)))[0] == 81
        member = await to.member()
        assert (await to.join("other", metadata=bytes(14_000)))[0] == 81
        assert await to.sync(member, {member: bytes(19_000)}) == 81
        assert await to.sync(member, {member: bytes(9_000), "x": bytes(1_000)}) == 0
        assert to.coordinator._held_bytes < 15_000

    talk(tmp_path, test)


def test_the_groups_of_one_token_leave_room_for_those_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HELD_BYTES_MAX", 40_000)
    monkeypatch.setattr(module, "OF_TOKEN_BYTES_MAX", 20_000)

    async def test(to: Talk) -> None:
        one, other = (
            Allowed(Rights(token, [Scope.CONSUME], ["*"]), (Scope.CONSUME,), "", "", None)
            for token in (TokenFile(tmp_path / "tokens.json").issue(name, [Scope.CONSUME])[0]
                          for name in ("one", "other"))
        )  # fmt: skip
        to.allowed = one
        member = await to.member("a", bytes(7_000))
        assert (await to.join("b", metadata=bytes(3_000)))[0] == 0
        assert (await to.join("c", metadata=bytes(6_000)))[0] == 81
        assert await to.sync(member, {member: bytes(9_000)}, "a") == 81
        to.allowed = other
        assert (await to.join("a", metadata=bytes(6_000)))[0] == 81, "whoever joins its group"
        assert (await to.join("c", metadata=bytes(6_000)))[0] == 0
        await to.ask(Key.LEAVE_GROUP, 0, text("a"), text(member))
        to.allowed = one
        assert (await to.join("d", metadata=bytes(6_000)))[0] == 0, "as much as has ended"
        for each in ("b", "d"):
            to.coordinator._groups[each].end()
            to.coordinator._settle(each, to.coordinator._groups[each])
        assert len(to.coordinator._of_tokens) == 1

    talk(tmp_path, test)


def test_a_member_that_joins_again_takes_the_room_that_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HELD_BYTES_MAX", 20_000)

    async def test(to: Talk) -> None:
        member = await to.member(metadata=bytes(9_000))
        held = to.coordinator._held_bytes
        assert (await to.join(member=member, metadata=bytes(9_000)))[0] == 0
        assert to.coordinator._held_bytes == held
        grown = bytes(9_000 + 20_000 - held)
        assert (await to.join(member=member, metadata=grown + b"x"))[0] == 81
        assert (await to.join(metadata=grown))[0] == 81, "another one"
        assert (await to.join(member=member, metadata=grown))[0] == 0
        assert to.coordinator._held_bytes == 20_000

    talk(tmp_path, test)


def test_a_static_member_that_comes_again_takes_the_room_that_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HELD_BYTES_MAX", 20_000)

    async def test(to: Talk) -> None:
        async def join(instance: str | None) -> int:
            answer = await to.ask(
                Key.JOIN_GROUP, 5, text("g"), struct.pack(">ii", 10_000, 10_000), text(""),
                text(instance), text("consumer"), array(text("range") + blob(b"m")),
            )  # fmt: skip
            return int16(answer, 4)

        name = "i" * 3_000
        assert await join(name) == 0
        assert to.coordinator._held_bytes > 4 * len(name), "its name is counted"
        assert await join(name) == 0
        assert await join("j" * 3_000) == 81

    talk(tmp_path, test)


async def turns_of_others(asking: Coroutine[Any, Any, T]) -> tuple[T, int]:
    """What is answered, and how often others had their turn meanwhile."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    others = asyncio.ensure_future(other())
    answer = await asking
    others.cancel()
    return answer, turns


def test_groups_are_described_in_turn_with_others_and_within_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(to: Talk) -> None:
        async def described() -> list[tuple[str, int, int]]:
            answer = await to.ask(Key.DESCRIBE_GROUPS, 0, array(*map(text, "abc")))
            groups = read(Key.DESCRIBE_GROUPS, 0, bytearray((9).to_bytes(4, "big") + answer)).groups
            return [(each.group_id, each.error_code.value, len(each.members)) for each in groups]

        joins = [to.join(group, metadata=bytes(1_000)) for group in "abc" for _ in range(50)]
        assert {error for error, _, _ in await asyncio.gather(*joins)} == {0}
        found, turns = await turns_of_others(described())
        assert found == [("a", 0, 50), ("b", 0, 50), ("c", 0, 50)]
        assert turns > 1
        monkeypatch.setattr(module, "SAID_BYTES_MAX", 50_001)
        short = [("a", 0, 50), ("b", COORDINATOR_NOT_AVAILABLE, 0)]
        assert (await described())[:2] == short
        assert (await described())[2] == ("c", COORDINATOR_NOT_AVAILABLE, 0)

    talk(tmp_path, test)


def test_commits_of_groups_are_told_within_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(to: Talk) -> None:
        groups = [CommitsAsked(each, [("dest", [0])]) for each in "abc"]
        head = read_request(struct.pack(">hhi", Key.OFFSET_FETCH, 8, 9) + b"\xff\xff\0").head()
        for each in "abc":
            assert await to.commit([(0, 5)], group=each, metadata="x" * 1_000) == [0]

        async def told() -> list[tuple[int, int]]:
            data = (await to.coordinator.offsets.fetch(head, groups, EVERYTHING)).make()
            said = read(Key.OFFSET_FETCH, 8, data).groups
            return [(each.error_code.value, each.topics[0].partitions[0].committed_offset)
                    for each in said]  # fmt: skip

        assert await told() == [(0, 5)] * 3
        monkeypatch.setattr(offsets, "SAID_BYTES_MAX", 1_041)
        assert await told() == [(0, 5), (0, 5), (COORDINATOR_NOT_AVAILABLE, -1)]

    talk(tmp_path, test)


def test_time_passes_without_requests(tmp_path: Path) -> None:
    async def test(to: Talk) -> None:
        silent = await to.member()
        group = to.coordinator._groups["g"]
        group.members[silent].expires_ms = 0
        # Nobody else says anything: a timer ends the silent one.
        assert (await to.join())[:2] == (0, 2)
        assert silent not in group.members

    talk(tmp_path, test)


def test_who_waits_at_the_end_is_sent_to_another_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "FIRST_REBALANCE_MS", 10_000)

    async def test(to: Talk) -> None:
        joining = asyncio.ensure_future(to.join())
        for _ in iter(lambda: "g" in to.coordinator._groups, True):
            await asyncio.sleep(0)
        to.coordinator.close()
        assert (await joining)[0] == NOT_COORDINATOR
        assert (await to.join())[0] == NOT_COORDINATOR

    talk(tmp_path, test)


def test_a_client_that_has_gone_does_not_hold_up_its_group(tmp_path: Path) -> None:
    async def test(to: Talk) -> None:
        gone, stays = asyncio.ensure_future(to.join()), asyncio.ensure_future(to.join())
        await asyncio.sleep(FIRST_REBALANCE_MS / 50_000)
        gone.cancel()
        assert (await stays)[:2] == (0, 1)

    talk(tmp_path, test)
