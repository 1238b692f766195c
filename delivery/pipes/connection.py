"""A connection between two shards that carries frames: what both of its ends do.

It writes frames, cuts what comes into frames, and keeps within the buffers of its shard
(``buffers.py``). An error in what is done with a frame ends the connection: both sides recover from
that, and neither would from a frame that was lost.

Frames of the largest size are whole in memory, twice for a moment.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from typing import cast

from delivery.pipes.buffers import SMALL_FRAME_BYTES, PipeBuffers
from delivery.pipes.frames import FrameKind, FrameReader, PipeFrame, head_of

log = logging.getLogger("headgate.pipes")

# What a connection may hold that its peer has not taken, before its streams wait.
WRITE_BUFFER_HIGH_BYTES = 64 << 10


class PipeConnection(asyncio.Protocol, ABC):
    """One end of a connection."""

    def __init__(self, buffers: PipeBuffers, frame_bytes_max: int) -> None:
        self._buffers = buffers
        self._frame_bytes_max = frame_bytes_max
        self._frames = FrameReader(frame_bytes_max)
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._large_bytes = 0  # of the large frame that is being received

    # What an end does.

    def opened(self) -> None:
        """The connection is there."""

    @abstractmethod
    def received(self, frame: PipeFrame) -> None:
        """A frame came."""

    def resumed(self) -> None:
        """``congested`` may have ended."""

    def lost(self) -> None:
        """The connection is gone."""

    # What an end uses.

    @property
    def congested(self) -> bool:
        """Whether streams must wait before they write."""
        return self._paused or self._buffers.unsent.is_half_full

    def send(self, kind: FrameKind, number: int, payload: bytes = b"") -> None:
        """Writes a frame; it goes nowhere if the connection is gone."""
        transport = self._transport
        if transport is None:
            return
        if payload:
            transport.writelines((head_of(kind, number, len(payload)), payload))
        else:
            transport.write(head_of(kind, number, 0))
        if self._paused:
            self._hold(transport)

    def abort(self) -> None:
        """Ends the connection with what was not taken; ``lost`` follows."""
        if self._transport is not None:
            self._transport.abort()

    def fits(self, size_bytes: int) -> bool:
        """Whether a frame may have this payload."""
        return size_bytes <= self._frame_bytes_max

    # What the loop calls.

    def connection_made(self, made: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, made)  # uvloop's is not a subclass
        transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH_BYTES)
        self._transport = transport
        self.opened()

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        if transport is None:
            return
        try:
            for frame in self._frames.feed(data):
                self.received(frame)
        except Exception as error:  # the last resort of a callback: logged, and the connection ends
            log.error("a pipe between two shards ends because of a bug", exc_info=error)
            self.abort()
            return
        wanted = self._frames.partial_bytes
        large_bytes = wanted if wanted > SMALL_FRAME_BYTES else 0
        if large_bytes == self._large_bytes or transport.is_closing():
            return
        if self._large_bytes:
            self._release()
        self._large_bytes = large_bytes
        if large_bytes and not self._buffers.large_frames.reserve(self, large_bytes):
            transport.pause_reading()

    def read_on(self) -> None:
        """There is room for the frame whose beginning was received."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        self._paused = True
        if self._transport is not None:
            self._hold(self._transport)

    def resume_writing(self) -> None:
        self._paused = False
        self._buffers.unsent.hold(self, 0)
        self.resumed()

    def connection_lost(self, exc: Exception | None) -> None:
        self._buffers.unsent.hold(self, 0)
        self._release()
        if self._transport is not None:
            self._transport = None
            self.lost()

    def _hold(self, transport: asyncio.Transport) -> None:
        unsent = self._buffers.unsent
        unsent.hold(self, transport.get_write_buffer_size())
        if unsent.is_over:
            largest = unsent.largest()
            log.error(
                "what shards have not taken from pipes is over %d bytes; the connection that holds"
                " the most of it is closed", unsent.limit_bytes,
            )  # fmt: skip
            unsent.hold(largest, 0)
            largest.abort()

    def _release(self) -> None:
        for reader in self._buffers.large_frames.release(self):
            reader.read_on()
