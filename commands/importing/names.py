"""The cursors of a source: what names them, and what of the source they note.

A cursor is named after the topic and the source's identity: device, inode and first line of a file
(the first KiB of a JSON document, which does not grow), or key and ETag of an object. What a file
begins with is in the name, because inodes are used again. It is the first line only, because a file
may have less than a KiB when it is imported first. So the cursor also notes length and checksum of
the first KiB, in partitions that no request moves.

An object with this ETag never changes. So when all of it is imported, another such partition notes
the end of its text, plus one, and while the cursor is there nothing of the object is read again.
The same is noted of a file that can only be read from its start, because it is packed or one
document, with the *version* of the file: its size and when it was modified. While it has that
version, no more than its beginning is read.

A cursor also tells what its source is called and how long its text is, for people who look at the
cursor (``CursorSource``). Nothing is found by that: a renamed file keeps its cursor, which then
tells the new name. Nothing is written if the cursor tells that already.

The position is in partition 0. Dead letters have a cursor of their own, which exists from the first
of them on.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import threading
import zlib
from typing import NamedTuple

from msgspec.structs import replace

from commands.client.cursors import cursor_of, delete_cursor, put_cursor
from commands.client.http import Client, Refused, Unreachable
from commands.importing.reading.problems import SourceChanged
from commands.importing.reading.raw import FileVersion
from daemon.schemas.api import (
    SOURCE_NAME_MAX,
    CursorSetting,
    CursorSource,
    CursorSourceState,
    CursorState,
)

# Names of cursors have 255 characters at most, of which a digest and its marks take 45.
SHOWN_CHARACTERS = 200
_UNNAMED = re.compile(r"[^A-Za-z0-9._:-]")
POSITION, HEAD_LENGTH, HEAD_CHECKSUM, END, SIZE, MODIFIED = range(6)


class CursorNames(NamedTuple):
    """Names of the cursors of a source."""

    cursor: str
    dead_cursor: str

    @classmethod
    def of(cls, topic_id: int, identity: str, begin: bytes = b"") -> CursorNames:
        """``begin``: what the text of a file begins with, as ``beginning`` gives it."""
        parts = (str(topic_id).encode(), identity.encode(errors="surrogateescape"), begin)
        digest = hashlib.sha256(b"".join(b"%d\0%b" % (len(part), part) for part in parts))
        name = f"import:{digest.hexdigest()[:32]}"
        return cls(name, f"{name}:dead")

    @classmethod
    def of_object(cls, topic_id: int, identity: str, url: str) -> CursorNames:
        """Who lists cursors finds the end of the URL in them."""
        shown = _UNNAMED.sub("-", url.partition("://")[2].replace("/", ":"))[-SHOWN_CHARACTERS:]
        name = f"{cls.of(topic_id, identity).cursor}:{shown}"
        return cls(name, f"{name}:dead")

    @classmethod
    def of_a_run(cls) -> CursorNames:
        """The names for a source without an identity: nobody finds them again."""
        name = f"import:{secrets.token_hex(16)}"
        return cls(name, f"{name}:dead")


def beginning(head: bytes, *, is_document: bool) -> bytes:
    """The part of the first KiB that is in a cursor's name."""
    return head if is_document else head.partition(b"\n")[0].rstrip(b"\r")


class SourceCursors:
    """The daemon's cursors of sources. Calls block, and may come from any thread.

    ``wait_ms``: how long a call is repeated while the daemon does not answer. Raises Refused,
    Unreachable, UnknownAnswer."""

    def __init__(self, client: Client, wait_ms: float) -> None:
        self._client = client
        self._wait_ms = wait_ms
        self._given_up = threading.Event()
        client.sleep_ms = self._sleep_ms
        self._lock = threading.Lock()  # a Client is for one thread

    def give_up(self) -> None:
        """Calls that wait for the daemon end as Unreachable."""
        self._given_up.set()

    def take_up(
        self, names: CursorNames, head: bytes | None, source: CursorSource, *, anew: bool
    ) -> int:
        """The position of a source, whose cursor is created if it is new.

        ``head``: the first KiB; None: not compared. ``anew``: a source that has changed begins
        again, instead of being a SourceChanged.
        """
        state = self._state(names.cursor)
        noting = [] if head is None else _noting(head)
        if state is None:
            return _places(self._put(names.cursor, noting, source))[POSITION]
        noted = _places(state)
        length = noted[HEAD_LENGTH]
        # What was not imported yet may change: so a bad line can be repaired.
        is_imported = 0 < length <= noted[POSITION]
        if head is not None and is_imported and noted[HEAD_CHECKSUM] != zlib.crc32(head[:length]):
            if not anew:
                raise SourceChanged(
                    "does not begin as it did when it was imported before",
                    hint="--restart imports it from its start",
                )
            self.begin_again(names, head)
            self.tell(names, source)
            return 0
        if head is not None and is_imported and len(head) <= length:
            noting = []
        if noting or not _is_told(state, source):
            self._put(names.cursor, noting, source)
        return noted[POSITION]

    def tell(self, names: CursorNames, source: CursorSource) -> None:
        """Says what a source is called, and how long its text is now."""
        self._put(names.cursor, [], source)

    def begin_again(self, names: CursorNames, head: bytes | None) -> None:
        """Puts the cursors of a source to its start."""
        noting = [] if head is None else _noting(head)
        # The dead letters first: after a kill between the two, none is missing.
        self.forget(names.dead_cursor)
        self._put(names.cursor, [CursorSetting(0, POSITION), *noting])

    def ended_at(
        self, names: CursorNames, source: CursorSource, version: FileVersion | None = None
    ) -> int | None:
        """The position of a source that is imported to its end; None if it is not. ``version``: of
        a file, which may have changed since."""
        state = self._state(names.cursor)
        if state is None:
            return None
        noted = _places(state)
        if noted[END] != noted[POSITION] + 1:
            return None
        if version is not None and version != (noted[SIZE], noted[MODIFIED]):
            return None
        if state.source is None or not _is_of(state.source, source):
            # Renamed, or imported by a version that told nothing.
            self.tell(names, replace(source, size_bytes=noted[POSITION]))
        return noted[POSITION]

    def note_end(
        self,
        names: CursorNames,
        position: int,
        source: CursorSource,
        version: FileVersion | None = None,
    ) -> None:
        """A source is imported to its end, which is at ``position``."""
        settings = [CursorSetting(position + 1, END)]
        if version is not None:
            settings += [
                CursorSetting(version.size, SIZE),
                CursorSetting(version.modified_us, MODIFIED),
            ]
        self._put(names.cursor, settings, replace(source, size_bytes=position))

    def create(self, cursor: str) -> None:
        """Creates a cursor if there is none."""
        self._put(cursor, [])

    def dead_position(self, names: CursorNames) -> int | None:
        """The position of the dead letters; None if they have no cursor yet."""
        state = self._state(names.dead_cursor)
        return None if state is None else _places(state)[POSITION]

    def settle(self, cursor: str, expected: int, position: int) -> int:
        """Puts a cursor forward, if it is where it is expected; returns where it is then."""
        try:
            self._put(cursor, [CursorSetting(position, POSITION, expected)])
        except Refused as error:
            if error.code != "cursor_moved":
                raise
            return int(error.detail["position"])
        return position

    def forget(self, cursor: str) -> None:
        """Deletes a cursor, if there is one."""
        with self._lock:
            delete_cursor(self._client, cursor, self._wait_ms)

    def _sleep_ms(self, wait_ms: float) -> None:
        if self._given_up.wait(wait_ms / 1000):
            raise Unreachable(self._client.url, "stopped while it was waited for")

    def _state(self, cursor: str) -> CursorState | None:
        try:
            with self._lock:
                return cursor_of(self._client, cursor, self._wait_ms)
        except Refused as error:
            if error.code != "cursor_unknown":
                raise
            return None

    def _put(
        self, cursor: str, positions: list[CursorSetting], source: CursorSource | None = None
    ) -> CursorState:
        with self._lock:
            return put_cursor(self._client, cursor, positions, self._wait_ms, source)


def source_told(location: str, topic_id: int, size_bytes: int | None) -> CursorSource:
    """What a cursor tells of its source. Of a long path or URL, that is its end; what a position
    counts follows from the scheme."""
    if len(location) > SOURCE_NAME_MAX:
        scheme, mark, _ = location.partition("://")
        begin = f"{scheme}{mark}\u2026" if mark else "\u2026"
        location = begin + location[len(begin) - SOURCE_NAME_MAX :]
    return CursorSource(location, topic_id, size_bytes)


def _is_told(state: CursorState, source: CursorSource) -> bool:
    told = state.source
    if told is None or not _is_of(told, source):
        return False
    return told.lag_bytes == 0 and told.size_bytes == source.size_bytes


def _is_of(told: CursorSourceState, source: CursorSource) -> bool:
    return (told.name, told.topic_id) == (source.name, source.topic_id)


def _places(state: CursorState) -> dict[int, int]:
    found = dict.fromkeys((POSITION, HEAD_LENGTH, HEAD_CHECKSUM, END, SIZE, MODIFIED), 0)
    found.update((each.partition, each.seq) for each in state.positions)
    return found


def _noting(head: bytes) -> list[CursorSetting]:
    return [CursorSetting(len(head), HEAD_LENGTH), CursorSetting(zlib.crc32(head), HEAD_CHECKSUM)]
