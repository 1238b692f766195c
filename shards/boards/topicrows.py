"""What each shard's streams watch, for ``status``: a row per topic in shared memory.

    free -> taken by a topic that is watched -> refreshed now and then -> free when nobody watches

Only the shard writes its rows (shards/layout.py has the words). A topic may be in TOPIC_WAYS rows
of a shard, those of its set; if others have them all, it is not shown. Any shard reads the rows of
all shards; a row that changes meanwhile is passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple, Protocol

from shards import layout as at
from shards.layout import TOPIC_ROW_WORDS, TOPIC_SETS, TOPIC_WAYS, Layout

SET_WORDS = TOPIC_WAYS * TOPIC_ROW_WORDS
# A row is refreshed by every 8th call, 0.8 s; a call costs 0.2 ms if all rows are taken.
SETS_PER_CALL = TOPIC_SETS // 8


class TopicActivity(NamedTuple):
    """Watchers of a topic on all shards, how many of them have lagged, and of the push that has
    waited longest, if there is one, its band and since when it waits."""

    watchers: int = 0
    lagged: int = 0
    band: int | None = None
    enqueued_ns: int = 0


UNWATCHED = TopicActivity()


class ReadyPush(Protocol):
    """The push of a topic that is ready: its band, and since when it waits."""

    @property
    def band(self) -> int:
        """Its band."""

    @property
    def enqueued_ns(self) -> int:
        """Since when."""


def set_of(topic_id: int) -> int:
    """The set of rows that a topic may be in: even for consecutive ids, and for every n-th one."""
    return (topic_id ^ topic_id >> 7) % TOPIC_SETS


class TopicRows:
    """The rows of one shard, for its own process."""

    def __init__(self, words: memoryview, layout: Layout, shard: int) -> None:
        self._words = words
        self._first = layout.topic_row(shard, 0)
        self._next_set = 0
        for row in range(at.TOPIC_ROWS):  # those of the previous process
            words[self._first + row * TOPIC_ROW_WORDS + at.T_TOPIC_ID] = 0

    def watched(self, topic_id: int, watchers: int, lagged: int = 0) -> None:
        """A topic has this many watchers here from now on; ``lagged`` of them have lagged."""
        words = self._words
        row = self._row(topic_id, topic_id)
        if not watchers:
            if row is not None:
                words[row + at.T_TOPIC_ID] = 0
            return
        if row is None:
            row = self._row(topic_id, 0)
            if row is None:
                return
            words[row + at.T_BAND] = 0
        words[row + at.T_WATCHERS] = watchers
        words[row + at.T_LAGGED] = lagged
        words[row + at.T_TOPIC_ID] = topic_id

    def refresh(self, waits: Callable[[int], ReadyPush | None]) -> None:
        """To be called regularly. ``waits`` shows a topic's push, if it is ready."""
        words = self._words
        for _ in range(SETS_PER_CALL):
            first = self._first + self._next_set * SET_WORDS
            self._next_set = (self._next_set + 1) % TOPIC_SETS
            for row in range(first, first + SET_WORDS, TOPIC_ROW_WORDS):
                topic_id = words[row + at.T_TOPIC_ID]
                if topic_id:
                    found = waits(topic_id)
                    if found is None:
                        words[row + at.T_BAND] = 0
                    else:
                        words[row + at.T_ENQUEUED_NS] = found.enqueued_ns
                        words[row + at.T_BAND] = found.band + 1

    def _row(self, topic_id: int, held: int) -> int | None:
        """The row of a topic's set that holds an id; 0 for a free one."""
        first = self._first + set_of(topic_id) * SET_WORDS
        for row in range(first, first + SET_WORDS, TOPIC_ROW_WORDS):
            if self._words[row + at.T_TOPIC_ID] == held:
                return row
        return None


class TopicRowsReader:
    """The rows of all shards."""

    def __init__(self, words: memoryview, layout: Layout) -> None:
        self._words = words
        self._shards = [layout.topic_row(shard, 0) for shard in range(layout.shards)]

    def of(self, topic_id: int) -> TopicActivity:
        """What all shards have of one topic."""
        found = UNWATCHED
        for first in self._shards:
            found = self._add(found, first, topic_id)
        return found

    def of_each(self, topic_ids: Collection[int]) -> dict[int, TopicActivity]:
        """What all shards have of these topics; without those that nobody watches."""
        wanted = set(topic_ids)
        found: dict[int, TopicActivity] = {}
        for first in self._shards:
            ids = self._words[first : first + at.TOPIC_ROWS * TOPIC_ROW_WORDS : TOPIC_ROW_WORDS]
            for topic_id in wanted.intersection(ids.tolist()):
                found[topic_id] = self._add(found.get(topic_id, UNWATCHED), first, topic_id)
        return found

    def _add(self, found: TopicActivity, first: int, topic_id: int) -> TopicActivity:
        """Adds what a shard has of a topic."""
        first += set_of(topic_id) * SET_WORDS
        rows = self._words[first : first + SET_WORDS].tolist()
        ids = rows[::TOPIC_ROW_WORDS]
        if topic_id not in ids:
            return found
        row = ids.index(topic_id) * TOPIC_ROW_WORDS
        watchers = found.watchers + rows[row + at.T_WATCHERS]
        lagged = found.lagged + rows[row + at.T_LAGGED]
        band, enqueued_ns = rows[row + at.T_BAND], rows[row + at.T_ENQUEUED_NS]
        if band and (found.band is None or enqueued_ns < found.enqueued_ns):
            return TopicActivity(watchers, lagged, band - 1, enqueued_ns)
        return found._replace(watchers=watchers, lagged=lagged)
