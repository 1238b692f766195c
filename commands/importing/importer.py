"""An import: its sources, several at a time, over one byte budget.

A source that fails does not stop the others. A daemon that refuses or does not answer does stop
them, because they would fare no better: what was read is stored, and the rest is not begun.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from operator import itemgetter

from msgspec import Struct

from commands.importing.budget_leases import Leases
from commands.importing.chain_sender import ImportDaemon
from commands.importing.governed import (
    GovernedImport,
    ImportParts,
    ImportPlan,
    SourceReport,
    problem_of,
)
from commands.importing.names import SourceCursors
from commands.importing.reading.finding import FoundSource
from commands.importing.reading.problems import SourceProblem
from commands.importing.source import SourceImport

REPORTS_MAX = 10_000  # of sources that are named; the totals count all


class ImportTotals(Struct):
    """Sums over all sources."""

    sources: int = 0
    failed: int = 0
    stopped: int = 0
    records: int = 0
    already_stored: int = 0
    filtered: int = 0
    invalid: int = 0
    dead_letters: int = 0
    absent: int = 0
    requests: int = 0
    retries: int = 0
    read_bytes: int = 0


class Importer:
    """Runs the imports of sources, on the event loop."""

    def __init__(
        self,
        plan: ImportPlan,
        daemon: ImportDaemon,
        cursors: SourceCursors,
        parallel: int,
        went_on: Callable[[int], None],
    ) -> None:
        self.totals = ImportTotals()
        self._reports: list[tuple[int, SourceReport]] = []
        self._begun = 0
        self.plan = plan
        self.stopped = asyncio.Event()
        self._daemon = daemon
        self.cursors = cursors
        self._parallel = parallel
        self._went_on = went_on
        self._leases = Leases(daemon.budget)
        self._running: set[GovernedImport] = set()

    @property
    def stops(self) -> bool:
        """Whether nothing more is read."""
        return self.stopped.is_set()

    @property
    def reports(self) -> list[SourceReport]:
        """The reports of the sources, in the order in which they were begun."""
        return [report for _, report in sorted(self._reports, key=itemgetter(0))]

    def stop(self) -> None:
        """Reads nothing more; what was read is stored, if the daemon takes it within seconds."""
        self.stopped.set()
        self.cursors.give_up()
        for each in self._running:
            each.stop()

    async def run(self, sources: Iterable[FoundSource]) -> None:
        """Imports the sources."""
        waiting = iter(sources)
        with self.threads(self._parallel) as threads:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._parallel):
                    group.create_task(self._work(waiting, threads))

    @contextmanager
    def threads(self, sources_max: int) -> Iterator[ThreadPoolExecutor]:
        """Threads for this many simultaneous sources: each uses at most one."""
        with ThreadPoolExecutor(sources_max, thread_name_prefix="import") as threads:
            yield threads

    async def one(
        self,
        found: FoundSource,
        threads: ThreadPoolExecutor,
        plan: ImportPlan,
        begun: Callable[[SourceImport], None] = lambda source: None,
    ) -> SourceImport | None:
        """Imports one source. None if it cannot be opened."""
        try:
            raw = found.open()
        except SourceProblem as error:
            self.refuse(found.name, error)
            return None
        source = SourceImport(raw, plan, self.shared(threads))
        begun(source)
        await self.run_one(source)
        return source

    def shared(self, threads: ThreadPoolExecutor) -> ImportParts:
        """What a source needs of the import."""
        return ImportParts(
            self._daemon, self.cursors, self._leases, threads, self._leases_changed, self._went_on
        )

    async def run_one(self, source: GovernedImport) -> None:
        """Runs the import of a source, and counts what became of it."""
        self._begun += 1
        number = self._begun
        self._running.add(source)
        if self.stops:
            source.stop()
        try:
            await source.run()
        finally:
            self._running.discard(source)
        self._count(number, source.report, source.failure)

    def refuse(self, name: str, error: SourceProblem) -> None:
        """A source that cannot be opened."""
        self._begun += 1
        self._count(self._begun, SourceReport(name, "failed", error=problem_of(error)), error)

    async def _work(self, waiting: Iterator[FoundSource], threads: ThreadPoolExecutor) -> None:
        for found in waiting:
            if self.stops:
                self.totals.sources += 1
                self.totals.stopped += 1
            else:
                await self.one(found, threads, self.plan)

    def _count(self, number: int, report: SourceReport, failure: Exception | None) -> None:
        totals = self.totals
        totals.sources += 1
        totals.failed += report.state == "failed"
        totals.stopped += report.state == "stopped"
        for name in ("records", "already_stored", "filtered", "invalid", "dead_letters", "absent",
                     "requests", "retries", "read_bytes"):  # fmt: skip
            setattr(totals, name, getattr(totals, name) + getattr(report, name))
        if len(self._reports) < REPORTS_MAX or report.error is not None:
            del self._reports[REPORTS_MAX - 1 :]
            self._reports.append((number, report))
        if failure is None:
            return
        # A follower would otherwise go on for weeks before anyone hears of it.
        if self.plan.follows or not isinstance(failure, SourceProblem):
            self.stop()

    def _leases_changed(self) -> None:
        for each in self._running:
            each.wake()
