"""A fuzz run: a real daemon, connections that send what no client should, and checks.

No answer is 500. The log has no traceback and mentions neither a bug nor damage. Every connection
that has finished sending gets its answers and is closed. Memory stays within the bound that the
daemon prints. Of the marked records, either all of a request are stored, at the answered offsets,
or none.
"""

from __future__ import annotations

import base64
import re
import ssl
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import msgspec
import psutil

from daemon.access.token_file import Scope, TokenFile
from daemon.http.limits import HttpLimits
from ledger.checks import invariants
from ledger.ledger import Ledger
from shards.clock import monotonic_ns
from tests.e2e.daemon import Answer, Daemon, running, wait_until
from tests.e2e.secured import Authority, Secured
from tests.e2e.wire import StreamCut, Wire, wire_of_each_shard
from tests.fuzz.inputs import RECORD_TOPICS, End, Stream, marks_in, stream_of
from tests.fuzz.judge import OUTCOME_UNKNOWN, UNKNOWN, Said, judged

BODY_BYTES_MAX = 256 << 10
SETTINGS: dict[str, object] = {
    "ring_bytes": 4 << 20, "object_bytes_target": 1 << 20, "body_bytes_max": BODY_BYTES_MAX,
    "record_bytes_max": 64 << 10, "records_max": 1000,
}  # fmt: skip
SHARDS = 2
CLIENTS = 4
# A connection is stuck if it stays open while the daemon answers PULSES_MAX consecutive long polls
# on another one: 15 s of the daemon's own time, less than the 20 s after which it closes idle ones.
PULSE_TOPIC = "pulse"
PULSE_WAIT_MS = 100
PULSES_MAX = 150
# Not every error: an alarm may be the machine's, when it is slow.
BAD_WORDS = ("Traceback", "a bug", "damaged")
LOOK_AT_MEMORY_EVERY_S = 0.25


class Options(NamedTuple):
    """``streams`` ends a run earlier than ``seconds``; ``only`` sends one stream. ``tokens``: the
    daemon needs some, and requests have right ones, wrong ones or none. ``tls``:
    all is sent by TLS."""

    folder: Path
    seed: int
    seconds: float
    streams: int = 0
    only: int | None = None
    tokens: bool = False
    tls: bool = False
    say: Callable[[str], object] = lambda line: None


class Report(msgspec.Struct):
    """What a run did and found."""

    streams: int = 0
    requests: int = 0
    answers: dict[int, int] = {}
    records: int = 0
    memory_bytes_max: int = 0
    memory_bytes_bound: int = 0
    findings: list[str] = []


def run(options: Options, kind: type[Hunt] | None = None) -> Report:
    """Fuzzes a daemon in ``options.folder`` and judges it."""
    kind = kind or Hunt
    data = options.folder / "data"
    settings, tokens = SETTINGS | kind.SETTINGS, []
    authority = Authority(options.folder / "tls")
    if options.tls:
        settings |= authority.settings
    if options.tokens:
        file = TokenFile(options.folder / "tokens.json")
        settings["auth_file"] = file.path
        tokens = [file.issue(name, list(Scope))[1] for name in ("judge", "fuzzer")]
        tokens.append(file.issue("producer", [Scope.PRODUCE])[1])
    keeper = tokens[0] if tokens else ""
    with running(data, shards=SHARDS, settings=settings, token=keeper) as daemon:
        for topic in (*RECORD_TOPICS, PULSE_TOPIC):
            assert daemon.json("PUT", f"/v0/topics/{topic}").status == 201
        secured = Secured(daemon, authority) if options.tls else None
        hunt = kind(daemon, options, tokens[1:], secured)
        hunt.go()
        hunt.judge()
    (options.folder / "log").write_text(daemon.text)
    with closing(Ledger(data / "ledger" / "ledger.db", nullcontext(), must_exist=True)) as ledger:
        ledger.read(invariants.check)
    return hunt.report


class Hunt:
    """Sends streams from several threads, and judges what the daemon did."""

    SETTINGS: ClassVar[dict[str, object]] = {}

    def __init__(
        self, daemon: Daemon, options: Options, tokens: Sequence[str], secured: Secured | None
    ) -> None:
        self._tokens = tokens
        self.daemon = daemon
        self._port = daemon.port if secured is None else secured.port
        self._context = None if secured is None else secured.authority.context
        self.options = options
        self.report = Report()
        self._lock = threading.Lock()
        self._next = 0
        self._said: dict[tuple[int, int], Said] = {}
        self._ends_ns = monotonic_ns() + int(options.seconds * 1e9)
        self._over = threading.Event()
        self._pulses = 0

    def go(self) -> None:
        """Sends streams from several threads until the time is over."""
        self.report.memory_bytes_bound = _bound_without_lake(self.daemon)
        others = [threading.Thread(target=each) for each in (self._watch_memory, self._pulse)]
        clients = [threading.Thread(target=self._send_streams) for _ in range(CLIENTS)]
        for thread in (*others, *clients):
            thread.start()
        for thread in clients:
            thread.join()
        self._over.set()
        for thread in others:
            thread.join()

    def _find(self, what: str) -> None:
        with self._lock:
            self.report.findings.append(what)
        self.options.say(what)

    def _number(self) -> int | None:
        """The number of the next stream; None when the run is over."""
        with self._lock:
            number = self._next
            limit = self.options.streams
            if self.options.only is not None:
                number, limit = number + self.options.only, 1
            if (limit and self._next >= limit) or monotonic_ns() > self._ends_ns:
                return None
            self._next += 1
            self.report.streams += 1
            return number

    def _send_streams(self) -> None:
        while (number := self._number()) is not None:
            self._send_stream(number)

    def _send_stream(self, number: int) -> None:
        stream = stream_of(self.options.seed, number, BODY_BYTES_MAX, self._tokens)
        began = self._pulses
        try:
            answers = _conversation(self._port, stream, self._context)
        except StreamCut as error:
            answers = []
            if stream.size <= HttpLimits().stream_input_bytes_max:  # else it sent too much
                self._find(f"stream {number}: {error}")
        except (AssertionError, TimeoutError, ValueError) as error:
            self._find(f"stream {number}: {type(error).__name__} {error}")
            answers = []
        waited = self._pulses - began
        if waited > PULSES_MAX and not any(b"wait_ms" in piece for piece in stream.pieces):
            self._find(f"stream {number} was open during {waited} long polls of another")
        self._note(stream, answers)

    def _note(self, stream: Stream, answers: list[Answer]) -> None:
        with self._lock:
            self.report.requests += len(stream.requests)
        for answer in answers:
            with self._lock:
                count = self.report.answers.get(answer.status, 0)
                self.report.answers[answer.status] = count + 1
            if answer.status == 500 or not 200 <= answer.status <= OUTCOME_UNKNOWN:
                self._find(f"stream {stream.number}: {answer.status}: {answer.body[:300]!r}")
        left = stream.size
        known = stream.end is End.HALF_CLOSE
        for index, sent in enumerate(stream.requests):
            left -= len(sent.data)
            said = Said(sent, whole=left >= 0)
            known = known and sent.framed
            if not known:
                said = said._replace(status=UNKNOWN)
            elif index < len(answers):
                said = _with_answer(said, answers[index])
            if sent.marks:
                with self._lock:
                    self._said[stream.number, index] = said

    def _pulse(self) -> None:
        with Wire(self.daemon.port, self.daemon.token) as wire:
            asked = {"tail": True, "wait_ms": PULSE_WAIT_MS}
            while not self._over.is_set():
                if wire.json("POST", f"/v0/topics/{PULSE_TOPIC}/diff", asked).status == 200:
                    self._pulses += 1

    def _watch_memory(self) -> None:
        while not self._over.wait(LOOK_AT_MEMORY_EVERY_S):
            used = _memory_bytes(self.daemon)
            self.report.memory_bytes_max = max(self.report.memory_bytes_max, used)

    # -- the judgement -------------------------------------------------------------------------

    def judge(self) -> None:
        """Looks at the daemon when all connections are closed."""
        daemon = self.daemon
        wait_until(
            lambda: sum(s["connections"] + s["streams"] for s in daemon.status()["shards"]) <= 1,
            "the fuzzer's connections to be gone",
        )
        if self.report.memory_bytes_max > self.report.memory_bytes_bound:
            self._find(
                f"{self.report.memory_bytes_max} bytes of memory were in use, the bound is"
                f" {self.report.memory_bytes_bound}"
            )
        restarts = [shard["restarts"] for shard in daemon.status()["shards"]]
        if any(restarts):
            self._find(f"shards were started again: {restarts}")
        with wire_of_each_shard(daemon, "bystander"):
            pass  # every shard serves
        for line in daemon.log:
            if any(word in line for word in BAD_WORDS):
                self._find(f"the log says: {line.strip()}")
        for topic in RECORD_TOPICS:
            self._judge_topic(topic)

    def _judge_topic(self, topic: str) -> None:
        records = self.daemon.read_all(topic)
        self.report.records += len(records)
        offsets = [record["seq"] for record in records]
        if offsets != list(range(1, len(records) + 1)):
            self._find(f"the offsets of {topic} are not 1 to {len(records)}")
        stored: dict[tuple[int, int], set[int]] = {}
        by_offset: dict[int, tuple[int, int]] = {}
        for record in records:
            for stream, request, index in marks_in(_text(record)):
                whose = stream, request
                stored.setdefault(whose, set()).add(index)
                by_offset[record["seq"]] = whose
        for whose, said in self._said.items():
            if said.sent.topic == topic:
                name = f"stream {whose[0]}, request {whose[1]}"
                found = judged(name, said, stored.get(whose, set()), by_offset, whose)
                for sentence in found:
                    self._find(sentence)


def _text(record: Any) -> str:
    if "data" in record:
        return str(record["data"])
    return base64.b64decode(record["data_b64"]).decode("latin-1")


def _with_answer(said: Said, answer: Answer) -> Said:
    said = said._replace(status=answer.status)
    if answer.status == 200 and said.sent.marks:
        found: Any = answer.json
        said = said._replace(
            first=found["first_seq"], last=found["last_seq"], deduped=found["deduped"]
        )
    return said


def _conversation(port: int, stream: Stream, context: ssl.SSLContext | None) -> list[Answer]:
    """Sends a stream; the final answers when they are read, up to the end of the connection."""
    with Wire(port, context=context) as wire:
        for piece in stream.pieces:
            wire.send(piece)
        if stream.end is End.CLOSE:
            return []
        if stream.end is End.RESET:
            wire.reset()
            return []
        wire.half_close()
        return [answer for answer in wire.answers() if answer.status != 100]


def _memory_bytes(daemon: Daemon) -> int:
    """What all processes have for themselves, and the segment."""
    found = 0
    for process in (supervisor := psutil.Process(daemon.process.pid), *supervisor.children()):
        try:
            found += process.memory_full_info().uss
        except psutil.NoSuchProcess:
            continue
    return found


def _bound_without_lake(daemon: Daemon) -> int:
    """The bound that the daemon prints; nothing is read from a lake here."""
    printed = re.search(r"memory is limited to (\d+) MiB.* lake (\d+) MiB", daemon.text)
    assert printed is not None, daemon.text
    return (int(printed[1]) - int(printed[2])) << 20
