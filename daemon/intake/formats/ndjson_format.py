"""NDJSON bodies: each line that is not blank is a record's data.

The fast path validates all lines in one call of msgspec (``decode_lines``), and splits the text at
newlines for the rows. The two may disagree: ``decode_lines`` reads ``1 2`` on one line as two
values, and a value on two lines as one. They agree if and only if there are as many values as lines
and the values, written one per line, give the body again: then no value has a newline and no line
has two values. Any other body is brought into that form (blanks stripped, empty lines left out).
If it still differs, the line with the error is searched.

Large bodies are taken in blocks of whole lines, which bounds what lines of ``0 0 0 ...`` allocate.
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

_BLOCK_BYTES = 1 << 20
_BLANKS = b" \t\r"
_ENDS = _BLANKS + b"\n"
_BLANK_TEXT = _ENDS.decode()

_decoder = Decoder(Raw)
_encoder = Encoder()


def parse_lines(body: bytes, limits: BodyLimits, field: KeyField | None) -> list[Row]:
    """The rows of an NDJSON body. Raises ApiError; ``detail.line`` counts from 1."""
    size = len(body)
    if field is None and 0 < size < limits.suspect_from and body.find(b"\n", 0, size - 1) < 0:
        # One short line, the usual small request. What is wrong with it is found below.
        try:
            _decoder.decode(body)
            return [(str(body, "utf-8").strip(_BLANK_TEXT),)]
        except UNREADABLE:
            pass
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
    if field is not None or size >= limits.suspect_from:
        return _checked_rows(body, texts, limits, field)
    return list(zip(texts, strict=False))


def _checked_rows(
    body: bytes, texts: list[str], limits: BodyLimits, field: KeyField | None
) -> list[Row]:
    """Rows with keys, after a check of long lines."""
    suspect = limits.suspect_from
    if max(map(len, texts)) >= suspect:
        for index, text in enumerate(texts):
            if len(text) >= suspect:
                try:
                    check_record(text, (), {}, limits)
                except ApiError as error:
                    raise _at_line(error, _line_of(body, index)) from None
    if field is None:
        return list(zip(texts, strict=False))
    rows: list[Row] = []
    for index, text in enumerate(texts):
        try:
            key = field.of(text, {})
        except ApiError as error:
            raise _at_line(error, _line_of(body, index)) from None
        rows.append((text,) if key is None else (text, None, key))
    return rows


def _texts(block: bytes, lines_before: int) -> list[str]:
    """The values of a block of whole lines, as text."""
    if block.find(b"\n", 0, -1) < 0:
        return _single_text(block, lines_before)
    texts = _exact_texts(block)
    if texts is not None:
        return texts
    stripped = [line for each in block.split(b"\n") if (line := each.strip(_BLANKS))]
    if not stripped:
        return []
    texts = _exact_texts(b"\n".join(stripped))
    if texts is not None:
        return texts
    raise _culprit(block, lines_before)


def _single_text(line: bytes, lines_before: int) -> list[str]:
    """The value of a block of one line."""
    line = line.strip(_ENDS)
    if not line:
        return []
    try:
        _decoder.decode(line)
        return [str(line, "utf-8")]
    except UNREADABLE:
        raise _culprit(line, lines_before) from None


def _exact_texts(block: bytes) -> list[str] | None:
    """The lines of a block in which each line is exactly one value; None for another block."""
    try:
        values = _decoder.decode_lines(block)
        text = str(block, "utf-8")
    except UNREADABLE:
        return None
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    if len(lines) != len(values):
        return None
    again = _encoder.encode_lines(values)
    if again == block or (len(again) == len(block) + 1 and again.startswith(block)):
        return lines
    return None


def _blocks(body: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(body):
        end = body.rfind(b"\n", start, start + _BLOCK_BYTES) + 1
        if not end:  # one line is longer than a block
            end = body.find(b"\n", start) + 1 or len(body)
        yield body[start:end]
        start = end


def _culprit(block: bytes, lines_before: int) -> ApiError:
    """The refusal of the first line with an error."""
    for number, line in enumerate(block.split(b"\n"), lines_before + 1):
        line = line.strip(_BLANKS)
        if not line:
            continue
        try:
            str(line, "utf-8")
            _decoder.decode(line)
        except UnicodeDecodeError as error:
            return invalid(f"line {number} is not UTF-8: {error}", line=number)
        except RecursionError:
            return nested_too_deep({"line": number})
        except DecodeError as error:
            return invalid(f"line {number} is not a JSON value: {error}", line=number)
    return invalid("the body is not one JSON value per line")


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
