"""Parses L0 objects: footer, extents, records with their offsets.

An object is read through a *fetch*, ``fetch(start, length) -> bytes``, which reads a range of one
object (``functools.partial(store.get, locator)``). The footer takes one fetch, or two if it is
larger than expected. Nothing is cached or repaired here; damage raises L0Error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
from msgspec import Struct

from ledger.types import Extent
from shards.checksum import crc32c
from shards.frame import (
    CODEC_KAFKA,
    CODEC_RECORDS,
    Buffer,
    FrameError,
    RecordBatchHead,
    batch_payload,
    batches,
)
from uploader.l0 import payloads
from uploader.l0.layout import (
    HEAD,
    HEAD_BYTES,
    MAGIC,
    TAIL,
    TAIL_BYTES,
    VERSION,
    Footer,
    FooterExtent,
    L0Error,
)
from uploader.l0.records import Record, RecordsError

Fetch = Callable[[int, int], Buffer]

# Large enough for 500 extents and a few conditions; a GET costs the same with 64 KiB more.
FOOTER_GUESS_BYTES = 64 * 1024


class _Version(Struct, array_like=True):
    version: int


_version_decoder = msgspec.msgpack.Decoder(_Version)
_footer_decoder = msgspec.msgpack.Decoder(Footer)


def read_footer(body: Buffer, key: str = "") -> Footer:
    """The footer of a whole object; its head is checked too. Raises L0Error."""
    if len(body) >= HEAD_BYTES:
        _check_head(body, key)
    return fetch_footer(lambda start, length: body[start : start + length], len(body), key)


def fetch_footer(fetch: Fetch, size_bytes: int, key: str = "") -> Footer:
    """The footer of an object of ``size_bytes``, by at most two range reads. Raises L0Error.

    The head is not read: the footer has the version and the extents.
    """
    if size_bytes < HEAD_BYTES + TAIL_BYTES:
        raise L0Error(key, 0, f"at least {HEAD_BYTES + TAIL_BYTES} bytes", f"{size_bytes}")
    guess_start = max(0, size_bytes - FOOTER_GUESS_BYTES)
    guess = _fetched(fetch, guess_start, size_bytes - guess_start, key)
    tail_start = size_bytes - TAIL_BYTES
    checksum, length, magic = TAIL.unpack_from(guess, tail_start - guess_start)
    if magic != MAGIC:
        raise L0Error(key, size_bytes - len(MAGIC), f"the magic {MAGIC!r}", repr(magic))
    footer_start = tail_start - length
    if footer_start < HEAD_BYTES:
        raise L0Error(
            key,
            tail_start + 4,
            f"a footer length up to {tail_start - HEAD_BYTES}",
            f"{length}",
        )
    if footer_start >= guess_start:
        footer = guess[footer_start - guess_start : tail_start - guess_start]
    else:
        footer = _fetched(fetch, footer_start, length, key)
    found = crc32c(footer)
    if found != checksum:
        raise L0Error(key, footer_start, f"a footer with CRC32C {checksum:08x}", f"{found:08x}")
    return _decode_footer(footer, footer_start, key)


def read_extent(body: Buffer, extent: FooterExtent | Extent, key: str = "") -> Buffer:
    """An extent of a whole object, after a check of its checksum. Raises L0Error."""
    return fetch_extent(lambda start, length: body[start : start + length], extent, key)


def fetch_extent(fetch: Fetch, extent: FooterExtent | Extent, key: str = "") -> Buffer:
    """An extent, by one range read, after a check of its checksum. Raises L0Error."""
    data = _fetched(fetch, extent.byte_start, extent.byte_length, key)
    found = crc32c(data)
    if found != extent.crc32c:
        raise L0Error(
            key,
            extent.byte_start,
            f"an extent of {extent.byte_length} bytes with CRC32C {extent.crc32c:08x}",
            f"{found:08x}",
        )
    return data


def records_of(
    extent: Buffer,
    first_offset: int,
    voids: Sequence[tuple[int, int]] = (),
    from_offset: int = 0,
    limit: int | None = None,
    key: str = "",
) -> Iterator[tuple[int, int, Record]]:
    """The live records of an extent, beginning with ``from_offset``, at most ``limit``.

    Yields (offset, epoch milliseconds, record). ``first_offset`` is that of the first live record.
    ``voids`` are (record_index, record_count) ranges without offsets, ascending and disjoint. A
    batch that ends before ``from_offset`` is skipped without being decoded. Raises L0Error, whose
    ``byte`` counts from the first byte of the extent.
    """
    left = limit
    if left == 0:
        return
    for head, index, offset, dead in _placed(extent, first_offset, voids, from_offset, key):
        for record in decode_batch(extent, head, key):
            if index not in dead:
                if offset >= from_offset:
                    yield offset, head.arrival_ms if record.ts is None else record.ts, record
                    if left is not None:
                        left -= 1
                        if left == 0:
                            return
                offset += 1
            index += 1


def kafka_batches(
    extent: Buffer,
    first_offset: int,
    voids: Sequence[tuple[int, int]],
    from_offset: int,
    bytes_max: int,
    key: str = "",
) -> Iterator[tuple[int, bytes]]:
    """Whole batches as Kafka's clients sent them, each with the offset of its first record, from
    the one that holds ``from_offset`` on, up to ``bytes_max``; ends before any other batch. Raises
    L0Error."""
    for head, _, offset, dead in _placed(extent, first_offset, voids, from_offset, key):
        bytes_max -= head.payload_length
        if head.codec != CODEC_KAFKA or dead or bytes_max < 0:
            return
        yield offset, payload(extent, head, key)


def _placed(
    extent: Buffer, first_offset: int, voids: Sequence[tuple[int, int]], from_offset: int, key: str
) -> Iterator[tuple[RecordBatchHead, int, int, set[int]]]:
    """The batches with live records from ``from_offset`` on: each with the index of its first
    record, the offset of the first live one, and the indexes of void ones."""
    offset = first_offset
    index = 0
    passed = 0  # voids that end before this batch
    for head in batch_heads(extent, key):
        end = index + head.record_count
        while passed < len(voids) and sum(voids[passed]) <= index:
            passed += 1
        dead: set[int] = set()
        for start, count in voids[passed:]:
            if start >= end:
                break
            dead.update(range(max(start, index), min(start + count, end)))
        live = head.record_count - len(dead)
        if live and offset + live > from_offset:
            yield head, index, offset, dead
        index, offset = end, offset + live


def _check_head(body: Buffer, key: str) -> None:
    magic, version, _ = HEAD.unpack_from(body, 0)
    if magic != MAGIC:
        raise L0Error(key, 0, f"the magic {MAGIC!r}", repr(magic))
    _check_version(version, len(MAGIC), key)


def _check_version(version: int, byte: int, key: str) -> None:
    if version > VERSION:
        raise L0Error(
            key,
            byte,
            f"version {VERSION} or older",
            f"version {version}, which a newer headgate wrote: upgrade this reader",
        )
    if version < 1:
        raise L0Error(key, byte, f"version {VERSION}", f"version {version}")


def _decode_footer(footer: Buffer, footer_start: int, key: str) -> Footer:
    try:
        version = _version_decoder.decode(footer).version
        _check_version(version, footer_start, key)
        return _footer_decoder.decode(footer)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise L0Error(key, footer_start, "a footer", f"invalid msgpack: {error}") from error


def _fetched(fetch: Fetch, start: int, length: int, key: str) -> Buffer:
    data = fetch(start, length)
    if len(data) != length:
        raise L0Error(key, start, f"{length} bytes", f"{len(data)}")
    return data


def batch_heads(extent: Buffer, key: str, extent_start: int = 0) -> Iterator[RecordBatchHead]:
    """The heads of an extent's batches, in order. Raises L0Error."""
    end = 0
    try:
        for head in batches(extent):
            yield head
            end = head.end
    except FrameError as error:
        raise L0Error(key, extent_start + end, "a whole batch", str(error)) from error


def payload(extent: Buffer, head: RecordBatchHead, key: str, extent_start: int = 0) -> bytes:
    """A copy of a batch's payload, after a check of its checksum. Raises L0Error."""
    try:
        return batch_payload(extent, head)
    except FrameError as error:
        raise L0Error(
            key,
            extent_start + head.payload_start,
            f"a payload with CRC32C {head.payload_crc32c:08x}",
            str(error),
        ) from error


def check_codec(codec: int, key: str, byte: int) -> None:
    """Raises L0Error for a batch that a newer version wrote."""
    if codec not in (CODEC_RECORDS, CODEC_KAFKA):
        raise L0Error(
            key,
            byte,
            f"codec {CODEC_RECORDS} or {CODEC_KAFKA}",
            f"{codec}, which this reader does not know: upgrade it",
        )


def decode_batch(
    extent: Buffer, head: RecordBatchHead, key: str, extent_start: int = 0
) -> list[Record]:
    """The records of a batch, after checks of checksum and count. Raises L0Error."""
    byte = extent_start + head.start
    check_codec(head.codec, key, byte)
    data = payload(extent, head, key, extent_start)
    try:
        records = payloads.decode(head.codec, data, head.record_count)
    except RecordsError as error:
        raise L0Error(key, byte, f"records of codec {head.codec}", str(error)) from error
    if len(records) != head.record_count:
        raise L0Error(key, byte, f"{head.record_count} records", f"{len(records)}")
    return records
