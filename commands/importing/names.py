"""The cursors of a source: what names them, and what of the source they note.

A cursor is named after the topic and the source's identity: device, inode and first line of a file
(the first KiB of a JSON document, which does not grow), or key and ETag of an object. What a file
begins with is in the name, because inodes are used again. It is the first line only, because
a file may have less than a KiB when it is imported first. So the cursor also notes length and
checksum of the first KiB, in partitions that no request moves.

An object with this ETag stays as it is. So another such partition notes where its text ends, plus
one, once all of it is imported, and nothing of the object is read any more while the cursor is
there. The same is noted of a file whose text has to be read from its start, because it is packed or
one document, with the file's *version*: its size and when it was modified. While it has that
version, no more than its beginning is read.

The position is in partition 0. Dead letters have a cursor of their own, which exists from the
first of them on.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import threading
import zlib
from typing import NamedTuple

from commands.client.cursors import cursor_of, delete_cursor, put_cursor
from commands.client.http import Client, Refused, Unreachable
from commands.importing.reading.problems import SourceChanged
from commands.importing.reading.raw import FileVersion
from daemon.schemas.api import CursorSetting, CursorState

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
        """Of a source without an identity: nobody finds them again."""
        name = f"import:{secrets.token_hex(16)}"
        return cls(name, f"{name}:dead")


def beginning(head: bytes, *, is_document: bool) -> bytes:
    """What of the first KiB is in a cursor's name."""
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

    def take_up(self, names: CursorNames, head: bytes | None, *, anew: bool) -> int:
        """The position of a source, whose cursor is created if it is new.

        ``head``: the first KiB; None: not compared. ``anew``: a source that has changed begins
        again, instead of being a SourceChanged.
        """
        noted = self._noted(names.cursor)
        noting = [] if head is None else _noting(head)
        if noted is None:
            return _places(self._put(names.cursor, noting))[POSITION]
        if head is None:
            return noted[POSITION]
        length = noted[HEAD_LENGTH]
        # What was not imported yet may change: so a bad line can be repaired.
        is_imported = 0 < length <= noted[POSITION]
        if is_imported and noted[HEAD_CHECKSUM] != zlib.crc32(head[:length]):
            if not anew:
                raise SourceChanged(
                    "does not begin as it did when it was imported before",
                    hint="--restart imports it from its start",
                )
            self.begin_again(names, head)
            return 0
        if not is_imported or len(head) > length:
            self._put(names.cursor, noting)
        return noted[POSITION]

    def begin_again(self, names: CursorNames, head: bytes | None) -> None:
        """Puts the cursors of a source to its start."""
        noting = [] if head is None else _noting(head)
        # The dead letters first: after a kill between the two, none is missing.
        self.forget(names.dead_cursor)
        self._put(names.cursor, [CursorSetting(0, POSITION), *noting])

    def ended_at(self, names: CursorNames, version: FileVersion | None = None) -> int | None:
        """The position of a source that is imported to its end; None if it is not. ``version``: of
        a file, which may have changed since."""
        noted = self._noted(names.cursor)
        if noted is None or noted[END] != noted[POSITION] + 1:
            return None
        is_same = version is None or version == (noted[SIZE], noted[MODIFIED])
        return noted[POSITION] if is_same else None

    def note_end(
        self, names: CursorNames, position: int, version: FileVersion | None = None
    ) -> None:
        """A source is imported to its end, which is at ``position``."""
        settings = [CursorSetting(position + 1, END)]
        if version is not None:
            settings += [
                CursorSetting(version.size, SIZE),
                CursorSetting(version.modified_us, MODIFIED),
            ]
        self._put(names.cursor, settings)

    def create(self, cursor: str) -> None:
        """Creates a cursor if there is none."""
        self._put(cursor, [])

    def dead_position(self, names: CursorNames) -> int | None:
        """The position of the dead letters; None if they have no cursor yet."""
        noted = self._noted(names.dead_cursor)
        return None if noted is None else noted[POSITION]

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

    def _noted(self, cursor: str) -> dict[int, int] | None:
        try:
            with self._lock:
                return _places(cursor_of(self._client, cursor, self._wait_ms))
        except Refused as error:
            if error.code != "cursor_unknown":
                raise
            return None

    def _put(self, cursor: str, positions: list[CursorSetting]) -> CursorState:
        with self._lock:
            return put_cursor(self._client, cursor, positions, self._wait_ms)


def _places(state: CursorState) -> dict[int, int]:
    found = dict.fromkeys((POSITION, HEAD_LENGTH, HEAD_CHECKSUM, END, SIZE, MODIFIED), 0)
    found.update((each.partition, each.seq) for each in state.positions)
    return found


def _noting(head: bytes) -> list[CursorSetting]:
    return [CursorSetting(len(head), HEAD_LENGTH), CursorSetting(zlib.crc32(head), HEAD_CHECKSUM)]
