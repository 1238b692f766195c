"""A client of a stream for tests: NDJSON over a raw connection."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

from tests.e2e.daemon import UNANSWERED, Daemon, stream

Event = dict[str, Any]


class WatchLine:
    """An open stream. ``events`` are all that it has told but positions and heartbeats."""

    def __init__(self, daemon: Daemon, path: str, position: str = "") -> None:
        headers = {"Accept": "application/x-ndjson"}
        if position:
            headers["Last-Event-ID"] = position
        self._opened = contextlib.ExitStack()
        self.answer = self._opened.enter_context(stream(daemon.port, path, headers=headers))
        self.events: list[Event] = []
        self.position = position
        self.is_over = False
        self._is_told = False

    def read(self) -> None:
        """Waits for the next line; ``is_over`` if there is none."""
        line = b""
        with contextlib.suppress(*UNANSWERED):
            line = self.answer.readline()
        if not line.endswith(b"\n"):
            self.is_over = True
            return
        event: Event = json.loads(line)
        self._is_told = event.get("event") == "position"
        if self._is_told:
            self.position = event["id"]
        elif event.get("event") != "heartbeat":
            self.events.append(event)

    def read_until(self, done: Callable[[], bool]) -> None:
        """Reads until a condition holds and the position after it is known; the test fails if the
        stream ends before."""
        while not (done() and self._is_told):
            assert not self.is_over, f"the stream ended after {self.events[-3:]}"
            self.read()

    def read_to_end(self) -> None:
        """Reads until the stream ends."""
        while not self.is_over:
            self.read()

    @property
    def records(self) -> list[Event]:
        return [event for event in self.events if "seq" in event]

    @property
    def told(self) -> list[str]:
        """The names of all events but records."""
        return [event["event"] for event in self.events if "event" in event]

    def close(self) -> None:
        self._opened.close()

    def __enter__(self) -> WatchLine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
