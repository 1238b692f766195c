"""The cursors of a dead-letter topic: the letters that are dealt with, for the next run.

One for each origin in each partition (``progress.py``), and one with the *floors*: by partition the
offset up to which the letters of all origins are dealt with, where a run begins to read.

Their names begin with a digest of the topic's name, and its id. So a run finds those of former
topics of this name, whose letters are gone, and deletes them.
"""

from __future__ import annotations

import hashlib
import re

from commands.client.cursors import all_cursors, cursor_of, delete_cursor, put_cursor
from commands.client.http import Client, Refused
from commands.redriving.letters import OriginName
from commands.redriving.progress import LetterProgress
from commands.shell.exits import CommandFailed
from daemon.schemas.api import CursorSetting

NAME_CHARACTERS_MAX = 255
_UNNAMED = re.compile(r"[^A-Za-z0-9._:-]")


class LetterCursors:
    """The cursors of a dead-letter topic."""

    def __init__(self, client: Client, topic: str, topic_id: int, patience_ms: float) -> None:
        self._client = client
        self._topic = topic
        self._topic_id = topic_id
        self._patience_ms = patience_ms

    def forget_former(self) -> None:
        """Deletes the cursors of topics that had this name and were deleted."""
        own = f"redrive:{_digest(self._topic)}:"
        for each in all_cursors(self._client, own, self._patience_ms):
            if not each.cursor.startswith(own):
                break
            topic_id = each.cursor.removeprefix(own).partition(":")[0]
            if topic_id.isdecimal() and int(topic_id) < self._topic_id:
                delete_cursor(self._client, each.cursor, self._patience_ms)

    def floors(self) -> dict[int, int]:
        """By partition the offset up to which all letters of all origins are dealt with."""
        return self._positions(self._named())

    def raise_floors(self, floors: dict[int, int]) -> None:
        """The letters up to these offsets are dealt with."""
        settings = [CursorSetting(seq, partition) for partition, seq in sorted(floors.items())]
        put_cursor(self._client, self._named(), settings, self._patience_ms)

    def progress(self, partition: int, origin: OriginName) -> LetterProgress:
        """What is noted of an origin in a partition."""
        return LetterProgress(self._positions(self._named(partition, *origin)))

    def note(self, partition: int, origin: OriginName, progress: LetterProgress) -> None:
        """Notes what is dealt with. Raises CommandFailed if another command has."""
        settings = progress.settings()
        if not settings:
            return
        name = self._named(partition, *origin)
        try:
            put_cursor(self._client, name, settings, self._patience_ms)
        except Refused as error:
            if error.code != "cursor_moved":
                raise
            if error.detail.get("position") != settings[0].seq:  # else an answer was lost
                raise self._contested(error, name, origin, settings[0]) from error
        progress.noted(settings)

    def _contested(
        self, error: Refused, name: str, origin: OriginName, setting: CursorSetting
    ) -> CommandFailed:
        return CommandFailed(
            f"another command redrives the letters of {origin.topic}/{origin.subscription} in"
            f" {self._topic}: cursor {name} is at {error.detail.get('position')}, not at"
            f" {setting.expected}",
            hint="run one at a time; what is noted is not sent again",
        )

    def _positions(self, name: str) -> dict[int, int]:
        try:
            state = cursor_of(self._client, name, self._patience_ms)
        except Refused as error:
            if error.code != "cursor_unknown":
                raise
            return {}
        return {each.partition: each.seq for each in state.positions}

    def _named(self, *parts: object) -> str:
        """The names of topics and subscriptions are in it, as far as they fit."""
        digests = f"{_digest(self._topic)}:{self._topic_id}:{_digest(repr(parts))}"
        shown = _UNNAMED.sub("-", ":".join(map(str, (self._topic, *parts))))
        return f"redrive:{digests}:{shown}"[:NAME_CHARACTERS_MAX]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]
