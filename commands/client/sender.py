"""Sends batches to a topic one after the other, and counts what was acknowledged.

Each request carries an idempotency key, so a batch whose answer was lost can be sent again and is
stored once. A refused batch ends the run: the batches before it are stored and nothing of it is,
and the error names its line of the input. A batch without an answer also ends the run; whether it
is stored is not known.

A *resume point* is ``RUN:LINE``. A run that continues there gives its batches the keys they had
before. A key names the lines of its batch, so batches of another size have other keys: records may
then be stored twice, but no batch is mistaken for another.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

import msgspec
from msgspec import Struct

from commands.client.http import Client, Refused, Unreachable, decoded, topic_path
from commands.client.records import BadLine, InputRecord, Numbered
from daemon.schemas.api import Produced, ProducedPart, ProducedSpread


class PartitionSpan(Struct):
    """The offsets that one partition gave: ``count`` records from first_seq to last_seq, possibly
    with records of other producers between them."""

    partition: int
    first_seq: int
    last_seq: int
    count: int


class SendResume(NamedTuple):
    """Where a run continues: its id, and the first line to send."""

    run_id: str
    line: int

    def __str__(self) -> str:
        return f"{self.run_id}:{self.line}"


def parse_resume(text: str) -> SendResume:
    """Reads a resume point as it was printed. Raises ValueError."""
    match = re.fullmatch(r"([0-9a-f]{1,64}):([1-9][0-9]{0,17})", text)
    if match is None:
        raise ValueError(f"{text!r} is not a resume point, like 5f0c...e1:3005")
    return SendResume(match[1], int(match[2]))


class Stopped(Struct, frozen=True):
    """Why the input was not sent to its end, and where to continue."""

    line: int
    code: str
    message: str
    resume: str


class Summary(Struct):
    """What was sent. ``error`` is set if the input was not sent to its end."""

    topic: str
    records: int = 0
    requests: int = 0
    bytes: int = 0
    retries: int = 0
    deduped: int = 0
    partitions: list[PartitionSpan] = []
    error: Stopped | None = None


class BatchRefused(Exception):
    """The batch was not stored. ``line`` is the refused record's, or the first of the batch."""

    def __init__(self, line: int, last_line: int, code: str, message: str) -> None:
        super().__init__(f"{_lines(line, last_line)}: {message} ({code})")
        self.line = line
        self.code = code
        self.message = message


class BatchUnanswered(Exception):
    """No answer came: whether the batch that begins at ``line`` is stored is not known."""

    code: ClassVar = "unreachable"

    def __init__(self, line: int, last_line: int, cause: Unreachable) -> None:
        super().__init__(f"{_lines(line, last_line)}: {cause}")
        self.line = line


Problem = BadLine | BatchRefused | BatchUnanswered


def _lines(first: int, last: int) -> str:
    return f"line {first}" if first == last else f"lines {first} to {last}"


class _Request(Struct, omit_defaults=True):
    records: list[InputRecord]
    idempotency_key: str
    partition: int | None = None


_encoder = msgspec.json.Encoder()


def send(
    client: Client,
    topic: str,
    batches: Iterable[list[Numbered]],
    *,
    run_id: str,
    patience_ms: float,
    partition: int | None = None,
    progress: Callable[[int], None] = lambda bytes_sent: None,
) -> tuple[Summary, Problem | None]:
    """Sends all batches. The second value says why it stopped before the end of the input.

    A ``run_id`` must be new unless the run is resumed. Raises UnknownAnswer: whether the last batch
    is stored is then not known.
    """
    summary = Summary(topic)
    spans: dict[int, PartitionSpan] = {}
    problem: Problem | None = None
    first = 0  # line of the batch that is being sent
    try:
        for batch in batches:
            first = batch[0].line
            _send_one(client, summary, spans, batch, run_id, partition, patience_ms)
            progress(sum(len(bytes(item.record.data)) for item in batch))
    except (BadLine, BatchRefused, BatchUnanswered) as error:
        problem = error
        # The batch before a bad line is stored; the batch of a refused record is not.
        line = error.line if isinstance(error, BadLine) else first
        code = "invalid" if isinstance(error, BadLine) else error.code
        resume = str(SendResume(run_id, line))
        summary.error = Stopped(error.line, code, str(error), resume)
    summary.retries = client.retries
    summary.partitions = [spans[number] for number in sorted(spans)]
    return summary, problem


def _send_one(
    client: Client,
    summary: Summary,
    spans: dict[int, PartitionSpan],
    batch: list[Numbered],
    run_id: str,
    partition: int | None,
    patience_ms: float,
) -> None:
    body = _encoder.encode(
        _Request(
            [item.record for item in batch], f"{run_id}-{batch[0].line}-{batch[-1].line}", partition
        )
    )
    try:
        data = client.call("POST", topic_path(summary.topic), body, patience_ms=patience_ms)
    except Refused as error:
        line, last_line = _place(batch, error.detail)
        raise BatchRefused(line, last_line, error.code, error.message) from error
    except Unreachable as error:
        raise BatchUnanswered(batch[0].line, batch[-1].line, error) from error
    # A topic's name has no quotes, so this is the field.
    answer: Produced | ProducedSpread
    parts: Sequence[Produced | ProducedPart]
    if b'"partitions"' in data:
        answer = decoded(client, data, ProducedSpread)
        parts = answer.partitions
    else:
        answer = decoded(client, data, Produced)
        parts = [answer]
    for part in parts:
        span = spans.setdefault(
            part.partition, PartitionSpan(part.partition, part.first_seq, part.last_seq, 0)
        )
        span.last_seq = part.last_seq
        span.count += part.count
    summary.requests += 1
    summary.records += len(batch)
    summary.bytes += sum(len(bytes(item.record.data)) for item in batch)
    summary.deduped += answer.deduped


def _place(batch: list[Numbered], detail: dict[str, Any]) -> tuple[int, int]:
    """The lines that were refused: the record that ``detail`` names by its index in the request,
    from 0, or else the whole batch."""
    named = detail.get("record")
    if isinstance(named, int) and 0 <= named < len(batch):
        return batch[named].line, batch[named].line
    return batch[0].line, batch[-1].line
