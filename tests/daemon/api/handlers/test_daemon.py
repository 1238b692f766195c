"""Handlers about the daemon: a ledger that does not answer, and many who ask together."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import pytest

from daemon.access.rights import EVERYTHING, Rights
from daemon.api.figures.status import StatusBuilder
from daemon.api.handlers import daemon as handlers
from daemon.api.handlers.daemon import DaemonRoutes
from daemon.config import load
from daemon.schemas.api import ImportScaling, MetricsHeaders, Status
from delivery.ledger_thread import LedgerThread
from ledger import cursors, topics
from ledger.cursors import SourceTold
from ledger.ledger import Ledger
from ledger.types import TopicConfig
from shards.clock import wall_ms
from shards.layout import Layout
from shards.segment import Segment
from uploader.groups.puller import GroupTable

T = TypeVar("T")


def test_a_ledger_that_hangs_is_asked_once_and_leaves_imports_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handlers, "IMPORTS_WAIT_S", 0.001)
    asked: list[object] = []

    class Counted(LedgerThread):
        async def run(self, call: Callable[[], T]) -> T:
            asked.append(call)
            return await super().run(call)

    goes_on = threading.Event()
    with (
        closing(Segment.create(Layout(1, 4096))) as segment,
        closing(Ledger(tmp_path / "ledger.db", nullcontext())) as ledger,
        ThreadPoolExecutor(1) as thread,
    ):
        topic = ledger.write(topics.create, "t", TopicConfig(), 1)[0]
        ledger.write(cursors.create, "c", "client", 1)
        told_ms = wall_ms() - 60_000
        source = SourceTold("/f", topic.topic_id, 9)
        ledger.write(cursors.tell, "c", "client", source, told_ms)
        status = StatusBuilder(segment, load(None, {}, []))
        routes = DaemonRoutes(status, Counted(ledger, thread), bytes)

        async def run() -> tuple[list[ImportScaling], list[ImportScaling]]:
            thread.submit(goes_on.wait)
            try:
                for _ in range(3):
                    assert (await routes.scaling(EVERYTHING)).imports is None
                assert len(asked) == 1, "no question is added while one waits"
            finally:
                goes_on.set()
            return await told(EVERYTHING), await told(Rights(None, [], ["other"]))

        async def told(rights: Rights) -> list[ImportScaling]:
            while (imports := (await routes.scaling(rights)).imports) is None:
                pass
            return imports

        (found,), hidden = asyncio.run(run())
    assert hidden == [], "of topics that a token is not for nothing is told"
    assert (found.topic, found.sources, found.unknown) == ("t", 1, 0)
    assert (found.lag_bytes, found.lag_records) == (9, 0)
    assert found.told_age_ms is not None and 60_000 <= found.told_age_ms < 600_000


@pytest.mark.parametrize("asked", ["status", "metrics"])
def test_of_many_statuses_that_are_asked_for_together_one_is_made_in_a_turn(
    tmp_path: Path, asked: str
) -> None:
    made: list[int] = []  # the turns of the loop in which one was made
    turn = 0

    class Noting(StatusBuilder):
        def document(self, *args: Any) -> Status:
            made.append(turn)
            return super().document(*args)

    async def run(routes: DaemonRoutes) -> None:
        nonlocal turn

        def ask() -> Coroutine[Any, Any, object]:
            if asked == "status":
                return routes.status(EVERYTHING)
            return routes.metrics(MetricsHeaders(), EVERYTHING)

        answers = asyncio.gather(*(ask() for _ in range(20)))
        while not answers.done():
            await asyncio.sleep(0)
            turn += 1
        await answers

    with (
        closing(Segment.create(Layout(1, 4096))) as segment,
        closing(Ledger(tmp_path / "ledger.db", nullcontext())) as ledger,
        ThreadPoolExecutor(1) as thread,
    ):
        GroupTable(segment).start()
        status = Noting(segment, load(None, {}, []))
        asyncio.run(run(DaemonRoutes(status, LedgerThread(ledger, thread), bytes)))
    assert len(made) == len(set(made)) == 20


def test_the_document_of_the_api_is_made_and_encoded_once_however_many_ask_together(
    tmp_path: Path,
) -> None:
    made: list[bytes] = []
    goes_on = threading.Event()

    def make() -> bytes:
        made.append(b"{}")
        assert goes_on.wait(60)
        return made[0]

    async def run(routes: DaemonRoutes) -> None:
        first, *others = [asyncio.create_task(routes.openapi()) for _ in range(20)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        first.cancel()  # its client has gone
        await asyncio.wait([first])
        goes_on.set()
        bodies = {id(answer.body) for answer in await asyncio.gather(*others)}
        bodies.add(id((await routes.openapi()).body))
        assert bodies == {id(made[0])}

    with (
        closing(Segment.create(Layout(1, 4096))) as segment,
        closing(Ledger(tmp_path / "ledger.db", nullcontext())) as ledger,
        ThreadPoolExecutor(1) as thread,
    ):
        status = StatusBuilder(segment, load(None, {}, []))
        try:
            asyncio.run(run(DaemonRoutes(status, LedgerThread(ledger, thread), make)))
        finally:
            goes_on.set()
    assert len(made) == 1


def test_the_document_of_the_api_is_made_again_if_that_has_failed(tmp_path: Path) -> None:
    outcomes: list[bytes | MemoryError] = [MemoryError("no memory"), b"{}"]

    def make() -> bytes:
        outcome = outcomes.pop(0)
        if isinstance(outcome, MemoryError):
            raise outcome
        return outcome

    async def run(routes: DaemonRoutes) -> None:
        asked = await asyncio.gather(*(routes.openapi() for _ in range(3)), return_exceptions=True)
        assert [type(each) for each in asked] == [MemoryError] * 3
        for _ in range(2):
            assert (await routes.openapi()).body == b"{}"

    with (
        closing(Segment.create(Layout(1, 4096))) as segment,
        closing(Ledger(tmp_path / "ledger.db", nullcontext())) as ledger,
        ThreadPoolExecutor(1) as thread,
    ):
        status = StatusBuilder(segment, load(None, {}, []))
        asyncio.run(run(DaemonRoutes(status, LedgerThread(ledger, thread), make)))
