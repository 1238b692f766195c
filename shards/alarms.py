"""Alarms: what is wrong now, in shared memory, so that any shard can report it.

Vocabulary: an *alarm* is a kind of problem that an operator must know of. Each process (the shards,
and the supervisor as the last one) has one *row* per kind. A raised row has the time when it was
first raised, how often since then, and a short text.

Lifecycle of a row::

    clear -> raised (again: the count grows, the text is replaced) -> clear

Only the row's process writes it, under a mutex for its threads. Rows outlive their process, so
that a death does not hide its cause; a shard clears its own rows when it starts. What an alarm
means for readiness is in ``daemon/alarms/alarms.py``; this module neither logs nor decides.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from enum import IntEnum, unique

from msgspec import Struct

from shards import layout as at
from shards.rows import whole, writing
from shards.segment import Segment


@unique
class AlarmKind(IntEnum):
    """The kinds, at most ``layout.ALARM_KINDS_MAX``. A number is a row's place, not a contract."""

    STORE_FAILING = 0
    FOREIGN_OBJECT = 1
    LEASE_STUCK = 2
    LEDGER_FAILING = 3
    DISK_SHORT = 4
    DEDUPE_WINDOW_SHORT = 5
    IMAGE_FAILING = 6
    BUDGET_EXCEEDED = 7
    SENSOR_BROKEN = 8
    SENSOR_STALE = 9
    MEMORY_SHORT = 10
    TOKENS_UNUSABLE = 11
    CERTIFICATE_UNUSABLE = 12


class Alarm(Struct, frozen=True):
    """A raised row, as it was read."""

    kind: AlarmKind
    process: int
    since_ns: int
    count: int
    text: str


class AlarmBoard:
    """One process's rows."""

    def __init__(self, segment: Segment, process: int) -> None:
        self._words = segment.words
        self._data = segment.data
        self._rows = [segment.layout.alarm(process, kind) for kind in AlarmKind]
        self._mutex = threading.Lock()

    def raise_(self, kind: AlarmKind, text: str, now_ns: int) -> None:
        """Raises an alarm, or counts it again; ``text`` is cut to what a row holds."""
        row, words = self._rows[kind], self._words
        encoded = text.encode()[: at.A_TEXT_BYTES]
        with self._mutex, writing(words, row + at.A_VERSION):
            words[row + at.A_COUNT] += 1
            words[row + at.A_LENGTH] = len(encoded)
            start = (row + at.A_TEXT) * at.WORD_BYTES
            self._data[start : start + len(encoded)] = encoded
            if not words[row + at.A_SINCE_NS]:
                words[row + at.A_SINCE_NS] = now_ns

    def clear(self, kind: AlarmKind) -> None:
        """Ends an alarm; costs one load if it is not raised."""
        row, words = self._rows[kind], self._words
        if not words[row + at.A_SINCE_NS]:
            return
        with self._mutex, writing(words, row + at.A_VERSION):
            words[row + at.A_SINCE_NS] = words[row + at.A_COUNT] = words[row + at.A_LENGTH] = 0

    def clear_all(self) -> None:
        """Ends all alarms of this process, which a former one may have left."""
        for kind in AlarmKind:
            self.clear(kind)


def raised(segment: Segment) -> Iterator[Alarm]:
    """All raised alarms, by process and kind. Each tick asks: it reads one column of all rows."""
    first, stop = segment.layout.alarm(0, 0), segment.layout.alarm(segment.layout.shards + 1, 0)
    column = segment.words[first + at.A_SINCE_NS : stop : at.ALARM_WORDS].tolist()
    for index, since_ns in enumerate(column):
        if since_ns:
            process, kind = divmod(index, at.ALARM_KINDS_MAX)
            row = first + index * at.ALARM_WORDS
            alarm = _read(segment, row, process, AlarmKind(kind))
            if alarm.since_ns:
                yield alarm


def _read(segment: Segment, row: int, process: int, kind: AlarmKind) -> Alarm:
    words = segment.words
    start = (row + at.A_TEXT) * at.WORD_BYTES

    def copy() -> Alarm:
        text = bytes(segment.data[start : start + words[row + at.A_LENGTH]])
        since_ns, count = words[row + at.A_SINCE_NS], words[row + at.A_COUNT]
        return Alarm(kind, process, since_ns, count, text.decode(errors="replace"))

    return whole(words, row + at.A_VERSION, copy)
