"""What a produce request asks for, and its records as payloads per partition.

A row is a record as ``uploader.l0.records.encode`` takes it: ``(data, ts, key, tag, node, meta)``,
cut off after its last present field. ``data`` is JSON text, or bytes. Records that are JSON text
and nothing else need no rows: their *texts*, as msgspec found them in the body, are enough.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from daemon.schemas.api import AdvanceRequest, ProduceOptions
from daemon.schemas.errors import invalid
from daemon.schemas.names import check_cursor_name
from delivery.partitioner import partition_of
from ledger.types import Dedupe
from shards.checksum import crc32c
from uploader.l0.records import Texts, encode, encode_texts

Row = tuple[Any, ...]
TS, KEY = 1, 2  # where they are in a row

# partition, record count, payload, first and last timestamp (epoch milliseconds)
Payload = tuple[int, int, bytes, int, int]


class Produce(Struct, frozen=True, gc=False):
    """A parsed request, of ``rows`` or of ``texts``. ``keyed`` and ``timed`` say that some row has
    a key or a timestamp."""

    rows: list[Row]
    arrival_ms: int
    partition: int | None = None
    idempotency_key: str | None = None
    expected_seq: int | None = None
    disable_backpressure: bool = False
    keyed: bool = False
    timed: bool = False
    ack_timeout_ms: int | None = None
    dedupe: Dedupe | None = None
    advance: AdvanceRequest | None = None
    texts: Texts | None = None
    told: bytes | None = None  # what all attempts of the request have in common, if not the rows

    @property
    def record_count(self) -> int:
        return len(self.rows if self.texts is None else self.texts.texts)


def produce_of(
    options: ProduceOptions,
    rows: list[Row],
    arrival_ms: int,
    *,
    keyed: bool,
    timed: bool,
    advance: AdvanceRequest | None = None,
    texts: Texts | None = None,
) -> Produce:
    """The request that these rows and options are. Raises ApiError 400 for an ``advance`` that
    cannot be."""
    if advance is not None:
        check_cursor_name(advance.cursor)
        if advance.next <= advance.expected:
            raise invalid(
                f"advance moves a cursor forward: next is {advance.next}, which must be more than"
                f" expected, {advance.expected}",
                field="advance",
            )
    return Produce(
        rows,
        arrival_ms,
        options.partition,
        options.idempotency_key,
        options.expected_seq,
        options.disable_backpressure,
        keyed,
        timed,
        options.ack_timeout_ms,
        options.dedupe,
        advance,
        texts,
    )


def row(
    data: str | bytes,
    ts: int | None,
    key: str | None,
    tag: str | None,
    node: str | None,
    meta: str | None,
) -> Row:
    """A row, cut off after its last present field."""
    if meta is not None:
        return (data, ts, key, tag, node, meta)
    if node is not None:
        return (data, ts, key, tag, node)
    if tag is not None:
        return (data, ts, key, tag)
    if key is not None:
        return (data, ts, key)
    if ts is not None:
        return (data, ts)
    return (data,)


def payloads(produce: Produce, partitions: int, next_partition: Callable[[], int]) -> list[Payload]:
    """The request's records by partition, partitions ascending, records in their order.

    A partition that the request names takes all of them. Otherwise records with keys go by their
    key, and those without go together to ``next_partition()``, which is called at most once.
    Raises ApiError 400 if the topic does not have the partition, or if ``expected_seq`` leaves open
    which partition is meant.
    """
    rows = produce.rows
    partition = produce.partition
    if produce.expected_seq is not None and partition is None and partitions > 1:
        raise invalid(
            f"expected_seq needs a partition, since the topic has {partitions}",
            field="expected_seq",
        )
    if partition is None and not (produce.keyed and partitions > 1):
        partition = 0 if partitions == 1 else next_partition()
    if partition is not None:
        if partition >= partitions:
            raise invalid(
                f"the topic has partitions 0 to {partitions - 1}, got partition {partition}",
                partition=partition,
                partitions=partitions,
            )
        if not produce.timed:
            arrival_ms = produce.arrival_ms
            texts = produce.texts
            payload = encode(rows) if texts is None else encode_texts(texts)
            return [(partition, produce.record_count, payload, arrival_ms, arrival_ms)]
        return [_payload(partition, rows, produce)]
    spread: dict[int, list[Row]] = {}
    for each in rows:
        key = each[KEY] if len(each) > KEY else None
        if isinstance(key, str):
            chosen = partition_of(key, partitions)
        elif partition is None:
            chosen = partition = next_partition()
        else:
            chosen = partition
        there = spread.get(chosen)
        if there is None:
            spread[chosen] = [each]
        else:
            there.append(each)
    return [_payload(chosen, spread[chosen], produce) for chosen in sorted(spread)]


def fingerprint_of(produce: Produce, payloads: list[Payload]) -> int:
    """What tells a repeat from other records under the same idempotency key: how many bytes they
    are as a payload, however many partitions they go to, and the CRC32C of these."""
    told = produce.told
    if told is None:
        told = payloads[0][2] if len(payloads) == 1 else encode(produce.rows)
    return len(told) << 32 | crc32c(told)


def _payload(partition: int, rows: list[Row], produce: Produce) -> Payload:
    arrival_ms = produce.arrival_ms
    payload = encode(rows)
    if not produce.timed:
        return (partition, len(rows), payload, arrival_ms, arrival_ms)
    first = last = _timestamp(rows[0], arrival_ms)
    for each in rows:
        ts = _timestamp(each, arrival_ms)
        if ts < first:
            first = ts
        elif ts > last:
            last = ts
    return (partition, len(rows), payload, first, last)


def _timestamp(each: Row, arrival_ms: int) -> int:
    ts = each[TS] if len(each) > TS else None
    return ts if isinstance(ts, int) else arrival_ms
