"""The newest records of a partition as bytes of a stream, encoded once for all who want the same.

Watchers at the tail ask for the records after their cursor. Those with the same cursor and the same
*shape* (format, filter, names) get the same bytes object: the first of them pays for reading the
rings and for encoding, the others only for a look into a cache. Offsets never change what they
name, so an entry is right as long as it is kept; later records are a later entry.

Bounds: CACHE_BYTES_MAX of bytes per shard. Nothing here waits or reads the store.
"""

from __future__ import annotations

from msgspec import Struct

from delivery.filters import Filter
from delivery.reading.followed import FollowedPartitions, Key
from delivery.reading.partition import bytes_of
from delivery.reading.tail import TailReader
from delivery.streams.formats import Format, ForwardingFormat, Item, Origin
from delivery.streams.wire import chunk
from delivery.watch.positions import format_position
from shards.frame import CODEC_RECORDS
from uploader.l0 import payloads, records
from uploader.lru import LruCache

WRITE_BYTES_MAX = 256 << 10  # of records in one write; one larger record goes alone
CACHE_BYTES_MAX = 8 << 20
ENTRIES_MAX = 4_096
COMPARED_PER_BYTE = 8  # characters that a filter compares in the time that a byte takes to encode


class Shape(Struct, frozen=True):
    """What makes the bytes of two watchers at the same place differ.

    ``with_position``: the stream has one partition, so its position is part of the bytes.
    """

    format: Format
    filter: Filter
    shows_topic: bool = False
    shows_partition: bool = False
    with_position: bool = False

    def origin(self, key: Key, topic: str) -> Origin:
        """A partition as a stream of this shape names it."""
        return Origin(topic, *key, self.shows_topic, self.shows_partition)


class Encoded(Struct, frozen=True):
    """Events, empty if the filter left nothing, and the cursor after them. They are framed if the
    position is part of them."""

    data: bytes
    reached: int


class TailEncoder:
    """The encoded tail of one shard's partitions."""

    def __init__(self, followed: FollowedPartitions, tail: TailReader) -> None:
        self._followed = followed
        self._tail = tail
        self._cache: LruCache[tuple[Key, int, Shape, bool], Encoded] = LruCache(
            ENTRIES_MAX, CACHE_BYTES_MAX, lambda encoded: len(encoded.data) + 200
        )
        # What was read last: watchers of one topic differ in shape more often than in place.
        self._last: tuple[Key, int, int, list[Item]] = ((0, 0), 0, 0, [])
        # What filters have cost so far, as bytes that are encoded in that time.
        self.filtered_bytes = 0

    def encode(
        self, key: Key, cursor: int, shape: Shape, topic: str, coalesced: bool
    ) -> Encoded | None:
        """The records after ``cursor``; None if the rings do not hold the next one (any more)."""
        asked = (key, cursor, shape, coalesced)
        known = self._cache.get(asked)
        if known is not None:
            return known
        origin = shape.origin(key, topic)
        if isinstance(shape.format, ForwardingFormat) and not shape.filter:
            data, reached = self._forwarded(key, cursor, shape.format, origin)
        else:
            data, reached = self._encoded(key, cursor, shape, origin, coalesced)
        if reached == cursor:
            return None
        if data and shape.with_position:
            data = chunk(shape.format.ending(data, format_position({key: reached})))
        encoded = Encoded(data, reached)
        self._cache.keep(asked, encoded)
        return encoded

    def _encoded(
        self, key: Key, cursor: int, shape: Shape, origin: Origin, coalesced: bool
    ) -> tuple[bytes, int]:
        items = self._items(key, cursor)
        if not items:
            return b"", cursor
        kept = items
        if shape.filter:
            kept = [item for item in items if shape.filter.matches(item[2])]
            work = shape.filter.work([item[2] for item in items])
            self.filtered_bytes += work // COMPARED_PER_BYTE
        return shape.format.records(kept, origin, coalesced and len(kept) > 1), items[-1][0]

    def _forwarded(
        self, key: Key, cursor: int, format_: ForwardingFormat, origin: Origin
    ) -> tuple[bytes, int]:
        """Whole batches as they are stored, undecoded; those of Kafka as if they came by HTTP."""
        pieces: list[bytes] = []
        left_bytes = WRITE_BYTES_MAX
        reached = cursor
        for extent in self._followed.tail(key, cursor + 1):
            for batch in self._tail.raw_batches(key, extent, cursor + 1):
                if batch is None:
                    self._followed.forget_tail(key)
                    return b"".join(pieces), reached
                first, head, payload = batch
                left_bytes -= len(payload)
                if pieces and left_bytes < 0:
                    return b"".join(pieces), reached
                skip = max(0, reached + 1 - first)
                if head.codec != CODEC_RECORDS:  # which no watcher asks for
                    payload = records.encode(
                        payloads.decode(head.codec, payload, head.record_count)
                    )
                pieces.append(
                    format_.batch(
                        origin, first, head.record_count, skip, CODEC_RECORDS, head.arrival_ms,
                        payload,
                    )
                )  # fmt: skip
                reached = first + head.record_count - 1
        return b"".join(pieces), reached

    def _items(self, key: Key, cursor: int) -> list[Item]:
        """The records after a cursor that one write may have."""
        last_key, last_cursor, last_head, last_items = self._last
        head = self._followed.head(key) or 0
        if (last_key, last_cursor, last_head) == (key, cursor, head):
            return last_items
        items: list[Item] = []
        left_bytes = WRITE_BYTES_MAX
        for extent in self._followed.tail(key, cursor + 1):
            for batch in self._tail.batches(key, extent, cursor + 1):
                if batch is None:
                    self._followed.forget_tail(key)
                    return items
                first, arrival_ms, decoded = batch
                for offset, record in enumerate(decoded, first):
                    if offset <= cursor:
                        continue
                    left_bytes -= bytes_of(record)
                    if items and left_bytes < 0:
                        self._last = (key, cursor, head, items)
                        return items
                    items.append((offset, arrival_ms if record.ts is None else record.ts, record))
        self._last = (key, cursor, head, items)
        return items
