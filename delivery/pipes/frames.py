"""Frames: how requests and streams share one connection. Pure.

    length of the payload (4 bytes), number of the request or stream (4), kind (1), payload

The shard that asks chooses the numbers, and uses none twice on a connection. ``FrameReader`` cuts
what was received into frames; it keeps the beginning of one.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

_HEAD = struct.Struct("<IIB")
HEAD_BYTES = _HEAD.size
_CREDIT = struct.Struct("<I")
CREDIT_BYTES = _CREDIT.size


class FrameKind(enum.IntEnum):
    """What a frame is. The first five go to the owner, the others come from it."""

    ASK = 1  # a request
    CANCEL = 2  # nobody waits for its answer any more
    OPEN = 3  # a stream: the credit to begin with, and the request
    CREDIT = 4  # how many bytes more the stream may write
    CLOSE = 5  # the client of the stream has gone
    ANSWER = 6
    REFUSED = 7  # the answer is an error, which the payload describes
    FAILED = 8  # there is no answer, because of a bug
    BUSY = 9  # the request was not looked at: too many are under way
    DATA = 10  # what the stream wrote, whole writes only
    END = 11  # its last write


class PipeFrameError(Exception):
    """What was received is not what a shard sends."""


class PipeFrame(NamedTuple):
    """A frame that was received."""

    kind: FrameKind
    number: int
    payload: bytes


_KINDS = {int(kind): kind for kind in FrameKind}


def head_of(kind: FrameKind, number: int, size_bytes: int) -> bytes:
    """What comes before the payload."""
    return _HEAD.pack(size_bytes, number, kind)


def credit_of(amount_bytes: int) -> bytes:
    """The payload of CREDIT, and the first part of that of OPEN."""
    return _CREDIT.pack(amount_bytes)


def credit_in(payload: bytes) -> int:
    """The inverse of ``credit_of``; what follows is ignored. Raises PipeFrameError."""
    if len(payload) < CREDIT_BYTES:
        raise PipeFrameError(f"a credit has {CREDIT_BYTES} bytes, got {len(payload)}")
    (amount,) = _CREDIT.unpack_from(payload)
    return int(amount)


class FrameReader:
    """Cuts a stream of bytes into frames of at most ``bytes_max``."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._kept = bytearray()
        # The size of the frame of which the beginning was received, with its head; 0 if unknown.
        self.partial_bytes = 0

    def feed(self, data: bytes) -> list[PipeFrame]:
        """The frames that ``data`` completes. Raises PipeFrameError."""
        kept = self._kept
        source: bytes | bytearray = data
        if kept:
            kept += data
            if len(kept) < self.partial_bytes:
                return []
            source = kept
        found: list[PipeFrame] = []
        at, end = 0, len(source)
        self.partial_bytes = 0
        with memoryview(source) as view:
            while end - at >= HEAD_BYTES:
                size, number, kind = _HEAD.unpack_from(source, at)
                if size > self._bytes_max or kind not in _KINDS:
                    raise PipeFrameError(
                        f"a frame of kind {kind} has {size} bytes; the limit is {self._bytes_max}"
                    )
                start = at + HEAD_BYTES
                if end - start < size:
                    self.partial_bytes = HEAD_BYTES + size
                    break
                found.append(PipeFrame(_KINDS[kind], number, bytes(view[start : start + size])))
                at = start + size
            self._kept = bytearray(view[at:])
        return found

    def check_invariants(self) -> None:
        """For tests."""
        if self.partial_bytes:
            assert HEAD_BYTES <= len(self._kept) < self.partial_bytes
            assert self.partial_bytes <= HEAD_BYTES + self._bytes_max
        else:
            assert len(self._kept) < HEAD_BYTES
