"""Reads records from a file or a pipe, with their line numbers, and groups them into batches.

A slow pipe is not held back: when nothing has arrived for ``linger_ms``, the source yields None,
and the batch so far is sent.

A batch ends at ``records_max`` records or ``bytes_max`` bytes, whichever comes first; a larger
record is a batch of its own. Nothing here talks to a daemon.
"""

from __future__ import annotations

import io
import os
import select
import stat
from collections.abc import Iterable, Iterator
from typing import BinaryIO, Literal, NamedTuple

import msgspec
from msgspec import Struct

Format = Literal["ndjson", "lines", "json"]

CHUNK_BYTES = 256 * 1024
LINE_BYTES_MAX = 64 << 20  # far above any record; a file without line breaks is refused
DOCUMENT_BYTES_MAX = 256 << 20  # a JSON document is parsed as a whole
LINGER_MS = 50


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
    source: BinaryIO, form: Format, key_field: str | None, linger_ms: float = LINGER_MS
) -> Iterator[Numbered | None]:
    """The records of ``source``. Raises BadLine at the first line that is not one."""
    if form == "json":
        yield from _document(source.read(DOCUMENT_BYTES_MAX + 1), key_field)
        return
    for item in lines(source, linger_ms):
        if item is None:
            yield None
            continue
        number, line = item
        if form == "lines":
            yield Numbered(number, InputRecord(msgspec.Raw(_quoted(number, line))))
        elif line.strip():
            yield Numbered(number, _json_record(number, line.strip(), key_field))


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
    paused = False
    while True:
        if descriptor >= 0 and not paused:
            ready, _, _ = select.select([descriptor], [], [], linger_ms / 1000)
            if not ready:
                paused = True
                yield None
        chunk = read(CHUNK_BYTES)
        if not chunk:
            return
        paused = False
        yield chunk


def _quoted(number: int, line: bytes) -> bytes:
    try:
        return msgspec.json.encode(line.decode())
    except UnicodeDecodeError as error:
        raise BadLine(number, f"is not UTF-8 at byte {error.start + 1}") from error


def is_cut_off(problem: str) -> bool:
    """Whether what could not be decoded, for this reason, is the beginning of JSON."""
    return problem.endswith("Input data was truncated")


def _json_record(number: int, text: bytes, key_field: str | None) -> InputRecord:
    try:
        value = msgspec.json.decode(text)
        text.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        hint = SEVERAL_LINES_HINT if is_cut_off(str(error)) else ""
        raise BadLine(number, f"is not JSON: {error}", hint) from error
    return InputRecord(msgspec.Raw(text), _key(number, value, key_field))


def _key(number: int, value: object, key_field: str | None) -> str | None:
    """The key as text: strings as they are, integers as written; without the field, None."""
    if key_field is None or not isinstance(value, dict):
        return None
    match value.get(key_field):
        case None:
            return None
        case str() as text:
            return text
        case bool():
            pass
        case int() as whole:
            return str(whole)
    raise BadLine(number, f"the key {key_field!r} must be a string or an integer")


def _document(text: bytes, key_field: str | None) -> Iterator[Numbered]:
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
        yield Numbered(number, _json_record(number, bytes(element), key_field))
