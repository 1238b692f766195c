"""The lines of a chaos history, grouped by subject."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from tests.chaos.handings import Handings
from tests.chaos.history import (
    Answered,
    Capped,
    Drained,
    Harmed,
    Line,
    Lossy,
    OfPush,
    OfSubscription,
    Page,
    Place,
    Pushes,
    Routed,
    Sent,
    Subscribed,
    Unheard,
    Watching,
)
from tests.chaos.posts import Posts

COLD = "cold"
EVICTED = ("cap", "ttl")
LAGGED = "lagged"


class Known:
    """The lines, grouped by subject."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self.sent: dict[int, Sent] = {}
        self.answers: dict[int, Answered] = {}
        self.pages: list[Page] = []
        self.kept: dict[Place, dict[int, str]] = defaultdict(dict)
        self.gaps: dict[Place, list[tuple[int, int]]] = defaultdict(list)
        self.ends: dict[Place, int] = {}
        self.evicted: dict[Place, int] = defaultdict(int)
        self.caps: dict[Place, int] = {}
        self.watchers: dict[str, Watching] = {}
        self.lossy: set[str] = set()
        self.routers: dict[str, list[Routed]] = defaultdict(list)  # by destination
        self.subscriptions: dict[str, Handings] = {}
        self.pushes: dict[str, Posts] = {}
        self.unheard: list[Unheard] = []
        self.harms: list[Harmed] = []
        for number, line in enumerate(lines):
            if isinstance(line, Sent):
                self.sent[line.attempt] = line
            elif isinstance(line, Answered):
                self.answers[line.attempt] = line
            elif isinstance(line, Page):
                self.pages.append(line)
                if line.gap is not None and line.reason in EVICTED:
                    self.evicted[line.place] = max(self.evicted[line.place], line.gap[1])
                elif line.gap is not None and line.reason != LAGGED:
                    self.gaps[line.place].append(line.gap)
                if line.reader == COLD:
                    self.kept[line.place].update(line.records)
                    self.ends[line.place] = line.next_from_seq
            elif isinstance(line, Capped):
                self.caps[line.place] = line.records
            elif isinstance(line, Watching):
                self.watchers[line.reader] = line
            elif isinstance(line, Lossy):
                self.lossy.add(line.topic)
            elif isinstance(line, Routed):
                self.routers[line.destination].append(line)
            elif isinstance(line, Subscribed):
                self.subscriptions[line.subscription] = Handings(line)
            elif isinstance(line, Pushes):
                self.pushes[line.subscription] = Posts(line)
            elif isinstance(line, OfPush) or (
                isinstance(line, Drained) and line.subscription in self.pushes
            ):
                self.pushes[line.subscription].take(number, line)
            elif isinstance(line, Unheard):
                self.unheard.append(line)
            elif isinstance(line, OfSubscription):
                self.subscriptions[line.subscription].take(number, line)
            elif isinstance(line, Harmed):
                self.harms.append(line)
        for page in self.pages:
            for seq, record in page.records:
                if seq <= self.evicted[page.place]:
                    self.kept[page.place].setdefault(seq, record)
        # By record: everywhere it is kept except as a copy, and the attempts that sent it.
        self.offsets: dict[str, list[tuple[Place, int]]] = defaultdict(list)
        for place, records in self.kept.items():
            if place[0] in self.routers or place[0] in self.dead_letters:
                continue
            for seq, record in sorted(records.items()):
                self.offsets[record].append((place, seq))
        self.attempts: dict[tuple[str, ...], list[Sent]] = defaultdict(list)
        for sent in self.sent.values():
            self.attempts[sent.records].append(sent)

    @property
    def dead_letters(self) -> set[str]:
        """The topics of dead letters."""
        found = {each.rules.dead_letters for each in self.subscriptions.values()}
        return (found | {each.rules.dead_letters for each in self.pushes.values()}) - {""}

    def status(self, sent: Sent) -> int:
        """The status that an attempt was answered with, 0 for none."""
        answer = self.answers.get(sent.attempt)
        return answer.status if answer is not None else 0
