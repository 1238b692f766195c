"""What is wrong with a ledger's offsets and extents, each place named; for ``check``.

``invariants.py`` stops at the first rule that does not hold. This pass continues, and names the
object, so that an operator can act. It only reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from msgspec import Struct

from ledger.checks.lake_rules import l1_problems, offset_ranges
from ledger.decide import PartitionKey
from ledger.lake.coverage import OffsetRange, OffsetRanges
from ledger.space.marking import BOUND
from ledger.tx import ReadTx


class OffsetProblem(Struct, frozen=True):
    """A place where offsets overlap or are missing, or an extent outside its object.

    ``key`` is the object of the extent there; empty at the end of a partition, and for what the
    files of L1 lack or hold twice.
    """

    kind: str
    key: str
    topic: str
    partition: int
    problem: str


def problems(tx: ReadTx, limit: int) -> list[OffsetProblem]:
    """At most ``limit`` such places, by topic and partition; reads all extents."""
    return list(islice(_problems(tx), limit))


def _problems(tx: ReadTx) -> Iterator[OffsetProblem]:
    """All such places, by topic and partition."""
    gaps = offset_ranges(tx, "SELECT topic_id, partition, gap_from, gap_to FROM gaps")
    of_l1 = dict(l1_problems(tx))
    partitions = tx.execute(
        f"SELECT p.topic_id, p.partition, p.next_seq, {BOUND}, t.name FROM partitions AS p"
        " LEFT JOIN topics AS t ON t.topic_id = p.topic_id ORDER BY 1, 2"
    ).fetchall()
    for topic_id, partition, next_seq, bound, name in partitions:
        key = (topic_id, partition)
        declared = gaps.get(key, OffsetRanges(()))
        topic = name if name is not None else f"(id {topic_id})"
        yield from _of_partition(tx, key, next_seq, bound, topic, declared)
        if key in of_l1:
            kind, problem = of_l1[key]
            yield OffsetProblem(
                kind, "", topic, partition, f"{topic}, partition {partition}: {problem}"
            )


def _of_partition(
    tx: ReadTx, of: PartitionKey, next_seq: int, bound: int, topic: str,
    gaps: OffsetRanges,
) -> Iterator[OffsetProblem]:  # fmt: skip
    partition = of[1]
    expected = 1
    for first, last, byte_end, key, size_bytes in tx.execute(
        "SELECT e.first_offset, e.last_offset, e.byte_start + e.byte_length, o.key, o.size_bytes"
        " FROM extents AS e LEFT JOIN objects AS o ON o.commit_number = e.commit_number"
        " WHERE e.topic_id = ? AND e.partition = ? ORDER BY e.last_offset",
        of,
    ):
        where = f"offsets {first} to {last} of {topic}, partition {partition}"
        if key is None:
            yield OffsetProblem(
                "extent", "", topic, partition, f"{where} are in an object that has no row"
            )
        elif byte_end > size_bytes:
            yield OffsetProblem(
                "extent", key, topic, partition,
                f"{where} end at byte {byte_end} of an object of {size_bytes} bytes",
            )  # fmt: skip
        if first < expected:
            yield OffsetProblem("overlap", key or "", topic, partition,
                          f"{where} overlap offsets before {expected}")  # fmt: skip
        elif (lacking := _lacking(expected, first - 1, bound, gaps)) is not None:
            yield OffsetProblem("gap", key or "", topic, partition,
                          f"offsets {lacking[0]} to {lacking[1]} of {topic}, partition"
                          f" {partition}, are in no object and in no declared gap")  # fmt: skip
        expected = max(expected, last + 1)
    begin = gaps.next_outside(expected)
    lacking = _lacking(begin, next_seq - 1, bound, gaps)
    if lacking is not None or begin > next_seq:
        yield OffsetProblem("overlap" if lacking is None else "gap", "", topic, partition,
                      f"the next offset of {topic}, partition {partition}, is {next_seq}, but its"
                      f" objects end before {begin}")  # fmt: skip


def _lacking(first: int, last: int, bound: int, gaps: OffsetRanges) -> OffsetRange | None:
    """The offsets above ``bound``, which L1 has, that are not in a gap."""
    first, last = gaps.next_outside(max(first, bound + 1)), gaps.last_outside(last)
    return (first, last) if first <= last else None
