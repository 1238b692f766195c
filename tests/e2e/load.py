"""Producers that remember their answers, and a check of those against what is stored.

A *producer* is a thread with one keep-alive connection at a time. It pipelines requests of a few
records to topics and partitions in turn. A record's data is ``[producer, connection, number]``,
never used twice, so each record that is read shows who sent it and in which order.

Outcomes of a request: *acknowledged* (200, with offsets), *refused* (an error: nothing of it may
be stored), *unknown* (its connection ended before its answer: stored at most once).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

from tests.e2e.daemon import HANG_S, Answer, Daemon, wait_until

RETRY_S = 0.01  # between attempts to connect, and after a refusal
Record = tuple[int, int, int]
Place = tuple[str, int]


class Sent(NamedTuple):
    """A request as it was sent."""

    place: Place
    records: tuple[Record, ...]


class Acknowledged(NamedTuple):
    """A request that was answered 200."""

    sent: Sent
    first_seq: int


class HalfAnswer(Exception):
    """The connection ended within an answer."""


def read_answer(stream: BinaryIO) -> Answer | None:
    """The next answer on a connection; None when the connection ended before it began."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        line = stream.readline()
        if not line:
            if head:
                raise HalfAnswer(head)
            return None
        head += line
        if not line.endswith(b"\n"):
            raise HalfAnswer(head)
    first, *fields = head.decode().split("\r\n")[:-2]
    headers = {name.lower(): value.strip() for name, value in (f.split(":", 1) for f in fields)}
    length = int(headers["content-length"])
    body = stream.read(length)
    if len(body) < length:
        raise HalfAnswer(head + body)
    return Answer(int(first.split()[1]), headers, body)


def encode_request(place: Place, records: Sequence[Record], pad: str = "") -> bytes:
    """A produce request; ``pad`` makes every record's metadata larger."""
    topic, partition = place
    more = {"meta": {"pad": pad}} if pad else {}
    document = {"records": [{"data": r, **more} for r in records], "partition": partition}
    body = json.dumps(document).encode()
    head = (
        f"POST /v0/topics/{topic} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Producer(threading.Thread):
    """See the module's head. Its lists are read while it runs, appended to by it alone."""

    def __init__(
        self, daemon: Daemon, number: int, places: Sequence[Place], depth: int,
        requests_max: int | None, pause_s: float, pad: str,
    ) -> None:  # fmt: skip
        super().__init__(name=f"producer {number}")
        self.number = number
        self.acknowledged: list[Acknowledged] = []
        self.refused: list[tuple[Sent, Answer]] = []
        self.unknown: list[Sent] = []
        self.failure: BaseException | None = None
        self.stopping = threading.Event()
        self._daemon = daemon
        first = number % len(places)
        self._places = itertools.cycle([*places[first:], *places[:first]])
        self._depth = depth
        self._left = requests_max
        self._pause_s = pause_s
        self._pad = pad
        self._numbers = itertools.count(1)
        self._outstanding: deque[Sent] = deque()

    def run(self) -> None:
        """Sends until it is told to stop, or has sent what it should."""
        try:
            for connection in itertools.count(1):
                if self._done:
                    return
                self._serve_connection(connection)
        except BaseException as error:
            self.failure = error

    @property
    def _done(self) -> bool:
        return self.stopping.is_set() or self._left == 0

    def _serve_connection(self, connection: int) -> None:
        try:
            sock = socket.create_connection(("127.0.0.1", self._daemon.port), timeout=HANG_S)
        except OSError:
            self.stopping.wait(RETRY_S)
            return
        with sock, sock.makefile("rb") as stream:
            try:
                self._talk(sock, stream, connection)
            except ConnectionError:
                pass  # what is outstanding has an unknown outcome, below
        self.unknown += self._outstanding
        self._outstanding.clear()

    def _talk(self, sock: socket.socket, stream: BinaryIO, connection: int) -> None:
        while self._outstanding or not self._done:
            while len(self._outstanding) < self._depth and not self._done:
                sent = self._next(connection)
                self._outstanding.append(sent)
                sock.sendall(encode_request(sent.place, sent.records, self._pad))
            answer = read_answer(stream)
            if answer is None:
                return
            self._take(self._outstanding.popleft(), answer)
            if answer.headers.get("connection") == "close":
                return
            if self._pause_s:
                self.stopping.wait(self._pause_s)

    def _next(self, connection: int) -> Sent:
        if self._left is not None:
            self._left -= 1
        numbers = [next(self._numbers) for _ in range(1 + self.number % 3)]
        return Sent(next(self._places), tuple((self.number, connection, n) for n in numbers))

    def _take(self, sent: Sent, answer: Answer) -> None:
        if answer.status == 200:
            found = answer.json
            assert (found["topic"], found["partition"]) == sent.place
            assert found["count"] == len(sent.records)
            assert found["last_seq"] == found["first_seq"] + found["count"] - 1
            assert found["head_seq"] >= found["last_seq"] and found["deduped"] is False
            self.acknowledged.append(Acknowledged(sent, found["first_seq"]))
        elif answer.status == 504:
            self.unknown.append(sent)
        else:
            self.refused.append((sent, answer))
            self.stopping.wait(RETRY_S)


class Load:
    """Several producers; made by ``load``."""

    def __init__(self, producers: Sequence[Producer]) -> None:
        self.producers = producers

    @property
    def acknowledged_count(self) -> int:
        """Requests acknowledged so far."""
        return sum(len(producer.acknowledged) for producer in self.producers)

    @property
    def acknowledged(self) -> list[Acknowledged]:
        return [item for producer in self.producers for item in producer.acknowledged]

    @property
    def refused(self) -> list[tuple[Sent, Answer]]:
        return [item for producer in self.producers for item in producer.refused]

    @property
    def unknown(self) -> list[Sent]:
        return [item for producer in self.producers for item in producer.unknown]

    def wait_more(self, count: int) -> None:
        """Waits until ``count`` more requests are acknowledged."""
        goal = self.acknowledged_count + count
        wait_until(lambda: self.acknowledged_count >= goal, f"{count} more acknowledgements")

    def stop(self) -> None:
        """Lets every producer take its outstanding answers and end; raises what one met."""
        for producer in self.producers:
            producer.stopping.set()
        self.join()

    def join(self) -> None:
        """Waits for producers that end by themselves; raises what one met."""
        for producer in self.producers:
            producer.join(2 * HANG_S)
            assert not producer.is_alive(), f"{producer.name} hangs"
        for producer in self.producers:
            if producer.failure is not None:
                raise producer.failure


@contextlib.contextmanager
def load(
    daemon: Daemon, places: Sequence[Place], *, connections: int, depth: int = 8,
    requests_max: int | None = None, pause_s: float = 0, pad: str = "", first_number: int = 0,
) -> Iterator[Load]:  # fmt: skip
    """Producers that run until the end of the block, or until each has sent ``requests_max``.

    They are numbered from ``first_number``: two loads of one daemon must not share a number.
    """
    producers = [
        Producer(daemon, number, list(places), depth, requests_max, pause_s, pad)
        for number in range(first_number, first_number + connections)
    ]
    made = Load(producers)
    for producer in producers:
        producer.start()
    try:
        yield made
        made.stop()
    finally:
        for producer in producers:
            producer.stopping.set()
        for producer in producers:
            producer.join()


def stored(daemon: Daemon, places: Sequence[Place]) -> dict[Place, list[Any]]:
    """All records of the places that exist, in offset order."""
    return {
        (topic, partition): daemon.read_all(topic, partition)
        for topic, partition in places
        if daemon.get(f"/v0/topics/{topic}").status == 200
    }


def check_stored(daemon: Daemon, places: Sequence[Place], run: Load) -> Counter[str]:
    """What the daemon has is what the producers were told; counts of records by outcome.

    Acknowledged records are there at their offsets, refused ones are not, nothing is there
    twice, offsets are dense from 1, and within a partition each connection's records stand in
    the order in which it sent them.
    """
    found = stored(daemon, places)
    by_offset: dict[tuple[Place, int], Record] = {}
    times: Counter[Record] = Counter()
    for place, records in found.items():
        assert [record["seq"] for record in records] == list(range(1, len(records) + 1)), place
        last: dict[tuple[int, int], int] = {}
        for record in records:
            producer, connection, number = data = tuple(record["data"])
            times[data] += 1
            by_offset[place, record["seq"]] = data
            assert last.get((producer, connection), 0) < number, f"{place}: {data} is out of order"
            last[producer, connection] = number
    twice = [record for record, count in times.items() if count > 1]
    assert not twice, f"stored twice: {twice[:10]}"
    told: set[Record] = set()
    for sent, first_seq in run.acknowledged:
        for index, record in enumerate(sent.records):
            assert by_offset.get((sent.place, first_seq + index)) == record, (sent, first_seq)
            told.add(record)
    for sent, answer in run.refused:
        for record in sent.records:
            assert record not in times, f"{record} was refused ({answer.status}) and is stored"
    maybe = {record for sent in run.unknown for record in sent.records}
    assert set(times) <= told | maybe, f"never sent: {sorted(set(times) - told - maybe)[:10]}"
    return Counter(acknowledged=len(told), unknown_stored=len(set(times) & maybe))
