"""Bodies that arrive in parts: of a known length, or chunked (RFC 9112, 7.1).

Both kinds have one interface: ``feed`` consumes bytes, ``done`` says that the body is complete,
``take`` returns it, ``size`` is for timeouts. With ``keep=False`` the data is counted and thrown
away: that is how the body of a refused request is read past.

The chunked decoder is strict and bounded. It refuses bare LF, whitespace around a size, sizes of
more than 8 hex digits, chunk data without its CRLF, and trailers that are not field lines: a
lenient decoder lets requests be smuggled past a proxy that reads the same bytes differently. Chunk
extensions and trailers are checked for form, bounded, and ignored.
"""

from __future__ import annotations

import re

from daemon.schemas.errors import ApiError, too_large

_FRESH_MAX = 256
_LINE_BYTES_MAX = 4096
# Extensions and trailers of one body, all together: generous for the few that exist (signatures),
# and too little to feed bytes that count nowhere.
_OVERHEAD_BYTES_MAX = 16 * 1024
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,8})(?:;[\t -~\x80-\xff]*)?\Z")
_TRAILER_LINE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*\Z")

_SIZE, _DATA, _DATA_END, _TRAILER, _DONE = range(5)


class Pieces:
    """Bytes in order of arrival, joined once at the end.

    A client that sends single bytes must not turn a 16 MiB body into 16 million objects, so pieces
    are joined 256 at a time: there are never more than ``length / 256 + 256`` of them.
    """

    __slots__ = ("_fresh", "_joined", "size")

    def __init__(self) -> None:
        self._fresh: list[bytes] = []
        self._joined: list[bytes] = []
        self.size = 0

    def add(self, piece: bytes) -> None:
        """Appends a piece."""
        self._fresh.append(piece)
        self.size += len(piece)
        if len(self._fresh) >= _FRESH_MAX:
            self._joined.append(b"".join(self._fresh))
            self._fresh.clear()

    def take(self) -> bytes:
        """The whole body. The pieces are not used afterwards."""
        if not self._joined and len(self._fresh) == 1:
            return self._fresh[0]
        self._joined.extend(self._fresh)
        return b"".join(self._joined)


class SizedBody:
    """A body of ``length`` bytes; ``size`` is how many of them are kept so far."""

    __slots__ = ("_keep", "_left", "_pieces")

    def __init__(self, length: int, *, keep: bool = True) -> None:
        self._left = length
        self._keep = keep
        self._pieces = Pieces()

    @property
    def size(self) -> int:
        return self._pieces.size

    @property
    def done(self) -> bool:
        return not self._left

    def take(self) -> bytes:
        """The body's bytes, once it is done."""
        return self._pieces.take()

    def feed(self, data: bytes, position: int) -> int:
        """Consumes ``data`` from ``position``; returns where it stopped."""
        stop = min(len(data), position + self._left)
        self._left -= stop - position
        if self._keep:
            self._pieces.add(data[position:stop])
        return stop


def _malformed(message: str) -> ApiError:
    return ApiError(400, "bad_request", f"the chunked body is malformed: {message}", close=True)


class ChunkedBody:
    """A chunked body of at most ``limit`` bytes; ``size`` is the sum of the chunks announced.

    SIZE (-> DATA -> DATA_END -> SIZE)* -> TRAILER* -> done. ``feed`` raises ApiError 400 for
    malformed input and 413 if the body is over the limit.
    """

    __slots__ = ("_keep", "_left", "_limit", "_line", "_overhead", "_pieces", "_state", "size")

    def __init__(self, limit: int, *, keep: bool = True) -> None:
        self._limit = limit
        self._keep = keep
        self._state = _SIZE
        self._left = 0
        self._line = b""
        self._overhead = 0
        self._pieces = Pieces()
        self.size = 0

    @property
    def done(self) -> bool:
        return self._state == _DONE

    def take(self) -> bytes:
        """The body's bytes, once it and its trailers are done."""
        return self._pieces.take()

    def feed(self, data: bytes, position: int) -> int:
        """Consumes ``data`` from ``position``; returns where it stopped."""
        size = len(data)
        while position < size and self._state != _DONE:
            if self._state == _DATA:
                end = min(size, position + self._left)
                if self._keep:
                    self._pieces.add(data[position:end])
                self._left -= end - position
                position = end
                if not self._left:
                    self._state = _DATA_END
                continue
            line, position = self._take_line(data, position)
            if line is None:
                break
            if self._state == _SIZE:
                self._take_size(line)
            elif self._state == _DATA_END:
                if line:
                    raise _malformed("a chunk's data is longer than its size says")
                self._state = _SIZE
            else:
                self._take_trailer(line)
        return position

    def _take_line(self, data: bytes, position: int) -> tuple[bytes | None, int]:
        """The next line without its CRLF, or None if it is not complete yet."""
        allowed = 2 if self._state == _DATA_END else _LINE_BYTES_MAX
        end = data.find(b"\n", position, position + allowed)
        if end < 0:
            self._line += data[position : position + allowed + 1]
            if len(self._line) >= allowed:
                raise _malformed(f"a line is longer than {allowed} bytes")
            return None, len(data)
        line = self._line + data[position:end]
        self._line = b""
        if line[-1:] != b"\r" or len(line) > allowed:
            raise _malformed("a line does not end in CRLF where it must")
        return line[:-1], end + 1

    def _take_size(self, line: bytes) -> None:
        match = _SIZE_LINE.match(line)
        if match is None:
            raise _malformed(f"a chunk size must be 1 to 8 hex digits, got {line[:40]!r}")
        digits = match.group(1)
        self._count_overhead(len(line) - len(digits))
        self._left = int(digits, 16)
        self.size += self._left
        if self.size > self._limit:
            error = too_large(
                f"the body has more than {self._limit} bytes; send smaller batches",
                limit_bytes=self._limit,
            )
            error.close = True
            raise error
        self._state = _DATA if self._left else _TRAILER

    def _take_trailer(self, line: bytes) -> None:
        if not line:
            self._state = _DONE
            return
        self._count_overhead(len(line))
        if _TRAILER_LINE.match(line) is None:
            raise _malformed(f"a trailer must be a header field, got {line[:40]!r}")

    def _count_overhead(self, count: int) -> None:
        self._overhead += count
        if self._overhead > _OVERHEAD_BYTES_MAX:
            raise _malformed(
                f"its extensions and trailers have more than {_OVERHEAD_BYTES_MAX} bytes"
            )
