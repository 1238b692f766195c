"""Reads one task of a plan: files, objects, and answers of diff, as Arrow batches.

If an object or a file is missing, it was collected although the lease should have kept it: the
lease expired, or the driver was suspended. The reader then plans the missing offsets again, by
topic id, partition, and offset, and reads them from where they are now. Rows of a partition come
in ascending offsets, so what is missing begins after the last row that was returned, and no row
comes twice.

Offsets that no reader can have are a *loss*: an error that names them, or, if ``failOnDataLoss`` is
false, a line in the task's log.
"""

from __future__ import annotations

import logging
import random
import time
from base64 import b64decode
from collections.abc import Iterator
from functools import partial
from typing import Any
from urllib.parse import quote

import msgspec
import pyarrow as pa
from msgspec import Struct

from compaction.inputs.objects import ExtentBytes, StoreFailed, TaskExtent, fetch_all
from compaction.inputs.place import Place
from compaction.parquet.file_bytes import LakeFileDamaged
from compaction.parquet.merge import EVER_MS, NeedFooter, NeedRows, RowRange, merged
from compaction.parquet.reader import ParquetFooter, read_footer, read_rows
from compaction.parquet.row_builder import RowBuilder
from compaction.parquet.rows import Rows
from compaction.source.bounds import lose
from compaction.source.errors import DataLoss, SourceError, TopicRecreated
from compaction.source.plan import LEASE_MS, RECOVERY
from compaction.source.planner import DaemonPlanner, Planner, plan
from compaction.source.read_tasks import CompactedRange, OffsetRange, ReadTask, losses, tasks_of
from compaction.source.rows import DiffRow, of_diff, of_row_range, of_table, sliced
from compaction.source.schemas import PlanRequest
from shards.clock import monotonic_ns
from uploader.l0 import L0Error
from uploader.lru import LruCache
from uploader.stores.base import ObjectMissing
from uploader.stores.retry import BULK
from uploader.stores.retrying import Retry

log = logging.getLogger("headgate.spark")

BATCH_BYTES = 4 << 20
BATCH_ROWS = 20_000
BATCHES_MAX = 1_000
CACHE_BYTES = 64 << 20  # of row groups, for small files that hold many partitions
CACHE_COUNT_MAX = 100_000  # of row groups that are nearly empty
PLANS_AGAIN_MAX = 3  # of the same offsets; if they are still missing, no collection is the cause
DIFF_RECORDS = 1_000
RECREATED = "recreated"  # a tombstone's reason
_RECREATED = "the topic was deleted and created again"
RENEW_NS = LEASE_MS * 1_000_000 // 3

# When this process last renewed a plan: a worker runs many tasks of one plan.
_renewed_ns: dict[str, int] = {}
_PLANS_MAX = 1_000


def _cache() -> LruCache[Any, Any]:
    return LruCache(CACHE_COUNT_MAX, CACHE_BYTES, lambda each: each.size_bytes)


class TaskReader:
    """Reads one task. ``planner`` plans missing offsets again and renews the lease.

    Rows before ``since_ms`` may be left out if that saves reading them.
    """

    def __init__(
        self, place: Place, planner: Planner, *, fail_on_data_loss: bool, since_ms: int = EVER_MS
    ) -> None:
        self._place = place
        self._planner = planner
        self._fail = fail_on_data_loss
        self._since_ms = since_ms
        self._retry = Retry(BULK, random.Random(monotonic_ns()), time.sleep)
        self._kept: LruCache[tuple[str, int], Rows] = _cache()
        self._footers: LruCache[str, ParquetFooter] = _cache()

    def read(self, task: ReadTask, again: int = 0) -> Iterator[pa.RecordBatch]:
        """The task's rows. Raises SourceError, and StoreError if the store does not answer."""
        for compacted in task.compacted:
            for batch in self._compacted(task, compacted, again):
                self._keep(task.plan)
                yield batch
        if task.objects:
            for batch in self._objects(task, again):
                self._keep(task.plan)
                yield batch
        for offsets in task.through_diff:
            for batch in self._diff(task, offsets):
                self._keep(task.plan)
                yield batch

    def _compacted(
        self, task: ReadTask, compacted: CompactedRange, again: int
    ) -> Iterator[pa.RecordBatch]:
        wanted = compacted.offsets
        topic = task.topics[wanted.topic_id]
        merge = merged(
            compacted.files, wanted.partition, wanted.start, wanted.stop - 1, self._since_ms
        )
        reached = wanted.start
        reply: ParquetFooter | Rows | None = None
        # If days interleave, a row range has only a few rows; small ones are joined.
        batches: list[pa.RecordBatch] = []
        missing: ObjectMissing | None = None
        while True:
            try:
                need = merge.send(reply)
                reply = None
                if isinstance(need, NeedFooter):
                    reply = self._footer(need.path, need.size_bytes)
                elif isinstance(need, NeedRows):
                    reply = self._rows(need)
            except StopIteration:
                break
            except ObjectMissing as error:
                missing = error
                break
            except LakeFileDamaged as error:
                yield from _joined(batches)
                self._lose(topic, wanted.partition, reached, wanted.stop - 1, str(error))
                return
            if isinstance(need, RowRange):
                batches.append(of_row_range(topic, wanted.partition, need))
                reached = need.last_offset + 1
                if len(batches) >= BATCHES_MAX or need.stop - need.start >= BATCH_ROWS // 10:
                    yield from _joined(batches)
        yield from _joined(batches)
        if missing is not None:
            left = OffsetRange(wanted.topic_id, wanted.partition, reached, wanted.stop)
            yield from self._again(task, left, str(missing), again)

    def _footer(self, path: str, size_bytes: int) -> ParquetFooter:
        footer = self._footers.get(path)
        if footer is None:
            footer = self._retry(partial(read_footer, self._place, path, size_bytes))
            self._footers.keep(path, footer)
        return footer

    def _rows(self, need: NeedRows) -> Rows:
        key = (need.footer.path, need.group.index)
        rows = self._kept.get(key)
        if rows is None:
            rows = self._retry(partial(read_rows, need.footer, need.group))
            # A row group of one partition is not read twice; one of several partitions soon is.
            if need.group.partition_min != need.group.partition_max:
                self._kept.keep(key, rows)
        return rows

    def _objects(self, task: ReadTask, again: int) -> Iterator[pa.RecordBatch]:
        ranges = {(each.topic_id, each.partition): each for each in task.uncompacted}
        builders: dict[int, RowBuilder] = {}  # by topic
        try:
            for fetched in fetch_all(self._place, task.objects):
                for extent, data in fetched.extents:
                    whole = ranges[extent.group, extent.partition]
                    wanted = OffsetRange(
                        extent.group, extent.partition, max(extent.first_offset, whole.start),
                        min(extent.last_offset + 1, whole.stop),
                    )  # fmt: skip
                    is_whole = wanted.stop - wanted.start == _length(extent)
                    builder = (
                        builders.setdefault(extent.group, RowBuilder())
                        if is_whole
                        else RowBuilder()
                    )
                    problem = _add(builder, data)
                    if problem or not is_whole:
                        # Rows that were read before must come first.
                        yield from _flushed(task, builders)
                    if problem:
                        yield from self._again(task, wanted, f"{fetched.key}: {problem}", again)
                    elif not is_whole:
                        table, _ = builder.take()
                        first = wanted.start - extent.first_offset
                        table = table.slice(first, wanted.stop - wanted.start)
                        yield of_table(task.topics[extent.group], table)
                if sum(builder.bytes for builder in builders.values()) >= BATCH_BYTES or any(
                    builder.rows >= BATCH_ROWS for builder in builders.values()
                ):
                    yield from _flushed(task, builders)
        except StoreFailed as error:
            raise SourceError(str(error)) from error
        yield from _flushed(task, builders)

    def _again(
        self, task: ReadTask, left: OffsetRange, reason: str, again: int
    ) -> Iterator[pa.RecordBatch]:
        """Plans offsets again and reads them from where they are now."""
        topic = task.topics[left.topic_id]
        where = (topic, left.partition, left.start, left.stop - 1)
        if again >= PLANS_AGAIN_MAX:
            self._lose(*where, f"{reason} (planned again {again} times)")
            return
        request = PlanRequest(
            [topic], {topic: {left.partition: left.start}}, {topic: {left.partition: left.stop}}
        )
        try:
            pages = plan(self._planner, request, {topic: left.topic_id})
        except TopicRecreated:
            self._lose(*where, f"{reason}: {_RECREATED}")
            return
        except SourceError as error:
            # Not a loss: they may be there. The user decides.
            raise SourceError(
                f"offsets {left.start} to {left.stop - 1} of topic {topic!r}, partition"
                f" {left.partition}: {reason}; and they cannot be planned again: {error}. Run the"
                " query again"
            ) from error
        try:
            for page in pages:
                for loss in losses(page):
                    if loss.partition == left.partition:
                        lose(loss, fail=self._fail)
                for fresh in tasks_of(page, bytes_max=1 << 62):
                    only = _only(fresh, left)
                    if _same_objects(task, only):
                        self._lose(*where, reason)
                        return
                    yield from self.read(only, again + 1)
        finally:
            self._end(pages[0].plan)

    def _diff(self, task: ReadTask, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        if not isinstance(self._planner, DaemonPlanner):
            raise SourceError("only a daemon answers diff: readThrough = diff needs 'url'")
        topic = task.topics[wanted.topic_id]
        path = f"/v0/topics/{quote(topic, safe='')}/diff"
        from_seq = wanted.start - 1
        while from_seq + 1 < wanted.stop:
            limit = min(DIFF_RECORDS, wanted.stop - 1 - from_seq)
            asked = {
                "partition": wanted.partition, "from_seq": from_seq, "limit": limit,
                "topic_id": wanted.topic_id,
            }  # fmt: skip
            answer = _decode_answer(self._planner.ask("POST", path, msgspec.json.encode(asked)))
            gap = answer.tombstone
            if gap is not None and gap.reason == RECREATED:
                self._lose(topic, wanted.partition, from_seq + 1, wanted.stop - 1, _RECREATED)
                return
            if gap is not None and gap.reason != RECOVERY:
                first, last = max(gap.gap_from, wanted.start), min(gap.gap_to, wanted.stop - 1)
                if first <= last:
                    self._lose(topic, wanted.partition, first, last, gap.reason)
            rows = [_diff_row(record) for record in answer.records if record.seq < wanted.stop]
            if rows:
                yield of_diff(topic, wanted.partition, rows)
            if answer.next_from_seq <= from_seq:
                raise SourceError(
                    f"the daemon has no offsets after {from_seq} of topic {topic!r}, partition"
                    f" {wanted.partition}, and the plan ends at {wanted.stop - 1}: is it another"
                    " daemon now?"
                )
            from_seq = answer.next_from_seq

    def _lose(self, topic: str, partition: int, first: int, last: int, reason: str) -> None:
        lose(DataLoss(topic, partition, first, last, reason), fail=self._fail)

    def _keep(self, lease: str) -> None:
        """Renews the lease when it is due. If that fails, missing offsets are planned again."""
        now_ns = monotonic_ns()
        due_ns = _renewed_ns.get(lease, now_ns - RENEW_NS) + RENEW_NS
        if not lease or now_ns < due_ns:
            return
        if len(_renewed_ns) >= _PLANS_MAX:
            _renewed_ns.clear()
        _renewed_ns[lease] = now_ns
        try:
            if not self._planner.renew(lease):
                log.warning(
                    "the read lease %s has expired; missing offsets are planned again", lease
                )
        except SourceError as error:
            log.info("the read lease %s cannot be renewed from here: %s", lease, error)

    def _end(self, lease: str) -> None:
        try:
            self._planner.end(lease)
        except SourceError as error:
            log.info("the read lease %s could not be ended and will expire: %s", lease, error)


def _joined(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields the rows of small batches in larger ones, and empties the list."""
    if batches:
        batch = pa.concat_batches(batches) if len(batches) > 1 else batches[0]
        batches.clear()
        yield from sliced(batch, BATCH_ROWS)


def _length(extent: TaskExtent) -> int:
    return extent.last_offset + 1 - extent.first_offset


def _add(builder: RowBuilder, data: ExtentBytes | str) -> str:
    """Adds an extent to a builder. Returns what is wrong with the extent, or an empty string."""
    if isinstance(data, str):
        return data
    try:
        builder.add(data)
    except L0Error as error:
        return str(error)
    return ""


def _flushed(task: ReadTask, builders: dict[int, RowBuilder]) -> Iterator[pa.RecordBatch]:
    for topic_id, builder in builders.items():
        if builder.rows:
            table, _ = builder.take()
            yield of_table(task.topics[topic_id], table)


def _only(task: ReadTask, left: OffsetRange) -> ReadTask:
    """The task with one partition only; a plan has all partitions of its topic."""

    def is_wanted(topic_id: int, partition: int) -> bool:
        return (topic_id, partition) == (left.topic_id, left.partition)

    objects = tuple(
        msgspec.structs.replace(
            each,
            extents=tuple(e for e in each.extents if is_wanted(e.group, e.partition)),
        )
        for each in task.objects
    )
    return msgspec.structs.replace(
        task,
        compacted=tuple(
            each
            for each in task.compacted
            if is_wanted(each.offsets.topic_id, each.offsets.partition)
        ),
        objects=tuple(each for each in objects if each.extents),
        uncompacted=tuple(
            each for each in task.uncompacted if is_wanted(each.topic_id, each.partition)
        ),
    )


def _same_objects(before: ReadTask, now: ReadTask) -> bool:
    """Whether the new plan reads the object that could not be read."""
    return not {each.locator for each in before.objects}.isdisjoint(
        each.locator for each in now.objects
    )


class _Record(Struct):
    seq: int
    ts: int
    data: msgspec.Raw = msgspec.Raw()
    data_b64: str | None = None
    key: str | None = None
    tag: str | None = None
    node: str | None = None
    meta: msgspec.Raw = msgspec.Raw()


class _Tombstone(Struct):
    gap_from: int
    gap_to: int
    reason: str


class _Answer(Struct):
    records: list[_Record]
    next_from_seq: int
    tombstone: _Tombstone | None = None


_decode_answer = msgspec.json.Decoder(_Answer).decode


def _diff_row(record: _Record) -> DiffRow:
    fields = (
        ("tag", record.tag),
        ("node", record.node),
        ("meta", bytes(record.meta).decode() or None),
    )
    return DiffRow(
        record.seq,
        record.ts,
        record.key,
        bytes(record.data) if record.data_b64 is None else b64decode(record.data_b64),
        [(name, value) for name, value in fields if value is not None],
    )
