"""Blocks out of a source's text: NDJSON line by line, or one JSON document.

A position is the end of a record in the text: of its line with the line end, or of an element of
the array. So it does not depend on the size of batches, nor on the compression.

- The last line counts without a line end too, unless the file is followed: it may still grow.
- A JSON document is parsed as a whole before anything of it is sent.
- ``read`` blocks for one read of the source; it runs in a thread.
- Of a line over LINE_BYTES_MAX only the beginning is kept. It is not a record, and is passed as
  such, unless what is not a record ends the source.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

import msgspec

from commands.client.records import CUT_OFF_HINT, DOCUMENT_BYTES_MAX, is_cut_off
from commands.importing.reading.blocks import SourceBlock, SourceRecord
from commands.importing.reading.problems import SourceChanged, SourceProblem
from commands.importing.reading.rules import DEAD_TEXT_BYTES_MAX, Rules
from commands.importing.reading.text import SourceText
from daemon.schemas.decoding import UNREADABLE

Form = Literal["auto", "ndjson", "json"]
# A source without line ends would fill the memory; records have 1 MiB at most by default.
LINE_BYTES_MAX = 16 << 20
_BLANK = b" \t\r\n"
_BOM = b"\xef\xbb\xbf"


class SourceRead(NamedTuple):
    """What one read brought: a block, or the end, or neither if nothing comes for a while.

    ``problem``: why nothing more can be read; what is in the block is good."""

    block: SourceBlock | None = None
    has_ended: bool = False
    problem: SourceProblem | None = None


class Reader(Protocol):
    """Blocks of one source, from front to back."""

    def read(self, block_bytes: int) -> SourceRead:
        """The next block of about this size."""
        ...

    def grows_no_more(self) -> None:
        """The next end of the source is its end."""
        ...


class LineReader:
    """NDJSON from the text's position on. ``line``: the number of the next line, if it is known.

    ``within_line``: the line before was imported without a line end, so it must come first."""

    def __init__(
        self,
        text: SourceText,
        rules: Rules,
        *,
        line: int | None = None,
        keeps_growing: bool = False,
        within_line: bool = False,
    ) -> None:
        self._text = text
        self._rules = rules
        self._line = line
        self._keeps_growing = keeps_growing
        self._within_line = within_line
        self._position = text.position
        self._rest = b""
        self._passed = 0  # bytes of a line that is too long, of which the rest is the beginning
        self._problem: SourceProblem | None = None
        self._has_ended = False

    def read(self, block_bytes: int) -> SourceRead:
        if self._problem is not None:
            return SourceRead(problem=self._problem)
        records: list[SourceRecord] = []
        begin = self._position
        passed_max = self._passed + block_bytes
        try:
            while self._position - begin < block_bytes and not self._has_ended:
                if self._passed >= passed_max:
                    break
                data = self._text.read()
                if data is None:
                    break
                if not data:
                    self._at_end(records)
                    break
                self._split(data, records)
        except SourceProblem as error:
            self._problem = error
        if self._position > begin:
            return SourceRead(SourceBlock(records, self._position), self._has_ended)
        return SourceRead(None, self._has_ended, self._problem)

    def grows_no_more(self) -> None:
        self._keeps_growing = False

    def _split(self, data: bytes, records: list[SourceRecord]) -> None:
        if self._passed:
            end = data.find(b"\n")
            if end < 0:
                self._passed += len(data)
                return
            self._take_long(self._passed + end, 1, records)
            data = data[end + 1 :]
        *lines, self._rest = (self._rest + data).split(b"\n")
        for number, line in enumerate(lines):
            try:
                self._take(line, len(line) + 1, records)
            except SourceProblem:
                self._rest = b"\n".join([*lines[number:], self._rest])
                raise
        if len(self._rest) > LINE_BYTES_MAX:
            self._passed = len(self._rest)
            self._rest = self._rest[:DEAD_TEXT_BYTES_MAX]
            if self._rules.fails:
                self._take_long(self._passed, 0, records)

    def _at_end(self, records: list[SourceRecord]) -> None:
        if self._keeps_growing:
            return
        if self._passed:
            self._take_long(self._passed, 0, records)
        elif self._rest:
            rest, self._rest = self._rest, b""
            self._take(rest, len(rest), records)
        self._has_ended = True

    def _take_long(self, length: int, line_end: int, records: list[SourceRecord]) -> None:
        """A line of which ``_rest`` is the beginning; ``line_end`` is the size of its end."""
        self._check_within_line(self._rest)
        begin, self._rest, self._passed = self._rest, b"", 0
        problem = (
            f"has more than {LINE_BYTES_MAX:,} bytes; a JSON document of this size needs"
            " --format json"
        )
        end = self._position + length + line_end
        records.append(
            self._rules.too_long(
                begin, length, problem, self._position, end, self._line, self._text.raw.name
            )
        )
        self._go_to(end)

    def _go_to(self, end: int) -> None:
        self._position = end
        if self._line is not None:
            self._line += 1

    def _check_within_line(self, line: bytes) -> None:
        if self._within_line and line.strip(_BLANK):
            raise SourceChanged(
                f"has a line that was imported without its end, and goes on at byte"
                f" {self._position:,} now",
                hint="--restart imports it from its start",
            )
        self._within_line = False

    def _take(self, line: bytes, size: int, records: list[SourceRecord]) -> None:
        end = self._position + size
        self._check_within_line(line)
        text = line.strip(_BLANK) if self._position else line.removeprefix(_BOM).strip(_BLANK)
        if text:
            records.append(self._rules.record(text, end, size, self._line, self._text.raw.name))
        self._go_to(end)


class DocumentReader:
    """The elements of one JSON array, or one JSON value, after a position.

    It keeps only the place of an element: 16 bytes, and 70 more while all of them are found.
    """

    def __init__(self, text: SourceText, rules: Rules, at: int) -> None:
        self._text = text
        self._rules = rules
        self._at = at
        self._document: bytes | None = None  # None: not read yet
        self._begins, self._ends = array("Q"), array("Q")  # of its elements
        self._next = 0
        self._problem: SourceProblem | None = None

    def read(self, block_bytes: int) -> SourceRead:
        if self._problem is not None:
            return SourceRead(problem=self._problem)
        try:
            if self._document is None:
                self._document = self._parsed()
        except SourceProblem as error:
            self._problem = error  # its text is read, and a second look would find none
            return SourceRead(problem=error)
        records: list[SourceRecord] = []
        size = 0
        while self._next < len(self._ends) and size < block_bytes:
            end = self._ends[self._next]
            element = self._document[self._begins[self._next] : end]
            try:
                record = self._rules.record(
                    element, end, len(element), self._next + 1, self._text.raw.name
                )
            except SourceProblem as error:
                self._problem = error
                break
            records.append(record)
            size += len(element)
            self._next += 1
        has_ended = self._next == len(self._ends)
        if records:
            return SourceRead(SourceBlock(records, records[-1].next), has_ended)
        return SourceRead(None, has_ended, self._problem)

    def grows_no_more(self) -> None:
        """A document does not grow."""

    def _parsed(self) -> bytes:
        pieces = []
        size = 0
        while (data := self._text.read()) != b"":
            if data is not None:
                pieces.append(data)
                size += len(data)
            if size > DOCUMENT_BYTES_MAX:
                raise SourceProblem(
                    f"is a JSON document of more than {DOCUMENT_BYTES_MAX:,} bytes",
                    hint="NDJSON may have any size",
                )
        document = b"".join(pieces)
        pieces.clear()
        if document.startswith(_BOM):
            document = b"   " + document[len(_BOM) :]  # positions stay
        at = document.index(b"[") + 1 if is_array(document) else 0
        try:
            for raw in _elements(document) if is_array(document) else [_value(document)]:
                # Only blanks and a comma are before the next element.
                value = bytes(raw).strip(_BLANK)
                begin = document.index(value, at)
                at = begin + len(value)
                self._begins.append(begin)
                self._ends.append(at)
        except UNREADABLE as error:
            raise SourceProblem(
                f"is not one JSON document: {error}; nothing of it is sent",
                hint=CUT_OFF_HINT
                if is_cut_off(str(error))
                else "lines of JSON that begin with an array need --format ndjson",
            ) from error
        self._next = bisect_right(self._ends, self._at)
        if self._at and (not self._next or self._ends[self._next - 1] != self._at):
            raise SourceChanged(
                f"has no element that ends at byte {self._at:,}, where an earlier import ended",
                hint="--restart imports it from its start",
            )
        return document


def is_array(text: bytes) -> bool:
    """Whether a text begins as a JSON array."""
    return text.removeprefix(_BOM).lstrip(_BLANK)[:1] == b"["


_elements: Callable[[bytes], list[msgspec.Raw]] = msgspec.json.Decoder(list[msgspec.Raw]).decode
_value: Callable[[bytes], msgspec.Raw] = msgspec.json.Decoder(msgspec.Raw).decode
