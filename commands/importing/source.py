"""The import of one source of text, from its first byte to its last: a file, a pipe or an object.

It is opened when its text was looked at, and its cursors are taken up; it is read from the
cursor's position on. ``governed.py`` has what follows.
"""

from __future__ import annotations

from commands.importing.flow import Flow
from commands.importing.governed import POLL_S, GovernedImport, ImportParts, ImportPlan
from commands.importing.names import CursorNames, beginning
from commands.importing.reading.problems import SourceChanged
from commands.importing.reading.raw import HEAD_BYTES, FileVersion, RawSource
from commands.importing.reading.reader import DocumentReader, LineReader, Reader, is_array
from commands.importing.reading.text import SourceText

# A file that was rotated is read on for as long as it grows, and this long after.
ROTATED_QUIET_S = 10.0


class SourceImport(GovernedImport):
    """Imports ``raw``; see the head of the module."""

    raw: RawSource

    def __init__(self, raw: RawSource, plan: ImportPlan, shared: ImportParts) -> None:
        super().__init__(raw, plan, shared)
        self.is_rotated = False  # its path names another file now, or none
        self._version: FileVersion | None = None  # if it has to be read from its start
        # Who follows is told nothing of a source that is not what it was: it begins again.
        self._may_begin_anew = plan.follows
        self._grows = False
        self._is_packed = False

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
        at = self._cursors.take_up(names, noted, self._source_now(), anew=self._may_begin_anew)
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
        dead_at = self._dead_position()
        if is_document:
            return DocumentReader(text, self._rules, at), at, dead_at
        reader = LineReader(
            text,
            self._rules,
            line=None if at else 1,
            keeps_growing=self._grows,
            within_line=last not in (b"", b"\n"),
        )
        return reader, at, dead_at

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

    def _size(self) -> int | None:
        """How long the text is now. It is unknown for packed text before its end."""
        return None if self._is_packed else self.raw.size()
