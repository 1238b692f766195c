"""What must hold in a ledger at any time, as one pass over its tables. For tests and `check`.

Rows of collected objects are removed with those of their extents. So extents may be missing up to a
partition's *bound* (``space/marking.py``), but not above it. Whatever exists follows the same rules
everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import Struct

from ledger import commits
from ledger.checks import lake_rules
from ledger.checks.lake_rules import InvariantBroken, offset_ranges, require, require_none
from ledger.decide import PartitionKey
from ledger.delivery import copy_paths
from ledger.delivery.progress import ROW_BYTES, ROW_OFFSETS
from ledger.errors import ResultCleared
from ledger.lake.coverage import OffsetRanges
from ledger.space.marking import BOUND
from ledger.tx import ReadTx

__all__ = ["InvariantBroken", "check"]


def broken(tx: ReadTx) -> str | None:
    """The first rule that does not hold; reads everything."""
    try:
        check(tx)
    except InvariantBroken as error:
        return str(error)
    return None


def check(tx: ReadTx) -> None:
    """Raises InvariantBroken; reads everything."""
    _check_commit_numbers(tx)
    _check_objects(tx)
    gaps = offset_ranges(tx, "SELECT topic_id, partition, gap_from, gap_to FROM gaps")
    _check_partitions(tx, gaps)
    _check_results(tx, gaps)
    lake_rules.check_lake(tx)
    _check_cursors(tx)
    _check_routers(tx)
    _check_subscriptions(tx)
    require_none(
        tx,
        "the number of partitions is that of the rows",
        "SELECT partitions FROM state"
        " WHERE partitions != (SELECT count(*) FROM partitions WHERE deleted = 0)",
    )
    require_none(
        tx,
        "no two live topics have one table",
        "SELECT table_name, count(*) FROM topics WHERE deleted_ms IS NULL"
        " AND table_name IS NOT NULL GROUP BY table_name HAVING count(*) > 1",
    )


def _check_cursors(tx: ReadTx) -> None:
    require_none(
        tx,
        "ids of cursors and numbers of changes have been given",
        "SELECT cursor_id, changed FROM cursors, state WHERE changed > change_number"
        " OR changed < 1 OR cursor_id > last_cursor_id OR cursor_id < 1",
    )
    require_none(
        tx,
        "a position is of a living cursor and of a change that was made",
        "SELECT p.cursor_id, partition FROM cursor_positions AS p, state LEFT JOIN cursors AS c"
        " ON c.cursor_id = p.cursor_id WHERE c.cursor_id IS NULL OR c.deleted_ms IS NOT NULL"
        " OR p.changed > change_number OR p.changed < 1 OR p.set_change > p.changed"
        " OR p.seq < 0 OR p.partition < 0",
    )
    require_none(
        tx,
        "a group of Kafka has committed only of living topics",
        "SELECT name FROM cursors WHERE kind = 'kafka' AND deleted_ms IS NULL AND NOT EXISTS"
        " (SELECT 1 FROM topics WHERE topic_id = CAST(substr(cursors.name, 7) AS INTEGER)"
        " AND topics.deleted_ms IS NULL)",
    )


def _check_routers(tx: ReadTx) -> None:
    require_none(
        tx,
        "a living router has a living cursor of its own, and topics that exist",
        "SELECT r.router_id FROM routers AS r LEFT JOIN cursors AS c ON c.cursor_id = r.cursor_id"
        " WHERE r.deleted_ms IS NULL AND (c.kind IS NOT 'router' OR c.deleted_ms IS NOT NULL"
        " OR c.name IS NOT 'router/' || r.name"
        " OR NOT EXISTS (SELECT 1 FROM topics WHERE topic_id = r.source_id)"
        " OR NOT EXISTS (SELECT 1 FROM topics WHERE topic_id = r.dest_id))",
    )


def _check_subscriptions(tx: ReadTx) -> None:
    require_none(
        tx,
        "a living subscription has a living topic and a living cursor of its own",
        "SELECT s.subscription_id FROM subscriptions AS s"
        " LEFT JOIN cursors AS c ON c.cursor_id = s.cursor_id"
        " LEFT JOIN topics AS t ON t.topic_id = s.topic_id"
        " WHERE s.deleted_ms IS NULL AND (c.kind IS NOT 'subscription' OR c.deleted_ms IS NOT NULL"
        " OR c.name IS NOT 'subscription/' || s.topic_id || '/' || s.name"
        " OR t.topic_id IS NULL OR t.deleted_ms IS NOT NULL)",
    )
    require_none(
        tx,
        "a floor is at most the last offset",
        "SELECT c.name, p.partition, p.seq FROM cursor_positions AS p"
        " JOIN subscriptions AS s ON s.cursor_id = p.cursor_id"
        " JOIN cursors AS c ON c.cursor_id = p.cursor_id"
        " LEFT JOIN partitions AS at ON at.topic_id = s.topic_id AND at.partition = p.partition"
        " WHERE at.next_seq IS NULL OR p.seq >= at.next_seq",
    )
    require_none(
        tx,
        "what is finished is of a living subscription, of a change that was made, and not passed",
        "SELECT f.cursor_id, f.partition, row_number FROM finished_rows AS f, state"
        " LEFT JOIN cursor_positions AS p"
        " ON p.cursor_id = f.cursor_id AND p.partition = f.partition"
        " LEFT JOIN subscriptions AS s ON s.cursor_id = f.cursor_id AND s.deleted_ms IS NULL"
        " WHERE s.subscription_id IS NULL OR f.changed > change_number OR f.changed < 1"
        f" OR length(bits) <> {ROW_BYTES}"
        f" OR row_number < (COALESCE(p.seq, 0) + 1) / {ROW_OFFSETS}",
    )
    edges = copy_paths.edges(tx)
    for source, dests in edges.items():
        for dest in dests:
            way = copy_paths.path(edges, dest, source)
            require(way is None, "routers and dead letters form no cycle", source, way)


def _check_commit_numbers(tx: ReadTx) -> None:
    latest = commits.latest_number(tx)
    count, first, last = tx.execute(
        "SELECT count(*), min(commit_number), max(commit_number) FROM objects"
    ).fetchone()
    if latest:
        require(last == latest and first >= 1, "the last commit's object stays", latest, last)
    else:
        require(count == 0, "an object needs a commit", count)


def _check_objects(tx: ReadTx) -> None:
    for table in ("extents", "void_extents"):
        require_none(
            tx,
            "each extent has its object",
            f"SELECT * FROM {table}"
            " WHERE NOT EXISTS (SELECT 1 FROM objects AS o WHERE o.commit_number ="
            f" {table}.commit_number)",
        )
    require_none(
        tx,
        "an object has all its extents",
        "SELECT commit_number, extents FROM objects AS o WHERE extents <>"
        " (SELECT count(*) FROM extents AS e WHERE e.commit_number = o.commit_number)"
        " + (SELECT count(*) FROM void_extents AS v WHERE v.commit_number = o.commit_number)",
    )
    needed = (
        "SELECT 1 FROM extents AS e JOIN partitions AS p"
        " ON p.topic_id = e.topic_id AND p.partition = e.partition"
        " WHERE e.commit_number = o.commit_number AND e.last_offset >"
    )
    require_none(
        tx,
        "nothing in an unreferenced object is needed",
        "SELECT commit_number, key FROM objects AS o WHERE free_ms IS NOT NULL"
        f" AND (EXISTS ({needed} {BOUND}) OR key IN (SELECT key FROM quarantine))",
    )
    require_none(
        tx,
        "an object without needed extents is marked as unreferenced",
        "SELECT commit_number, key FROM objects AS o WHERE free_ms IS NULL"
        f" AND NOT EXISTS ({needed} p.freed_seq) AND key NOT IN (SELECT key FROM quarantine)"
        " AND EXISTS (SELECT 1 FROM extents AS e WHERE e.commit_number = o.commit_number)",
    )


class _Partition(Struct, frozen=True, array_like=True):
    topic_id: int
    partition: int
    next_seq: int
    earliest_seq: int
    count: int
    bytes: int
    max_timestamp_ms: int
    compacted_seq: int
    lost_seq: int
    lost_reason: str
    freed_seq: int
    deleted: int
    bound: int

    @property
    def name(self) -> PartitionKey:
        return self.topic_id, self.partition


def _partitions(tx: ReadTx) -> Iterator[_Partition]:
    rows = tx.execute(
        "SELECT topic_id, partition, next_seq, earliest_seq, count, bytes, max_timestamp_ms,"
        f" compacted_seq, lost_seq, lost_reason, freed_seq, deleted, {BOUND} FROM partitions AS p"
    ).fetchall()
    return (_Partition(*row) for row in rows)


def _check_partitions(tx: ReadTx, gaps: dict[PartitionKey, OffsetRanges]) -> None:
    seen = 0
    for one in _partitions(tx):
        name, without = one.name, gaps.get(one.name, OffsetRanges(()))
        require(without.overlapping() is None, "gaps do not overlap", name, without.overlapping())
        require(
            1 <= one.earliest_seq <= one.next_seq,
            "the earliest offset is at most the next",
            name,
            one,
        )
        require(0 <= one.compacted_seq < one.next_seq, "compacted offsets were given", name, one)
        require(0 <= one.lost_seq < one.earliest_seq, "lost offsets are evicted", name, one)
        require(
            (one.lost_reason in ("cap", "ttl")) if one.lost_seq else not one.lost_reason,
            "a loss has its reason", name, one,
        )  # fmt: skip
        require(0 <= one.freed_seq <= one.bound, "the marking is at most at the bound", name, one)
        seen += _check_extents(tx, one, without)
        readable = without.count_outside(one.earliest_seq, one.next_seq - 1)
        require(
            one.count == readable, "the count is that of the readable records", name, one, readable
        )
        require(one.count > 0 or one.bytes == 0, "without records there are no bytes", name, one)
    total = tx.execute("SELECT count(*) FROM extents").fetchone()[0]
    require(total == seen, "each extent has its partition", total, seen)


def _check_extents(tx: ReadTx, one: _Partition, gaps: OffsetRanges) -> int:
    name, bound = one.name, one.bound
    seen = bytes_needed = 0
    running_ms: int | None = None
    offset = gaps.next_outside(1)

    def missing(end: int, rule: str) -> bool:
        """Whether offsets before ``end`` are in no extent; all of them must be unneeded."""
        require(offset <= end, rule, name, offset, end)
        if offset == end:
            return False
        require(gaps.last_outside(end - 1) <= bound, rule, name, offset, end)
        return True

    for first, last, records, length, last_ms, max_so_far, blob in tx.execute(
        "SELECT first_offset, last_offset, record_count, byte_length, last_timestamp_ms,"
        " running_max_ms, voids FROM extents WHERE topic_id = ? AND partition = ?"
        " ORDER BY last_offset",
        name,
    ):
        seen += 1
        lacking = missing(first, "offsets are dense")
        require(gaps.count_outside(first, last) == last - first + 1, "no record is in a gap", name,
                 first)  # fmt: skip
        require(not first <= one.compacted_seq < last, "an extent is compacted as a whole", name,
                 first, last, one.compacted_seq)  # fmt: skip
        end = void = 0
        for start, length_void in [] if blob is None else msgspec.msgpack.decode(blob):
            require(start >= end and length_void > 0, "voids ascend", name, first, start)
            end, void = start + length_void, void + length_void
        require(end <= records, "voids lie in their extent", name, first, end, records)
        require(
            last - first + 1 == records - void,
            "records that are not void have offsets",
            name,
            first,
        )
        least_ms = last_ms if running_ms is None else max(running_ms, last_ms)
        # A removed extent may have had a later time.
        holds = max_so_far >= least_ms if lacking else max_so_far == least_ms
        require(holds, "the running maximum is right", name, first)
        running_ms = max_so_far
        offset = gaps.next_outside(last + 1)
        bytes_needed += length if last > bound else 0
    if not missing(one.next_seq, "the head agrees with the extents") and running_ms is not None:
        require(running_ms == one.max_timestamp_ms, "the greatest timestamp agrees", name)
    if not one.deleted:
        readable = bytes_needed + _bytes_of_l1(tx, one)
        require(
            one.bytes == readable,
            "the bytes are those of the readable records",
            name,
            one,
            readable,
        )
    return seen


def _bytes_of_l1(tx: ReadTx, one: _Partition) -> int:
    """Bytes up to ``compacted_seq``: of files' ranges, and of extents in quarantine."""
    (ranges,) = tx.execute(
        "SELECT COALESCE(sum(r.bytes), 0) FROM lake_ranges AS r JOIN lake_files AS f"
        " ON f.file_id = r.file_id WHERE r.topic_id = ? AND r.partition = ?"
        " AND r.last_offset >= ? AND f.dropped_ms IS NULL",
        (*one.name, one.earliest_seq),
    ).fetchone()
    (holes,) = tx.execute(
        "SELECT COALESCE(sum(e.byte_length), 0) FROM extents AS e WHERE e.topic_id = ?"
        " AND e.partition = ? AND e.last_offset >= ? AND e.last_offset <= ?"
        " AND (e.topic_id, e.partition, e.last_offset) IN"
        " (SELECT topic_id, partition, last_offset FROM quarantine)",
        (*one.name, one.earliest_seq, one.compacted_seq),
    ).fetchone()
    return int(ranges) + int(holes)


def _check_results(tx: ReadTx, gaps: dict[PartitionKey, OffsetRanges]) -> None:
    heads: dict[PartitionKey, tuple[int, int]] = {}  # the last head, and the commit that gave it
    missing = number = 0  # the last commit whose object was removed
    for (there,) in tx.execute("SELECT commit_number FROM objects ORDER BY 1").fetchall():
        missing = there - 1 if there > number + 1 else missing
        number = there
        try:
            commit = commits.by_number(tx, number)
        except ResultCleared:
            missing = number  # what it gave is checked only by its extents
            continue
        for head in commit.heads:
            key = (head.topic_id, head.partition)
            before, at = heads.get(key, (0, 0))
            # A commit without offsets may be on either side of a gap.
            first = before + 1
            if head.head_seq >= first:
                first = gaps[key].next_outside(first) if key in gaps else first
            heads[key] = (head.head_seq, number)
            given = tx.execute(
                "SELECT first_offset, last_offset FROM extents WHERE topic_id = ? AND partition = ?"
                " AND commit_number = ?",
                (*key, number),
            ).fetchall()
            if missing > at:
                # Commits in between gave offsets that are not needed any more.
                holds = not given or (given[0][0] >= first and given[0][1] == head.head_seq)
                holds = holds and head.head_seq >= before
            else:
                holds = given == ([(first, head.head_seq)] if head.head_seq >= first else [])
            require(holds, "a commit's heads are its extents' ends", number, given, head, before)
    for topic_id, partition, next_seq in tx.execute(
        "SELECT topic_id, partition, next_seq FROM partitions"
    ):
        key = (topic_id, partition)
        head_seq, at = heads.get(key, (0, 0))
        following = gaps[key].next_outside(head_seq + 1) if key in gaps else head_seq + 1
        require(
            following <= next_seq if missing > at else following == next_seq,
            "the last commit gave the head", topic_id, partition, next_seq,
        )  # fmt: skip
