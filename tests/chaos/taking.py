"""What one watcher takes from its streams: events in, pages of the history out. Pure.

A page is what came of one partition between two positions. A tombstone is a page of its own. When
a connection ends, what came after the last position is noted as not settled, and the watcher is
where that position says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.chaos.history import Page, Place

# What a store that fails, or a daemon that starts or stops, may tell a watcher.
PASSING = ("store_unavailable", "ledger_unavailable", "not_ready", "shutting_down")


class BadStream(Exception):
    """The stream said what no stream may say."""


class Taking:
    """``positions`` is where the watcher resumes; ``last_event_id`` says the same to the daemon."""

    def __init__(
        self, reader: str, places: tuple[Place, ...], topic_ids: Mapping[str, int], *, tail: bool
    ) -> None:
        self.reader = reader
        self.last_event_id = ""
        self.positions: dict[Place, int] = {} if tail else dict.fromkeys(places, 0)
        self.records = 0
        self._places = places
        self._topics = {number: topic for topic, number in topic_ids.items()}
        self._pages: list[Page] = []  # since the last position, complete
        self._open: dict[Place, list[tuple[int, str]]] = {}
        self._from: dict[Place, int] = {}  # where the open page of a place begins

    def event(self, name: str, document: Any) -> None:
        """An event with its data. Raises BadStream."""
        if name == "record":
            self._record(document)
        elif name == "records":
            for record in document["records"]:
                self._record(record)
        elif name == "tombstone":
            self._tombstone(document)
        elif name == "error" and document["code"] in PASSING:
            pass  # the stream ends, and the watcher resumes
        elif name not in ("caught-up", "closing", "heartbeat"):
            raise BadStream(f"{self.reader} got an event {name!r}: {document}")

    def position(self, text: str) -> list[Page]:
        """The pages that this position settles. Raises BadStream for one that is not valid."""
        positions = self._parse(text)
        for place in self._places:
            self._close(place, positions[place], settled=True)
        pages, self._pages = self._pages, []
        self.positions, self.last_event_id = positions, text
        self._from = {}
        return pages

    def lost(self) -> list[Page]:
        """The connection has ended: the pages that are not settled."""
        for place, records in list(self._open.items()):
            if records:
                self._close(place, records[-1][0], settled=False)
        pages = [
            Page(p.reader, p.place, p.from_seq, p.next_from_seq, p.records, p.gap, p.reason, False)
            for p in self._pages
        ]
        self._pages, self._open, self._from = [], {}, {}
        return pages

    def _place(self, document: Any) -> Place:
        topic = document.get("topic", self._places[0][0])
        place = (topic, document.get("partition", self._places[0][1]))
        if place not in self._places or (
            "topic" not in document and len({topic for topic, _ in self._places}) > 1
        ):
            raise BadStream(f"{self.reader} got {document}, which is of none of {self._places}")
        if (
            "partition" not in document
            and len(self._places) > 1
            and len([other for other in self._places if other[0] == topic]) > 1
        ):
            raise BadStream(f"{self.reader} got {document} without its partition")
        return place

    def _record(self, document: Any) -> None:
        place = self._place(document)
        self.records += 1
        self._open.setdefault(place, []).append((document["seq"], document["data"]))
        if place not in self._from and place not in self.positions:
            self._from[place] = document["seq"] - 1  # of a tail, before its first position

    def _tombstone(self, document: Any) -> None:
        place = self._place(document)
        gap = (document["gap_from"], document["gap_to"])
        begin = self._begin(place, gap[0] - 1)
        self._close(place, max(begin, gap[0] - 1), settled=True)
        begin = self._begin(place, gap[0] - 1)
        end = max(begin, gap[1])
        self._pages.append(Page(self.reader, place, begin, end, (), gap, document["reason"]))
        self._from[place] = end

    def _begin(self, place: Place, otherwise: int) -> int:
        return self._from.get(place, self.positions.get(place, otherwise))

    def _close(self, place: Place, end: int, *, settled: bool) -> None:
        records = tuple(self._open.pop(place, ()))
        begin = self._begin(place, end)
        if records or end != begin:
            self._pages.append(Page(self.reader, place, begin, end, records, None, "", settled))
        self._from[place] = end

    def _parse(self, text: str) -> dict[Place, int]:
        try:
            positions = {
                (self._topics[int(number)], int(partition)): int(seq)
                for number, _, pairs in (part.partition(":") for part in text.split(";"))
                for partition, _, seq in (pair.partition("=") for pair in pairs.split(","))
            }
        except (ValueError, KeyError) as error:
            raise BadStream(f"{self.reader} got the position {text!r}: {error!r}") from error
        if set(positions) != set(self._places):
            raise BadStream(f"{self.reader} of {self._places} got the position {text!r}")
        return positions
