"""The text of a source: decompressed, with the position of each byte.

The first bytes say whether a source is gzip, zstd or neither; its name does not matter. Several
members or frames in succession are one text. Compressed data that ends too early, or that cannot be
read, is SourceDamaged: whole lines before that place are good.

A piece of text is handed out only after the source was verified, so it is of the file whose
identity the import has taken.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Protocol

import zstandard

from commands.importing.reading.problems import SourceChanged, SourceDamaged
from commands.importing.reading.raw import HEAD_BYTES, RawSource

CHUNK_BYTES = 256 << 10
PEEK_BYTES = 4 << 10  # all that is read of a packed file that is imported already
# An RLE block of 4 bytes becomes 128 KiB, so a piece of this size at most 64 MiB.
_ZSTD_INPUT_BYTES = 2 << 10
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_MAGIC = (_GZIP_MAGIC, _ZSTD_MAGIC)


class _Decoder(Protocol):
    """Decompresses, a bounded piece at a time. ``is_between``: not within a member or frame."""

    name: str
    is_between: bool

    def feed(self, data: bytes) -> Iterator[bytes]: ...


class _Gzip:
    name = "gzip"

    def __init__(self) -> None:
        self._member = zlib.decompressobj(31)
        self.is_between = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        while data:
            if self.is_between:
                data = data.lstrip(b"\0")  # padding, as tapes leave it
                if not data:
                    return
                self._member = zlib.decompressobj(31)
                self.is_between = False
            text = self._member.decompress(data, CHUNK_BYTES)
            data = self._member.unconsumed_tail
            if self._member.eof:
                data = self._member.unused_data
                self.is_between = True
            yield text


class _Zstd:
    name = "zstd"

    def __init__(self) -> None:
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self.is_between = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), _ZSTD_INPUT_BYTES):
            some = data[start : start + _ZSTD_INPUT_BYTES]
            while some:
                if self.is_between:
                    self._frame = zstandard.ZstdDecompressor().decompressobj()
                    self.is_between = False
                text = self._frame.decompress(some)
                some = self._frame.unused_data if self._frame.eof else b""
                self.is_between = self._frame.eof
                yield text


class SourceText:
    """The text of ``raw`` from its start, or from where ``skip_to`` puts it."""

    def __init__(self, raw: RawSource) -> None:
        self.raw = raw
        self.position = 0
        self._decoder: _Decoder | None = None
        self._pieces: Iterator[bytes] = iter(())
        self._begin = b""
        self._begun = False
        self._kept = b""  # text that was read to look at it

    @property
    def compression(self) -> str | None:
        """``gzip``, ``zstd`` or None; known once something was read."""
        return None if self._decoder is None else self._decoder.name

    @property
    def is_seekable(self) -> bool:
        """Whether the text at a position can be had without what is before it."""
        return self._decoder is None and self.raw.can_seek

    def read(self) -> bytes | None:
        """Some text; empty at the end, None if nothing comes for a while. Raises SourceProblem."""
        if self._kept:
            data, self._kept = self._kept, b""
        else:
            found = self._read()
            if not found:
                return found
            data = found
        self.position += len(data)
        return data

    def peek(self) -> bytes | None:
        """Up to the first KiB of the text, of which nothing is taken yet. None: nothing comes."""
        if self.position:
            raise ValueError("only the beginning can be looked at")
        while len(self._kept) < HEAD_BYTES:
            found = self._read(PEEK_BYTES)
            if found is None:
                return None if not self._kept else self._kept[:HEAD_BYTES]
            if not found:
                break
            self._kept += found
        return self._kept[:HEAD_BYTES]

    def skip_to(self, position: int) -> bytes:
        """Goes to a position; returns the byte before it. Raises SourceChanged if the text is
        shorter."""
        if position <= self.position:
            return b""
        if self.is_seekable:
            size = self.raw.size()
            if size is not None and size < position:
                raise _shorter(size, position)
            self._kept = b""
            self.raw.seek(position - 1)
            last = self.raw.read(1) or b""
            self.raw.verify()
            self.position = position
            return last
        last = b""
        while self.position < position:
            data = self.read()
            if data is None:
                continue
            if not data:
                raise _shorter(self.position, position)
            over = self.position - position
            if over >= 0:
                cut = len(data) - over
                last = data[cut - 1 : cut]
                self._kept = data[cut:] + self._kept
                self.position = position
        return last

    def _read(self, count: int = CHUNK_BYTES) -> bytes | None:
        while True:
            try:
                for text in self._pieces:
                    if text:
                        return text
            except (zlib.error, zstandard.ZstdError) as error:
                name = self.compression
                raise SourceDamaged(f"is broken {name} data: {error}") from error
            data = self.raw.read(count)
            self.raw.verify()
            if data is None:
                return None
            if not self._begun:
                begin = self._begin + data
                if data and any(m.startswith(begin) and m != begin for m in _MAGIC):
                    self._begin = begin  # a pipe may bring them one at a time
                    continue
                data = begin
                self._begun = True
                self._decoder = _decoder_of(begin)
            if self._decoder is None:
                return data
            if not data:
                if self._decoder.is_between:
                    return b""
                raise SourceDamaged(
                    f"ends within its {self._decoder.name} data: it is cut off, or not written"
                    " completely yet"
                )
            self._pieces = self._decoder.feed(data)


def _decoder_of(begin: bytes) -> _Decoder | None:
    if begin.startswith(_GZIP_MAGIC):
        return _Gzip()
    return _Zstd() if begin.startswith(_ZSTD_MAGIC) else None


def _shorter(size: int, position: int) -> SourceChanged:
    return SourceChanged(
        f"has {size:,} bytes of text, and {position:,} of it were imported before: it was truncated"
        " or written anew",
        hint="--restart imports it from its start",
    )
