"""One client of a stream: cursors, an outlet, and whether it keeps up.

States::

    CATCHING_UP   a task reads for it what it has missed, and waits for its outlet in between
    LIVE          it is at the tail: each turn of one of its topics serves it
    BLOCKED       LIVE, and its outlet had not drained when a turn came; nothing is read for it
    ENDED         its outlet is closed

    CATCHING_UP -> LIVE <-> BLOCKED -> CATCHING_UP (lagged),  any -> ENDED

A cursor is the last offset of a partition that was written to the outlet or that the filter
removed. It only grows. There is no queue of records for a watcher, so there is none to bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from delivery.reading.followed import Key
from delivery.streams.outlet import Outlet
from delivery.streams.wire import chunk
from delivery.watch.positions import format_position
from delivery.watch.tail_encoder import Shape


class Watcher:
    """A watcher; ``hub.py`` alone changes it.

    ``whole`` are the topics of which it watches every partition, also those that are added.
    """

    __slots__ = (
        "blocked_since_ns",
        "catch_up",
        "cursors",
        "drained",
        "keys",
        "lagged",
        "outlet",
        "shape",
        "told",
        "whole",
        "written_ns",
    )

    def __init__(
        self, outlet: Outlet, shape: Shape, cursors: dict[Key, int], whole: Iterable[int]
    ) -> None:
        self.outlet = outlet
        self.shape = shape
        self.cursors = cursors
        self.whole = frozenset(whole)
        self.keys: dict[int, list[Key]] = {}  # by topic id
        for key in cursors:
            self.keys.setdefault(key[0], []).append(key)
        self.catch_up: asyncio.Task[None] | None = None
        self.drained: asyncio.Event | None = None  # while the catch-up waits
        self.blocked_since_ns = 0
        self.lagged = False  # until it is at the tail again
        self.written_ns = 0
        self.told = True  # whether the client knows the cursors

    def write(self, data: bytes, now_ns: int) -> None:
        """Writes events of any kind, and the position after them."""
        if self.cursors:
            data = self.shape.format.ending(data, format_position(self.cursors))
        self.outlet.write(chunk(data))
        self.written_ns = now_ns
        self.told = True
