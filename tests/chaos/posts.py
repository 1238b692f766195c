"""What the receiver of one push subscription got and answered, from the lines of a history. Pure.

Lines are in the receiver's own order: it notes a POST when it has arrived, and an answer before it
is written.
"""

from __future__ import annotations

from bisect import bisect, bisect_left
from collections import defaultdict
from typing import NamedTuple

from tests.chaos.history import Drained, Ended, Floors, Posted, Pushes, Replied, Spot


class Post(NamedTuple):
    """A POST as one of its records sees it; ``place`` is that of the record in it."""

    line: int
    place: int
    id: str
    size: int  # records in it
    number: int
    at_ms: int


class Reply(NamedTuple):
    """The answer to a POST."""

    line: int
    status: int
    at_ms: int
    whole: bool
    connection: int

    @property
    def is_success(self) -> bool:
        """The receiver has dealt with it, and the sender may know."""
        return self.whole and 200 <= self.status < 300


class Posts:
    """``posts`` has those of each record, in the order of their arrival."""

    def __init__(self, rules: Pushes) -> None:
        self.rules = rules
        self.posts: dict[str, list[Post]] = defaultdict(list)
        self.replies: dict[int, Reply] = {}  # by the number of the POST
        self.times_ms: list[int] = []  # when POSTs arrived
        self._successes: list[int] = []  # lines
        self._connections: dict[int, int] = {}  # by the number of the POST
        self._asked_ms: list[int] = []  # when the owner was asked, and when it answered
        self._told_ms: list[int] = []
        # By partition: floors that rise, and when each was told.
        self._floors: dict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        self.lag: int | None = None
        self.ended_ms: int | None = None  # when it was about to be deleted

    def take(self, number: int, line: Posted | Replied | Floors | Drained | Ended) -> None:
        """The next line of this subscription."""
        if isinstance(line, Posted):
            self.times_ms.append(line.at_ms)
            self._connections[line.number] = line.connection
            for place, pushed in enumerate(line.records):
                self.posts[pushed.record].append(
                    Post(number, place, pushed.id, len(line.records), line.number, line.at_ms)
                )
        elif isinstance(line, Replied):
            connection = self._connections.get(line.number, 0)
            reply = Reply(number, line.status, line.at_ms, line.whole, connection)
            self.replies[line.number] = reply
            if reply.is_success:
                self._successes.append(number)
        elif isinstance(line, Floors):
            self._asked_ms.append(line.asked_ms)
            self._told_ms.append(line.at_ms)
            for partition, floor in enumerate(line.floors):
                floors, times_ms = self._floors[partition]
                if not floors or floor > floors[-1]:
                    floors.append(floor)
                    times_ms.append(line.at_ms)
        elif isinstance(line, Ended):
            self.ended_ms = line.at_ms
        else:
            self.lag = line.lag

    def of(self, record: str) -> list[Post]:
        """The POSTs of a record."""
        return self.posts.get(record, [])

    def succeeded(self, record: str, line: int) -> bool:
        """Whether the receiver had dealt with a record before a line, and the sender may know."""
        return any(
            reply.is_success and reply.line < line
            for post in self.of(record)
            if (reply := self.replies.get(post.number)) is not None
        )

    def answered_ms(self, after_ms: int) -> int | None:
        """When the owner answered a question that it was asked after a time, if it has."""
        place = bisect_left(self._asked_ms, after_ms)
        return self._told_ms[place] if place < len(self._told_ms) else None

    def finished_ms(self, spot: Spot) -> int | None:
        """When the owner had said that it has finished this, if it has."""
        floors, times_ms = self._floors[spot[0]]
        place = bisect_left(floors, spot[1])
        return times_ms[place] if place < len(floors) else None

    def refusals(self, record: str, line: int) -> list[Reply]:
        """The answers before a line that say that this record cannot be dealt with."""
        return [
            reply
            for post in self.of(record)
            if post.size == 1 and (reply := self.replies.get(post.number)) is not None
            if reply.whole and reply.status == REFUSED and reply.line < line
        ]

    def counted_max(self, record: str, line: int) -> int:
        """How many attempts before a line may have counted: refusals, and failures between which
        others were answered 2xx."""
        failures, since = 0, None  # the first POST, or the last one in which it was alone
        for post in self.of(record):
            if since is None:
                since = post.line
                continue
            reply = self.replies.get(post.number)
            is_other = reply is not None and reply.whole and reply.status in NEVER_OWN
            if post.line < line and post.size == 1 and not is_other:
                stop = line if reply is None else reply.line
                failures += bisect(self._successes, since) < bisect(self._successes, stop)
                since = post.line
        return len(self.refusals(record, line)) + failures


REFUSED = (
    400  # what the receiver of a chaos run says of a record; all else is a failure of its own,
)
# and may be that of a record, but for these.
NEVER_OWN = (200, 204, REFUSED, 429)
