"""What is wrong with a ledger's offsets and extents, each place named; for ``check``.

``invariants.py`` says whether all rules hold and stops at the first that does not. This pass goes
on, and names the object, so that somebody can act. It only reads.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from msgspec import Struct


class Unsound(Struct, frozen=True):
    """A place in a partition where offsets overlap or are missing, or an extent outside its
    object. ``key`` is the object of the extent there; empty at the end of a partition."""

    kind: str
    key: str
    topic: str
    partition: int
    problem: str


def unsound_extents(connection: sqlite3.Connection) -> Iterator[Unsound]:
    """All such places, by topic and partition. The caller has a read transaction open."""
    gaps: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for topic_id, partition, gap_from, gap_to in connection.execute(
        "SELECT topic_id, partition, gap_from, gap_to FROM gaps ORDER BY 1, 2, 3"
    ):
        gaps.setdefault((topic_id, partition), []).append((gap_from, gap_to))
    partitions = connection.execute(
        "SELECT p.topic_id, p.partition, p.next_seq, t.name FROM partitions AS p"
        " LEFT JOIN topics AS t ON t.topic_id = p.topic_id ORDER BY 1, 2"
    ).fetchall()
    for topic_id, partition, next_seq, name in partitions:
        declared = gaps.get((topic_id, partition), [])
        topic = name if name is not None else f"(id {topic_id})"
        yield from _of_partition(connection, topic_id, partition, next_seq, topic, declared)


def _of_partition(
    connection: sqlite3.Connection, topic_id: int, partition: int, next_seq: int, topic: str,
    gaps: list[tuple[int, int]],
) -> Iterator[Unsound]:  # fmt: skip
    expected = 1
    for first, last, byte_end, key, size_bytes in connection.execute(
        "SELECT e.first_offset, e.last_offset, e.byte_start + e.byte_length, o.key, o.size_bytes"
        " FROM extents AS e LEFT JOIN objects AS o ON o.commit_number = e.commit_number"
        " WHERE e.topic_id = ? AND e.partition = ? ORDER BY e.last_offset",
        (topic_id, partition),
    ):
        where = f"offsets {first} to {last} of {topic}, partition {partition}"
        if key is None:
            yield Unsound("extent", "", topic, partition, f"{where} are in an object that no row"
                          " names")  # fmt: skip
        elif byte_end > size_bytes:
            yield Unsound("extent", key, topic, partition, f"{where} end at byte {byte_end} of an"
                          f" object of {size_bytes} bytes")  # fmt: skip
        if first < expected:
            yield Unsound("overlap", key or "", topic, partition,
                          f"{where} overlap offsets before {expected}")  # fmt: skip
        elif (lacking := _behind(expected, gaps)) < first:
            yield Unsound("gap", key or "", topic, partition,
                          f"offsets {lacking} to {first - 1} of {topic}, partition {partition},"
                          " are in no object and in no declared gap")  # fmt: skip
        expected = max(expected, last + 1)
    lacking = _behind(expected, gaps)
    if lacking != next_seq:
        yield Unsound("gap" if lacking < next_seq else "overlap", "", topic, partition,
                      f"the next offset of {topic}, partition {partition}, is {next_seq}, but its"
                      f" objects end before {lacking}")  # fmt: skip


def _behind(offset: int, gaps: list[tuple[int, int]]) -> int:
    for gap_from, gap_to in gaps:
        if gap_from == offset:
            offset = gap_to + 1
    return offset
