"""Streams of overviews: computed once for all viewers, and bounded, whatever the ledger does."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from daemon.access.rights import EVERYTHING, Rights
from daemon.api import overviews
from daemon.api.figures.status import StatusBuilder
from daemon.api.handlers.daemon import DaemonRoutes
from daemon.api.overviews import TOPICS_SHOWN, OverviewRoutes
from daemon.config import load
from daemon.schemas.api import Status
from delivery.ledger_thread import LedgerThread
from ledger import topics
from ledger.lake import runs
from ledger.ledger import Ledger
from ledger.types import TopicConfig
from shards.boards.namecounts import TOPICS, write_name
from shards.layout import Layout
from shards.segment import Segment
from uploader.groups.puller import GroupTable


class Viewer:
    """An outlet that takes everything until it is told not to."""

    def __init__(self) -> None:
        self.writable, self.closed = True, False
        self.drained: Callable[[], None] | None = None
        self.closed_by_peer: Callable[[], None] | None = None
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def end(self, data: bytes = b"") -> None:
        self.written.append(data)
        self.closed = True

    @property
    def seen(self) -> list[Any]:
        """The overviews so far."""
        found = b"".join(self.written).split(b"event: overview\ndata: ")[1:]
        return [json.loads(each.partition(b"\n")[0]) for each in found]


class Counted(DaemonRoutes):
    """Counts how often a status is computed."""

    computed = 0

    async def status(self, rights: Rights) -> Status:
        self.computed += 1
        return await super().status(rights)


class Shard:
    """A shard's viewers, over a segment and a ledger."""

    def __init__(self, segment: Segment, ledger: Ledger, thread: ThreadPoolExecutor) -> None:
        GroupTable(segment).start()
        self.segment, self.ledger, self.thread = segment, ledger, thread
        status = StatusBuilder(segment, load(None, {}, []))
        asked = LedgerThread(ledger, thread)
        self.daemon = Counted(status, asked, bytes)
        self.routes = OverviewRoutes(self.daemon, status, asked)

    async def view(self, rights: Rights = EVERYTHING) -> Viewer:
        viewer = Viewer()
        (await self.routes.watch(rights)).start(viewer)
        return viewer

    def acknowledged(self, *names: str) -> None:
        """Producers of each topic were acknowledged more than those of the one before."""
        for slot, name in enumerate(names):
            write_name(TOPICS, self.segment, slot, name)
            first = self.segment.layout.topic_counts(0) + 2 * (slot + 1)
            self.segment.words[first + 1] = slot + 1


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overviews, "PERIOD_S", 0.001)


@contextmanager
def shard(folder: Path, shards: int = 1) -> Iterator[Shard]:
    with (
        closing(Segment.create(Layout(shards, 4096))) as segment,
        closing(Ledger(folder / "ledger.db", nullcontext())) as ledger,
        ThreadPoolExecutor(1) as thread,
    ):
        yield Shard(segment, ledger, thread)


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - the viewers set no event
            await asyncio.sleep(0.001)


async def test_viewers_share_what_is_computed_and_nobody_is_waited_for(tmp_path: Path) -> None:
    with shard(tmp_path) as found:
        first, slow, limited = (
            await found.view(), await found.view(), await found.view(Rights(None, [], ["x"])),
        )  # fmt: skip
        slow.writable = False
        await until(lambda: len(first.seen) >= 3)
        found.routes.close()
        assert slow.seen == []
        assert 0 <= found.daemon.computed - len(first.seen) - len(limited.seen) <= 1
        for each in (first, slow, limited):
            assert each.closed and b"closing" in each.written[-1]
        assert first.seen[0]["rates"]["since_start"] and not first.seen[1]["rates"]["since_start"]


async def test_rates_are_of_what_a_viewer_may_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shard(tmp_path) as found:
        computed = found.daemon.status

        async def status(rights: Rights) -> Status:
            whole = await computed(rights)
            count = 1_000 if rights.is_for_all_topics else 1
            seen = structs.replace(whole.subscriptions, acknowledged=count)
            return structs.replace(whole, subscriptions=seen)

        monkeypatch.setattr(found.daemon, "status", status)
        limited, everything = await found.view(Rights(None, [], ["x"])), await found.view()
        await until(lambda: len(limited.seen) >= 3 and len(everything.seen) >= 3)
        found.routes.close()
        for each in (limited, everything):
            assert [seen["rates"]["acknowledged"] for seen in each.seen[1:3]] == [0, 0]


async def test_nothing_is_computed_when_the_last_viewer_has_gone(tmp_path: Path) -> None:
    with shard(tmp_path) as found:
        viewer = await found.view()
        await until(lambda: viewer.seen)
        assert viewer.closed_by_peer is not None
        viewer.closed_by_peer()
        task = found.routes._task
        assert task is not None
        await task
        again = await found.view()
        await until(lambda: again.seen)
        found.routes.close()


def test_topics_are_the_busiest_and_then_by_name_and_not_all(tmp_path: Path) -> None:
    async def run(found: Shard) -> Any:
        viewer, limited = await found.view(), await found.view(Rights(None, [], ["t005"]))
        await until(lambda: viewer.seen and limited.seen)
        found.routes.close()
        assert [each["topic"] for each in limited.seen[0]["topics"]] == ["t005"]
        assert limited.seen[0]["runs"] == [], "they name machines"
        return viewer.seen[0]

    with shard(tmp_path) as found:
        for number in range(TOPICS_SHOWN + 20):
            found.ledger.write(topics.create, f"t{number:03}", TopicConfig(partitions=2), 1)
        found.ledger.write(runs.begin, "r1", "a@b", 1, 10)
        found.ledger.write(runs.begin, "r2", "a@b", 1_000)
        found.acknowledged("t110", "gone", "t112")
        seen = asyncio.run(run(found))
    names = [each["topic"] for each in seen["topics"]]
    assert names == ["t112", "t110", *(f"t{number:03}" for number in range(TOPICS_SHOWN - 2))]
    assert seen["topics"][0]["acked_bytes"] == 3 and seen["topics"][0]["partitions"] == 2
    assert seen["more_topics"]
    assert [(each["run"], each["ended_ms"], each["lives"]) for each in seen["runs"]] == [
        ("r2", None, False), ("r1", 1_000, False),
    ]  # fmt: skip


async def test_a_ledger_that_hangs_keeps_no_event_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overviews, "LEDGER_WAIT_S", 0.001)
    goes_on = threading.Event()
    with shard(tmp_path) as found:
        found.thread.submit(goes_on.wait)
        viewer = await found.view()
        try:
            await until(lambda: len(viewer.seen) >= 3)
            assert all(each["topics"] is None for each in viewer.seen)
        finally:
            goes_on.set()
        await until(lambda: viewer.seen[-1]["topics"] == [])
        found.routes.close()
