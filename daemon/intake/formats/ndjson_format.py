"""NDJSON bodies: each line that is not blank is a record's data.

The fast path decodes all lines in one call of msgspec, as the elements of an array: newlines become
commas. The values are then written one per line. They give the body again if and only if each line
is exactly one value, without blanks around it: a comma between two values would come back as a
newline, and a newline inside a value as a comma. So nothing is split at newlines, which takes
CPython half as long as all of the decoding. Any other body is brought into that form (blanks
stripped, empty lines left out). If it still differs, each line is decoded alone.

Large bodies are taken in blocks of whole lines, which bounds what lines of ``0,0,0 ...`` allocate.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import DecodeError, Raw
from msgspec.json import Decoder, Encoder

from daemon.intake.formats.json_format import check_record
from daemon.intake.formats.keys import KeyField
from daemon.intake.formats.limits import (
    BodyLimits,
    nested_too_deep,
    no_records,
    too_many_records,
)
from daemon.intake.formats.payloads import Row
from daemon.schemas.decoding import UNREADABLE
from daemon.schemas.errors import ApiError, invalid
from uploader.l0.records import Texts, texts_of

_BLOCK_BYTES = 1 << 20
_BLANKS = b" \t\r"
_BLANK_TEXT = " \t\r\n"

_decoder = Decoder(Raw)
_array_decoder = Decoder(list[Raw])
_encoder = Encoder()


def short_line(body: bytes, limits: BodyLimits) -> Row | None:
    """The row of a body of one short line, the usual small request; None for any other body, also
    for one with an error."""
    size = len(body)
    if size < limits.suspect_from and body.find(b"\n", 0, size - 1) < 0:
        try:
            _decoder.decode(body)
            return (str(body, "utf-8").strip(_BLANK_TEXT),)
        except UNREADABLE:
            pass
    return None


def line_texts(body: bytes, limits: BodyLimits) -> Texts:
    """The values of an NDJSON body, which are UTF-8. Raises ApiError; ``detail.line`` counts from
    1."""
    size = len(body)
    if size <= _BLOCK_BYTES:
        texts = _texts(body, 0)
    else:
        texts = []
        line = 0
        for block in _blocks(body):
            texts += _texts(block, line)
            if len(texts) > limits.records_max:
                break
            line += block.count(b"\n")
    if not texts:
        raise no_records()
    if len(texts) > limits.records_max:
        raise too_many_records(limits)
    found = texts_of(texts)
    if size >= limits.suspect_from <= found.bytes_max:
        _check_long(body, texts, limits)
    return found


def line_rows(body: bytes, limits: BodyLimits, field: KeyField) -> list[Row]:
    """The rows of an NDJSON body whose records have keys. Raises ApiError."""
    rows: list[Row] = []
    for index, text in enumerate(line_texts(body, limits).texts):
        data = str(text, "utf-8")
        try:
            key = field.of(data, {})
        except ApiError as error:
            raise _at_line(error, _line_of(body, index)) from None
        rows.append((data,) if key is None else (data, None, key))
    return rows


def _check_long(body: bytes, texts: list[Raw], limits: BodyLimits) -> None:
    for index, text in enumerate(texts):
        if len(text) >= limits.suspect_from:
            try:
                check_record(str(text, "utf-8"), (), {}, limits)
            except ApiError as error:
                raise _at_line(error, _line_of(body, index)) from None


def _texts(block: bytes, lines_before: int) -> list[Raw]:
    """The values of a block of whole lines."""
    if block.find(b"\n", 0, -1) >= 0:
        texts = _exact_texts(block)
        if texts is not None:
            return texts
        stripped = [line for each in block.split(b"\n") if (line := each.strip(_BLANKS))]
        if not stripped:
            return []
        texts = _exact_texts(b"\n".join(stripped))
        if texts is not None:
            return texts
    return _each_alone(block, lines_before)


def _exact_texts(block: bytes) -> list[Raw] | None:
    """The lines of a block in which each line is exactly one value; None for another block."""
    array = memoryview(block.replace(b"\n", b","))
    if block.endswith(b"\n"):
        array = array[:-1]
    try:
        texts = _array_decoder.decode(b"".join((b"[", array, b"]")))
        if not block.isascii():
            str(block, "utf-8")
    except UNREADABLE:
        return None
    again = _encoder.encode_lines(texts)
    if again == block or (len(again) == len(block) + 1 and again.startswith(block)):
        return texts
    return None


def _value_of(line: bytes) -> Raw:
    """The one value of a line. Raises what is UNREADABLE."""
    if not line.isascii():
        str(line, "utf-8")
    return _decoder.decode(line)


def _blocks(body: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(body):
        end = body.rfind(b"\n", start, start + _BLOCK_BYTES) + 1
        if not end:  # one line is longer than a block
            end = body.find(b"\n", start) + 1 or len(body)
        yield body[start:end]
        start = end


def _each_alone(block: bytes, lines_before: int) -> list[Raw]:
    """The values of a block, line by line. Raises ApiError for the first line with an error."""
    texts = []
    for number, line in enumerate(block.split(b"\n"), lines_before + 1):
        line = line.strip(_BLANKS)
        if not line:
            continue
        try:
            texts.append(_value_of(line))
        except UnicodeDecodeError as error:
            raise invalid(f"line {number} is not UTF-8: {error}", line=number) from None
        except RecursionError:
            raise nested_too_deep({"line": number}) from None
        except DecodeError as error:
            raise invalid(f"line {number} is not a JSON value: {error}", line=number) from None
    return texts


def _line_of(body: bytes, index: int) -> int:
    """The line number of value ``index``."""
    for number, line in enumerate(body.split(b"\n"), 1):
        if line.strip(_BLANKS):
            if not index:
                return number
            index -= 1
    return 0


def _at_line(error: ApiError, line: int) -> ApiError:
    message = error.message.replace("the body", f"line {line}", 1)
    return ApiError(error.status, error.code, message, {**error.detail, "line": line})
