"""Compressed bodies: gzip, deflate (zlib) and zstd, within limits.

Output is made in pieces and stops at the first one that exceeds the limit, so that a bomb never
takes more than the limit and one piece. A whole body is joined once, which briefly takes twice its
size.
"""

from __future__ import annotations

import zlib

import zstandard

from daemon.schemas.errors import ApiError, invalid, too_large

_PIECE_BYTES = _INPUT_BYTES = 16 * 1024
# RFC 8878 tells decoders of HTTP bodies to support windows of 8 MiB and to refuse larger ones.
_ZSTD_WINDOW_BYTES_MAX = 8 << 20
# Agents append at most one member per buffer; each costs its set-up, however short it is.
_MEMBERS_MAX = 256
_GZIP_WBITS, _ZLIB_WBITS = 31, 15


def decompress(body: bytes, encoding: str, limit: int) -> bytes:
    """``body`` without its Content-Encoding (``""``: unchanged).

    Raises ApiError: 413 if the result has more than ``limit`` bytes, 400 for a broken or truncated
    stream, 415 for an encoding that is not supported.
    """
    if not encoding:
        return body
    output = _Output(limit)
    try:
        if encoding == "zstd":
            _zstd(body, output)
        elif encoding in ("gzip", "deflate"):
            _zlib(body, _GZIP_WBITS if encoding == "gzip" else _ZLIB_WBITS, output)
        else:
            raise ApiError(
                415,
                "unsupported_encoding",
                f"Content-Encoding {encoding!r} is not supported",
                {"supported": ["gzip", "deflate", "zstd"]},
            )
    except (zlib.error, zstandard.ZstdError) as error:
        raise invalid(f"the {encoding} body is broken: {error}") from error
    return output.take()


class _Output:
    """Decompressed pieces. Raises ApiError 413 over the limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        self._size = 0
        self._members = 0

    def add(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self.count(len(piece))

    def count(self, size: int) -> None:
        self._size += size
        if self._size > self._limit:
            raise too_large(
                f"the decompressed body has more than {self._limit} bytes; send smaller batches",
                limit_bytes=self._limit,
            )

    def count_member(self) -> None:
        self._members += 1
        if self._members > _MEMBERS_MAX:
            raise invalid(f"the compressed body has more than {_MEMBERS_MAX} members")

    def restart(self) -> None:
        self._size = 0

    def take(self) -> bytes:
        return b"".join(self._pieces)


def _truncated() -> ApiError:
    return invalid("the compressed body is truncated")


def _zlib(body: bytes, wbits: int, output: _Output) -> None:
    """One member after the other, as gzip allows."""
    position = 0
    while position < len(body) or not position:
        output.count_member()
        stream = zlib.decompressobj(wbits)
        while not stream.eof:
            source = body[position : position + _INPUT_BYTES]
            if not source:
                raise _truncated()
            position += len(source)
            while source and not stream.eof:
                output.add(stream.decompress(source, _PIECE_BYTES))
                source = stream.unconsumed_tail
        position -= len(stream.unused_data)


def _zstd(body: bytes, output: _Output) -> None:
    """One frame after the other, in two passes.

    The stream reader makes bounded pieces but does not notice a truncated frame. So it only counts;
    a body that is small enough is then decompressed by what notices.
    """
    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES_MAX)
    with decompressor.stream_reader(body, read_across_frames=True) as reader:
        while piece := reader.read(_PIECE_BYTES):
            output.count(len(piece))
    output.restart()
    rest = body
    while rest or rest is body:
        output.count_member()
        stream = decompressor.decompressobj()
        output.add(stream.decompress(rest))
        if not stream.eof:
            raise _truncated()
        rest = stream.unused_data
