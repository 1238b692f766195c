"""Following the commits: from the log, and from the ledger where the log does not hold one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Concatenate

import msgspec
import pytest

from daemon.intake import commit_feed
from daemon.intake.commit_feed import CommitFeed
from delivery.ledger_thread import LedgerThread
from ledger import commits, epochs, topics
from ledger.errors import LedgerBusy, LedgerCorrupt
from ledger.ledger import Ledger
from ledger.tx import P, ReadTx, T
from ledger.types import Commit, TopicConfig
from shards.alarms import AlarmBoard, AlarmKind, raised
from shards.commitlog import CommitLog
from shards.layout import Layout
from shards.segment import Segment
from tests.ledger.lakes import commit
from tests.ledger.requests import Request

HANG_S = 60.0


class FailingLedger(Ledger):
    """A ledger whose read of a commit goes through what a test wants to happen before it."""

    before_read: Callable[[], None] = staticmethod(lambda: None)

    def read(
        self, function: Callable[Concatenate[ReadTx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        if function is commits.by_number:
            self.before_read()
        return super().read(function, *args, **kwargs)


class Immediately(random.Random):
    """Delays of no length."""

    def random(self) -> float:
        return 0.0


class Following:
    """A ledger of five commits whose log holds all of them but the third, and its follower."""

    def __init__(self, directory: Path) -> None:
        self.segment = Segment.create(
            Layout(1, 4096, commit_slots=8, commit_log_bytes=8192, commit_bytes_max=1024)
        )
        self.ledger = FailingLedger(directory / "ledger.db", nullcontext())
        self.ledger.write(epochs.begin_incarnation, 1)
        self.log = CommitLog(self.segment)
        self.thread = ThreadPoolExecutor(1)
        self.taken: list[int] = []
        self.changed = asyncio.Event()
        self.ends = 0
        self.follower = CommitFeed(
            self.log, LedgerThread(self.ledger, self.thread), AlarmBoard(self.segment, 0),
            Immediately(), lambda found: self.taken.append(found.number), self.changed.set,
            self._ended,
        )  # fmt: skip
        topic, _ = self.ledger.write(topics.create, "t", TopicConfig(partitions=300), 1)
        for number in range(1, 6):
            # A commit of this many partitions is larger than a slot of the log.
            partitions = 300 if number == 3 else 1
            parts = tuple((partition, 1) for partition in range(partitions))
            commit(self.ledger, number, Request(topic.topic_id, parts))
            self.log.publish(self.ledger.read(commits.by_number, number), 10 * number)
        assert [bool(self.log.read(n)) for n in range(1, 6)] == [True, True, False, True, True]

    def _ended(self) -> None:
        self.ends += 1
        self.changed.set()

    async def follow(self) -> None:
        """Follows until it is at the end of the log, or the process would end."""
        self.follower.follow()
        assert self.taken == [1, 2]
        async with asyncio.timeout(HANG_S):
            await self.changed.wait()

    def close(self) -> None:
        self.thread.shutdown()
        self.ledger.close()
        self.segment.close()


@pytest.fixture
def following(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Following]:
    """Takes what it finds in one slice, however slow the machine is."""
    monkeypatch.setattr(commit_feed, "SLICE_NS", int(HANG_S * 1e9))
    made = Following(tmp_path)
    yield made
    made.close()


def test_a_commit_that_the_log_does_not_hold_is_read_from_the_ledger_in_order(
    following: Following,
) -> None:
    asyncio.run(following.follow())
    assert following.taken == [1, 2, 3, 4, 5]
    assert following.follower.seen == 5


def test_a_read_that_fails_for_a_moment_is_made_again_and_answers_go_on(
    following: Following,
) -> None:
    errors = iter([LedgerBusy(following.ledger.path, 5_000)] * 3)
    alarms: list[AlarmKind] = []

    def fails() -> None:
        alarms.extend(alarm.kind for alarm in raised(following.segment))
        for error in errors:
            raise error

    following.ledger.before_read = fails
    asyncio.run(following.follow())
    assert following.taken == [1, 2, 3, 4, 5]
    assert alarms == [AlarmKind.LEDGER_FAILING] * 3
    assert list(raised(following.segment)) == []
    assert following.ends == 0


async def test_a_read_that_fails_for_good_ends_the_process(
    following: Following, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> None:
        raise LedgerCorrupt(following.ledger.path, "malformed")

    following.ledger.before_read = fails
    await following.follow()
    await following.follower.reach()
    assert following.ends == 1
    assert following.taken == [1, 2]
    assert "cannot follow the commits after 2" in caplog.text


async def test_nothing_is_followed_twice_while_the_ledger_is_read(following: Following) -> None:
    following.follower.follow()
    following.follower.follow()
    await following.follow()
    assert following.taken == [1, 2, 3, 4, 5]


def test_the_last_commits_stay_decoded_whatever_they_were_read_from(following: Following) -> None:
    assert list(following.follower.recent()) == [], "the log was empty when it began"
    asyncio.run(following.follow())
    recent = [
        msgspec.structs.replace(
            following.ledger.read(commits.by_number, number), published_ns=10 * number
        )
        for number in range(1, 6)
    ]
    assert list(following.follower.recent()) == recent


def test_a_successor_begins_with_the_commits_that_the_log_holds(following: Following) -> None:
    successor = CommitFeed(
        following.log, LedgerThread(following.ledger, following.thread),
        AlarmBoard(following.segment, 0), Immediately(), lambda _: None, lambda: None,
        lambda: None,
    )  # fmt: skip
    assert [commit.number for commit in successor.recent()] == [4, 5], "3 is not in the log"


@pytest.mark.parametrize("slice_ns", [0, int(HANG_S * 1e9)])
async def test_what_is_in_the_log_is_reached_without_a_bell(
    following: Following, monkeypatch: pytest.MonkeyPatch, slice_ns: int
) -> None:
    """Also by two at a time, in slices, and through a read of the ledger."""
    monkeypatch.setattr(commit_feed, "SLICE_NS", slice_ns)
    async with asyncio.timeout(HANG_S):
        await asyncio.gather(following.follower.reach(), following.follower.reach())
    assert following.taken == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("commits_max", "runs_max", "kept"),
    [(2, 1_000, [4, 5]), (64, 302, [3, 4, 5]), (64, 301, [4, 5]), (64, 1, [5])],
)
def test_recent_commits_are_bounded_in_number_and_in_runs(
    following: Following,
    monkeypatch: pytest.MonkeyPatch,
    commits_max: int,
    runs_max: int,
    kept: list[int],
) -> None:
    monkeypatch.setattr(commit_feed, "RECENT_COMMITS", commits_max)
    monkeypatch.setattr(commit_feed, "RECENT_RUNS", runs_max)
    asyncio.run(following.follow())
    assert [commit.number for commit in following.follower.recent()] == kept


async def test_many_commits_are_taken_in_slices(
    following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_feed, "SLICE_NS", 0)
    seen: list[int] = []
    loop = asyncio.get_running_loop()
    over = loop.create_future()

    def turn() -> None:
        seen.append(following.follower.seen)
        if following.follower.seen == 5:
            over.set_result(None)
        else:
            loop.call_soon(turn)

    following.follower.follow()
    turn()
    await over
    assert following.taken == [1, 2, 3, 4, 5]
    assert seen[0] == 1 and {1, 2, 4, 5} <= set(seen), "the loop does other things in between"


async def test_an_error_in_a_later_slice_ends_the_process(
    following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_feed, "SLICE_NS", 0)
    take = following.follower._take

    def fails(commit: Commit) -> None:
        if commit.number == 2:
            raise ValueError("a bug")
        take(commit)

    monkeypatch.setattr(following.follower, "_take", fails)
    following.follower.follow()
    await following.changed.wait()
    assert (following.taken, following.ends) == ([1], 1)
