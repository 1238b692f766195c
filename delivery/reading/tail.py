"""Reading the tail from the rings: no request to the store while a reader keeps up.

A committed request stays in its ring until it is overwritten. Bytes are copied first, and the
``reserved`` word is checked afterwards (shards/ring.py); if they were overwritten, the caller reads
the object instead.

Where the batches of a partition are, its chain in the ring says (shards/frame.py), backward from
the last part of the commit's run to its first request. The chain is used if its records are exactly
those of the run. It is not if it breaks in between, because the ring's shard was restarted, or if a
request in between became void in the ring. Then a walk over the whole range of the commit finds the
batches of all partitions. Long chains and walks are kept for the next reader.

A batch of many records is read in pieces: who takes a page of it copies and decodes little else.
Where its pieces lie is found once, together with its checksum, and kept.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple

from delivery.reading.followed import Key, TailExtent
from ledger.types import ExtentRun
from shards.frame import BATCH_BYTES, CODEC_KAFKA, RecordBatchHead, codec_of, verify_payload
from shards.ring import Link, RingReader
from shards.segment import Segment
from uploader.l0 import payloads
from uploader.l0.records import Record
from uploader.lru import LruCache

LINKS_MAX = 32_768  # of all chains that are kept, and of all walks; of 4 MiB in 200 B: 20,000
KEPT_MAX = 1_024
LONG_CHAIN = 64  # a shorter one is followed again
PIECE_RECORDS = 512  # a page of a router
PIECE_BYTES = 64 << 10
# A smaller batch is copied and decoded as a whole.
LARGE_RECORDS = 2 * PIECE_RECORDS
LARGE_BYTES = 4 * PIECE_BYTES
CUTS_MAX = 32_768  # of all large batches that are kept: one body's 16 MiB in two-byte records
BYTES_MAX = 2 * LINKS_MAX * 200 + CUTS_MAX * 4
COPIED_TOGETHER = 32  # batches, of up to a quarter of the ring in theory and 32 KiB in practice

Walk = dict[Key, list[Link]]


class _Pieces(NamedTuple):
    """A large batch: its head, and where its pieces begin."""

    head: RecordBatchHead
    each: int  # records in a piece; the last one has fewer
    cuts: array[int]
    lead: bytes


class TailReader:
    """Copies records of recent commits out of the rings of a segment; None has none."""

    def __init__(self, segment: Segment | None) -> None:
        self._readers = [] if segment is None else [
            RingReader(segment, s) for s in range(segment.layout.shards)
        ]  # fmt: skip
        # By commit and shard: the walk, or by key in addition the chain.
        self._walks: LruCache[tuple[int, int], Walk] = LruCache(KEPT_MAX, LINKS_MAX, _links_of)
        self._chains: LruCache[tuple[int, int, Key], list[Link]] = LruCache(
            KEPT_MAX, LINKS_MAX, len
        )
        # By commit, shard and place in the ring.
        self._pieces: LruCache[tuple[int, int, Link], _Pieces] = LruCache(
            KEPT_MAX, CUTS_MAX, lambda pieces: len(pieces.cuts)
        )

    def batches(
        self, key: Key, extent: TailExtent, from_offset: int
    ) -> Iterator[tuple[int, int, list[Record]] | None]:
        """(first offset, arrival ms, records) of batches that hold ``from_offset`` or later ones.

        Yields None and ends if the ring has overwritten them.
        """
        for batch in self.raw_batches(key, extent, from_offset):
            if batch is None:
                yield None
                return
            offset, head, payload = batch
            decoded = payloads.decode(head.codec, payload, head.record_count)
            yield offset, head.arrival_ms, decoded

    def raw_batches(
        self, key: Key, extent: TailExtent, from_offset: int
    ) -> Iterator[tuple[int, RecordBatchHead, bytes] | None]:
        """The same, with each batch's head and its payload as it is; the checksum was verified. A
        large batch comes in pieces, each as if it were a batch."""
        for placed in self._placed(key, extent, from_offset):
            if placed is None:
                yield None
                return
            run, offset, links = placed
            at_link = 0
            while at_link < len(links):
                if not _is_small(links[at_link]):
                    for piece in self._in_pieces(extent, run, links[at_link], offset, from_offset):
                        yield piece
                        if piece is None:
                            return
                    offset += links[at_link].record_count
                    at_link += 1
                    continue
                some = list(takewhile(_is_small, links[at_link : at_link + COPIED_TOGETHER]))
                at_link += len(some)
                copies = self._readers[run.shard].copy(some)
                if copies is None:
                    yield None
                    return
                for head, payload in copies:
                    verify_payload(head, payload)
                    yield offset, head, payload
                    offset += head.record_count

    def kafka_batches(
        self, key: Key, extent: TailExtent, from_offset: int, bytes_max: int
    ) -> Iterator[tuple[int, int, bytes] | None]:
        """(first offset, records, bytes) of whole batches that came from Kafka's clients, the first
        of which holds ``from_offset``, up to ``bytes_max``; ends before any other batch. Yields
        None and ends if the ring has overwritten them."""
        left = bytes_max
        for placed in self._placed(key, extent, from_offset):
            if placed is None:
                yield None
                return
            run, offset, links = placed
            reader = self._readers[run.shard]
            for link in links:
                left -= link.length - BATCH_BYTES
                if left < 0 or codec_of(reader.data, link.offset) != CODEC_KAFKA:
                    return
                copies = reader.copy([link])
                if copies is None:
                    yield None
                    return
                ((head, payload),) = copies
                verify_payload(head, payload)
                yield offset, head.record_count, payload
                offset += head.record_count

    def _placed(
        self, key: Key, extent: TailExtent, from_offset: int
    ) -> Iterator[tuple[ExtentRun, int, Sequence[Link]] | None]:
        """Of each run the live batches from the one that holds ``from_offset`` on, and the offset
        of their first record. Yields None and ends if they were overwritten."""
        voids = extent.void_positions
        for run in extent.runs:
            links = self._links(key, extent, run)
            if links is None:
                yield None
                return
            offset = run.first_offset
            if voids:
                links = [link for link in links if (run.shard, link.position) not in voids]
            start = 0
            while start < len(links) and offset + links[start].record_count <= from_offset:
                offset += links[start].record_count
                start += 1
            yield run, offset, links[start:]

    def _in_pieces(
        self, extent: TailExtent, run: ExtentRun, link: Link, offset: int, from_offset: int
    ) -> Iterator[tuple[int, RecordBatchHead, bytes] | None]:
        """A large batch, which begins at ``offset``, from the piece with ``from_offset`` on."""
        reader = self._readers[run.shard]
        identity = (extent.commit_number, run.shard, link)
        found = self._pieces.get(identity)
        if found is None:
            copies = reader.copy([link])
            if copies is None:
                yield None
                return
            ((head, payload),) = copies
            verify_payload(head, payload)
            each = PIECE_BYTES * head.record_count // len(payload)
            each = max(1, min(PIECE_RECORDS, each))
            cuts = payloads.cuts(head.codec, payload, head.record_count, each)
            found = _Pieces(head, each, cuts, payloads.lead(head.codec, payload))
            del copies, payload
            self._pieces.keep(identity, found)
        head, each, cuts, lead = found
        for piece in range(max(0, from_offset - offset) // each, len(cuts) - 1):
            first = piece * each
            rows = reader.copy_part(link, cuts[piece], cuts[piece + 1])
            if rows is None:
                yield None
                return
            count = min(each, head.record_count - first)
            payload = payloads.piece(head.codec, lead, first, count, rows)
            part = head._replace(payload_length=len(payload), record_count=count)
            yield offset + first, part, payload

    def _links(self, key: Key, extent: TailExtent, run: ExtentRun) -> Sequence[Link] | None:
        """Where the batches of a run lie, in order; None if they were overwritten."""
        if run.ring_span:
            identity = (extent.commit_number, run.shard, key)
            chain = self._chains.get(identity)
            if chain is not None:
                return chain
            first = run.ring_first
            chain = self._readers[run.shard].chain(
                *key, first, first + run.ring_span, run.record_count
            )
            if chain is not None:
                if len(chain) >= LONG_CHAIN:
                    self._chains.keep(identity, chain)
                return chain
        walk = self._walk(extent, run.shard)
        return None if walk is None else walk.get(key, ())

    def _walk(self, extent: TailExtent, shard: int) -> Walk | None:
        """Where the batches of a commit from one source lie; None if they were overwritten."""
        identity = (extent.commit_number, shard)
        leased = extent.ranges[shard]
        reader = self._readers[shard]
        walk = self._walks.get(identity)
        if walk is None:
            walk = {}
            for request in reader.requests(leased.start, leased.end):
                for batch in request.batches:
                    batch_key = (batch.topic_id, batch.partition)
                    link = Link(request.position, batch.offset, batch.length, batch.record_count)
                    walk.setdefault(batch_key, []).append(link)
            if not reader.still_there(leased.start):
                return None
            self._walks.keep(identity, walk)
        return walk


def _is_small(link: Link) -> bool:
    return link.record_count <= LARGE_RECORDS and link.length <= LARGE_BYTES


def _links_of(walk: Walk) -> int:
    return sum(map(len, walk.values()))
