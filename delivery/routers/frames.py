"""The frame that copies records into a topic. Pure.

A copy keeps data, key, tag, node, meta and the timestamp; one that came from the arrival of the
source's request is written out. Records with a key go to the partition of their key, as those of a
producer; records without one go to the source's partition modulo the number of partitions, so that
their order stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from delivery.partitioner import partition_of
from delivery.reading.lake import Item
from shards.frame import Part
from uploader.l0.records import encode


def parts_of(
    items: Sequence[Item], topic_id: int, partitions: int, source_partition: int
) -> list[Part]:
    """The parts of one request, partitions ascending, records in their order."""
    spread: dict[int, list[Item]] = {}
    keyless = source_partition % partitions
    for item in items:
        key = item[2].key
        chosen = keyless if key is None else partition_of(key, partitions)
        there = spread.get(chosen)
        if there is None:
            spread[chosen] = [item]
        else:
            there.append(item)
    parts = []
    for partition, chosen_items in sorted(spread.items()):
        times = [ts_ms for _, ts_ms, _ in chosen_items]
        payload = encode([_row(item) for item in chosen_items])
        parts.append(Part(topic_id, partition, len(chosen_items), payload, min(times), max(times)))
    return parts


def _row(item: Item) -> tuple[Any, ...]:
    """The record as an array that ends with its last present field."""
    _, ts_ms, record = item
    data, key, tag = record.data, record.key, record.tag
    node, meta = record.node, record.meta
    if meta is not None:
        return (data, ts_ms, key, tag, node, meta)
    if node is not None:
        return (data, ts_ms, key, tag, node)
    if tag is not None:
        return (data, ts_ms, key, tag)
    if key is not None:
        return (data, ts_ms, key)
    return (data, ts_ms)
