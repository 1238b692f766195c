"""The watchers of a chaos run: threads that follow streams and resume after each lost connection.

A watcher reconnects on whatever shard the kernel gives it, with its last position as
``Last-Event-ID``. Some do not read for a while now and then, with a small receive buffer, so that
the daemon finds them slow.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any
from urllib.parse import urlencode

import msgspec

from shards.clock import monotonic_ns
from tests.chaos.clients import PATIENCE_S, RETRY_S, SERVED_S, Client, Port, ask, can_read
from tests.chaos.history import Filters, History, Place, Watching
from tests.chaos.maps import batch_records, map_records, msgpack_end
from tests.chaos.sse import ChunkDecoder, Position, SseParser
from tests.chaos.taking import BadStream, Taking
from tests.e2e.daemon import wait_until

POLL_S = 0.1
SMALL_BUFFER_BYTES = 4096
NAP_S = (0.2, 4.0)  # from within a second, after which the daemon calls a watcher slow
NAP_SHARE = 0.02  # of the reads
CLICKS: tuple[Place, ...] = (("clicks", 0), ("clicks", 1), ("clicks", 2))


class Form(Enum):
    """A representation of a stream, by its content type."""

    SSE = "text/event-stream"
    NDJSON = "application/x-ndjson"
    MSGPACK = "application/msgpack"


class Wanted(msgspec.Struct, frozen=True):
    """What a watcher asks for."""

    reader: str
    places: tuple[Place, ...]
    filters: Filters = {}
    form: Form = Form.SSE
    tail: bool = False
    slow: bool = False


# One of each kind: partitions, filters, representations, starts, tokens; two that are slow.
WANTED = [
    Wanted("watcher of a partition", (("orders", 0),)),
    Wanted("watcher of a topic", CLICKS),
    Wanted("watcher of tags", CLICKS, {"tag": "tag-1-?", "node": "producer-*"}),
    Wanted("watcher of keys", (("orders", 0),), {"key": "key-3*"}, Form.NDJSON),
    Wanted("watcher of topics", (("orders", 0), *CLICKS, ("short", 0)), form=Form.NDJSON),
    Wanted("watcher of a capped topic", (("short", 0),)),
    Wanted("watcher of batches", CLICKS, form=Form.MSGPACK),
    Wanted("watcher of nodes", CLICKS, {"node": "producer-?"}, Form.MSGPACK),
    Wanted("watcher of the tail", CLICKS[:1], tail=True),
    Wanted("watcher of copies", (("copies", 0), ("copies", 1))),
    Wanted("slow watcher", CLICKS[1:2], slow=True),
    Wanted("slow watcher of a lossy topic", (("news", 0),), slow=True),
]


class Watcher(Client):
    """See the module's head."""

    def __init__(
        self, wanted: Wanted, port: Port, history: History, topic_ids: Mapping[str, int], seed: int
    ) -> None:
        super().__init__(wanted.reader)
        self.connections = 0
        self.taking = Taking(wanted.reader, wanted.places, topic_ids, tail=wanted.tail)
        self.wanted = wanted
        self._port = port
        self._history = history
        self._rng = random.Random(f"{seed} {wanted.reader}")
        self._path = ""

    def work(self) -> None:
        """Connects again and again."""
        wanted = self.wanted
        self._history.add(Watching(wanted.reader, wanted.places, wanted.filters, wanted.tail))
        while not self.stopping.is_set():
            try:
                self._path = self._path or self._ask_path()
                self._follow()
            except TimeoutError as error:
                raise BadStream(f"{self.name} heard nothing for {PATIENCE_S} s") from error
            except OSError:
                pass
            self._note(self.taking.lost())
            self.stopping.wait(RETRY_S)

    def _ask_path(self) -> str:
        """The path of the stream: of one topic by its query, of several by a token."""
        wanted = self.wanted
        topics = {topic for topic, _ in wanted.places}
        if len(topics) == 1:
            query: dict[str, object] = dict(wanted.filters)
            query |= {"tail": "true"} if wanted.tail else {"from_seq": 0}
            if len(wanted.places) == 1:
                query["partition"] = wanted.places[0][1]
            return f"/v0/topics/{topics.pop()}/watch?{urlencode(query)}"
        start: dict[str, object] = {"tail": True} if wanted.tail else {"from_seq": 0}
        asked = [
            {"topic": topic, "partition": partition, **start} for topic, partition in wanted.places
        ]
        answer = ask(self._port(), "POST", "/v0/watch", {"topics": asked, **wanted.filters})
        if answer is None:
            raise ConnectionError
        return str(answer["stream_url"])

    def _follow(self) -> None:
        """Takes from one connection until it ends."""
        with connected(self._port(), small=self.wanted.slow) as sock:
            head = (
                f"GET {self._path} HTTP/1.1\r\nHost: localhost\r\nAccept: {self.wanted.form.value}"
            )
            if self.taking.last_event_id:
                head += f"\r\nLast-Event-ID: {self.taking.last_event_id}"
            sock.sendall(f"{head}\r\n\r\n".encode())
            data = after_head(self._pieces(sock))
            if data is None:
                return
            self.connections += 1
            chunks, parser = ChunkDecoder(), StreamParser(self.wanted.form)
            pieces = self._pieces(sock)
            while not chunks.ended:
                for name, document in parser.feed(chunks.feed(data)):
                    if name == "position":
                        self._note(self.taking.position(document))
                    else:
                        self.taking.event(name, document)
                if self.wanted.slow and self._rng.random() < NAP_SHARE:
                    self.stopping.wait(self._rng.uniform(*NAP_S))
                data = next(pieces, b"")
                if not data:
                    return

    def _pieces(self, sock: socket.socket) -> Iterator[bytes]:
        """What arrives, until the connection ends or the watcher is told to stop."""
        heard_ns = monotonic_ns()
        while not self.stopping.is_set():
            if can_read(sock, POLL_S):
                data = sock.recv(65536)
                if not data:
                    return
                heard_ns = monotonic_ns()
                yield data
            elif monotonic_ns() - heard_ns > PATIENCE_S * 1e9:
                raise TimeoutError

    def _note(self, pages: Any) -> None:
        for page in pages:
            self._history.add(page)


class StreamParser:
    """Events and positions of one stream, as pairs of a name and a document."""

    def __init__(self, form: Form) -> None:
        self._form = form
        self._sse = SseParser()
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[tuple[str, Any]]:
        if self._form is Form.SSE:
            for event in self._sse.feed(data):
                if isinstance(event, Position):
                    yield "position", event.text
                elif event.name != "position":  # the event that carried it
                    yield event.name, json.loads(event.data)
            return
        self._rest += data
        while (document := self._next()) is not None:
            name = document.get("event", "record")
            if name == "position":
                yield name, document["id"]
            elif name == "batch":
                yield "records", {"records": list(batch_records(document))}
            elif name == "records" and self._form is Form.MSGPACK:
                yield name, {"records": list(map_records(document))}
            else:
                yield name, document

    def _next(self) -> Any:
        if self._form is Form.NDJSON:
            line, end, rest = self._rest.partition(b"\n")
            if not end:
                return None
            self._rest = rest
            try:
                return msgspec.json.decode(line)
            except msgspec.DecodeError as error:
                raise BadStream(f"a stream has the line {line[:1000]!r}") from error
        end_at = msgpack_end(self._rest)
        if end_at is None:
            return None
        document = msgspec.msgpack.decode(self._rest[:end_at])
        self._rest = self._rest[end_at:]
        return document


@contextlib.contextmanager
def connected(port: int, *, small: bool) -> Iterator[socket.socket]:
    with socket.socket() as sock:
        if small:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
        sock.connect(("127.0.0.1", port))
        yield sock


def after_head(pieces: Iterator[bytes]) -> bytes | None:
    """What follows the head of the answer; None if there is no stream. Raises BadStream."""
    data = b""
    for piece in pieces:
        data += piece
        head, end, rest = data.partition(b"\r\n\r\n")
        if end:
            status = int(head.split()[1])
            if status not in (200, 429, 503):
                raise BadStream(f"a watch was answered {data[:1000]!r}")
            return rest if status == 200 else None
    return None


def wait_until_seen(watchers: Sequence[Watcher], port: Port) -> None:
    """Waits until all watchers are at the heads; the judge names those that never get there."""
    heads: dict[Place, int] = {}
    for topic in {topic for watcher in watchers for topic, _ in watcher.wanted.places}:
        state = ask(port(), "GET", f"/v0/topics/{topic}")
        heads |= {(topic, each["partition"]): each["head_seq"] for each in state["partitions"]}

    def seen(watcher: Watcher) -> bool:
        places = watcher.wanted.places
        positions = watcher.taking.positions
        return not watcher.is_alive() or all(
            positions.get(place, heads[place] if watcher.wanted.tail else 0) >= heads[place]
            for place in places
        )

    with contextlib.suppress(AssertionError):
        wait_until(lambda: all(map(seen, watchers)), "the watchers to see all records", SERVED_S)
