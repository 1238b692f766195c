"""Reads records from a file or a pipe, with their line numbers, and groups them into batches.

A slow pipe is not held back: when nothing has arrived for ``linger_ms``, the source yields None,
and the batch so far is sent. While nothing arrives, it does so again and again.

A batch ends at ``records_max`` records or ``bytes_max`` bytes, whichever comes first; a larger
record is a batch of its own. Nothing here talks to a daemon.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import stat
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import BinaryIO, Literal, NamedTuple

import msgspec
from msgspec import Struct

from daemon.schemas.errors import ApiError

Format = Literal["ndjson", "lines", "json"]

CHUNK_BYTES = 256 * 1024
LINE_BYTES_MAX = 64 << 20  # far above any record; a file without line breaks is refused
DOCUMENT_BYTES_MAX = 256 << 20  # a JSON document is parsed as a whole
LINGER_MS = 50
PAUSE_S = 0.25  # how often a source that pauses says so again: its reader may want to end

_checked = msgspec.json.Decoder(msgspec.Raw).decode  # half the time of making objects
_EPOCH = datetime.fromtimestamp(0, UTC)

# What ends too early is half a document, or the first line of a whole one.
SEVERAL_LINES_HINT = "a JSON document over several lines needs --format json"
CUT_OFF_HINT = "the document ends too early: is all of it there?"


class BadLine(ValueError):
    """A line that is not a record. ``line`` counts from 1; ``hint``: what may help."""

    def __init__(self, line: int, problem: str, hint: str = "") -> None:
        super().__init__(f"line {line}: {problem}")
        self.line = line
        self.problem = problem
        self.hint = hint


class InputRecord(Struct, frozen=True, omit_defaults=True):
    """A record of a produce request."""

    data: msgspec.Raw
    key: str | None = None
    ts: int | None = None
    tag: str | None = None
    meta: dict[str, str] | None = None


class RecordFields(NamedTuple):
    """What a record has besides its data: the fields of the data that are its key and its time, and
    what all records have."""

    key_field: str | None = None
    ts_field: str | None = None
    tag: str | None = None
    meta: dict[str, str] | None = None


class Numbered(NamedTuple):
    """A record and its line, or its place in a JSON array, from 1."""

    line: int
    record: InputRecord


def size_of(source: BinaryIO) -> int:
    """The size of a file in bytes; 0 for a pipe or a terminal."""
    try:
        status = os.fstat(source.fileno())
    except (io.UnsupportedOperation, OSError):
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def lines(source: BinaryIO, linger_ms: float = LINGER_MS) -> Iterator[tuple[int, bytes] | None]:
    """(number, line without its end), and None when the source pauses."""
    number = 0
    rest = b""
    for chunk in _chunks(source, linger_ms):
        if chunk is None:
            yield None
            continue
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            number += 1
            yield number, line.removesuffix(b"\r")
        if len(rest) > LINE_BYTES_MAX:
            raise BadLine(number + 1, f"is longer than {LINE_BYTES_MAX:,} bytes")
    if rest:
        yield number + 1, rest.removesuffix(b"\r")


def records(
    source: BinaryIO, form: Format, fields: RecordFields, linger_ms: float = LINGER_MS
) -> Iterator[Numbered | None]:
    """The records of ``source``. Raises BadLine at the first line that is not one."""
    if form == "json":
        yield from _document(source.read(DOCUMENT_BYTES_MAX + 1), fields)
        return
    for item in lines(source, linger_ms):
        if item is None:
            yield None
            continue
        number, line = item
        if form == "lines":
            text = msgspec.Raw(_quoted(number, line))
            yield Numbered(number, InputRecord(text, None, None, fields.tag, fields.meta))
        elif line.strip():
            yield Numbered(number, _json_record(number, line.strip(), fields))


def batched(
    source: Iterable[Numbered | None], records_max: int, bytes_max: int
) -> Iterator[list[Numbered]]:
    """Batches in order. What was read before a BadLine is yielded before it is raised."""
    batch: list[Numbered] = []
    size = 0
    iterator = iter(source)
    while True:
        try:
            item = next(iterator)
        except StopIteration:
            break
        except BadLine:
            if batch:
                yield batch
            raise
        length = 0 if item is None else len(bytes(item.record.data))
        full = len(batch) >= records_max or size + length > bytes_max
        if batch and (item is None or full):
            yield batch
            batch, size = [], 0
        if item is not None:
            batch.append(item)
            size += length
    if batch:
        yield batch


def _chunks(source: BinaryIO, linger_ms: float) -> Iterator[bytes | None]:
    try:
        descriptor = source.fileno()
    except (io.UnsupportedOperation, OSError):
        descriptor = -1  # bytes in memory, which never pause
    read = getattr(source, "read1", source.read)
    wait_s = linger_ms / 1000
    while True:
        if descriptor >= 0:
            ready, _, _ = select.select([descriptor], [], [], wait_s)
            if not ready:
                wait_s = PAUSE_S
                yield None
                continue
        chunk = read(CHUNK_BYTES)
        if not chunk:
            return
        wait_s = linger_ms / 1000
        yield chunk


def _quoted(number: int, line: bytes) -> bytes:
    try:
        return msgspec.json.encode(line.decode())
    except UnicodeDecodeError as error:
        raise BadLine(number, f"is not UTF-8 at byte {error.start + 1}") from error


def is_cut_off(problem: str) -> bool:
    """Whether what could not be decoded, for this reason, is the beginning of JSON."""
    return problem.endswith("Input data was truncated")


def _json_record(number: int, text: bytes, fields: RecordFields) -> InputRecord:
    try:
        value: object = _checked(text) if fields.ts_field is None else msgspec.json.decode(text)
        text.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        hint = SEVERAL_LINES_HINT if is_cut_off(str(error)) else ""
        raise BadLine(number, f"is not JSON: {error}", hint) from error
    return InputRecord(
        msgspec.Raw(text),
        _key(number, text, fields.key_field),
        _time(number, value, fields.ts_field),
        fields.tag,
        fields.meta,
    )


def _key(number: int, text: bytes, name: str | None) -> str | None:
    """The key as ``?key=`` takes it from the same record."""
    if name is None:
        return None
    from daemon.intake.formats import keys  # what else is there, other commands do not need

    try:
        return keys.key_field(name).of(text.decode(), {})
    except ApiError as error:
        raise BadLine(number, error.message.replace(" of the body", "", 1)) from error


def _time(number: int, value: object, ts_field: str | None) -> int | None:
    """Epoch milliseconds of a field with them, or with an ISO 8601 time; without it, None."""
    if ts_field is None or not isinstance(value, dict):
        return None
    match value.get(ts_field):
        case None:
            return None
        case bool():
            pass
        case int() as epoch_ms:
            return epoch_ms
        case str() as text:
            with contextlib.suppress(ValueError):
                return iso_ms(text)
    raise BadLine(
        number,
        f"the time {ts_field!r} must be epoch milliseconds or text like 2026-01-31T12:00:00Z",
    )


def iso_ms(text: str) -> int:
    """Epoch milliseconds of an ISO 8601 time, of UTC without an offset. Raises ValueError."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def _document(text: bytes, fields: RecordFields) -> Iterator[Numbered]:
    if len(text) > DOCUMENT_BYTES_MAX:
        raise BadLine(
            1, f"is a JSON document of more than {DOCUMENT_BYTES_MAX:,} bytes; send NDJSON instead"
        )
    try:
        elements = (
            msgspec.json.decode(text, type=list[msgspec.Raw])
            if text.lstrip()[:1] == b"["
            else [msgspec.Raw(text.strip())]
        )
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        hint = CUT_OFF_HINT if is_cut_off(str(error)) else ""
        raise BadLine(1, f"is not a JSON document: {error}", hint) from error
    for number, element in enumerate(elements, 1):
        yield Numbered(number, _json_record(number, bytes(element), fields))
