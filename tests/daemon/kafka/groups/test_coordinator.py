"""The groups of a shard over a real ledger: what is refused, what is held, and what is durable."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from daemon.kafka.groups import coordinator as module
from daemon.kafka.groups.commits import GroupCommits
from daemon.kafka.groups.coordinator import Coordinator
from daemon.kafka.groups.group import FIRST_REBALANCE_MS, NOT_COORDINATOR
from daemon.kafka.topics import KafkaTopics
from daemon.kafka.wire import Key, read_request
from ledger import topics
from ledger.delivery import group_commits
from ledger.delivery.group_commits import GroupCommit
from ledger.errors import LedgerBusy
from ledger.types import TopicConfig
from shards.clock import monotonic_ns, wall_ms
from tests.daemon.intake.test_copies import Outbox, outbox_in


def text(value: str | None) -> bytes:
    if value is None:
        return b"\xff\xff"
    return struct.pack(">h", len(value.encode())) + value.encode()


def blob(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


def array(*each: bytes) -> bytes:
    return struct.pack(">i", len(each)) + b"".join(each)


def int16(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 2], "big", signed=True)


class Talk:
    """Requests in versions that are short to write, and their errors."""

    def __init__(self, made: Outbox, shards: int = 1, commits: Any = None) -> None:
        self.made = made
        names = KafkaTopics(made.topics, tuple(range(shards)), "file:///s", auto_create=True)
        self.commits = commits or GroupCommits(
            made.ledger.write, made.ledger, lambda: True, wall_ms, monotonic_ns
        )
        ids = iter(range(10_000))
        self.coordinator = Coordinator(
            0, names, self.commits, lambda: f"id{next(ids)}", monotonic_ns
        )

    async def ask(self, key: int, version: int, *fields: bytes) -> bytes:
        """The answer without its number."""
        head = struct.pack(">hhi", key, version, 9) + b"\xff\xff"
        asked = read_request(head + b"".join(fields))
        turn = self.coordinator.begin(asked.head(), module.READERS[key](asked), "here", "peer")
        return bytes((await turn()).make()[4:])

    async def join(
        self, group: str = "g", member: str = "", metadata: bytes = b"m"
    ) -> tuple[int, int, bytes]:
        """Version 3: error, generation, and what follows."""
        answer = await self.ask(
            Key.JOIN_GROUP, 3, text(group), struct.pack(">ii", 10_000, 10_000), text(member),
            text("consumer"), array(text("range") + blob(metadata)),
        )  # fmt: skip
        return int16(answer, 4), int.from_bytes(answer[6:10], "big", signed=True), answer[10:]

    async def member(self, group: str = "g") -> str:
        """A member that has joined alone."""
        error, _, rest = await self.join(group)
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


def talk(directory: Path, test: Callable[[Talk], Coroutine[Any, Any, None]],
         **options: Any) -> None:  # fmt: skip
    async def run(made: Outbox) -> None:
        talking = Talk(made, **options)
        try:
            await test(talking)
            held = sum(talking.coordinator._held.values())
            assert talking.coordinator._held_bytes == held
        finally:
            talking.coordinator.close()
            assert talking.coordinator._held_bytes == 0 and not talking.coordinator._timers

    with outbox_in(directory) as made:
        asyncio.run(run(made))


@pytest.mark.parametrize("group", ["", "x" * 256, "a\nb", "\0"])
def test_an_id_that_is_none_is_refused_by_each_request(tmp_path: Path, group: str) -> None:
    async def test(to: Talk) -> None:
        assert (await to.join(group))[0] == module.INVALID_GROUP_ID
        assert await to.sync("m", {}, group) == module.INVALID_GROUP_ID
        assert await to.commit([(0, 1)], group=group) == [module.INVALID_GROUP_ID]
        assert await to.committed(group) == (-1, module.INVALID_GROUP_ID)
        answer = await to.ask(Key.FIND_COORDINATOR, 0, text(group))
        assert int16(answer, 0) == module.INVALID_GROUP_ID
        answer = await to.ask(Key.DELETE_GROUPS, 0, array(text(group)))
        assert int16(answer, len(answer) - 2) == module.INVALID_GROUP_ID
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
        assert found == [0, 3, 3, module.OFFSET_OUT_OF_RANGE]
        assert await to.committed() == (5, 0)
        long = "\u00e9" * 2_049
        assert await to.commit([(0, 6)], generation=1, member=member, metadata=long) == [12]
        assert await to.commit([(0, 6)], topic="no", generation=1, member=member) == [3]
        assert await to.committed() == (5, 0)
        assert await to.committed(topic="no") == (-1, 0)
        assert await to.commit([(0, 5)], group="h", generation=1, member="m") == [22]

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


def test_time_passes_without_requests(tmp_path: Path) -> None:
    async def test(to: Talk) -> None:
        silent = await to.member()
        group = to.coordinator._groups["g"]
        group.members[silent].expires_ms = 0
        # Nobody else says anything: a timer ends the silent one.
        assert (await to.join())[:2] == (0, 2)
        assert silent not in group.members

    talk(tmp_path, test)


def test_who_waits_at_the_end_is_sent_to_another_coordinator(tmp_path: Path) -> None:
    async def test(to: Talk) -> None:
        joining = asyncio.ensure_future(to.join())
        await asyncio.sleep(FIRST_REBALANCE_MS / 50_000)
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


# Commits


class Gate:
    """A ledger that writes when it may, and can fail."""

    def __init__(self, made: Outbox) -> None:
        self.made = made
        self.may_write = asyncio.Event()
        self.fails = 0
        self.writes = 0

    async def write(self, function: Callable[..., Any], *args: Any) -> Any:
        await self.may_write.wait()
        self.writes += 1
        if self.fails:
            self.fails -= 1
            raise LedgerBusy(Path("ledger"), 1)
        return await self.made.ledger.write(function, *args)


def with_gate(directory: Path, test: Callable[[Talk, Gate], Coroutine[Any, Any, None]]) -> None:
    async def run(made: Outbox) -> None:
        gate = Gate(made)

        async def at_once(_: float) -> None:
            await asyncio.sleep(0)

        commits = GroupCommits(
            gate.write, made.ledger, lambda: True, wall_ms, monotonic_ns, at_once
        )
        await test(Talk(made, commits=commits), gate)

    with outbox_in(directory) as made:
        asyncio.run(run(made))


def test_a_commit_is_answered_when_it_is_durable_and_those_that_wait_share_a_transaction(
    tmp_path: Path,
) -> None:
    async def test(to: Talk, gate: Gate) -> None:
        first = asyncio.ensure_future(to.commit([(0, 1)], group="a"))
        await asyncio.sleep(0.02)
        later = [asyncio.ensure_future(to.commit([(0, each)], group="b")) for each in (9, 4)]
        others = [asyncio.ensure_future(to.commit([(0, 2)], group=f"c{each}")) for each in range(9)]
        await asyncio.sleep(0.05)
        assert not first.done() and await to.committed("a") == (-1, 0)
        gate.may_write.set()
        assert await asyncio.gather(first, *later, *others) == [[0]] * 12
        assert gate.writes == 2
        assert await to.committed("b") == (4, 0) and await to.committed("c8") == (2, 0)

    with_gate(tmp_path, test)


def test_a_commit_that_could_not_be_written_is_not_answered_as_if_it_were(tmp_path: Path) -> None:
    async def test(to: Talk, gate: Gate) -> None:
        gate.may_write.set()
        gate.fails = 1
        assert await to.commit([(0, 1)]) == [module.COORDINATOR_NOT_AVAILABLE]
        assert await to.committed() == (-1, 0)
        assert await to.commit([(0, 1)]) == [0]

    with_gate(tmp_path, test)


def test_a_daemon_that_may_have_lost_its_prefix_acknowledges_nothing(tmp_path: Path) -> None:
    async def run(made: Outbox) -> None:
        now_ns, owned_from_ns = 0, 6_000_000_000

        async def sleep_s(length_s: float) -> None:
            nonlocal now_ns
            now_ns += int(length_s * 1e9)

        commits = GroupCommits(
            made.ledger.write, made.ledger, lambda: now_ns >= owned_from_ns, wall_ms,
            lambda: now_ns, sleep_s,
        )  # fmt: skip
        to = Talk(made, commits=commits)
        assert await to.commit([(0, 1)]) == [module.COORDINATOR_NOT_AVAILABLE]
        assert await to.committed() == (-1, 0)
        assert await to.commit([(0, 1)]) == [0], "an entry has come"
        assert now_ns >= owned_from_ns

    with outbox_in(tmp_path) as made:
        asyncio.run(run(made))


def test_many_places_are_more_than_one_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daemon.kafka.groups.commits.MOVES_MAX", 2)

    async def test(to: Talk, gate: Gate) -> None:
        gate.may_write.set()
        topic_id = to.made.dest.topic_id
        commits = [GroupCommit(f"g{each}", topic_id, 0, each, "") for each in range(5)]
        await to.commits.put(commits)
        assert gate.writes == 3
        assert await to.commits.groups() == {f"g{each}" for each in range(5)}
        await to.commits.put([])
        assert gate.writes == 3

    with_gate(tmp_path, test)


def test_commits_keep_the_ledger_for_a_twentieth_of_the_time(tmp_path: Path) -> None:
    async def run(made: Outbox) -> None:
        now_ns, slept_s = 0, 0.0

        async def write(function: Callable[..., Any], *args: Any) -> Any:
            nonlocal now_ns
            now_ns += 10_000_000
            return await made.ledger.write(function, *args)

        async def sleep_s(length_s: float) -> None:
            nonlocal now_ns, slept_s
            now_ns += int(length_s * 1e9)
            slept_s += length_s

        commits = GroupCommits(write, made.ledger, lambda: True, wall_ms, lambda: now_ns, sleep_s)
        for each in range(100):
            await commits.put([GroupCommit("g", made.dest.topic_id, 0, each, "")])
            if each == 5:
                assert not slept_s, "few do not wait"
        assert 17.5 < slept_s < 19, "100 transactions of 10 ms in 20 s, but for the first second"

    with outbox_in(tmp_path) as made:
        asyncio.run(run(made))


def test_a_deleted_topic_and_a_full_ledger_have_codes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commits, "GROUP_CURSORS_MAX", 1)

    async def test(to: Talk) -> None:
        assert await to.commit([(0, 1)]) == [0]
        assert await to.commit([(0, 1)], group="h") == [44]
        await to.made.ledger.write(topics.delete, "dest", 5)
        assert await to.commit([(0, 2)]) == [3], "its shard believes that it is there"
        again, _ = await to.made.ledger.write(topics.create, "dest", TopicConfig(), 6)
        assert not await to.commits.of_topics("g", [again.topic_id])

    talk(tmp_path, test)
