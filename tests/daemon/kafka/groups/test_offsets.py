"""What groups of a shard commit, over a real ledger: when it is durable, and what is refused."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from daemon.access.allowance import Allowances
from daemon.access.rights import Rights
from daemon.access.token_file import Scope, TokenFile
from daemon.kafka.error_codes import COORDINATOR_NOT_AVAILABLE, INVALID_REQUEST, POLICY_VIOLATION
from daemon.kafka.groups import commits as commits_of
from daemon.kafka.groups import offsets
from daemon.kafka.groups.commits import GroupCommits
from daemon.kafka.rights import Allowed
from ledger import topics
from ledger.delivery import group_commits
from ledger.delivery.group_commits import GroupCommit
from ledger.errors import LedgerBusy
from ledger.types import TopicConfig
from shards.clock import monotonic_ns, wall_ms
from tests.daemon.intake.test_copies import Outbox, outbox_in
from tests.daemon.kafka.frames import Key, array, text
from tests.daemon.kafka.groups.test_coordinator import Talk, int16, talk

T = TypeVar("T")


class Gate:
    """A ledger that writes when it may, and can fail."""

    def __init__(self, made: Outbox) -> None:
        self.made = made
        self.may_write = asyncio.Event()
        self.fails = 0
        self.writes = 0
        self.is_asked = asyncio.Event()

    async def write(self, function: Callable[..., Any], *args: Any) -> Any:
        self.is_asked.set()
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
            gate.write, made.ledger, lambda: True, wall_ms, wall_ms, monotonic_ns, at_once
        )
        await test(Talk(made, commits=commits), gate)

    with outbox_in(directory) as made:
        asyncio.run(run(made))


def test_a_commit_is_answered_when_it_is_durable_and_those_that_wait_share_a_transaction(
    tmp_path: Path,
) -> None:
    async def test(to: Talk, gate: Gate) -> None:
        first = asyncio.ensure_future(to.commit([(0, 1)], group="a"))
        await gate.is_asked.wait()
        later = [asyncio.ensure_future(to.commit([(0, each)], group="b")) for each in (9, 4)]
        others = [asyncio.ensure_future(to.commit([(0, 2)], group=f"c{each}")) for each in range(9)]
        for _ in iter(lambda: len(to.commits._waiting), 11):
            await asyncio.sleep(0.001)
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
        assert await to.commit([(0, 1)]) == [COORDINATOR_NOT_AVAILABLE]
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
            made.ledger.write, made.ledger, lambda: now_ns >= owned_from_ns, wall_ms, wall_ms,
            lambda: now_ns, sleep_s,
        )  # fmt: skip
        to = Talk(made, commits=commits)
        assert await to.commit([(0, 1)]) == [COORDINATOR_NOT_AVAILABLE]
        assert await to.committed() == (-1, 0)
        assert await to.commit([(0, 1)]) == [0], "an entry has come"
        assert now_ns >= owned_from_ns
        owned_from_ns = now_ns + 20_000_000_000
        answer = await to.ask(Key.DELETE_GROUPS, 0, array(text("g")))
        assert int16(answer, len(answer) - 2) == COORDINATOR_NOT_AVAILABLE
        assert await to.offset_delete([0]) == [COORDINATOR_NOT_AVAILABLE]
        assert await to.committed() == (1, 0)

    with outbox_in(tmp_path) as made:
        asyncio.run(run(made))


@pytest.mark.parametrize("by_group", [True, False])
def test_a_deletion_comes_after_the_commits_before_it_and_before_those_after_it(
    tmp_path: Path, *, by_group: bool
) -> None:
    async def test(to: Talk, gate: Gate) -> None:
        def begun(asked: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
            return asyncio.ensure_future(asked)

        async def delete(group: str) -> int:
            if not by_group:
                return (await to.offset_delete([0], group=group))[0]
            return int16(await to.ask(Key.DELETE_GROUPS, 0, array(text(group))), 11)

        asked: list[asyncio.Task[Any]] = []
        for begin in (
            to.commit([(0, 9)], group="first"), to.commit([(0, 5)], group="h"),
            to.commit([(0, 5)]), delete("g"), delete("h"), to.commit([(0, 6)]),
        ):  # fmt: skip
            asked.append(begun(begin))
            for _ in iter(lambda: len(to.commits._waiting), len(asked) - 1):  # the first is taken
                await asyncio.sleep(0.001)
            for _ in iter(lambda: to.commits._task is None, False):
                await asyncio.sleep(0.001)
        gate.may_write.set()
        assert await asyncio.gather(*asked) == [[0], [0], [0], 0, 0, [0]]
        assert [(await to.committed(each))[0] for each in ("first", "h", "g")] == [9, -1, 6]
        gate.fails = 1
        assert await delete("g") == COORDINATOR_NOT_AVAILABLE
        assert await to.committed() == (6, 0)

    with_gate(tmp_path, test)


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

        commits = GroupCommits(
            write, made.ledger, lambda: True, wall_ms, wall_ms, lambda: now_ns, sleep_s
        )
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
        assert not any([each async for each in to.commits.of_topics("g", [again.topic_id])])

    talk(tmp_path, test)


def limited(
    to: Talk, directory: Path, of_daemon: dict[str, float], of_token: dict[str, float]
) -> Callable[[str], Allowed]:
    """Bearers of tokens that are for groups and topics of this name's beginning."""
    file = TokenFile(directory / "tokens.json")
    allowances = Allowances(to.made.segment, 0, of_daemon)

    def allowed(name: str) -> Allowed:
        token, _ = file.issue(name, [Scope.CONSUME], limits=of_token)
        rights = Rights(token, [Scope.CONSUME], ["dest", f"{name}*"], allowances.of_token(token))
        return Allowed(rights, (Scope.CONSUME,), "OffsetCommit", "", None)

    return allowed


def test_what_groups_commit_counts_for_the_limits_of_cursors(tmp_path: Path) -> None:
    async def test(to: Talk) -> None:
        assert await to.commit([(0, 1)], group="c-of-nobody") == [0]
        tokens = limited(to, tmp_path, {"cursors": 6}, {"cursors": 2, "settings": 0.001})
        for name, created in (("a", 2), ("b", 2), ("c", 1)):
            to.allowed = tokens(name)
            found = [await to.commit([(0, 1)], group=f"{name}-{each}") for each in range(4)]
            assert found == [[0]] * created + [[POLICY_VIOLATION]] * (4 - created), name
            assert await to.committed(f"{name}-3") == (-1, 0)
            assert await to.commit([(0, 7)], group=f"{name}-0") == [0]
            assert await to.committed(f"{name}-0") == (7, 0)
            allowance = to.allowed.rights.allowance
            assert allowance is not None
            # The first one is free; each change more takes 1,000 s. What is refused is none.
            owed_ns = 1_000e9 * (created - 1)
            assert owed_ns - 100e9 < allowance.debt_ns() <= owed_ns

    talk(tmp_path, test)


def test_a_commit_of_many_topics_begins_as_many_as_there_may_be(tmp_path: Path) -> None:
    async def test(to: Talk) -> None:
        to.allowed = limited(to, tmp_path, {}, {"cursors": 2})("many")
        names = [f"many-{each}" for each in range(3)]
        for each in names:
            await to.made.ledger.write(topics.create, each, TopicConfig(), 5)
        answer = await to.ask(
            Key.OFFSET_COMMIT, 2, text("many"), struct.pack(">i", -1), text(""),
            struct.pack(">q", -1), array(*(
                text(each) + array(struct.pack(">iq", 0, 5) + text(None)) for each in names)),
        )  # fmt: skip
        found = [int16(answer, answer.index(each.encode()) + len(each) + 8) for each in names]
        assert sorted(found) == [0, 0, POLICY_VIOLATION]
        assert sorted([(await to.committed("many", each))[0] for each in names]) == [-1, 5, 5]

    talk(tmp_path, test)


def test_what_one_group_has_committed_is_read_in_slices_and_has_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits_of, "BYTES_A_READ", 2_000)
    monkeypatch.setattr(offsets, "SAID_BYTES_MAX", 9_000)

    async def test(to: Talk) -> None:
        names = [f"t{each}" for each in range(5)]
        for each in names:
            await to.made.ledger.write(topics.create, each, TopicConfig(partitions=2), 5)
            found = await to.commit([(0, 5), (1, 5)], topic=each, metadata="m" * 800)
            assert found == [0, 0]
        ids = [entry.topic_id for _, entry in [(n, await to.made.topics.entry(n)) for n in names]]
        slices = [len(each) async for each in to.commits.of_topics("g", ids)]
        assert slices == [4, 4, 2]

        async def all_of_group() -> tuple[int, int]:
            """How many topics, and the error."""
            answer = await to.ask(Key.OFFSET_FETCH, 2, text("g"), b"\xff\xff\xff\xff")
            return int.from_bytes(answer[:4], "big"), int16(answer, len(answer) - 2)

        assert await all_of_group() == (5, 0)
        monkeypatch.setattr(offsets, "SAID_BYTES_MAX", 8_000)
        assert await all_of_group() == (0, INVALID_REQUEST)
        assert await to.committed(topic="t3") == (5, 0)

    talk(tmp_path, test)
