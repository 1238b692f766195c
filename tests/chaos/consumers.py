"""The consumers of a chaos run: threads that share subscriptions, and say what became of messages.

What a consumer does with a message follows from its text (``fate``): it acknowledges most, refuses
some once, keeps silent about few until they time out, and refuses a few always. Some consumers
leave and come back, some only close their connection, some do not read for a while, and two have
one name. Streams and requests go to whatever shard the kernel gives them.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
import zlib
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Any
from urllib.parse import urlencode

import msgspec

from shards.clock import monotonic_ns
from tests.chaos.clients import PATIENCE_S, RETRY_S, Client, Port, ask_json, can_read
from tests.chaos.history import (
    Consuming,
    Handed,
    History,
    Message,
    Missed,
    Parted,
    Settled,
    Settling,
    Spot,
)
from tests.chaos.lives import Lives
from tests.chaos.sse import ChunkDecoder
from tests.chaos.taking import PASSING
from tests.chaos.watchers import Form, StreamParser, after_head, connected
from tests.e2e.daemon import UNANSWERED

POLL_S = 0.1
POLL_MESSAGES = 50
NAP_S = (0.2, 4.0)
NAP_SHARE = 0.02  # of the reads
AWAY_S = (0.0, 4.0)  # up to beyond the 3 s for which a stream is present without a connection
AWAY_SHARE = 0.003
AGAIN_S = 0.1  # between two connections
TRIES = 3  # of an acknowledgment without an answer
PASSING_STATUSES = (429, 503)  # what a daemon that is short of something may answer
ENDS = (*PASSING, "replaced", "evicted")  # what a stream may end with

Era = Callable[[], int]


class BadAnswer(Exception):
    """The daemon answered what it never may."""


class Fate(Enum):
    """What a consumer does with a message."""

    GOOD = "acknowledges it"
    REFUSED_ONCE = "refuses its first delivery"
    SILENT_ONCE = "says nothing about its first delivery"
    POISON = "refuses it always"


def fate(record: str, poison_every: int = 400) -> Fate:
    """What becomes of a record."""
    number = zlib.crc32(record.encode())
    if number % poison_every == 0:
        return Fate.POISON
    if number % 60 == 1:
        return Fate.REFUSED_ONCE
    if number % 4_000 == 2:
        return Fate.SILENT_ONCE
    return Fate.GOOD


class Consumes(msgspec.Struct, frozen=True):
    """A consumer; without a ``form`` it polls. ``wanders``: it leaves and comes back. ``mute``: it
    says nothing, as nobody wants to know."""

    topic: str
    subscription: str
    consumer: str
    form: Form | None = None
    filters: tuple[str, ...] = ()
    slow: bool = False
    wanders: bool = False
    mute: bool = False
    poison_every: int = 400

    @property
    def path(self) -> str:
        return f"/v0/topics/{self.topic}/subscriptions/{self.subscription}"


class Counts(msgspec.Struct):
    """What a consumer did."""

    messages: int = 0
    again: int = 0  # of them, those that had come to it before
    acknowledged: int = 0
    stale: int = 0  # acknowledgments that were refused
    connections: int = 0


class Consumer(Client):
    """What streams and polls have in common."""

    def __init__(
        self, wanted: Consumes, place: int, port: Port, era: Era, history: History, seed: int,
        lives: Lives,
    ) -> None:  # fmt: skip
        super().__init__(f"{wanted.consumer} of {wanted.subscription}, {place}")
        self.wanted = wanted
        self._lives = lives
        self._ends = (*ENDS, "deleted", "unknown_subscription") if lives.ends else ENDS
        self._judged = wanted.subscription  # the life of the last connection
        self.counts = Counts()
        self._port = port
        self._era = era
        self._history = history
        self._rng = random.Random(f"{seed} {self.name}")
        self._number = place << 32  # connections and sayings are numbered by each consumer
        self._seen: set[Spot] = set()

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _where(self) -> tuple[int, int]:
        """The port, and the era of who listens there."""
        while True:
            era, port = self._era(), self._port()
            if era == self._era():
                return port, era

    def _begins(self, era: int) -> int:
        """A connection is about to be made."""
        number = self._next()
        wanted = self.wanted
        self._history.add(Consuming(self._judged, wanted.consumer, number, era, wanted.filters))
        self.counts.connections += 1
        return number

    def _parts(self, connection: int) -> None:
        self._history.add(Parted(self._judged, connection))

    def _deal(
        self, connection: int, epoch: int, documents: Sequence[Any], empty_ms: int, *,
        is_whole: bool = False,
    ) -> None:  # fmt: skip
        """Takes messages of one batch, and says what becomes of them."""
        messages = tuple(
            Message(each["partition"], each["seq"], each["data"], each["attempt"])
            for each in documents
        )
        self._history.add(Handed(self._judged, connection, epoch, messages, empty_ms, now_ms()))
        spots = {(each.partition, each.seq): each for each in messages}
        self.counts.messages += len(messages)
        self.counts.again += len(self._seen & spots.keys())
        known = self._seen & spots.keys()
        self._seen.update(spots)
        if self.wanted.mute:
            return
        good: list[Spot] = []
        bad: list[Spot] = []
        silent: list[Spot] = []
        for spot, message in spots.items():
            what = fate(message.record, self.wanted.poison_every)
            if (self.wanted.subscription, spot) in self._lives.pardoned:
                what = Fate.GOOD
            is_again = message.attempt > 1 or spot in known
            if what is Fate.GOOD or (what is not Fate.POISON and is_again):
                good.append(spot)
            else:
                (silent if what is Fate.SILENT_ONCE else bad).append(spot)
        if is_whole and not silent and self._rng.random() < 0.5:
            self._say(epoch, good, failed=False, but=bad)
        elif good:
            self._say(epoch, good, failed=False)
        if bad:
            self._say(epoch, bad, failed=True)

    def _say(
        self, epoch: int, spots: Sequence[Spot], *, failed: bool, but: Sequence[Spot] | None = None
    ) -> None:
        """Acknowledges or refuses; ``but``: all of the batch but these."""
        wanted = self.wanted
        document: dict[str, object] = {"consumer": wanted.consumer}
        if but is None:
            document["messages"] = [
                {"partition": partition, "seq": seq, "epoch": epoch} for partition, seq in spots
            ]
        else:
            document |= {"batch": epoch, "except": [{"partition": p, "seq": s} for p, s in but]}
        path = f"{wanted.path}/{'nack' if failed else 'ack'}"
        for _ in range(TRIES):
            port, era = self._where()
            number = self._next()
            self._history.add(Settling(self._judged, number, epoch, tuple(spots), era, failed))
            answer = self._ask(port, "POST", path, document)
            if answer is None:
                if self.stopping.wait(RETRY_S):
                    return
                continue
            refused = {(each["partition"], each["seq"]) for each in answer["refused_messages"]}
            self.counts.acknowledged += 0 if failed else answer["accepted"]
            self.counts.stale += answer["refused"]
            taken = tuple(spot for spot in spots if spot not in refused)
            if len(taken) == answer["accepted"]:
                self._history.add(Settled(self._judged, number, taken, now_ms()))
            return

    def _tell_gap(self, document: Any) -> None:
        place = (self.wanted.topic, document["partition"])
        gap = (document["gap_from"], document["gap_to"])
        self._history.add(Missed(self._judged, place, gap, document["reason"]))

    def _ask(self, port: int, method: str, path: str, document: object = None) -> Any:
        """The answer, if there is one now."""
        with contextlib.suppress(*UNANSWERED):
            return ask_consumer(port, method, path, document, may_be_gone=self._lives.ends)
        return None

    def _wander(self) -> bool:
        """Whether it goes away now."""
        return self.wanted.wanders and self._rng.random() < AWAY_SHARE

    def _leave(self) -> None:
        """Leaves, or just goes; stays away for a while."""
        if self._rng.random() < 0.5:
            leaves = {"consumer": self.wanted.consumer}
            self._ask(self._port(), "POST", f"{self.wanted.path}/leave", leaves)
        self.stopping.wait(self._rng.uniform(*AWAY_S))

    def _query(self, **more: object) -> str:
        query: list[tuple[str, object]] = [("consumer", self.wanted.consumer), *more.items()]
        query += [("filter", glob) for glob in self.wanted.filters]
        return f"{self.wanted.path}/consume?{urlencode(query)}"


class StreamConsumer(Consumer):
    """Has a stream."""

    def work(self) -> None:
        """Connects again and again."""
        while not self.stopping.is_set():
            if not self._port():
                self.stopping.wait(RETRY_S)
                continue
            try:
                self._follow()
            except TimeoutError as error:
                raise BadAnswer(f"{self.name} heard nothing for {PATIENCE_S} s") from error
            except OSError:
                pass
            self.stopping.wait(AGAIN_S)

    def _follow(self) -> None:
        wanted = self.wanted
        assert wanted.form is not None
        connecting = contextlib.ExitStack()
        self._judged = connecting.enter_context(self._lives.present(wanted.subscription))
        port, era = self._where()
        connection = self._begins(era)
        goes = False
        try:
            with connecting, connected(port, small=wanted.slow) as sock:
                head = f"GET {self._query()} HTTP/1.1\r\nHost: localhost\r\n"
                sock.sendall(f"{head}Accept: {wanted.form.value}\r\n\r\n".encode())
                pieces = self._pieces(sock)
                data = after_head(piece for piece, _ in pieces)
                connecting.close()
                if data is None:
                    return
                chunks, parser, empty_ms = ChunkDecoder(), StreamParser(wanted.form), now_ms()
                while not chunks.ended:
                    self._take(connection, parser.feed(chunks.feed(data)), empty_ms)
                    if self._wander():
                        goes = True
                        break
                    if wanted.slow and self._rng.random() < NAP_SHARE:
                        self.stopping.wait(self._rng.uniform(*NAP_S))
                    data, empty_ms = next(pieces, (b"", 0))
                    if not data:
                        break
                self._parts(connection)
        except OSError:
            self._parts(connection)
            raise
        if goes:
            self._leave()

    def _take(self, connection: int, events: Iterator[tuple[str, Any]], empty_ms: int) -> None:
        batches: dict[int, list[Any]] = {}
        for name, document in events:
            if name in ("message", "record"):
                batches.setdefault(document["epoch"], []).append(document)
            elif name == "messages":
                found = [{**each, "data": json.loads(each["data"])} for each in document[name]]
                self._deal(connection, document["epoch"], found, empty_ms, is_whole=True)
            elif name == "tombstone":
                self._tell_gap(document)
            elif name == "error" and document["code"] in self._ends:
                pass
            elif name not in ("closing", "heartbeat"):
                raise BadAnswer(f"{self.name} got an event {name!r}: {document}")
        for epoch, documents in batches.items():
            self._deal(connection, epoch, documents, empty_ms)

    def _pieces(self, sock: socket.socket) -> Iterator[tuple[bytes, int]]:
        """What arrives, and when there was nothing to read before."""
        heard_ns = monotonic_ns()
        empty_ms = now_ms()
        while not self.stopping.is_set():
            asked_ms = now_ms()  # before the look: this thread may get no CPU for long after it
            if not can_read(sock, 0):
                empty_ms = asked_ms
                if not can_read(sock, POLL_S):
                    if monotonic_ns() - heard_ns > PATIENCE_S * 1e9:
                        raise TimeoutError
                    continue
            data = sock.recv(65536)
            if not data:
                return
            heard_ns = monotonic_ns()
            yield data, empty_ms


class Poller(Consumer):
    """Asks for messages again and again."""

    def work(self) -> None:
        """Until it is told to stop."""
        query = self._query(max=POLL_MESSAGES, wait_ms=500)
        connection, era = 0, -1
        while not self.stopping.is_set():
            port, now_era = self._where()
            if not port:
                self.stopping.wait(RETRY_S)
                continue
            with self._lives.present(self.wanted.subscription) as judged:
                if not connection or now_era != era or judged != self._judged:
                    era, self._judged = now_era, judged
                    connection = self._begins(era)
                empty_ms = now_ms()
                answer = self._ask(port, "GET", query)
            if answer is None:
                self.stopping.wait(RETRY_S)
                continue
            for gap in answer["gaps"]:
                self._tell_gap(gap)
            if answer["messages"]:
                self._deal(connection, answer["epoch"], answer["messages"], empty_ms, is_whole=True)
            if self._wander():
                self._parts(connection)
                self._leave()
                connection = 0


class Operator(Client):
    """Skips the blocked keys of a subscription, again and again."""

    def __init__(
        self, topic: str, subscription: str, port: Port, era: Era, history: History, lives: Lives
    ) -> None:
        super().__init__(f"operator of {subscription}")
        self.skipped = 0
        self._path = f"/v0/topics/{topic}/subscriptions/{subscription}"
        self._subscription = subscription
        self._lives = lives
        self._port = port
        self._era = era
        self._history = history

    def work(self) -> None:
        """Until it is told to stop."""
        number = 1 << 62
        while not self.stopping.wait(0.2):
            with (
                self._lives.present(self._subscription) as judged,
                contextlib.suppress(*UNANSWERED),
            ):
                found = ask_consumer(self._port(), "GET", f"{self._path}/keys?limit=20")
                for blocked in (found or {}).get("keys", ()):
                    number += 1
                    spot = (blocked["partition"], blocked["seq"])
                    self._history.add(Settling(judged, number, 0, (spot,), self._era()))
                    what = {"partition": spot[0], "seq": spot[1]}
                    done = ask_consumer(self._port(), "POST", f"{self._path}/skip", what)
                    self.skipped += done is not None


def ask_consumer(
    port: int, method: str, path: str, document: object = None, *, may_be_gone: bool = False
) -> Any:
    """The JSON answer on a connection of its own; None if the daemon cannot serve it now. Raises
    BadAnswer for anything else but 200; ``may_be_gone``: or 404."""
    answer = ask_json(port, method, path, document)
    if answer.status in PASSING_STATUSES:
        return None
    if answer.status == 409:  # nothing of an acknowledgment was accepted
        return answer.json["error"]["detail"]
    if answer.status == 404 and (may_be_gone or path.endswith("/skip")):
        return None  # it was deleted, or is not blocked any more
    if answer.status != 200:
        said = f"{answer.status}: {answer.body[:1000]!r}"
        raise BadAnswer(f"{method} {path} {document} was answered {said}")
    return answer.json


def now_ms() -> int:
    """The time of what is noted."""
    return monotonic_ns() // 1_000_000
