"""What groups have committed ends when it is not used; members and commits are use."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from daemon.kafka.groups import expiry
from daemon.kafka.groups.commits import GroupCommits
from daemon.kafka.groups.expiry import UNUSED_MS, GroupExpiry
from ledger.delivery import group_commits
from ledger.delivery.group_commits import USED_STEP_MS, GroupCommit
from ledger.errors import LedgerBusy
from shards.clock import monotonic_ns, wall_ms
from tests.daemon.intake.test_copies import Outbox, outbox_in
from tests.daemon.kafka.groups.test_coordinator import Talk

DAY_MS = 86_400_000


class Aging:
    """Groups of a shard whose clock of ages is set by hand."""

    def __init__(self, made: Outbox, shards: int = 1) -> None:
        self.now_ms = 1_000 * DAY_MS
        self.commits = GroupCommits(
            made.ledger.write, made.ledger, lambda: True, wall_ms, lambda: self.now_ms, monotonic_ns
        )
        self.talk = Talk(made, shards, self.commits)
        self.expiry = GroupExpiry(self.talk.coordinator, self.commits, lambda: self.now_ms)

    async def put(self, *groups: str) -> None:
        topic_id = self.talk.made.dest.topic_id
        await self.commits.put([GroupCommit(each, topic_id, 0, 5, "") for each in groups])

    async def each_day(self, days: int) -> set[str]:
        """Looks every day; the groups that are left."""
        for _ in range(days):
            self.now_ms += DAY_MS
            await self.expiry.look()
        return await self.commits.groups()


def test_a_group_without_members_and_commits_loses_its_commits_after_thirty_days(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "PAGE", 2)

    async def test(made: Outbox) -> None:
        aging = Aging(made)
        await aging.put("a", "b", "commits", "member", "z")
        assert (await aging.talk.join("member"))[0] == 0
        for _ in range(6):
            assert len(await aging.each_day(5)) == 5
            await aging.put("commits")
        assert await aging.each_day(2) == {"commits", "member"}
        assert await aging.talk.committed("a") == (-1, 0)
        aging.talk.coordinator._groups["member"].members.clear()
        aging.talk.coordinator._groups.clear()
        assert await aging.each_day(29) == {"commits", "member"}, "it was empty for 29 days"
        assert await aging.each_day(3) == set()
        aging.talk.coordinator.close()

    with outbox_in(tmp_path) as made:
        asyncio.run(test(made))


def test_commits_of_a_former_version_begin_to_age_now(tmp_path: Path) -> None:
    async def test(made: Outbox) -> None:
        aging = Aging(made)
        await aging.put("g")
        made.ledger.ledger._connection.execute("UPDATE cursors SET used_ms = NULL")
        assert await aging.each_day(30) == {"g"}
        assert await aging.each_day(3) == set()

    with outbox_in(tmp_path) as made:
        asyncio.run(test(made))


def test_a_shard_lets_the_groups_of_others_alone(tmp_path: Path) -> None:
    async def test(made: Outbox) -> None:
        aging = Aging(made, shards=2)
        names = set("abcdefgh")
        ours = {each for each in names if aging.talk.coordinator.is_ours(each)}
        await aging.put(*names)
        assert await aging.each_day(40) == names - ours

    with outbox_in(tmp_path) as made:
        asyncio.run(test(made))


def test_a_group_that_commits_while_it_is_looked_at_keeps_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(made: Outbox) -> None:
        aging = Aging(made)
        await aging.put("g")
        aging.now_ms += UNUSED_MS + 2 * USED_STEP_MS
        settle = aging.commits.settle_idle

        async def late(*args: object) -> int:
            await aging.put("g")
            return await settle(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(aging.commits, "settle_idle", late)
        assert await aging.expiry.look() == 0
        assert await aging.commits.groups() == {"g"}

    with outbox_in(tmp_path) as made:
        asyncio.run(test(made))


@pytest.mark.parametrize(
    ("error", "level"),
    [(LedgerBusy(Path("ledger"), 1), logging.WARNING), (ValueError("a bug"), logging.ERROR)],
)
def test_looks_go_on_after_one_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    error: Exception, level: int,
) -> None:  # fmt: skip
    async def test(made: Outbox) -> None:
        aging = Aging(made)
        await aging.put("g")
        aging.now_ms += UNUSED_MS + 2 * USED_STEP_MS
        slept: list[float] = []

        async def sleep_s(length_s: float) -> None:
            slept.append(length_s)
            if len(slept) == 3:
                raise asyncio.CancelledError
            monkeypatch.setattr(group_commits, "idle", fails if len(slept) == 1 else idle)

        idle = group_commits.idle

        def fails(*_: object) -> None:
            raise error

        looking = GroupExpiry(aging.talk.coordinator, aging.commits, lambda: aging.now_ms, sleep_s)
        with pytest.raises(asyncio.CancelledError):
            await looking.run()
        assert slept == [3_600.0] * 3, "the first time is an hour after the start"
        assert [each.levelno for each in caplog.records if "another hour" in each.message] == [
            level
        ]
        assert await aging.commits.groups() == set()

    with outbox_in(tmp_path) as made:
        asyncio.run(test(made))
