"""Sends batches to a topic, several at a time, in their order, and counts what was acknowledged.

Each request has an idempotency key, which names its lines, so a batch whose answer was lost can be
sent again and is stored once. While a single request is under way, that is enough. As soon as a
batch waits for the one before it, the run makes a cursor, which counts the lines that are stored.
Each request then moves it over its own lines, so one that comes after a refused one is refused too,
whatever is repeated: the order of a partition is that of the input. Whoever may not make cursors
sends one request at a time.

    read in a thread -> leased from the byte budget -> waiting -> sent -> stored

A refused batch ends the run: the batches before it are stored and nothing from it on. A batch
without an answer also ends the run; whether it is stored is not known.

A *resume point* is ``RUN:LINE``. A run that continues there begins where the cursor of the former
one is. If that had none, its batches have the keys that they had before: batches of another size
have other keys, so records may then be stored twice, but no batch is mistaken for another.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import msgspec
from msgspec import Struct

from commands.client.cursors import cursor_of, delete_cursor, put_cursor
from commands.client.http import (
    Client,
    Refused,
    UnknownAnswer,
    Unreachable,
    decoded,
    topic_path,
)
from commands.client.records import BadLine, Numbered
from commands.importing.budget_leases import Leases
from commands.importing.byte_budget import ByteBudget
from commands.importing.chain import DEPTH_MAX, Chain, ImportStep, SubBlockRows
from commands.importing.chain_sender import SILENT_S, ChainSender, ImportDaemon
from daemon.schemas.api import CursorSetting, Produced, ProducedPart, ProducedSpread

READ_AHEAD = 8  # batches that a thread has read and that wait for a lease
POLL_S = 0.25  # how often what nothing tells of is looked at
SOON_S = 0.005  # the same, while something waits to be sent: for the connection to take more
STOP_S = 10.0  # how long a stopped run waits for answers


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
    match = re.fullmatch(r"([0-9a-f]{1,64}):([1-9][0-9]{0,14})", text)
    if match is None:
        raise ValueError(f"{text!r} is not a resume point, like 5f0c...e1:3005")
    return SendResume(match[1], int(match[2]))


class Stopped(Struct, frozen=True):
    """Why the input was not sent to its end, and where to continue. ``is_unsure``: records from
    there on may be stored."""

    line: int
    code: str
    message: str
    resume: str
    is_unsure: bool


class Summary(Struct):
    """What was sent. ``error`` is set if the input was not sent to its end."""

    topic: str
    records: int = 0
    requests: int = 0
    bytes: int = 0
    retries: int = 0
    deduped: int = 0
    seconds: float = 0.0
    partitions: list[PartitionSpan] = []
    error: Stopped | None = None


class BatchRefused(Exception):
    """The batch was not stored. ``line`` is the refused record's, or the first of the batch."""

    def __init__(self, line: int, last_line: int, code: str, message: str) -> None:
        super().__init__(f"{_lines(line, last_line)}: {message} ({code})")
        self.line = line
        self.code = code


class BatchUnanswered(Exception):
    """No answer came: whether the batch that begins at ``line`` is stored is not known."""

    code: ClassVar = "unreachable"

    def __init__(self, line: int, last_line: int, cause: Unreachable) -> None:
        super().__init__(f"{_lines(line, last_line)}: {cause}")
        self.line = line


class Interrupted(Exception):
    """Ctrl-C or SIGTERM. The line is the first that is not known to be stored."""

    code: ClassVar = "interrupted"

    def __init__(self, line: int) -> None:
        super().__init__(f"stopped before line {line}")
        self.line = line


Problem = BadLine | BatchRefused | BatchUnanswered | Interrupted


def _lines(first: int, last: int) -> str:
    return f"line {first}" if first == last else f"lines {first} to {last}"


def send(
    client: Client,
    topic: str,
    batches: Callable[[int, Callable[[], bool]], Iterator[list[Numbered]]],
    *,
    begin: SendResume,
    wait_s: float,
    partition: int | None = None,
    went_on: Callable[[Summary], None] = lambda summary: None,
) -> tuple[Summary, Problem | None]:
    """Sends all batches. The second value says why it stopped before the end of the input.

    ``batches`` gets the first line to send, and what says that nothing more is wanted. A run id
    must be new unless the run is resumed. ``went_on`` is told the sums several times a second.
    Raises UnknownAnswer and CursorSetBack: whether the last batches are stored is then not known.
    """
    sending = _Sending(client, topic, begin, partition, wait_s, went_on)
    problem: Problem | None = None
    try:
        asyncio.run(sending.run(batches))
    except (BadLine, BatchRefused, BatchUnanswered, Interrupted) as error:
        problem = error
    summary = sending.summary
    summary.retries += client.retries
    if problem is not None:
        code = "invalid" if isinstance(problem, BadLine) else problem.code
        resume = str(SendResume(begin.run_id, sending.first_line))
        is_unsure = sending.is_unsure(isinstance(problem, Interrupted))
        summary.error = Stopped(problem.line, code, str(problem), resume, is_unsure)
    else:
        sending.forget()
    return summary, problem


class _Sending:
    def __init__(
        self, client: Client, topic: str, begin: SendResume, partition: int | None, wait_s: float,
        went_on: Callable[[Summary], None],
    ) -> None:  # fmt: skip
        self.summary = Summary(topic)
        self._client = client
        self._run_id = begin.run_id
        self._cursor = f"produce:{begin.run_id}"
        self._has_cursor: bool | None = None  # None: not tried yet
        self._wants_cursor = False
        self._patience_ms = wait_s * 1000
        self._chosen = b"" if partition is None else b'"partition":%d,' % partition
        self._chain = Chain(begin.line - 1)
        self._chain.depth_max = 1
        budget = ByteBudget()
        self._leases = Leases(budget)
        now = client.now_ms
        daemon = ImportDaemon(
            client.url, client.address, budget, wait_s, lambda: now() / 1000,
            self._waits,
        )  # fmt: skip
        self._now = daemon.now
        self._daemon = daemon
        self._told_waiting = False
        self._went_on = went_on
        self._read: deque[SubBlockRows | Exception | None] = deque()
        self._room = threading.Semaphore(READ_AHEAD)
        self._has_ended = False
        self._failure: Exception | None = None
        self._stopped_at: float | None = None
        self._spans: dict[int, PartitionSpan] = {}
        self._sender: ChainSender

    @property
    def first_line(self) -> int:
        """The first line that is not known to be stored."""
        return self._chain.position + 1

    def is_unsure(self, was_interrupted: bool) -> bool:
        """Whether records from there on may be stored, because an answer has not come."""
        return self._chain.is_unsure or (was_interrupted and self._chain.in_flight > 0)

    def forget(self) -> None:
        """Deletes the cursor, which nobody needs after the end of the input."""
        if self._has_cursor:
            with contextlib.suppress(Refused, Unreachable, UnknownAnswer):
                delete_cursor(self._client, self._cursor, self._patience_ms)

    async def run(
        self, batches: Callable[[int, Callable[[], bool]], Iterator[list[Numbered]]]
    ) -> None:
        loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        begin_s = self._now()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop)
        self._sender = ChainSender(
            self._daemon, topic_path(self.summary.topic), self._chain, self._event.set, self._head,
            self._stored, min(SILENT_S, self._daemon.wait_s or SILENT_S),
        )  # fmt: skip
        if self.first_line > 1:
            await asyncio.to_thread(self._find_cursor)
        source = batches(self.first_line, lambda: self._stopped_at is not None)
        reader = threading.Thread(
            target=self._fill, args=(source, loop), name="produce-reader", daemon=True
        )
        reader.start()
        try:
            await self._send_all()
        finally:
            self._stopped_at = self._now() if self._stopped_at is None else self._stopped_at
            self._sender.close()
            reader.join(POLL_S * 4)  # what reads from a terminal may not notice
            summary = self.summary
            summary.records = self._chain.rows_stored + self._chain.rows_known
            summary.retries = self._sender.retries
            summary.partitions = [self._spans[number] for number in sorted(self._spans)]
            summary.seconds = round(self._now() - begin_s, 3)

    async def _send_all(self) -> None:
        chain = self._chain
        while True:
            self._event.clear()
            try:
                self._sender.advance()
            except Refused as error:
                raise _refused(chain, error) from error
            except Unreachable as error:
                batch = chain.oldest
                assert batch is not None
                raise BatchUnanswered(batch.positions[0], batch.positions[-1], error) from error
            self.summary.records = chain.rows_stored + chain.rows_known
            self._went_on(self.summary)
            if self._stopped_at is not None:
                if not chain.in_flight or self._now() - self._stopped_at > STOP_S:
                    raise Interrupted(self.first_line)
            else:
                await self._go_on()
                if self._has_ended and chain.oldest is None:
                    if self._failure is not None:
                        raise self._failure
                    return
            held_s = max(SOON_S, chain.not_before - self._now())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(
                    self._event.wait(), min(POLL_S, held_s) if chain.wants_to_send else POLL_S
                )

    async def _go_on(self) -> None:
        """Sends what can be sent."""
        chain = self._chain
        while True:
            while self._read and self._take():
                pass
            self._wants_cursor |= self._has_cursor is None and chain.waits
            if self._wants_cursor and not chain.in_flight and chain.rows_stored:
                self._wants_cursor = False
                await asyncio.to_thread(self._make_cursor)
            if not (chain.wants_to_send and self._sender.is_ready):
                return
            step = chain.next_step(self._now())
            if step is None:
                return
            self._sender.send(step)

    def _take(self) -> bool:
        """Leases what was read first. False if the budget does not allow it now."""
        first = self._read[0]
        if isinstance(first, SubBlockRows):
            if not self._leases.take(first.leased):
                return False
            self._chain.add(first)
        else:
            self._has_ended = True
            self._failure = first
        self._read.popleft()
        self._room.release()
        return True

    def _head(self, step: ImportStep) -> bytes:
        """A request up to its records."""
        lines = step.load.positions
        key = f"{self._run_id}-{lines[0]}-{lines[-1]}".encode()
        move = b""
        if self._has_cursor:
            move = b'"advance":{"cursor":"%b","expected":%d,"next":%d},' % (
                self._cursor.encode(), step.expected, step.next,
            )  # fmt: skip
        return b'{"idempotency_key":"%b",%b%b"records":[' % (key, self._chosen, move)

    def _stored(self, step: ImportStep, body: bytes) -> None:
        # A topic's name has no quotes, so this is the field.
        answer: Produced | ProducedSpread
        parts: Sequence[Produced | ProducedPart]
        if b'"partitions"' in body:
            answer = decoded(self._client, body, ProducedSpread)
            parts = answer.partitions
        else:
            answer = decoded(self._client, body, Produced)
            parts = [answer]
        for part in parts:
            span = self._spans.setdefault(
                part.partition, PartitionSpan(part.partition, part.first_seq, part.last_seq, 0)
            )
            span.last_seq = part.last_seq
            span.count += part.count
        self._leases.give_back(step.load.leased)
        self.summary.requests += 1
        self.summary.bytes += step.load.leased
        self.summary.deduped += answer.deduped
        if self._told_waiting:
            self._told_waiting = False
            self._client.say(f"{self._client.url} answers again")

    def _find_cursor(self) -> None:
        """Begins where the cursor of the run is, if it has one."""
        try:
            state = cursor_of(self._client, self._cursor, self._patience_ms)
        except Refused:
            return
        line = max((each.seq for each in state.positions if each.partition == 0), default=0)
        self._chain.settled(line)
        self._has_cursor = True
        self._chain.depth_max = DEPTH_MAX

    def _make_cursor(self) -> None:
        """From now on the order of requests is kept by a cursor, so that several are sent."""
        place = [CursorSetting(self._chain.position, 0)]
        try:
            put_cursor(self._client, self._cursor, place, self._patience_ms)
        except Refused as error:
            self._has_cursor = False
            self._client.say(f"one request is sent at a time: {error.message} ({error.code})")
            return
        except Unreachable:
            return  # the next request says so
        self._has_cursor = True
        self._chain.depth_max = DEPTH_MAX

    def _fill(
        self, source: Iterator[list[Numbered]], loop: asyncio.AbstractEventLoop
    ) -> None:  # fmt: skip
        """In a thread: reads ahead, and ends with None, or with what the loop raises."""
        encode = msgspec.json.Encoder().encode
        lines = [self._chain.position]
        try:
            for batch in source:
                lines = [item.line for item in batch]
                rows = [encode(item.record) for item in batch]
                size = sum(len(bytes(item.record.data)) for item in batch)
                if not self._filled(SubBlockRows(lines[-1], lines, rows, size), loop):
                    return
        except OSError as error:
            self._filled(BadLine(lines[-1] + 1, f"cannot be read: {error}"), loop)
        except Exception as error:  # noqa: BLE001 - the loop raises it
            self._filled(error, loop)
        else:
            self._filled(None, loop)

    def _filled(
        self, found: SubBlockRows | Exception | None, loop: asyncio.AbstractEventLoop
    ) -> bool:  # fmt: skip
        while not self._room.acquire(timeout=POLL_S):
            if self._stopped_at is not None:
                return False
        if self._stopped_at is not None:
            return False
        self._read.append(found)
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(self._event.set)
        return True

    def _stop(self) -> None:
        if self._stopped_at is not None:
            raise KeyboardInterrupt
        self._stopped_at = self._now()
        self._event.set()

    def _waits(self, reason: str) -> None:
        if not self._told_waiting:
            self._told_waiting = True
            self._client.say(
                f"waiting up to {self._daemon.wait_s:g} s for {self._client.url}: {reason}"
            )


def _refused(chain: Chain, error: Refused) -> BatchRefused:
    """Names the lines that were refused: the record that the error names by its index in the
    request, from 0, or else the whole batch."""
    # What was refused for now is not in flight any more.
    load = chain.oldest if error.status in (429, 503) else chain.refused
    assert load is not None
    lines = load.positions
    named: Any = error.detail.get("record")
    if isinstance(named, int) and 0 <= named < len(lines):
        return BatchRefused(lines[named], lines[named], error.code, error.message)
    return BatchRefused(lines[0], lines[-1], error.code, error.message)
