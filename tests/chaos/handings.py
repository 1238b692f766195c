"""What happened to one subscription, from the lines of a history. Pure.

A *spot* is the place of a message in the subscription's topic. A *handing* is the arrival of a
message at a consumer. Epochs are the daemon's own order of batches; lines are the order in which
clients saw things, and a client notes what it is about to say before it says it.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from tests.chaos.history import (
    Consuming,
    Drained,
    Ended,
    Handed,
    Message,
    Missed,
    OfSubscription,
    Parted,
    Settled,
    Settling,
    Spot,
    Subscribed,
)


class Handing(NamedTuple):
    """Compares as the daemon sent: by epoch, then by the place in the batch."""

    epoch: int
    line: int
    place: int
    spot: Spot
    message: Message
    connection: int
    empty_ms: int
    at_ms: int


class Said(NamedTuple):
    """What was said about a message of a batch."""

    line: int
    epoch: int
    era: int
    at_ms: int = 0


class Handings:
    """``took`` has the handings of each message by epoch; ``done`` where a consumer first said that
    it is dealt with, ``accepted`` what the daemon agreed to. ``alive_ms`` has when the owner last
    did something in an era: it sent a batch, or accepted what was said."""

    def __init__(self, rules: Subscribed) -> None:
        self.rules = rules
        self.connections: dict[int, Consuming] = {}
        self.parted: dict[int, int] = {}  # by connection: the line
        self.newest: dict[int, int] = {}  # by connection: the last epoch that arrived
        self.took: dict[Spot, list[Handing]] = {}
        self.done: dict[Spot, Said] = {}
        self.failed: dict[tuple[Spot, int], Said] = {}
        self.accepted: dict[Spot, list[Said]] = defaultdict(list)
        self.alive_ms: dict[int, int] = defaultdict(int)
        self.missed: list[Missed] = []
        self.lag: int | None = None
        self.ended = False  # it was deleted
        self._settling: dict[int, tuple[int, Settling]] = {}

    def take(self, number: int, line: OfSubscription | Ended) -> None:
        """The next line of this subscription."""
        if isinstance(line, Consuming):
            self.connections[line.connection] = line
        elif isinstance(line, Handed):
            self._handed(number, line)
        elif isinstance(line, Settling):
            self._settling[line.number] = (number, line)
            for spot in line.spots:
                said = Said(number, line.epoch, line.era)
                if line.failed:
                    self.failed.setdefault((spot, line.epoch), said)
                else:
                    self.done.setdefault(spot, said)
        elif isinstance(line, Settled):
            began, said_line = self._settling[line.number]
            self._lives(said_line.era, line.at_ms)
            if not said_line.failed:
                said = Said(began, said_line.epoch, said_line.era, line.at_ms)
                for spot in line.spots:
                    self.accepted[spot].append(said)
        elif isinstance(line, Parted):
            self.parted.setdefault(line.connection, number)
        elif isinstance(line, Missed):
            self.missed.append(line)
        elif isinstance(line, Drained):
            self.lag = line.lag
        elif isinstance(line, Ended):
            self.ended = True

    def _handed(self, number: int, line: Handed) -> None:
        self.newest[line.connection] = max(line.epoch, self.newest.get(line.connection, 0))
        self._lives(self.connections[line.connection].era, line.empty_ms)
        for place, message in enumerate(line.messages):
            spot = (message.partition, message.seq)
            handing = Handing(
                line.epoch, number, place, spot, message, line.connection, line.empty_ms,
                line.at_ms,
            )  # fmt: skip
            found = self.took.setdefault(spot, [])
            found.append(handing)
            if len(found) > 1:
                found.sort()

    def _lives(self, era: int, at_ms: int) -> None:
        self.alive_ms[era] = max(self.alive_ms[era], at_ms)

    def era(self, handing: Handing) -> int:
        """The era of the daemon that sent it."""
        return self.connections[handing.connection].era

    def of(self, spot: Spot) -> list[Handing]:
        """The handings of a message, in the daemon's order."""
        return self.took.get(spot, [])

    def all(self) -> list[Handing]:
        """All handings, in the daemon's order."""
        return sorted(handing for found in self.took.values() for handing in found)

    def failures_before(self, spot: Spot, line: int) -> int:
        """How many deliveries of a message may have failed by then."""
        return len({handing.epoch for handing in self.of(spot) if handing.line < line})
