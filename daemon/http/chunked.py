"""An incremental decoder of the chunked transfer coding (RFC 9112, 7.1), strict and bounded.

Refused: bare LF, whitespace around a size, sizes of more than 8 hex digits, chunk data without
its CRLF, trailers that are no field lines. Lenience here is how requests are smuggled past a
proxy that reads the same bytes differently. Chunk extensions and trailers are checked for form,
bounded, and ignored.

Lifecycle: SIZE (-> DATA -> DATA_END -> SIZE)* -> TRAILER* -> done.
"""

from __future__ import annotations

import re

from daemon.api.errors import ApiError, too_large
from daemon.http.pieces import Pieces

_LINE_BYTES_MAX = 4096
# Extensions and trailers of one body, all together: generous for the few that exist (signatures),
# and no way to feed bytes that count nowhere.
_OVERHEAD_BYTES_MAX = 16 * 1024
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,8})(?:;[\t -~\x80-\xff]*)?\Z")
_TRAILER_LINE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*\Z")

_SIZE, _DATA, _DATA_END, _TRAILER, _DONE = range(5)


def _malformed(message: str) -> ApiError:
    return ApiError(400, "bad_request", f"the chunked body is malformed: {message}", close=True)


class ChunkedDecoder:
    """Takes bytes as they come; ``done`` says that the body and its trailers are complete.

    With ``keep=False`` the data is counted and thrown away. Raises ApiError 400 for malformed
    input and 413 when the body is over ``limit`` bytes.
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
        """The body's bytes, once it is done."""
        return self._pieces.take()

    def feed(self, data: bytes, position: int) -> int:
        """Consumes ``data`` from ``position``; returns where it stopped (behind the body)."""
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
        """The next line without its CRLF, or None when it is not complete yet."""
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
            raise _malformed(f"{line[:40]!r} is no chunk size (1 to 8 hex digits)")
        digits = match.group(1)
        self._count_overhead(len(line) - len(digits))
        self._left = int(digits, 16)
        self.size += self._left
        if self.size > self._limit:
            error = too_large(
                f"the body is over {self._limit} bytes; send smaller batches",
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
            raise _malformed(f"{line[:40]!r} is no trailer field")

    def _count_overhead(self, count: int) -> None:
        self._overhead += count
        if self._overhead > _OVERHEAD_BYTES_MAX:
            raise _malformed(
                f"extensions and trailers are over {_OVERHEAD_BYTES_MAX} bytes together"
            )
