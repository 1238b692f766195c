"""The import of one source, from its first byte to its last: the shell of ``flow.py``.

Lifecycle: opened (text looked at, cursors taken up, text at the cursor's position) -> read and sent
-> done, failed or stopped. What blocks (files, objects, calls about cursors) runs in threads; what
is sent and answered, on the event loop. At most one thread works for a source at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Literal, NamedTuple, TypeVar

from msgspec import Struct

from commands.client.http import Refused, UnknownAnswer, Unreachable, topic_path
from commands.importing.chain import CursorSetBack
from commands.importing.flow import SETTLE_BYTES, Flow, Limits
from commands.importing.leases import Leases
from commands.importing.names import CursorNames, SourceCursors, beginning, source_told
from commands.importing.reading.problems import InvalidRecord, SourceChanged, SourceProblem
from commands.importing.reading.raw import HEAD_BYTES, FileVersion, RawSource
from commands.importing.reading.reader import (
    DocumentReader,
    Form,
    LineReader,
    Reader,
    SourceRead,
    is_array,
)
from commands.importing.reading.rules import Rules
from commands.importing.reading.text import SourceText
from commands.importing.sender import ChainSender, ImportDaemon, advancing
from daemon.schemas.api import CursorSource

POLL_S = 0.25  # how often a file that may grow is looked at
# A file that was rotated is read on for as long as it grows, and this long after.
ROTATED_QUIET_S = 10.0
# How often a cursor is told that its file has grown: seldom enough for 256 files that are followed.
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
    """A topic that rows go to."""

    topic: str
    topic_id: int


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
    position: int = 0  # of the cursor, in bytes of text
    records: int = 0  # stored by this run
    already_stored: int = 0  # of what was read; an earlier request had stored them
    filtered: int = 0
    invalid: int = 0
    dead_letters: int = 0
    requests: int = 0
    retries: int = 0
    read_bytes: int = 0
    error: Problem | None = None


class SourceImport:
    """Imports ``raw``; see the head of the module. ``leases_changed`` is called when leases end, so
    that other sources may go on; ``went_on`` with bytes that were read."""

    def __init__(
        self,
        raw: RawSource,
        plan: ImportPlan,
        daemon: ImportDaemon,
        cursors: SourceCursors,
        leases: Leases,
        threads: Executor,
        leases_changed: Callable[[], None],
        went_on: Callable[[int], None],
    ) -> None:
        self.raw = raw
        self.report = SourceReport(raw.name)
        self.failure: Exception | None = None
        self.is_rotated = False  # its path names another file now, or none
        self.begins_anew = False  # it was truncated or written anew while it was followed
        self._plan = plan
        self._daemon = daemon
        self._cursors = cursors
        self._leases = leases
        self._threads = threads
        self._leases_changed = leases_changed
        self._went_on = went_on
        self._wake = asyncio.Event()
        self._stops = False
        self._stopped_at = 0.0
        self._rules = plan.new_rules()
        self._names: CursorNames | None = None
        self._version: FileVersion | None = None  # if it has to be read from its start
        self._has_dead_cursor = False
        self._problem: SourceProblem | None = None
        # Who follows is told nothing of a file that is not what it was: it begins again.
        self._may_begin_anew = plan.follows and raw.may_grow
        self._grows = False
        self._is_complete = False  # read to its end
        self._quiet_since: float | None = None
        self._is_packed = False
        self._told_bytes: int | None = None  # to the cursor, as the length of the text
        self._told_at = 0.0
        self._counted = 0
        self._passed = 0  # bytes that did not have to be read

    def wake(self) -> None:
        """Something has happened that the import may be waiting for."""
        self._wake.set()

    def stop(self) -> None:
        """Reads nothing more; what was read is stored, if the daemon takes it within STOP_S."""
        self._stops = True
        self._stopped_at = self._daemon.now()
        self.wake()

    async def run(self) -> None:
        """Imports the source. How it went is in ``report`` and ``failure``."""
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

    async def _run(self) -> None:
        if self.raw.identity is not None and not self.raw.may_grow:
            topic_id, url = self._plan.target.topic_id, self.raw.name
            await self._run_object(CursorNames.of_object(topic_id, self.raw.identity, url))
        else:
            await self._run_text()

    async def _run_object(self, names: CursorNames) -> None:
        """What is known by its name alone: if all of it is imported, it is not read again."""
        self._names = names
        ended_at = None
        if not self._plan.restarts:
            source = self._source(None)
            ended_at = await self._blocking(self._cursors.ended_at, names, source)
        if ended_at is not None:
            self._has_ended_before(ended_at)
            return
        await self._run_text()
        if self._is_complete and self._problem is None:
            await self._blocking(self._note_end)

    def _has_ended_before(self, position: int) -> None:
        assert self._names is not None
        self.report.cursor, self.report.position = self._names.cursor, position
        self._went_on(self.raw.size() or 0)

    async def _run_text(self) -> None:
        text = SourceText(self.raw)
        while (head := await self._blocking(text.peek)) is None or not self._is_enough(head, text):
            if self._stops or self.is_rotated:
                return
            await self._pause(POLL_S)
        if not head:
            return
        opened = await self._blocking(self._open, text, head)
        if isinstance(opened, int):
            self._has_ended_before(opened)
            return
        reader, at, dead_at = opened
        await self._import(reader, Flow(at, dead_at, self._leases, self._plan.limits))
        version = self._version and await self._blocking(self.raw.version)
        if version and self._is_complete and self._problem is None:
            await self._blocking(self._note_end, version)

    def _source(self, size_bytes: int | None) -> CursorSource:
        return source_told(self.raw.location(), self._plan.target.topic_id, size_bytes)

    def _note_end(self, version: FileVersion | None = None) -> None:
        assert self._names is not None
        self._cursors.note_end(self._names, self.report.position, self._source(None), version)

    def _is_enough(self, head: bytes, text: SourceText) -> bool:
        """Whether the beginning is complete, so that it can name the cursor. What does not grow
        line by line must be complete when it is found."""
        grows = self._plan.follows and self.raw.may_grow and text.compression is None
        is_line = b"\n" in head or len(head) == HEAD_BYTES
        return not grows or is_line or (head != b"" and self._is_document(head))

    def _is_document(self, head: bytes) -> bool:
        form = self._plan.form
        return form == "json" or (form == "auto" and is_array(head))

    def _open(self, text: SourceText, head: bytes) -> tuple[Reader, int, int] | int:
        """A reader at the cursor's position, and the positions of both cursors; or the end of a
        file that is imported, and has not changed since. Blocks."""
        plan = self._plan
        is_document = self._is_document(head)
        self._grows = (
            plan.follows and self.raw.may_grow and text.compression is None and not is_document
        )
        begin = beginning(head, is_document=is_document)
        self._names = names = self._names or (
            CursorNames.of_a_run()
            if self.raw.identity is None
            else CursorNames.of(plan.target.topic_id, self.raw.identity, begin)
        )
        self.report.cursor = names.cursor
        if is_document or not text.is_seekable:
            self._version = self.raw.version()
        if self._version is not None and not plan.restarts:
            ended_at = self._cursors.ended_at(names, self._source(None), self._version)
            if ended_at is not None:
                return ended_at
        noted = head if self.raw.may_grow else None
        if plan.restarts:
            self._cursors.begin_again(names, noted)
        self._is_packed = text.compression is not None
        self._told_bytes, self._told_at = self._text_bytes(), self._daemon.now()
        source = self._source(self._told_bytes)
        at = self._cursors.take_up(names, noted, source, anew=self._may_begin_anew)
        last = b""
        if not is_document:
            try:
                last = text.skip_to(at)
            except SourceChanged:
                # Packed text cannot go back: it is opened again.
                if not self._may_begin_anew or not text.is_seekable:
                    raise
                self._cursors.begin_again(names, noted)
                at = 0
        self._passed = at if text.is_seekable and not is_document else 0
        dead_at = None
        if plan.dead_target is not None:
            dead_at = self._cursors.dead_position(names)
            self._has_dead_cursor = dead_at is not None
        if is_document:
            return DocumentReader(text, self._rules, at), at, dead_at or 0
        reader = LineReader(
            text,
            self._rules,
            line=None if at else 1,
            keeps_growing=self._grows,
            within_line=last not in (b"", b"\n"),
        )
        return reader, at, dead_at or 0

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

    def _may_read(self, reader: Reader) -> bool:
        """Whether there may be something to read; not while a followed file stays as it is."""
        if not self._grows or self.raw.size() != self.raw.position:
            return True
        now = self._daemon.now()
        if self._quiet_since is None:
            self._quiet_since = now
            return True  # the last look was before the size was compared
        if self.is_rotated and now - self._quiet_since > ROTATED_QUIET_S:
            reader.grows_no_more()
            return True
        return False

    async def _settle(self, flow: Flow) -> None:
        """Puts the cursor forward over what has become no rows."""
        assert self._names is not None
        is_quiet = self._quiet_since is not None and flow.is_idle
        least = 1 if is_quiet or (flow.is_idle and not flow.wants_block()) else SETTLE_BYTES
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
        size = self._text_bytes()
        if size != self._told_bytes or told_s > TELL_ANEW_S:
            self._told_bytes, self._told_at = size, now
            await self._blocking(self._cursors.tell, self._names, self._source(size))

    def _text_bytes(self) -> int | None:
        """How long the text is now. It is unknown for packed text before its end."""
        return None if self._is_packed else self.raw.size()

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
