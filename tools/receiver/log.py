"""What a receiver noted, one line for each arrival and each answer, in its own order.

A line is written before the answer is, so whoever sent a POST and got its answer finds both here,
also after the receiver was killed.
"""

from __future__ import annotations

from pathlib import Path

import msgspec


class Event(msgspec.Struct, frozen=True, array_like=True):
    """A CloudEvent: its id and what it carries, as text; JSON data is as it came."""

    id: str
    data: str


class Came(msgspec.Struct, frozen=True, tag="came"):
    """A POST has arrived, whole. ``webhook_id``: that of its signature, if it has one."""

    endpoint: str
    number: int
    at_ms: int
    events: tuple[Event, ...]
    connection: int
    webhook_id: str = ""


class Went(msgspec.Struct, frozen=True, tag="went"):
    """It is about to be answered. ``is_whole`` is False if the sender cannot know the answer;
    ``status`` is then what the receiver did."""

    endpoint: str
    number: int
    at_ms: int
    status: int
    is_whole: bool = True


Entry = Came | Went


def load(path: Path) -> list[Entry]:
    """The entries of a log; a last line that a kill has cut is left out."""
    decoder = msgspec.json.Decoder(Entry)
    data = path.read_bytes() if path.exists() else b""
    return [decoder.decode(line) for line in data.split(b"\n")[:-1] if line]
