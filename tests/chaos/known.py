"""The lines of a chaos history, grouped by subject."""

from __future__ import annotations

from bisect import bisect
from collections import defaultdict
from collections.abc import Iterable

from tests.chaos.handings import Handings
from tests.chaos.history import (
    Answered,
    Capped,
    Drained,
    Ended,
    Harmed,
    Line,
    Lossy,
    OfPush,
    OfSubscription,
    Page,
    Place,
    Posted,
    Pushes,
    Renewed,
    Routed,
    Sent,
    Subscribed,
    TakenOver,
    Trimmed,
    Unheard,
    Watching,
)
from tests.chaos.posts import Posts, Reply

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
        self.trimmed: dict[Place, int] = defaultdict(int)  # of these, by request
        # Topics of which only the last life can be read, and the line when the one before was gone.
        self.renewed: dict[str, int] = {}
        self.caps: dict[Place, int] = {}
        self.watchers: dict[str, Watching] = {}
        self.lossy: set[str] = set()
        self.routers: dict[str, list[Routed]] = defaultdict(list)  # by destination
        self.subscriptions: dict[str, Handings] = {}
        self.pushes: dict[str, Posts] = {}
        # By connection: the lines of its POSTs, and when they arrived.
        self._posts: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self.unheard: list[Unheard] = []
        self.harms: list[Harmed] = []
        self.take_overs: list[TakenOver] = []  # each ends the era that its place is the number of
        self.bygone: dict[str, str] = {}  # what was stored in former lives of topics, and which
        self._straddling: set[int] = set()
        self._forgotten: set[str] = set()
        for number, line in enumerate(lines):
            if isinstance(line, Sent):
                self.sent[line.attempt] = line
            elif isinstance(line, Answered):
                if line.attempt in self.sent and line.attempt not in self._straddling:
                    self.answers[line.attempt] = line
            elif isinstance(line, Renewed):
                self._renew(line, number)
            elif isinstance(line, Page):
                self.pages.append(line)
                if line.gap is not None and line.reason in EVICTED:
                    self.evicted[line.place] = max(self.evicted[line.place], line.gap[1])
                elif line.gap is not None and line.reason != LAGGED:
                    self.gaps[line.place].append(line.gap)
                if line.reader == COLD:
                    self.kept[line.place].update(line.records)
                    self.ends[line.place] = line.next_from_seq
            elif isinstance(line, Trimmed):
                self.trimmed[line.place] = max(self.trimmed[line.place], line.seq)
                self.evicted[line.place] = max(self.evicted[line.place], line.seq)
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
            elif isinstance(line, Ended) and line.with_topic:
                del self.subscriptions[line.subscription]
                self._forgotten.add(line.subscription)
            elif isinstance(line, OfPush) or (
                isinstance(line, Drained | Ended) and line.subscription in self.pushes
            ):
                self.pushes[line.subscription].take(number, line)
                if isinstance(line, Posted):
                    self._posts[line.connection].append((number, line.at_ms))
            elif isinstance(line, Unheard):
                self.unheard.append(line)
            elif isinstance(line, OfSubscription | Ended):
                if line.subscription not in self._forgotten:
                    self.subscriptions[line.subscription].take(number, line)
            elif isinstance(line, Harmed):
                self.harms.append(line)
            elif isinstance(line, TakenOver):
                self.take_overs.append(line)
        for place, gaps in self.gaps.items():
            self.gaps[place] = sorted(set(gaps))
        for page in self.pages:
            for seq, record in page.records:
                if seq <= self.evicted[page.place] and not self.is_gap(page.place, seq):
                    self.kept[page.place].setdefault(seq, record)
        self._end: dict[Place, int] = {}
        self._last: dict[Place, dict[str, int]] = defaultdict(dict)  # offsets by record
        for place, records in self.kept.items():
            for seq, record in sorted(records.items(), reverse=bool(self.take_overs)):
                last = self._last[place].setdefault(record, seq)
                if last > seq and seq <= self.evicted[place]:
                    # It was moved, and the gap where it was seen before is evicted too.
                    del records[seq]
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

    def _renew(self, line: Renewed, number: int) -> None:
        """What was stored before a topic was deleted is gone; what was on its way is here or not.
        Until the topic is there again, attempts are on their way."""
        if line.gone:
            self.renewed[line.topic] = number
            return
        self.renewed.setdefault(line.topic, number)
        for attempt, sent in list(self.sent.items()):
            if sent.place[0] != line.topic or attempt in self._straddling:
                continue
            answer = self.answers.get(attempt)
            if line.done:
                self._straddling.add(attempt)
                self.answers.pop(attempt, None)
            elif answer is not None and answer.status == 200:
                del self.sent[attempt]
                self.bygone.update(dict.fromkeys(sent.records, line.topic))

    def end(self, place: Place) -> int:
        """The last offset of a partition."""
        if place not in self._end:
            kept = self.kept.get(place, {})
            self._end[place] = max([self.ends.get(place, 0), *kept], default=0)
        return self._end[place]

    def is_gap(self, place: Place, seq: int) -> bool:
        """Whether a recovery skipped this offset."""
        return any(first <= seq <= last for first, last in self.gaps[place])

    def is_moved(self, record: str, place: Place, seq: int) -> bool:
        """Whether a record of this offset may have another one since a take-over: the offset is
        in a gap, which may be evicted, and the record is after it."""
        return (
            bool(self.take_overs)
            and (self.is_gap(place, seq) or seq <= self.evicted[place])
            and self._last[place].get(record, 0) > seq
        )

    def heard_ms(self, reply: Reply) -> int | None:
        """When another POST came on the connection of an answer, if one did: its sender had it."""
        posts = self._posts[reply.connection]
        place = bisect(posts, (reply.line, 0))
        return posts[place][1] if place < len(posts) else None

    @property
    def dead_letters(self) -> set[str]:
        """The topics of dead letters."""
        found = {each.rules.dead_letters for each in self.subscriptions.values()}
        return (found | {each.rules.dead_letters for each in self.pushes.values()}) - {""}

    def status(self, sent: Sent) -> int:
        """The status that an attempt was answered with, 0 for none."""
        answer = self.answers.get(sent.attempt)
        return answer.status if answer is not None else 0
