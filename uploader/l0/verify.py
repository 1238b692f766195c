"""Checks every byte of an L0 object and names what is wrong."""

from __future__ import annotations

from collections.abc import Iterator

from shards.frame import CODEC_KAFKA, CODEC_MIXED, CODEC_RECORDS, Buffer
from uploader.l0 import kafka_stored
from uploader.l0.layout import (
    HEAD_BYTES,
    TAIL,
    TAIL_BYTES,
    FooterExtent,
    L0Error,
    object_key,
)
from uploader.l0.reader import batch_heads, decode_batch, payload, read_extent, read_footer

_KNOWN = {CODEC_RECORDS, CODEC_KAFKA}


def verify(body: Buffer, key: str = "") -> list[L0Error]:
    """Every problem of a whole object: layout, checksums, counts, records; [] if there is none.

    With a ``key``, the lease id in the footer must match it. An unreadable footer ends the check.
    """
    try:
        footer = read_footer(body, key)
    except L0Error as error:
        return [error]
    problems: list[L0Error] = []
    name = object_key(footer.lease_id)
    if key and name != key:
        problems.append(L0Error(key, len(body) - TAIL_BYTES, f"the key {key}", name))
    position = HEAD_BYTES
    previous = (-1, -1)
    for extent in footer.extents:
        identity = (extent.topic_id, extent.partition)
        if identity <= previous:
            problems.append(
                L0Error(
                    key, extent.byte_start, f"an extent after that of {previous}", f"{identity}"
                )
            )
        previous = identity
        if extent.byte_start != position:
            problems.append(
                L0Error(key, position, "an extent", f"the next one at {extent.byte_start}")
            )
        position = extent.byte_end
        problems.extend(_extent_problems(body, extent, key))
    _, length, _ = TAIL.unpack_from(body, len(body) - TAIL_BYTES)
    footer_start = len(body) - TAIL_BYTES - length
    if position != footer_start:
        problems.append(L0Error(key, position, f"extents up to {footer_start}", f"{position}"))
    return problems


def _extent_problems(body: Buffer, extent: FooterExtent, key: str) -> Iterator[L0Error]:
    try:
        data = read_extent(body, extent, key)
    except L0Error as error:
        yield error
        return
    place = f"partition {extent.partition} of topic {extent.topic_name}"
    index = 0
    for run in extent.runs:
        if run.record_index != index:
            yield L0Error(key, extent.byte_start, f"{place}: a run from record {index}", f"{run}")
        index = run.record_index + run.record_count
    if index != extent.record_count:
        yield L0Error(
            key,
            extent.byte_start,
            f"{place}: runs of {extent.record_count} records",
            f"of {index}",
        )
    count = 0
    first_ms, last_ms = 1 << 64, 0
    codecs: set[int] = set()
    try:
        for head in batch_heads(data, key, extent.byte_start):
            count += head.record_count
            codecs.add(head.codec)
            byte = extent.byte_start + head.start
            if extent.codec not in (CODEC_MIXED, head.codec):
                yield L0Error(key, byte, f"a batch of codec {extent.codec}", f"{head.codec}")
            if head.codec not in _KNOWN:
                payload(data, head, key, extent.byte_start)
                continue
            for record in decode_batch(data, head, key, extent.byte_start):
                ts_ms = head.arrival_ms if record.ts is None else record.ts
                first_ms, last_ms = min(first_ms, ts_ms), max(last_ms, ts_ms)
            if head.codec == CODEC_KAFKA:
                wrong = kafka_stored.problem(bytes(data[head.payload_start : head.end]))
                if wrong:
                    yield L0Error(key, byte, "a batch that clients of Kafka can read", wrong)
    except L0Error as error:
        yield error
        return
    stated = (extent.first_timestamp_ms, extent.last_timestamp_ms)
    if codecs <= _KNOWN and (first_ms, last_ms) != stated:
        yield L0Error(
            key,
            extent.byte_start,
            f"{place}: timestamps from {stated[0]} to {stated[1]}",
            f"{first_ms} to {last_ms}",
        )
    if count != extent.record_count:
        yield L0Error(key, extent.byte_start, f"{place}: {extent.record_count} records", f"{count}")
