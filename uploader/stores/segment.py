"""A segment file of the embedded store: its format, its writer, and the walk over its frames.

A segment is a sequence of frames, each beginning on 8 bytes, little-endian::

    frame   magic "HGF1" | state u32 | head crc32c u32 | key length u32
            | body length u64 | body crc32c u32 | reserved u32 | written ms u64   (40 bytes)
            key | body | zeros up to 8 bytes
    end     magic "HGFE" | crc32c u32 | 8 zeros                                   (16 bytes)

``state`` is 1 (live) or 2 (dead). It is the only word that is overwritten, by the process that
deletes the object. It lies within one sector, so after a loss of power it is one or the other. The
head's CRC32C covers the segment's name, the position, the rest of the head, and the key, so bytes
that a producer put into a body never pass for a frame. That of the end mark covers name and
position.

Lifecycle: create (exclusive name, flock, preallocated) -> append, one write and one fdatasync each
-> seal (cut to its length, end mark) -> all frames dead -> unlinked. One process appends, one
thread at a time, and holds the flock of the file until it is done: a process that gets the flock
knows that no other one appends. A crash leaves a segment without an end mark, whose last frame may
be torn. A failed put ends its segment, so no frame ever follows a torn one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ledger import private_files
from shards.checksum import crc32c

FRAME = struct.Struct("<4sIIIQIIQ")
FRAME_REST = struct.Struct("<IQIIQ")
FRAME_BYTES = FRAME.size
MAGIC = b"HGF1"
STATE = struct.Struct("<I")
STATE_AT = 4
LIVE = 1
DEAD = 2
END = struct.Struct("<4sIQ")
END_MAGIC = b"HGFE"

KEY_BYTES_MAX = 1024
# Small frames are found with few reads, and little is read in vain when frames are large.
WINDOW_BYTES = 16 * 1024
SCAN_BYTES = 1024 * 1024
# An append inside allocated space saves the file's size change: 0.09 ms instead of 0.13 ms at
# 1 KiB, 1.8 ms instead of 9 ms at 4 MiB. A crash wastes at most this much per writer until check().
ALLOCATE_BYTES = 8 * 1024 * 1024
# Space ahead only serves speed, so a writer takes at most this share of the free space: a hundred
# writers leave a fifth of it. Below 512 MiB of free space they take less than ALLOCATE_BYTES.
ALLOCATE_SHARE = 64
ALLOCATE_UNIT = 4096


class Frame(NamedTuple):
    """One object in a segment. ``position`` is its frame's first byte."""

    segment: str
    position: int
    key: str
    key_length: int
    body_length: int
    body_crc32c: int
    written_ms: int
    live: bool

    @property
    def body_start(self) -> int:
        return self.position + FRAME_BYTES + self.key_length

    @property
    def end(self) -> int:
        return frame_end(self.position, self.key_length, self.body_length)


class Damage(NamedTuple):
    """Bytes from ``position`` on that are not a whole frame.

    A ``tail`` stands last in a segment that was never sealed: a put that a crash cut off, and that
    was never confirmed. Any other damage is to a put that was confirmed.
    """

    segment: str
    position: int
    reason: str
    tail: bool


def frame_end(position: int, key_length: int, body_length: int) -> int:
    """Where the frame ends and the next one begins."""
    return (position + FRAME_BYTES + key_length + body_length + 7) & ~7


def _head_crc32c(segment: str, position: int, rest: bytes, key: bytes) -> int:
    return crc32c(key, crc32c(rest, crc32c(b"%d" % position, crc32c(segment.encode()))))


def _end_mark(segment: str, position: int) -> bytes:
    checksum = crc32c(b"end %d" % position, crc32c(segment.encode()))
    return END.pack(END_MAGIC, checksum, 0)


class SegmentWriter:
    """Appends frames to a segment of its own, one at a time; see the lifecycle above."""

    def __init__(self, directory: Path, name: str) -> None:
        """Creates the segment. Raises OSError, FileExistsError if the name is taken."""
        self.name = name
        self.position = 0
        self.torn = False  # a frame was begun and not finished
        self._path = directory / name
        self._allocated = 0
        self._fd = create_locked(self._path)

    def append(self, key: bytes, body: bytes, body_crc32c: int, written_ms: int) -> int:
        """Adds a frame and returns its position once it is durable.

        Raises OSError. If the writer is ``torn`` afterwards, the frame may nevertheless be there,
        and only ``abandon`` may follow; otherwise there was no space and nothing has changed.
        """
        position = self.position
        end = frame_end(position, len(key), len(body))
        if end > self._allocated:
            length = max(allocation(_free_bytes(self._fd)), end - self._allocated)
            os.posix_fallocate(self._fd, self._allocated, length)
            self._allocated += length
        rest = FRAME_REST.pack(len(key), len(body), body_crc32c, 0, written_ms)
        checksum = _head_crc32c(self.name, position, rest, key)
        head = MAGIC + STATE.pack(LIVE) + STATE.pack(checksum) + rest + key
        padding = bytes(end - position - len(head) - len(body))
        self.torn = True
        _write_all(self._fd, [head, body, padding], position)
        os.fdatasync(self._fd)
        # The newest records are read from the rings, and keeping each object in the page cache as
        # well costs more CPU than everything else here (docs/decisions/0002).
        os.posix_fadvise(self._fd, position, end - position, os.POSIX_FADV_DONTNEED)
        self.position = end
        self.torn = False
        return position

    def shrink(self) -> int:
        """Frees the space that was allocated ahead; returns how much. Raises OSError."""
        ahead = self._allocated - self.position
        os.ftruncate(self._fd, self.position)
        self._allocated = self.position
        return ahead

    def seal(self) -> None:
        """Ends the segment. A segment without frames is removed."""
        try:
            if self.position == 0:
                self._path.unlink()
            else:
                seal(self._fd, self.name, self.position)
        finally:
            os.close(self._fd)

    def abandon(self) -> None:
        """Ends the segment after a failed append, whose bytes are cut off if possible."""
        try:
            if self.position == 0:
                self._path.unlink(missing_ok=True)
            else:
                os.ftruncate(self._fd, self.position)
        except OSError:
            # The disk that refused the frame refuses this too. The frame stays as a torn tail,
            # which readers recognize; the caller reports the first error.
            return
        finally:
            os.close(self._fd)

    def tear(self, size: int) -> None:
        """Ends the segment with its last ``size`` bytes missing, as a loss of power may: for
        ``faults.py``. Raises OSError."""
        try:
            os.ftruncate(self._fd, self.position - size)
        finally:
            os.close(self._fd)


def allocation(free_bytes: int) -> int:
    """How much a writer allocates ahead, given the free space; 0: only what a frame needs."""
    share = free_bytes // ALLOCATE_SHARE
    return min(ALLOCATE_BYTES, share - share % ALLOCATE_UNIT)


def _free_bytes(fd: int) -> int:
    found = os.fstatvfs(fd)
    return found.f_bavail * found.f_frsize


def create_locked(path: Path) -> int:
    """A descriptor of a new file whose flock is held. Raises OSError."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, private_files.FILE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if os.fstat(fd).st_nlink:
                return fd
        except BaseException:
            os.close(fd)
            raise
        # Another process that tidies up took the lock first and found an empty file.
        os.close(fd)


def is_sealed(fd: int, name: str) -> bool:
    """Whether the segment ends with its end mark."""
    position = os.fstat(fd).st_size - END.size
    return position >= 0 and os.pread(fd, END.size, position) == _end_mark(name, position)


def seal(fd: int, name: str, position: int) -> None:
    """Cuts the file to ``position`` and puts the end mark there, durably."""
    os.ftruncate(fd, position)
    _write_all(fd, [_end_mark(name, position)], position)
    os.fdatasync(fd)


def mark_dead(fd: int, position: int) -> None:
    """Overwrites the state of the frame at ``position``; the caller makes it durable."""
    os.pwrite(fd, STATE.pack(DEAD), position + STATE_AT)


def frame_at(fd: int, segment: str, position: int) -> Frame | None:
    """The frame at ``position``, None if its head is not whole; its body is not checked."""
    return _parse(segment, os.pread(fd, FRAME_BYTES + KEY_BYTES_MAX, position), 0, position)


def walk(fd: int, segment: str, *, bodies: bool = False) -> Iterator[Frame | Damage]:
    """The frames of a segment in order, including dead ones, and what is not a frame.

    Never raises for damage. With ``bodies`` the checksum of every live body is verified, otherwise
    only that of the last frame of an unsealed segment. May run while a writer appends.
    """
    sealed = is_sealed(fd, segment)
    size = os.fstat(fd).st_size - END.size if sealed else _data_end(fd)
    last: Frame | None = None
    window, window_start = b"", 0
    position = 0
    while position < size:
        if position + FRAME_BYTES + KEY_BYTES_MAX > window_start + len(window):
            window, window_start = os.pread(fd, WINDOW_BYTES, position), position
        frame = _parse(segment, window, position - window_start, position)
        if frame is not None and frame.end > size and not sealed:
            size = os.fstat(fd).st_size
        if frame is not None and frame.end <= size:
            if last is not None:
                yield _judged(fd, last, bodies, tail=False)
            last = frame
            position = frame.end
            continue
        following = _next_frame(fd, segment, position + 8, size)
        if following is None and not sealed:
            break
        if os.fstat(fd).st_nlink == 0:
            return  # removed meanwhile: all its frames were dead
        window = b""
        if frame_at(fd, segment, position) is not None and frame is None:
            continue  # the writer finished it meanwhile
        if last is not None:
            yield _judged(fd, last, bodies, tail=False)
            last = None
        yield Damage(segment, position, "no frame begins where one should", tail=False)
        if following is None:
            return
        position = following
    if last is not None:
        yield _judged(fd, last, bodies or not sealed, tail=not sealed)
    if not sealed and not _is_zero(fd, position, size):
        yield Damage(segment, position, "a frame that was not finished", tail=True)


def _judged(fd: int, frame: Frame, bodies: bool, *, tail: bool) -> Frame | Damage:
    if not bodies or not frame.live:
        return frame
    found = crc32c(os.pread(fd, frame.body_length, frame.body_start))
    if found == frame.body_crc32c:
        return frame
    reason = f"{frame.key} has CRC32C {found:08x}, its head says {frame.body_crc32c:08x}"
    return Damage(frame.segment, frame.position, reason, tail)


def _parse(segment: str, data: bytes, at: int, position: int) -> Frame | None:
    if data[at : at + 4] != MAGIC or len(data) - at < FRAME_BYTES:
        return None
    _, state, checksum, key_length, body_length, body_crc32c, reserved, written_ms = (
        FRAME.unpack_from(data, at)
    )
    if state not in (LIVE, DEAD) or not 0 < key_length <= KEY_BYTES_MAX:
        return None
    key = data[at + FRAME_BYTES : at + FRAME_BYTES + key_length]
    rest = FRAME_REST.pack(key_length, body_length, body_crc32c, reserved, written_ms)
    if checksum != _head_crc32c(segment, position, rest, key):
        return None
    return Frame(
        segment=segment,
        position=position,
        key=key.decode(),
        key_length=key_length,
        body_length=body_length,
        body_crc32c=body_crc32c,
        written_ms=written_ms,
        live=state == LIVE,
    )


def _data_end(fd: int) -> int:
    """Where the file's data ends: space allocated ahead is sparse and need not be read."""
    end = 0
    try:
        while True:
            end = os.lseek(fd, os.lseek(fd, end, os.SEEK_DATA), os.SEEK_HOLE)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
    return end


def _next_frame(fd: int, segment: str, start: int, size: int) -> int | None:
    position = start
    while position < size:
        data = os.pread(fd, SCAN_BYTES + FRAME_BYTES + KEY_BYTES_MAX, position)
        at = data.find(MAGIC)
        while 0 <= at < SCAN_BYTES:
            if (position + at) % 8 == 0 and _parse(segment, data, at, position + at) is not None:
                return position + at
            at = data.find(MAGIC, at + 1)
        position += SCAN_BYTES
    return None


def _is_zero(fd: int, start: int, end: int) -> bool:
    position = start
    while position < end:
        data = os.pread(fd, min(SCAN_BYTES, end - position), position)
        if not data:
            return True
        if data.count(0) != len(data):
            return False
        position += len(data)
    return True


def _write_all(fd: int, buffers: list[bytes], position: int) -> None:
    written = os.pwritev(fd, buffers, position)
    total = sum(len(buffer) for buffer in buffers)
    if written < total:
        # A full disk takes what fits, and writing the rest raises the error.
        rest = memoryview(b"".join(buffers))[written:]
        while rest:
            count = os.pwrite(fd, rest, position + total - len(rest))
            if count == 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            rest = rest[count:]
