"""The lags of groups of Kafka's consumers, in shared memory, so that any shard can report them.

The upkeep thread goes over the committed offsets of all groups, OFFSETS_A_LOOK each second, and
begins again at the end if anything has changed. So it costs the loops of shards nothing, and what
it takes of a second is bounded, however many groups and partitions there are.

A group has a row for each topic of which it has committed anything, in a slot that it keeps until
that ends. What finds no free slot is counted together.
"""

from __future__ import annotations

from ledger import topics
from ledger.delivery import group_commits, group_lags
from ledger.delivery.group_lags import BEGINNING, LagPart, Place
from ledger.ledger import Ledger
from shards import layout as at
from shards.boards.rowboard import KafkaGroupRow, kafka_group_board
from shards.segment import Segment

PAGE = 2_000  # offsets of a read: 10 to 15 ms
OFFSETS_A_LOOK = 10_000  # 50 to 70 ms, almost all of them in SQLite


class GroupLags:
    """The writer of the rows. ``slots``: how many there are."""

    def __init__(self, segment: Segment, ledger: Ledger, slots: int = at.KAFKA_GROUP_SLOTS) -> None:
        self._words = segment.words
        self._board = kafka_group_board(segment)
        self._ledger = ledger
        self._slots: dict[int, tuple[int, str]] = {}  # by cursor: the slot, and the topic's name
        self._free = list(range(slots))[::-1]
        self._after: Place = BEGINNING
        self._last: LagPart | None = None  # perhaps continued on the next page
        self._seen: set[int] = set()
        self._unplaced = self._unplaced_lag = 0
        self._state: object = None  # of the ledger when the last round began

    def look(self) -> bool:
        """Goes on for a second's share; whether a round has ended. Raises LedgerError."""
        if self._after == BEGINNING and self._last is None:
            state = self._ledger.read(group_lags.state)
            if state == self._state:
                return False
            if not self._slots and not self._ledger.read(group_commits.exist):
                return False
            self._state = state
        for _ in range(OFFSETS_A_LOOK // PAGE):
            found = self._ledger.read(group_lags.page, self._after, PAGE)
            for part in found.parts:
                self._take(part)
            if found.after is None:
                self._end()
                return True
            self._after = found.after
        return False

    def _take(self, part: LagPart) -> None:
        last = self._last
        if last is not None and last.cursor_id == part.cursor_id:
            part = part._replace(
                partitions=last.partitions + part.partitions, lag=last.lag + part.lag
            )
        elif last is not None:
            self._tell(last)
        self._last = part

    def _tell(self, part: LagPart) -> None:
        """The whole lag of a group in a topic."""
        placed = self._slots.get(part.cursor_id)
        if placed is None and self._free:
            topic = self._ledger.read(topics.by_id, part.topic_id)
            placed = (self._free.pop(), "" if topic is None else topic.name)
            self._slots[part.cursor_id] = placed
        if placed is None:
            self._unplaced += 1
            self._unplaced_lag += part.lag
            return
        self._seen.add(part.cursor_id)
        slot, name = placed
        row = KafkaGroupRow(topic=name, group=part.group, partitions=part.partitions, lag=part.lag)
        if self._board.read(slot, part.cursor_id) != row:
            self._board.write(slot, part.cursor_id, row)

    def _end(self) -> None:
        """Of a round: the rows of what has ended are free for the next one."""
        if self._last is not None:
            self._tell(self._last)
        for cursor_id in self._slots.keys() - self._seen:
            slot, _ = self._slots.pop(cursor_id)
            self._board.free(slot, cursor_id)
            self._free.append(slot)
        if self._unplaced and self._free:
            self._state = None  # these get their slots in the next round
        self._words[at.G_GROUPS_UNPLACED] = self._unplaced
        self._words[at.G_GROUPS_UNPLACED_LAG] = self._unplaced_lag
        self._after, self._last = BEGINNING, None
        self._seen.clear()
        self._unplaced = self._unplaced_lag = 0
