"""Decompression of what Kafka's clients send, up to a limit, so that a small batch cannot fill the
memory. Stored batches are not compressed: only who takes them in needs this module.
"""

from __future__ import annotations

import functools
import io
import zlib
from collections.abc import Callable
from typing import Any

import zstandard

from uploader.l0.kafka import (
    CORRUPT_MESSAGE,
    MESSAGE_TOO_LARGE,
    UNSUPPORTED_COMPRESSION_TYPE,
    BatchError,
)

_XERIAL = b"\x82SNAPPY\x00"
_BLOCKS_MAX = 16_384  # in such a frame: 16 MiB of the smallest that clients make


def decompressed(codec: int, data: bytes, bytes_max: int) -> bytes:
    """What follows the head of a batch; MESSAGE_TOO_LARGE is over ``bytes_max``. Raises
    BatchError."""
    if codec == 0:
        return data
    decompress = _CODECS.get(codec)
    if decompress is None:
        raise BatchError(
            UNSUPPORTED_COMPRESSION_TYPE,
            f"compression {codec} is not one of {', '.join(map(str, (0, *_CODECS)))}",
        )
    try:
        found = decompress(data, bytes_max)
    except (zlib.error, zstandard.ZstdError, OSError, ValueError, IndexError) as error:
        raise BatchError(CORRUPT_MESSAGE, f"the batch cannot be decompressed: {error}") from error
    if len(found) > bytes_max:
        raise BatchError(
            MESSAGE_TOO_LARGE,
            f"the batch has more than {bytes_max} bytes when it is decompressed; lower batch.size",
        )
    return found


def _gzip(data: bytes, bytes_max: int) -> bytes:
    stream = zlib.decompressobj(wbits=31)
    found = stream.decompress(data, bytes_max + 1)
    if not stream.eof and len(found) <= bytes_max:
        raise ValueError("the gzip stream is cut off")
    return found


def _snappy(data: bytes, bytes_max: int) -> bytes:
    if not data.startswith(_XERIAL):
        return _snappy_block(data, bytes_max)
    pieces: list[bytes] = []
    at, left = len(_XERIAL) + 8, bytes_max  # after two versions
    while at < len(data) and left >= 0:
        if len(pieces) == _BLOCKS_MAX:
            raise ValueError(f"it has more than {_BLOCKS_MAX} blocks")
        size = int.from_bytes(data[at : at + 4], "big")
        pieces.append(_snappy_block(data[at + 4 : at + 4 + size], left))
        if not pieces[-1]:
            raise ValueError(f"block {len(pieces) - 1} is empty")
        left -= len(pieces[-1])
        at += 4 + size
    return b"".join(pieces)


def _snappy_block(data: bytes, bytes_max: int) -> bytes:
    size = 0
    for index, byte in enumerate(data[:5]):
        size |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            break
    if size > bytes_max:
        return bytes(bytes_max + 1)  # too large, which the caller says
    found: bytes = snappy_codec().decompress(data, size, asbytes=True)
    return found


@functools.cache
def snappy_codec() -> Any:
    """Snappy, once for all blocks. Call it first where a loop must not wait: it loads pyarrow."""
    import pyarrow  # other processes do not need it here

    return pyarrow.Codec("snappy")


def _lz4(data: bytes, bytes_max: int) -> bytes:
    import pyarrow

    with pyarrow.CompressedInputStream(pyarrow.BufferReader(data), "lz4") as stream:
        found: bytes = stream.read(bytes_max + 1)
    return found


def _zstd(data: bytes, bytes_max: int) -> bytes:
    # One for each call: several threads decompress, and a shared one would mix up their batches.
    with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data)) as stream:
        found: bytes = stream.read(bytes_max + 1)
    return found


_CODECS: dict[int, Callable[[bytes, int], bytes]] = {1: _gzip, 2: _snappy, 3: _lz4, 4: _zstd}
