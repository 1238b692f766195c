"""What must hold in a ledger at any time, as one pass over its tables. For tests and `check`."""

from __future__ import annotations

import sqlite3

import msgspec

from ledger import results


class InvariantBroken(AssertionError):
    """A rule of the ledger does not hold; the message names the rule and the row."""


def check_invariants(connection: sqlite3.Connection) -> None:
    """Raises InvariantBroken. The caller has a read transaction open."""
    _check_commit_numbers(connection)
    _check_partitions(connection)
    _check_results(connection)


def _require(holds: bool, rule: str, *operands: object) -> None:
    if not holds:
        raise InvariantBroken(f"{rule}: {operands}")


def _check_commit_numbers(connection: sqlite3.Connection) -> None:
    latest = results.latest_commit_number(connection)
    count, first, last = connection.execute(
        "SELECT count(*), min(commit_number), max(commit_number) FROM objects"
    ).fetchone()
    if latest:
        _require((count, first, last) == (latest, 1, latest), "commits count from 1", latest, count)
    else:
        _require(count == 0, "an object needs a commit", count)


def _check_partitions(connection: sqlite3.Connection) -> None:
    rows = connection.execute(
        "SELECT topic_id, partition, next_seq, earliest_seq, count, bytes, max_timestamp_ms"
        " FROM partitions"
    ).fetchall()
    seen = 0
    for topic_id, partition, next_seq, earliest_seq, count, size, max_ms in rows:
        name = (topic_id, partition)
        gaps = dict(
            connection.execute(
                "SELECT gap_from, gap_to FROM gaps WHERE topic_id = ? AND partition = ?", name
            )
        )
        offset, live_total, bytes_total, running_ms = _behind(1, gaps), 0, 0, None
        for first, last, records, length, last_ms, max_so_far, blob in connection.execute(
            "SELECT first_offset, last_offset, record_count, byte_length, last_timestamp_ms,"
            " running_max_ms, voids FROM extents WHERE topic_id = ? AND partition = ?"
            " ORDER BY last_offset",
            name,
        ):
            seen += 1
            _require(first == offset, "offsets are dense", name, first, offset)
            end = void = 0
            for start, length_void in [] if blob is None else msgspec.msgpack.decode(blob):
                _require(start >= end and length_void > 0, "voids ascend", name, first, start)
                end, void = start + length_void, void + length_void
            _require(end <= records, "voids lie in their extent", name, first, end, records)
            _require(last - first + 1 == records - void, "live records get offsets", name, first)
            running_ms = last_ms if running_ms is None else max(running_ms, last_ms)
            _require(max_so_far == running_ms, "the running maximum is one", name, first)
            offset = _behind(last + 1, gaps)
            live_total += last - first + 1
            bytes_total += length
        _require(next_seq == offset, "the head agrees with the extents", name, next_seq, offset)
        _require(count == live_total, "the count agrees with the extents", name, count, live_total)
        _require(size == bytes_total, "the bytes agree with the extents", name, size, bytes_total)
        _require(running_ms in (None, max_ms), "the greatest timestamp agrees", name, max_ms)
        _require(1 <= earliest_seq <= next_seq, "the earliest is within", name, earliest_seq)
    total = connection.execute("SELECT count(*) FROM extents").fetchone()[0]
    _require(total == seen, "each extent has its partition", total, seen)


def _check_results(connection: sqlite3.Connection) -> None:
    heads: dict[tuple[int, int], int] = {}
    gaps: dict[tuple[int, int], dict[int, int]] = {}
    for topic_id, partition, gap_from, gap_to in connection.execute(
        "SELECT topic_id, partition, gap_from, gap_to FROM gaps"
    ):
        gaps.setdefault((topic_id, partition), {})[gap_from] = gap_to
    for number in range(1, results.latest_commit_number(connection) + 1):
        commit = results.commit_by_number(connection, number)
        assert commit is not None
        for head in commit.heads:
            key = (head.topic_id, head.partition)
            # A commit without live records may stand on either side of a gap.
            first = heads.get(key, 0) + 1
            if head.head_seq >= first:
                first = _behind(first, gaps.get(key, {}))
            heads[key] = head.head_seq
            given = connection.execute(
                "SELECT first_offset, last_offset FROM extents WHERE topic_id = ? AND partition = ?"
                " AND commit_number = ?",
                (*key, number),
            ).fetchall()
            wanted = [(first, head.head_seq)] if head.head_seq >= first else []
            _require(given == wanted, "a commit's heads are its extents' ends", number, given)
    for topic_id, partition, next_seq in connection.execute(
        "SELECT topic_id, partition, next_seq FROM partitions"
    ):
        head_seq = heads.get((topic_id, partition), 0)
        head_seq = _behind(head_seq + 1, gaps.get((topic_id, partition), {})) - 1
        _require(head_seq == next_seq - 1, "the last commit gave the head", topic_id, partition)


def _behind(offset: int, gaps: dict[int, int]) -> int:
    """The first offset from ``offset`` on that lies in no gap; ``gaps`` are ends by begins."""
    while offset in gaps:
        offset = gaps[offset] + 1
    return offset
