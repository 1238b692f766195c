"""What happened in a chaos run, as one JSON line per event: the checker's whole input.

An *attempt* is one produce request on one connection; a request with an idempotency key may have
several. A *record* is a text that is sent in one request only; its tag, key and node follow from
the text. Attempts and connections are numbered, and the lines of one connection are in the order in
which it sent.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Iterable
from pathlib import Path

import msgspec

Place = tuple[str, int]  # topic and partition
Spot = tuple[int, int]  # partition and offset, in the topic of a subscription
Filters = dict[str, str]  # by field (tag, key, node) a glob of ``*`` and ``?``
KEYS = 40


def fields_of(record: str) -> dict[str, str]:
    """The fields that a record is sent with: every third has no tag, and not all have a key."""
    producer, made, index = (int(number) for number in record.split("."))
    fields = {"node": f"producer-{producer}"}
    if made % 3:
        fields["tag"] = f"tag-{made % 3}-{index}"
    if producer % 2:
        fields["key"] = f"key-{made % KEYS}"
    return fields


def key_of(record: str, key_fallback: str) -> str | None:
    """What a subscription orders a record by."""
    fields = fields_of(record)
    return fields.get("key", fields["node"] if key_fallback == "node" else None)


def passes(filters: Filters, record: str) -> bool:
    """Whether a record passes all filters; one without the field does not."""
    fields = fields_of(record) if filters else {}
    return all(matches(glob, fields.get(name)) for name, glob in filters.items())


def matches(glob: str, field: str | None) -> bool:
    """Whether a field is there and matches."""
    return field is not None and _expression(glob).fullmatch(field) is not None


@functools.cache
def _expression(glob: str) -> re.Pattern[str]:
    letters = ({"*": ".*", "?": "."}.get(letter, re.escape(letter)) for letter in glob)
    return re.compile("".join(letters))


class Sent(msgspec.Struct, frozen=True, tag="sent"):
    """An attempt is about to be written to its connection."""

    attempt: int
    connection: int
    place: Place
    records: tuple[str, ...]
    key: str | None = None


class Answered(msgspec.Struct, frozen=True, tag="answered"):
    """An attempt got its answer; offsets only with status 200."""

    attempt: int
    status: int
    first_seq: int = 0
    deduped: bool = False
    wait_ms: float = 0.0
    at_ms: int = 0


class Page(msgspec.Struct, frozen=True, tag="page"):
    """A reader asked for what follows ``from_seq`` and was told to continue at ``next_from_seq``.

    ``reader``: ``cold`` and ``hot`` read everything at the end, with and without a restart before
    it; others read meanwhile. ``gap``: the offsets that the tombstone says cannot be read, and its
    ``reason``: none ever had them (``recovery``), they were evicted (``cap``, ``ttl``), or the
    watcher was too slow for a lossy topic (``lagged``).

    Of a watcher, a page is what it took of one partition between two positions. ``settled`` says
    that the second one arrived: otherwise the watcher resumes at ``from_seq``, and
    ``next_from_seq`` is the last record that it saw.
    """

    reader: str
    place: Place
    from_seq: int
    next_from_seq: int
    records: tuple[tuple[int, str], ...]
    gap: tuple[int, int] | None = None
    reason: str = "recovery"
    settled: bool = True


class Watching(msgspec.Struct, frozen=True, tag="watching"):
    """A watcher begins: it sees the records of ``places`` that pass ``filters``, from their
    beginnings or, with ``tail``, from wherever its first position is."""

    reader: str
    places: tuple[Place, ...]
    filters: Filters = {}
    tail: bool = False


class Routed(msgspec.Struct, frozen=True, tag="routed"):
    """A router copies what passes ``filters`` from a topic into another, which nobody else
    writes to except other routers. It was created ``lives`` times, and began at the beginning each
    time."""

    source: str
    destination: str
    filters: Filters = {}
    lives: int = 1


class Lossy(msgspec.Struct, frozen=True, tag="lossy"):
    """Watchers of this topic may be told that they lagged."""

    topic: str


class Capped(msgspec.Struct, frozen=True, tag="capped"):
    """Of this partition the newest ``records`` are kept, at least."""

    place: Place
    records: int


class Subscribed(msgspec.Struct, frozen=True, tag="subscribed"):
    """A subscription begins, at the beginning of its topic, or after the offsets ``starts``.
    ``failures_max``: after as many failed deliveries a message goes the way of ``poison``. A
    subscription that is not reliable promises little."""

    subscription: str
    topic: str
    mode: str
    poison: str
    failures_max: int
    ack_timeout_ms: int
    reliable: bool = True
    dead_letters: str = ""
    starts: tuple[int, ...] = ()
    key_fallback: str = "none"
    only: Filters = {}  # its filter


class Consuming(msgspec.Struct, frozen=True, tag="consuming"):
    """A consumer is about to connect, or to ask for messages. ``era``: how often all processes of
    the daemon had been killed before."""

    subscription: str
    consumer: str
    connection: int
    era: int
    filters: tuple[str, ...] = ()


class Message(msgspec.Struct, frozen=True, array_like=True):
    """A message as a consumer got it. ``attempt`` is what the daemon counts."""

    partition: int
    seq: int
    record: str
    attempt: int = 1


class Handed(msgspec.Struct, frozen=True, tag="handed"):
    """Messages of one batch arrived at ``at_ms``. At ``empty_ms`` the consumer had nothing more to
    read: they were not written before that, unless the connection was held up somewhere."""

    subscription: str
    connection: int
    epoch: int
    messages: tuple[Message, ...]
    empty_ms: int
    at_ms: int


class Settling(msgspec.Struct, frozen=True, tag="settling"):
    """A consumer is about to say that it has dealt with messages of a batch, or that it could not
    (``failed``). Epoch 0: an operator skips them."""

    subscription: str
    number: int
    epoch: int
    spots: tuple[Spot, ...]
    era: int
    failed: bool = False


class Settled(msgspec.Struct, frozen=True, tag="settled"):
    """What a consumer said was accepted for these; not of an answer that leaves it open."""

    subscription: str
    number: int
    spots: tuple[Spot, ...]
    at_ms: int


class Parted(msgspec.Struct, frozen=True, tag="parted"):
    """A connection of a consumer ended, or is about to be closed."""

    subscription: str
    connection: int


class Missed(msgspec.Struct, frozen=True, tag="missed"):
    """The subscription was told that these cannot be read, and why."""

    subscription: str
    place: Place
    gap: tuple[int, int]
    reason: str


class Drained(msgspec.Struct, frozen=True, tag="drained"):
    """Consumers may end: the subscription has this lag."""

    subscription: str
    lag: int


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """A life of a subscription is about to end by its deletion; the next one has another name here.
    ``with_topic``: its topic is deleted, so nobody knows any more what that held."""

    subscription: str
    at_ms: int
    with_topic: bool = False


class Trimmed(msgspec.Struct, frozen=True, tag="trimmed"):
    """What is up to ``seq`` was read, and is about to be trimmed."""

    place: Place
    seq: int


class Renewed(msgspec.Struct, frozen=True, tag="renewed"):
    """A topic is about to be deleted, is ``gone``, or (``done``) was deleted and created again."""

    topic: str
    done: bool = False
    gone: bool = False


class Pushes(msgspec.Struct, frozen=True, tag="pushes"):
    """A push subscription begins, at the beginning of its topic. ``failures_max``: after as many
    POSTs in which it was alone and refused, a record goes the way of ``poison``."""

    subscription: str
    topic: str
    mode: str
    poison: str
    failures_max: int
    rate_max: float
    senders: int
    connections_max: int
    timeout_ms: int
    dead_letters: str = ""
    key_fallback: str = "none"


class Pushed(msgspec.Struct, frozen=True, array_like=True):
    """A record in a POST, with the id of its event."""

    id: str
    record: str


class Posted(msgspec.Struct, frozen=True, tag="posted"):
    """A POST arrived at the receiver."""

    subscription: str
    number: int
    records: tuple[Pushed, ...]
    at_ms: int
    connection: int = 0


class Replied(msgspec.Struct, frozen=True, tag="replied"):
    """The receiver is about to answer a POST; not ``whole``: in a way that the sender cannot
    understand, or not at all."""

    subscription: str
    number: int
    status: int
    at_ms: int
    whole: bool = True


class Floors(msgspec.Struct, frozen=True, tag="floors"):
    """The owner of a push subscription, asked at ``asked_ms``, has said by ``at_ms`` that it has
    finished each partition up to here."""

    subscription: str
    floors: tuple[int, ...]
    asked_ms: int
    at_ms: int


class Unheard(msgspec.Struct, frozen=True, tag="unheard"):
    """The receiver is about to be killed or stopped, or goes on."""

    at_ms: int


class Harmed(msgspec.Struct, frozen=True, tag="harmed"):
    """Processes of the daemon are about to be killed or stopped, or go on, or all have ended;
    ``whole``: all of them are killed, and a new era begins."""

    at_ms: int
    whole: bool = False


class TakenOver(msgspec.Struct, frozen=True, tag="taken over"):
    """Another daemon is the owner from ``at_ms`` on, and an era begins. What the former one stored
    or noted after ``since_ms`` may have other offsets, or be forgotten; the log has the rest. The
    former one was there until ``until_ms``."""

    since_ms: int
    at_ms: int
    until_ms: int


class Did(msgspec.Struct, frozen=True, tag="did"):
    """What was done to the daemon; for people, not for the checker."""

    what: str
    at_ms: int


OfPush = Posted | Replied | Floors
OfSubscription = Consuming | Handed | Settling | Settled | Parted | Missed | Drained
Line = (
    Sent | Answered | Page | Watching | Routed | Lossy | Capped | Subscribed | OfSubscription
    | Ended | Trimmed | Renewed | Pushes | OfPush | Unheard | Harmed | TakenOver | Did
)  # fmt: skip


class History:
    """Appends lines to a file, from any thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("wb")
        self._mutex = threading.Lock()

    def add(self, line: Line) -> None:
        """Appends a line."""
        data = msgspec.json.encode(line) + b"\n"
        with self._mutex:
            self._file.write(data)

    def __enter__(self) -> History:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def load(path: Path) -> list[Line]:
    """The lines of a history."""
    decoder = msgspec.json.Decoder(Line)
    with path.open("rb") as file:
        return [decoder.decode(line) for line in file]


def save(path: Path, lines: Iterable[Line]) -> None:
    """Writes a history."""
    with History(path) as history:
        for line in lines:
            history.add(line)
