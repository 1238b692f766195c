"""What happened in a chaos run, as one JSON line per event: the checker's whole input.

An *attempt* is one produce request on one connection; a request with an idempotency key may have
several. A *record* is a text that is sent in one request only. Attempts and connections are
numbered, and the lines of one connection are in the order in which it sent.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

import msgspec

Place = tuple[str, int]  # topic and partition


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


class Page(msgspec.Struct, frozen=True, tag="page"):
    """A reader asked for what follows ``from_seq`` and was told to continue at ``next_from_seq``.

    ``reader``: ``cold`` and ``hot`` read everything at the end, with and without a restart before
    it; others read meanwhile. ``gap``: the offsets that the tombstone says cannot be read, and its
    ``reason``: none ever had them (``recovery``), or they were evicted (``cap``, ``ttl``).
    """

    reader: str
    place: Place
    from_seq: int
    next_from_seq: int
    records: tuple[tuple[int, str], ...]
    gap: tuple[int, int] | None = None
    reason: str = "recovery"


class Capped(msgspec.Struct, frozen=True, tag="capped"):
    """Of this partition the newest ``records`` are kept, at least."""

    place: Place
    records: int


class Did(msgspec.Struct, frozen=True, tag="did"):
    """What was done to the daemon; for people, not for the checker."""

    what: str
    at_ms: int


Line = Sent | Answered | Page | Capped | Did


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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
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
