"""The governed import of one source, of any kind: the shell of ``flow.py``.

Lifecycle: opened (cursors taken up) -> read and sent -> done, failed or stopped. What blocks (reads
of the source, calls about cursors) runs in threads; what is sent and answered, on the event loop.
At most one thread works for a source at a time. ``source.py`` (text) and ``kafka/partition.py``
(Kafka) say how a source is opened, and when it may have something to read.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Literal, NamedTuple, Protocol, TypeVar

from msgspec import Struct

from commands.client.http import Refused, UnknownAnswer, Unreachable, topic_path
from commands.importing.budget_leases import Leases
from commands.importing.chain import CursorSetBack
from commands.importing.chain_sender import ChainSender, ImportDaemon, advancing
from commands.importing.flow import SETTLE_BYTES, Flow, Limits
from commands.importing.names import CursorNames, SourceCursors, source_told
from commands.importing.reading.problems import InvalidRecord, SourceChanged, SourceProblem
from commands.importing.reading.reader import Form, Reader, SourceRead
from commands.importing.reading.rules import Rules
from daemon.schemas.api import CursorSource

POLL_S = 0.25  # how often a source that may grow is looked at
# How often a cursor is told that its source has grown: seldom enough for 256 that are followed.
TELL_S = 15.0
# And, if it has not, that its import lives; after an hour the daemon takes what was told for old.
TELL_ANEW_S = 600.0
# A stopped import waits this long for a daemon that is away or busy.
STOP_S = 10.0
# What is read together, in requests: the last one of a block is often a small one.
BLOCK_REQUESTS = 2

T = TypeVar("T")
State = Literal["done", "failed", "stopped"]


class TopicTarget(NamedTuple):
    """A topic that rows go to. ``kafka_value``: what it says of values that come from Kafka."""

    topic: str
    topic_id: int
    kafka_value: str = "bytes"


class ImportPlan(NamedTuple):
    """What is the same for all sources of an import."""

    target: TopicTarget
    dead_target: TopicTarget | None
    partition: int | None
    form: Form
    limits: Limits
    restarts: bool
    follows: bool
    new_rules: Callable[[], Rules]


class Problem(Struct, frozen=True):
    """Why a source was not imported to its end."""

    code: str
    message: str
    hint: str = ""
    line: int | None = None


class SourceReport(Struct):
    """What became of a source in this run."""

    source: str
    state: State = "stopped"
    cursor: str | None = None
    position: int = 0  # of the cursor: bytes of text, or an offset of Kafka
    records: int = 0  # stored by this run
    already_stored: int = 0  # of what was read; an earlier request had stored them
    filtered: int = 0
    invalid: int = 0
    dead_letters: int = 0
    absent: int = 0  # offsets of Kafka without a record
    requests: int = 0
    retries: int = 0
    read_bytes: int = 0
    error: Problem | None = None


class Source(Protocol):
    """What is imported, as far as its kind does not matter."""

    name: str
    identity: str | None  # None: it cannot be found again
    position: int  # bytes that were read of it, or passed

    def location(self) -> str:
        """Where it lies now: the path of a file, also after it was renamed, or a URL."""
        ...

    def close(self) -> None: ...


class ImportParts(NamedTuple):
    """What the sources of an import share. ``leases_changed`` is called when leases end, so that
    other sources may go on; ``went_on`` with bytes that were read."""

    daemon: ImportDaemon
    cursors: SourceCursors
    leases: Leases
    threads: Executor
    leases_changed: Callable[[], None]
    went_on: Callable[[int], None]


class GovernedImport(ABC):
    """Imports ``raw``; see the head of the module."""

    settle_after = SETTLE_BYTES  # positions; see flow.py
    settle_quiet_s = 0.0  # or after nothing came for so long

    def __init__(self, raw: Source, plan: ImportPlan, shared: ImportParts) -> None:
        self.raw = raw
        self.report = SourceReport(raw.name)
        self.failure: Exception | None = None
        self.begins_anew = False  # it is not what it was, and is to be imported from its start
        self._plan = plan
        self._daemon = shared.daemon
        self._cursors = shared.cursors
        self._leases = shared.leases
        self._threads = shared.threads
        self._leases_changed = shared.leases_changed
        self._went_on = shared.went_on
        self._wake = asyncio.Event()
        self._stops = False
        self._stopped_at = 0.0
        self._rules = plan.new_rules()
        self._names: CursorNames | None = None
        self._has_dead_cursor = False
        self._problem: SourceProblem | None = None
        self._may_begin_anew = False
        self._is_complete = False  # read to its end
        self._quiet_since: float | None = None  # nothing new was there, when it was looked at
        self._told_size: int | None = None  # to the cursor
        self._told_at = 0.0
        self._counted = 0
        self._passed = 0  # bytes that did not have to be read

    @abstractmethod
    async def _run(self) -> None:
        """Opens the source, and calls ``_import``."""

    @abstractmethod
    def _may_read(self, reader: Reader) -> bool:
        """Whether there may be something to read."""

    @abstractmethod
    def _size(self) -> int | None:
        """Where the source ends now, as a position; None if that is not known."""

    def wake(self) -> None:
        """Something has happened that the import may be waiting for."""
        self._wake.set()

    def stop(self) -> None:
        """Reads nothing more; what was read is stored, if the daemon takes it within STOP_S."""
        self._stops = True
        self._stopped_at = self._daemon.now()
        self.wake()

    async def run(self) -> None:
        """Imports the source. Its outcome is in ``report`` and ``failure``."""
        try:
            await self._run()
            if self._problem is not None:
                raise self._problem
            self.report.state = "done" if self._is_complete or not self._stops else "stopped"
        except (SourceProblem, Refused, Unreachable, UnknownAnswer, CursorSetBack) as error:
            self.begins_anew = self._may_begin_anew and isinstance(error, SourceChanged)
            if self.begins_anew:
                self.report.state = "done"
            else:
                self.failure = error
                self.report.state = "failed"
                self.report.error = problem_of(error)
        finally:
            self.report.filtered = self._rules.filtered
            self.report.invalid = self._rules.invalid
            self.report.read_bytes = max(0, self.raw.position - self._passed)
            await self._close()

    def _source(self, size: int | None) -> CursorSource:
        return source_told(self.raw.location(), self._plan.target.topic_id, size)

    def _source_now(self) -> CursorSource:
        """What the cursor is told now."""
        self._told_size, self._told_at = self._size(), self._daemon.now()
        return self._source(self._told_size)

    def _dead_position(self) -> int:
        """Where the dead letters are. Blocks."""
        if self._plan.dead_target is None:
            return 0
        assert self._names is not None
        at = self._cursors.dead_position(self._names)
        self._has_dead_cursor = at is not None
        return at or 0

    async def _import(self, reader: Reader, flow: Flow) -> None:
        names = self._names
        assert names is not None
        plan = self._plan
        main = ChainSender(
            self._daemon, _path(plan.target), flow.main, self.wake,
            advancing(names.cursor, plan.partition),
        )  # fmt: skip
        dead = None
        if plan.dead_target is not None:
            dead = ChainSender(
                self._daemon, _path(plan.dead_target), flow.dead, self.wake,
                advancing(names.dead_cursor),
            )  # fmt: skip
        reading: asyncio.Future[SourceRead] | None = None
        try:
            while not flow.is_done:
                self._wake.clear()
                if reading is not None and reading.done():
                    self._take(flow, reading.result())
                    reading = None
                await self._go_on(flow, main, dead)
                if self._stops:
                    flow.end()
                    if self._daemon.now() - self._stopped_at > STOP_S:
                        self._is_complete = False
                        break
                if reading is None and flow.wants_block() and self._may_read(reader):
                    reading = self._threads_run(reader.read, BLOCK_REQUESTS * plan.limits.bytes)
                    reading.add_done_callback(lambda _: self.wake())
                await self._settle(flow)
                await self._tell_source()
                if not flow.is_done:
                    await self._pause(self._wait_s(flow))
        finally:
            if reading is not None:
                await asyncio.wait([reading])
            flow.abandon()
            self._leases_changed()
            self._tell(flow, main, dead)

    async def _go_on(self, flow: Flow, main: ChainSender, dead: ChainSender | None) -> None:
        """Takes in answers, leases, and sends what can be sent."""
        leased = self._leases.leased
        main.advance()
        if dead is not None:
            dead.advance()
        flow.release()
        if self._leases.leased < leased:
            self._leases_changed()
        flow.lease()
        if dead is not None and flow.dead.wants_to_send:
            if not self._has_dead_cursor:
                assert self._names is not None
                await self._blocking(self._cursors.create, self._names.dead_cursor)
                self._has_dead_cursor = True
            while dead.is_ready and (step := flow.next_dead(self._daemon.now())) is not None:
                dead.send(step)
        if flow.main.wants_to_send:
            while main.is_ready and (step := flow.next_step(self._daemon.now())) is not None:
                main.send(step)

    def _take(self, flow: Flow, reading: SourceRead) -> None:
        """What a thread has read."""
        if reading.block is not None:
            flow.offer(reading.block)
            self._quiet_since = None
        if reading.problem is not None:
            self._problem = reading.problem
        self._is_complete = reading.has_ended
        if reading.has_ended or reading.problem is not None:
            flow.end()
        self._went_on(self.raw.position - self._counted)
        self._counted = self.raw.position

    async def _settle(self, flow: Flow) -> None:
        """Puts the cursor forward over what has become no rows."""
        assert self._names is not None
        quiet_s = -1.0 if self._quiet_since is None else self._daemon.now() - self._quiet_since
        is_quiet = quiet_s >= self.settle_quiet_s and flow.is_idle
        least = 1 if is_quiet or (flow.is_idle and not flow.wants_block()) else self.settle_after
        position = flow.settlement(at_least=least)
        if position is None:
            return
        known = flow.main.position
        at = await self._blocking(self._cursors.settle, self._names.cursor, known, position)
        if at < known:
            raise CursorSetBack(at, known)
        flow.main.settled(at)

    async def _tell_source(self) -> None:
        """Says how long the source is, if it has grown, or if that was said long ago."""
        now = self._daemon.now()
        told_s = now - self._told_at
        if self._stops or told_s < TELL_S:
            return
        size = self._size()
        if size != self._told_size or told_s > TELL_ANEW_S:
            self._told_size, self._told_at = size, now
            await self._blocking(self._cursors.tell, self._names, self._source(size))

    def _wait_s(self, flow: Flow) -> float:
        now = self._daemon.now()
        held = [c.not_before - now for c in (flow.main, flow.dead) if c.not_before > now]
        return min([POLL_S, *held])

    def _tell(self, flow: Flow, main: ChainSender, dead: ChainSender | None) -> None:
        report = self.report
        report.position = flow.main.position
        report.records = flow.main.rows_stored
        report.already_stored = flow.main.rows_known
        report.dead_letters = flow.dead.rows_stored
        for sender in (main, dead):
            if sender is not None:
                sender.close()
                report.requests += sender.requests
                report.retries += sender.retries

    async def _close(self) -> None:
        try:
            if self._names is not None and self.raw.identity is None:
                await self._blocking(self._forget_run, self._names)
        except (Refused, Unreachable, UnknownAnswer):
            pass  # a cursor is left that nobody uses
        finally:
            self.raw.close()

    def _forget_run(self, names: CursorNames) -> None:
        self._cursors.forget(names.cursor)
        if self._has_dead_cursor:
            self._cursors.forget(names.dead_cursor)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), seconds)

    async def _blocking(self, call: Callable[..., T], *arguments: object) -> T:
        return await self._threads_run(call, *arguments)

    def _threads_run(self, call: Callable[..., T], *arguments: object) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)


def _path(target: TopicTarget) -> str:
    return topic_path(target.topic) + "?create=false"


def problem_of(error: Exception) -> Problem:
    """An error as a report names it."""
    match error:
        case InvalidRecord():
            return Problem(error.code, str(error), error.hint, error.line)
        case SourceProblem():
            return Problem(error.code, str(error), error.hint)
        case Refused():
            hint = REFUSED_HINTS.get(error.code, "")
            return Problem(error.code, f"{error.message} ({error.code})", hint)
        case Unreachable():
            return Problem("unreachable", str(error))
        case CursorSetBack():
            return Problem("cursor_moved", str(error), "run it again when the other has ended")
    return Problem("unknown_answer", str(error))


REFUSED_HINTS = {
    "too_large": "--record-bytes, --batch and --batch-bytes must be within the daemon's limits",
    "cursors_full": "each source needs a cursor: delete those of sources that are gone",
}
