"""The producers and readers of a chaos run: threads that record what was sent and answered.

A producer has one keep-alive connection at a time, and pipelines. With keys, it resends what was
refused or not answered, in order and before anything new, until it is acknowledged. Without keys,
it goes on and leaves the outcome to the checker. A reader follows one partition with long polls,
and repeats requests that fail.
"""

from __future__ import annotations

import itertools
import json
import select
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from shards.clock import monotonic_ns
from tests.chaos.history import Answered, History, Page, Place, Sent, fields_of
from tests.e2e import daemon
from tests.e2e.daemon import HANG_S, UNANSWERED, Answer, wait_until
from tests.e2e.load import HalfAnswer, read_answer

RETRY_S = 0.02
DEPTH = 4
# More than the daemon's own longest wait in a storm; a connection that is silent for longer hangs.
PATIENCE_S = 2 * HANG_S
# For what takes a daemon long that is killed again and again, on a busy machine. It ends a hang.
SERVED_S = 5 * HANG_S
PAGE_RECORDS = 1000
TRIES_MAX = 1000  # reads that fail one after the other; a storm of 30 s has fewer

Port = Callable[[], int]  # where the daemon listens now, 0 while it does not


class Numbers:
    """Counters that all producers share."""

    def __init__(self) -> None:
        self._attempts = itertools.count(1)
        self._connections = itertools.count(1)

    def attempt(self) -> int:
        return next(self._attempts)

    def connection(self) -> int:
        return next(self._connections)


class Request(NamedTuple):
    """A request that may be attempted several times."""

    place: Place
    records: tuple[str, ...]
    key: str | None
    pad: str = ""
    waits: str = ""  # for ring space (disable_backpressure): asked in the "query" or the "body"

    def encode(self) -> bytes:
        topic, partition = self.place
        query = "?disable_backpressure=true" if self.waits == "query" else ""
        more = {"meta": {"pad": self.pad}} if self.pad else {}
        document: dict[str, object] = {
            "records": [{"data": record, **fields_of(record), **more} for record in self.records],
            "partition": partition,
        }
        if self.key is not None:
            document["idempotency_key"] = self.key
        if self.waits == "body":
            document["disable_backpressure"] = True
        body = json.dumps(document).encode()
        head = (
            f"POST /v0/topics/{topic}{query} HTTP/1.1\r\nHost: localhost\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


class Client(threading.Thread):
    """A thread that keeps the error that ended it, and ends when ``stopping`` is set."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name)
        self.failure: BaseException | None = None
        self.stopping = threading.Event()

    def run(self) -> None:
        """Works until it is told to stop."""
        try:
            self.work()
        except BaseException as error:
            self.failure = error

    def work(self) -> None:
        """What the thread does."""
        raise NotImplementedError


class Producer(Client):
    """See the module's head."""

    def __init__(
        self, number: int, port: Port, history: History, numbers: Numbers,
        places: Sequence[Place], *, keyed: bool, pause_s: float, pad_bytes: int = 0,
        waits: str = "",
    ) -> None:  # fmt: skip
        super().__init__(f"producer {number}")
        self.answered = 0
        self.acknowledged = 0
        self.refused: dict[int, int] = {}
        self.wait_ms_max = 0.0
        self._number = number
        self._port = port
        self._history = history
        self._numbers = numbers
        first = number % len(places)
        self._places = itertools.cycle([*places[first:], *places[:first]])
        self._keyed = keyed
        self._pause_s = pause_s
        self._pad = "x" * pad_bytes
        self._waits = waits
        self._made = itertools.count(1)
        self._again: deque[Request] = deque()
        self._outstanding: deque[tuple[Request, int, int]] = deque()  # attempt, sent ns

    @property
    def _done(self) -> bool:
        return self.stopping.is_set() and not self._again

    def work(self) -> None:
        """Connects again and again."""
        while not self._done:
            port = self._port()
            try:
                sock = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
            except OSError:
                threading.Event().wait(RETRY_S)
                continue
            with sock, sock.makefile("rb") as stream:
                try:
                    self._talk(sock, stream)
                except TimeoutError:
                    raise
                except (ConnectionError, HalfAnswer):
                    pass  # what is outstanding has an unknown outcome
            if self._keyed:
                self._again.extendleft(request for request, _, _ in reversed(self._outstanding))
            self._outstanding.clear()

    def _talk(self, sock: socket.socket, stream: Any) -> None:
        connection = self._numbers.connection()
        while self._outstanding or not self._done:
            while len(self._outstanding) < DEPTH and not self._done:
                request = self._again.popleft() if self._again else self._new()
                attempt = self._numbers.attempt()
                self._history.add(
                    Sent(attempt, connection, request.place, request.records, request.key)
                )
                self._outstanding.append((request, attempt, monotonic_ns()))
                sock.sendall(request.encode())
            answer = read_answer(stream)
            if answer is None:
                return
            self._take(answer.status, answer.json)
            if answer.headers.get("connection") == "close":
                return
            if self._pause_s:
                self.stopping.wait(self._pause_s)

    def _new(self) -> Request:
        made = next(self._made)
        records = tuple(f"{self._number}.{made}.{i}" for i in range(1 + made % 3))
        key = f"{self._number}-{made}" if self._keyed else None
        return Request(next(self._places), records, key, self._pad, self._waits)

    def _take(self, status: int, document: Any) -> None:
        request, attempt, sent_ns = self._outstanding.popleft()
        wait_ms = (monotonic_ns() - sent_ns) / 1e6
        self.wait_ms_max = max(self.wait_ms_max, wait_ms)
        self.answered += 1
        if status == 200:
            self.acknowledged += 1
            self._history.add(
                Answered(
                    attempt,
                    status,
                    document["first_seq"],
                    document["deduped"],
                    wait_ms,
                    monotonic_ns() // 1_000_000,
                )
            )
            return
        self.refused[status] = self.refused.get(status, 0) + 1
        if status != 504:  # which says as little as no answer
            self._history.add(Answered(attempt, status, wait_ms=wait_ms))
        if self._keyed:
            # After what was sent since: those attempts come first on this connection.
            self._again.append(request)
        # Also while stopping: without a pause, what is refused would take the CPU from the rest.
        threading.Event().wait(RETRY_S)


class Reader(Client):
    """Follows one partition from its beginning."""

    def __init__(self, place: Place, port: Port, history: History) -> None:
        super().__init__(f"reader of {place}")
        self._place = place
        self._port = port
        self._history = history

    def work(self) -> None:
        """Asks for the next page until it is told to stop."""
        from_seq = 0
        while not self.stopping.is_set():
            try:
                page = ask_page(self._port(), self._place, self.name, from_seq, wait_ms=500)
            except UNANSWERED:
                page = None
            if page is None:
                self.stopping.wait(RETRY_S)
                continue
            if page.records or page.gap:
                self._history.add(page)
            from_seq = page.next_from_seq


class Rereader(Client):
    """Reads one partition from its beginning to its end, again and again: most of that from
    objects and from the lake's files, while these come and go."""

    def __init__(self, place: Place, port: Port, history: History) -> None:
        super().__init__(f"rereader of {place}")
        self.times = 0
        self._place = place
        self._port = port
        self._history = history

    def work(self) -> None:
        """From the beginning to the end, until it is told to stop."""
        from_seq = 0
        while not self.stopping.is_set():
            try:
                page = ask_page(self._port(), self._place, self.name, from_seq)
            except UNANSWERED:
                page = None
            if page is None or page.next_from_seq == from_seq:
                self.times += page is not None
                from_seq = from_seq if page is None else 0
                self.stopping.wait(RETRY_S if page is None else 25 * RETRY_S)
                continue
            self._history.add(page)
            from_seq = page.next_from_seq


def can_read(sock: socket.socket, wait_s: float) -> bool:
    """Whether there is something to read, within a time; for descriptors above 1,023 too."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(wait_s * 1_000))


def ask(port: int, method: str, path: str, document: object = None) -> Any:
    """The JSON answer; None if it was not 2xx. Raises one of UNANSWERED."""
    answer = ask_json(port, method, path, document)
    return answer.json if 200 <= answer.status < 300 else None


def ask_json(port: int, method: str, path: str, document: object = None) -> Answer:
    """The answer to a request with a JSON body, none for None."""
    body = None if document is None else json.dumps(document).encode()
    return daemon.ask(port, method, path, body, {"Content-Type": "application/json"}, PATIENCE_S)


def answer_of(port: int, method: str, path: str, document: object) -> tuple[int, Any]:
    """The status and the JSON of an answer; the status 0 if there is none."""
    try:
        answer = ask_json(port, method, path, document)
    except UNANSWERED:
        return 0, None
    return answer.status, json.loads(answer.body or b"null")


def until_answered(
    port: Port, method: str, path: str, document: object, statuses: Sequence[int]
) -> None:
    """Asks until it is done: by this request, or by one whose answer was lost."""

    def is_done() -> bool:
        return answer_of(port(), method, path, document)[0] in statuses

    wait_until(is_done, f"{method} {path} to be answered {statuses}", SERVED_S)


def ask_page(port: int, place: Place, reader: str, from_seq: int, wait_ms: int = 0) -> Page | None:
    """One diff; None when it was not answered 200."""
    asked = {
        "from_seq": from_seq, "partition": place[1], "limit": PAGE_RECORDS, "wait_ms": wait_ms,
    }  # fmt: skip
    document = ask(port, "POST", f"/v0/topics/{place[0]}/diff", asked)
    if document is None:
        return None
    tombstone = document["tombstone"]
    return Page(
        reader, place, from_seq, document["next_from_seq"],
        tuple((record["seq"], record["data"]) for record in document["records"]),
        (tombstone["gap_from"], tombstone["gap_to"]) if tombstone else None,
        tombstone["reason"] if tombstone else "",
    )  # fmt: skip


def read_whole(port: Port, place: Place, reader: str) -> Iterator[Page]:
    """All pages of a partition up to its head."""
    from_seq = 0
    tries = 0
    while True:
        page = ask_page(port(), place, reader, from_seq)
        if page is None:  # a read of the store that failed
            tries += 1
            if tries > TRIES_MAX:
                raise RuntimeError(f"{place} cannot be read from {from_seq}")
            threading.Event().wait(RETRY_S)
            continue
        tries = 0
        if page.next_from_seq == from_seq:
            return
        yield page
        from_seq = page.next_from_seq
