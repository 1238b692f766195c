"""The embedded store: a directory, ``file:///dir``.

    dir/segments/   objects put by ``put``, as frames in segment files (segment.py)
    dir/entries/    objects put by ``put_if_absent`` or in parts, a file each (entries.py)

With commit windows of milliseconds, one file per object would mean millions of files a day, and
three times the cost of an append. So each put appends to a segment that no other put uses at that
time. The segment used last is taken first, so there are as many segments as puts that ever ran
together. A put that finds the disk full gives back the space that they have allocated ahead.
Entries are few (one per 5 s) and need an atomic "only if absent" between processes, which link(2)
provides.

A locator is ``segment:position:length``, or the key of an entry. Two equal frames may have the
same key; the one at the ledger's locator counts. A delete overwrites the frame's state word: any
process may do that, and all processes see it immediately. A segment is unlinked when all its
frames are dead and nobody appends to it. Several processes with several threads each may use one
directory simultaneously. Two daemons never do, but docs/protocol.md 5 prevents that, not this
module.

``list`` walks the heads of all frames and keeps what it finds: about 5 us and 300 bytes an object.

Segments that are read stay open, the few that were used last, for all threads. A descriptor is
closed when its last reader is done, never during a read: its number could belong to another file by
then.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from shards.clock import wall_ms
from uploader.lru import LruCache
from uploader.stores.base import ObjectHead, ObjectMissing, PartedPut, StoreError, StoreRefused
from uploader.stores.disk import (
    FULL,
    failed,
    make_directory,
    read_count,
    settle_directory,
    sync_directory,
)
from uploader.stores.entries import Entries, is_entry
from uploader.stores.segment import (
    KEY_BYTES_MAX,
    Damage,
    Frame,
    SegmentWriter,
    frame_at,
    frame_end,
    is_sealed,
    mark_dead,
    seal,
    walk,
)

SEGMENT_BYTES = 64 * 1024 * 1024


# 64 segments are 4 GiB of objects; a shard's file limit is usually 1,024.
DESCRIPTORS_MAX = 64


class _Opened:
    """Owns a descriptor; CPython's reference count closes it after the last holder."""

    def __init__(self, path: Path) -> None:
        self.fd = -1
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # Bound here: when a process ends, the module `os` may be gone before this object.
        if self.fd >= 0:
            close(self.fd)


class Descriptors:
    """A bounded cache of read-only descriptors for the files of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._opened: LruCache[str, _Opened] = LruCache(DESCRIPTORS_MAX)

    @contextmanager
    def open(self, name: str) -> Iterator[int]:
        """A descriptor of the file, valid inside the block. Raises OSError."""
        with self._lock:
            opened = self._opened.get(name)
        if opened is None:
            opened = _Opened(self._folder / name)
            with self._lock:
                self._opened.keep(name, opened)
        yield opened.fd

    def forget(self, name: str) -> None:
        """Drops a file that was removed."""
        with self._lock:
            self._opened.drop(name)

    def drop(self) -> None:
        """Drops all files and their clean pages, so that they are read from the disk again."""
        with self._lock:
            for opened in self._opened.values():
                os.posix_fadvise(opened.fd, 0, 0, os.POSIX_FADV_DONTNEED)
            self._opened.clear()

    def close(self) -> None:
        """Drops all files."""
        with self._lock:
            self._opened.clear()


class FileStore:
    """Objects in a directory; see the head of this module. Open it in the process that uses it."""

    def __init__(
        self,
        directory: str | Path,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        if segment_bytes < 1:
            raise ValueError(f"segment_bytes must be at least 1, got {segment_bytes}")
        self.directory = Path(directory).absolute()
        self.url = f"file://{quote(str(self.directory))}"
        self._segment_bytes = segment_bytes
        self._now_ms = now_ms
        self._segments = self.directory / "segments"
        self._entries = Entries(self.directory / "entries", self.url)
        self._descriptors = Descriptors(self._segments)
        self._lock = threading.Lock()
        self._idle: list[SegmentWriter] = []  # used by no put; the last one is taken first
        self._reap_later: set[str] = set()  # names of existing segments, of which there are few
        self._closed = False

    def put(self, key: str, body: bytes, crc32c: int) -> str:
        """Appends the object to a segment; durable when it returns."""
        name = key.encode()
        if not 0 < len(name) <= KEY_BYTES_MAX:
            raise ValueError(
                f"the key {key!r} has {len(name)} bytes; it must have 1 to {KEY_BYTES_MAX}"
            )
        writer = self._writer(len(name), len(body))
        try:
            position = writer.append(name, body, crc32c, self._now_ms())
        except OSError as error:
            if error.errno in FULL:
                self._shrink(writer)
            else:
                writer.abandon()
            raise failed(f"put {key} into", self.url, error, outcome_unknown=True) from error
        with self._lock:
            if not self._closed:
                self._idle.append(writer)
                return f"{writer.name}:{position}:{len(body)}"
        self._end(writer)
        return f"{writer.name}:{position}:{len(body)}"

    def tear(self, key: str, body: bytes, crc32c: int) -> None:
        """Leaves the first half of the object in a segment of its own: for ``faults.py``."""
        try:
            writer = self._begin_segment()
            writer.append(key.encode(), body, crc32c, self._now_ms())
            writer.tear(writer.position // 2)
        except OSError as error:
            raise failed(f"put {key} into", self.url, error, outcome_unknown=True) from error

    def get(self, locator: str, start: int = 0, length: int | None = None) -> bytes:
        """Bytes of an object. Raises ObjectMissing if it was deleted or never existed."""
        if is_entry(locator):
            return self._entries.get(locator, start, length)
        segment, position, size = _located(locator)
        count = read_count(locator, start, length, size)
        missing = ObjectMissing(f"there is no object at {locator} in {self.url}")
        try:
            with self._descriptors.open(segment) as fd:
                frame = frame_at(fd, segment, position)
                if frame is None or not frame.live or frame.body_length != size:
                    raise missing
                data = os.pread(fd, count, frame.body_start + start) if count else b""
                if len(data) != count and os.fstat(fd).st_nlink == 0:
                    raise missing
        except FileNotFoundError as error:
            raise missing from error
        except OSError as error:
            raise failed(f"get {locator} from", self.url, error) from error
        if len(data) != count:
            raise StoreError(
                f"{locator} in {self.url} ends at byte {start + len(data)} instead of"
                f" {start + count}: its segment was cut off",
                retryable=False,
            )
        return data

    def reconnect(self) -> None:
        """Drops open segments and their pages in the kernel's cache."""
        self._descriptors.drop()

    def delete(self, locators: Sequence[str]) -> None:
        """Marks objects dead, durably, and removes segments without live objects."""
        self._entries.delete([each for each in locators if is_entry(each)])
        frames: dict[str, list[tuple[int, int]]] = {}
        for locator in locators:
            if not is_entry(locator):
                segment, position, size = _located(locator)
                frames.setdefault(segment, []).append((position, size))
        try:
            for segment, places in frames.items():
                self._delete_frames(segment, places)
            with self._lock:
                reap = self._reap_later | frames.keys()
                self._reap_later.clear()
            for segment in sorted(reap):
                self._reap(segment)
        except OSError as error:
            raise failed("delete from", self.url, error) from error

    def put_if_absent(self, key: str, body: bytes) -> bool:
        """Makes the entry durably if its name is free."""
        return self._entries.put_if_absent(key, body)

    def put_in_parts(self, key: str) -> PartedPut:
        """Begins an entry of any size."""
        return self._entries.put_in_parts(key)

    def discard_unfinished(self, prefix: str) -> int:
        """Does nothing: ``check`` has removed what dead writers left."""
        return 0

    def check(self) -> None:
        """Makes the directories, tries both kinds of put, and removes what dead writers left."""
        probe = f"probe-{secrets.token_hex(8)}"
        try:
            settle_directory(self._segments)
            make_directory(self._entries.folder)
            sync_directory(self.directory)
            made = [self.put_if_absent(probe, b"probe") for _ in range(2)]
            self._entries.delete([probe])
            self._begin_segment().seal()
            for name in self._segment_names():
                self._reap(name, tidy=True)
            self._entries.tidy()
        except (OSError, StoreError) as error:
            raise StoreRefused(f"the embedded store cannot be used: {error}") from error
        if made != [True, False]:
            raise StoreRefused(
                f"{self.url} does not keep link(2)'s promise that a name is made once: two puts"
                f" of one new name returned {made}; use a local file system"
            )

    def close(self) -> None:
        """Seals this store's segments. No other thread may be in a call."""
        with self._lock:
            self._closed = True
            writers = tuple(self._idle)
            self._idle.clear()
        for writer in writers:
            self._end(writer)
        self._descriptors.close()

    def damage(self) -> tuple[Damage, ...]:
        """Reads every live byte and returns what is damaged; torn tails do not count."""
        return tuple(
            item
            for name in self._segment_names()
            for item in self._walk(name, bodies=True)
            if isinstance(item, Damage) and not item.tail
        )

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectHead]:
        """Live objects by key, without those that a crash cut off; see also ``damage``."""
        found = [head for head in self._entries.heads() if _within(head.key, prefix, start_after)]
        for name in self._segment_names():
            for item in self._walk(name):
                if isinstance(item, Frame) and item.live and _within(item.key, prefix, start_after):
                    locator = f"{name}:{item.position}:{item.body_length}"
                    found.append(ObjectHead(item.key, locator, item.body_length, item.written_ms))
        found.sort(key=lambda head: (head.key, head.locator))
        yield from found

    def _writer(self, key_length: int, body_length: int) -> SegmentWriter:
        """A writer with space for a frame; it is the caller's alone until it is idle again."""
        with self._lock:
            if self._closed:
                raise ValueError(f"{self.url} is closed")
            writer = self._idle.pop() if self._idle else None
        if writer is not None:
            end = frame_end(writer.position, key_length, body_length)
            if writer.position == 0 or end <= self._segment_bytes:
                return writer
            self._end(writer)
        try:
            return self._begin_segment()
        except OSError as error:
            raise failed("begin a segment in", self.url, error) from error

    def _shrink(self, refused: SegmentWriter) -> None:
        """The disk is full: frees the space allocated ahead in all segments that no put uses.

        The refused writer stays in use unless it holds a part of a frame. Otherwise each refusal
        would add a segment, which would allocate space ahead as soon as there is some.
        """
        with self._lock:
            writers, self._idle = self._idle, []
        if refused.torn:
            refused.abandon()
        else:
            writers.append(refused)
        for writer in writers:
            try:
                writer.shrink()
            except OSError:
                writer.abandon()  # the put that met the first error reports it
                continue
            with self._lock:
                self._idle.append(writer)

    def _begin_segment(self) -> SegmentWriter:
        make_directory(self._segments)
        name = f"{self._now_ms():x}-{os.getpid():x}-{secrets.token_hex(4)}"
        writer = SegmentWriter(self._segments, name)
        sync_directory(self._segments)
        return writer

    def _end(self, writer: SegmentWriter) -> None:
        try:
            writer.seal()
            self._reap(writer.name)
        except OSError:
            # Its frames are durable and readable without the end mark, which check() writes at
            # the next start, so the put that met this error need not fail.
            return

    def _segment_names(self) -> Sequence[str]:
        try:
            return sorted(os.listdir(self._segments))
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise failed("list", self.url, error) from error

    def _walk(self, name: str, *, bodies: bool = False) -> Iterator[Frame | Damage]:
        try:
            with self._descriptors.open(name) as fd:
                yield from walk(fd, name, bodies=bodies)
        except FileNotFoundError:
            return  # deleted since its name was read
        except OSError as error:
            raise failed(f"read segment {name} of", self.url, error) from error

    def _delete_frames(self, segment: str, places: Sequence[tuple[int, int]]) -> None:
        try:
            fd = os.open(self._segments / segment, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            for position, size in places:
                frame = frame_at(fd, segment, position)
                if frame is not None and frame.live and frame.body_length == size:
                    mark_dead(fd, position)
            os.fdatasync(fd)
        finally:
            os.close(fd)

    def _reap(self, name: str, *, tidy: bool = False) -> None:
        """Removes a segment whose frames are all dead, unless a writer has it.

        With ``tidy`` also seals a segment that a dead writer left, unless its tail is torn: those
        bytes stay as they are.
        """
        path = self._segments / name
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            sealing = tidy and not is_sealed(fd, name)
            end = 0
            live = torn = False
            for item in walk(fd, name):
                if isinstance(item, Damage):
                    if not item.tail:
                        return  # an operator has to look at it first
                    torn = True
                elif item.live:
                    live = True
                    if not sealing:
                        return
                if isinstance(item, Frame):
                    end = item.end
            if live and not torn:
                seal(fd, name, end)
            elif not live:
                path.unlink(missing_ok=True)
                # Readers in other processes may have it open, but its space is needed now.
                os.ftruncate(fd, 0)
                self._descriptors.forget(name)
        except BlockingIOError:
            with self._lock:
                self._reap_later.add(name)
        finally:
            os.close(fd)


def _located(locator: str) -> tuple[str, int, int]:
    segment, _, place = locator.partition(":")
    position, _, size = place.partition(":")
    if not segment or "/" in segment or not (position.isdecimal() and size.isdecimal()):
        raise ValueError(f"{locator!r} is not a locator (segment:position:length)")
    return segment, int(position), int(size)


def _within(key: str, prefix: str, start_after: str) -> bool:
    return key.startswith(prefix) and key > start_after
