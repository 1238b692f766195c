"""The import of one partition of Kafka's. Its position is an offset: that of the next record.

Lifecycle of a record: fetched (by the event loop, for all partitions) -> read (by a thread, into a
block) -> as ``flow.py`` says. The cursor moves in the commit that stores the records. Nothing is
committed to Kafka.

Offsets without a record are passed over: Kafka has compacted the record away, its transaction was
aborted, or the offset is that of a transaction's mark. These cannot be told apart, and are counted
(``absent``). Records that Kafka deletes before they are imported are not passed: that is a
SourceChanged.

A record becomes the row that Kafka's own producers would have stored here: the mapping is the one
of the daemon's listener (docs/decisions/0037-kafka.md), so Kafka's consumers get the same bytes.
"""

from __future__ import annotations

import base64
from collections import deque

import msgspec

from commands.importing.flow import Flow
from commands.importing.governed import GovernedImport, ImportParts, ImportPlan
from commands.importing.kafka.cluster import Ends, FetchedRecord, KafkaTopic
from commands.importing.names import CursorNames
from commands.importing.reading.blocks import SourceBlock, SourceRecord
from commands.importing.reading.problems import SourceChanged, SourceProblem
from commands.importing.reading.reader import Reader, SourceRead
from commands.importing.reading.rules import Invalid, Rules
from daemon.intake.formats.limits import NESTED_CHARACTERS_MIN
from daemon.intake.formats.nesting import nested_deeper
from daemon.schemas.api import LABEL_CHARACTERS_MAX
from daemon.schemas.decoding import NESTING_MAX
from uploader.l0.kafka import BatchError, KafkaRecord, to_row
from uploader.l0.records import TIMESTAMP_MS_MAX


class KafkaRules:
    """The rules for one partition. ``as_json``: as the destination's ``kafka_value`` says."""

    def __init__(self, rules: Rules, source: str, *, as_json: bool) -> None:
        self._rules = rules
        self._source = source
        self._as_json = as_json

    def record(self, offset: int, record: KafkaRecord) -> SourceRecord:
        """What becomes of the record at ``offset``. Raises InvalidRecord."""
        value = record.value or b""
        size = len(value) + len(record.key or b"") + 1
        size += sum(len(name) + len(each or b"") for name, each in record.headers)
        rows: tuple[bytes, ...] = ()
        dead: tuple[bytes, ...] = ()
        try:
            if self._rules.passes(value):
                rows = (self._row(record),)
        except Invalid as error:
            place = (self._source, offset, None, "offset")
            dead = self._rules.dead(str(error), value, len(value), *place)
        return SourceRecord(offset + 1, size, rows, dead)

    def _row(self, record: KafkaRecord) -> bytes:
        """The record as JSON of a produce request. Raises Invalid."""
        try:
            row = to_row(record, as_json=self._as_json)
        except BatchError as error:
            raise Invalid(str(error)) from error
        data, ts, key, _, _, meta = (*row, None, None, None, None, None)[:6]
        if isinstance(data, str):
            text = data.encode()
            size = len(text)
            if size >= NESTED_CHARACTERS_MIN and nested_deeper(text, NESTING_MAX):
                raise Invalid(f"is nested deeper than {NESTING_MAX} levels")
            parts = [b'{"data":', text]
        else:
            size = len(data)
            parts = [b'{"data_b64":"', base64.b64encode(data), b'"']
        if ts is not None:
            if not 0 <= ts <= TIMESTAMP_MS_MAX:
                raise Invalid(f"has the time {ts}; times are from 0 to {TIMESTAMP_MS_MAX} ms")
            parts.append(b',"ts":%d' % ts)
        if key is not None:
            if len(key) > LABEL_CHARACTERS_MAX:
                raise Invalid(
                    f"has a key of {len(key):,} characters (of base64, unless it is UTF-8), more"
                    f" than {LABEL_CHARACTERS_MAX:,}"
                )
            parts += [b',"key":', msgspec.json.encode(key)]
            size += len(key.encode())
        if meta is not None:
            parts += [b',"meta":', meta.encode()]
            size += len(meta.encode())
        self._rules.check_size(size, " with its key and its headers")
        parts.append(b"}")
        return b"".join(parts)


class KafkaPartition:
    """A partition, and what was fetched of it and is not read yet. It is filled by the event loop
    and read by one thread."""

    def __init__(self, topic_url: str, topic_identity: str, number: int, ends: Ends) -> None:
        self.name = f"{topic_url}/{number}"
        self.identity: str | None = f"{topic_identity}\0{number}"
        self.number = number
        self.ends = ends
        self.position = 0  # bytes of the records that were read
        self._fetched: deque[FetchedRecord] = deque()
        self._put_bytes = 0
        self._is_closed = False

    def location(self) -> str:
        return self.name

    def close(self) -> None:
        self._is_closed = True
        self._fetched.clear()
        self._put_bytes = self.position

    @property
    def waiting_bytes(self) -> int:
        """What is fetched and not read."""
        return self._put_bytes - self.position

    @property
    def has_some(self) -> bool:
        return bool(self._fetched)

    def put(self, fetched: FetchedRecord) -> None:
        """What comes next; dropped if nobody reads it any more."""
        if self._is_closed:
            return
        self._put_bytes += fetched.size
        self._fetched.append(fetched)

    def take(self) -> FetchedRecord | None:
        """What came first; None: nothing is here."""
        if not self._fetched:
            return None
        fetched = self._fetched.popleft()
        self.position += fetched.size
        return fetched


class KafkaReader:
    """Blocks of a partition from an offset on. ``ends_at``: reads no more from there on; None: it
    is followed."""

    def __init__(
        self, partition: KafkaPartition, rules: KafkaRules, at: int, ends_at: int | None
    ) -> None:
        self.absent = 0
        self._partition = partition
        self._rules = rules
        self._at = at
        self._ends_at = ends_at
        self._has_ended = False
        self._problem: SourceProblem | None = None

    def read(self, block_bytes: int) -> SourceRead:
        if self._problem is not None:
            return SourceRead(problem=self._problem)
        records: list[SourceRecord] = []
        begin, size = self._at, 0
        while size < block_bytes and not self._has_ended:
            fetched = self._partition.take()
            if fetched is None:
                break
            try:
                record = self._record(fetched)
            except SourceProblem as error:
                self._problem = error
                break
            if record is not None:
                records.append(record)
                size += record.size
        if self._at > begin:
            return SourceRead(SourceBlock(records, self._at), self._has_ended)
        return SourceRead(None, self._has_ended, self._problem)

    @property
    def is_to_fail(self) -> bool:
        """Whether the next read raises what came after the records of the last one."""
        return self._problem is not None

    def grows_no_more(self) -> None:
        """Its end is known from the start."""

    def _record(self, fetched: FetchedRecord) -> SourceRecord | None:
        """Raises SourceProblem."""
        if fetched.problem is not None:
            raise fetched.problem
        ends_at = self._ends_at
        if fetched.record is None:
            self._go_to(fetched.offset)
            self._has_ended = ends_at is not None
            return None
        if ends_at is not None and fetched.offset >= ends_at:
            self._go_to(ends_at)
            self._has_ended = True
            return None
        record = self._rules.record(fetched.offset, fetched.record)
        self._go_to(fetched.offset)
        self._at = record.next
        self._has_ended = ends_at is not None and self._at >= ends_at
        return record

    def _go_to(self, offset: int) -> None:
        if offset > self._at:
            self.absent += offset - self._at
            self._at = offset


class PartitionImport(GovernedImport):
    """Imports a partition; see the head of the module."""

    raw: KafkaPartition
    # After a kill in a stretch that became no records, as many are read again: that takes seconds.
    settle_after = 1_000_000
    settle_quiet_s = 1.0  # each transaction leaves a mark at the end

    def __init__(
        self, raw: KafkaPartition, topic: KafkaTopic, plan: ImportPlan, shared: ImportParts
    ) -> None:
        super().__init__(raw, plan, shared)
        self._topic = topic

    async def _run(self) -> None:
        at, dead_at = await self._blocking(self._open)
        self.report.position = at
        ends_at = None if self._plan.follows else self.raw.ends.high
        if ends_at is not None and at >= ends_at:
            self._is_complete = True
            return
        plan = self._plan
        as_json = plan.target.kafka_value == "json"
        rules = KafkaRules(self._rules, self.raw.name, as_json=as_json)
        reader = KafkaReader(self.raw, rules, at, ends_at)
        await self._blocking(self._topic.begin, self.raw.number, at)
        try:
            await self._import(reader, Flow(at, dead_at, self._leases, plan.limits))
        finally:
            self.report.absent = reader.absent
            await self._blocking(self._topic.end, self.raw.number)

    def _open(self) -> tuple[int, int]:
        """The positions of both cursors, after a look at what Kafka still has. Blocks."""
        plan, cursors = self._plan, self._cursors
        assert self.raw.identity is not None
        self._names = names = CursorNames.of_object(
            plan.target.topic_id, self.raw.identity, self.raw.name
        )
        self.report.cursor = names.cursor
        if plan.restarts:
            cursors.begin_again(names, None)
        at = cursors.take_up(names, None, self._source_now(), anew=False)
        low, high = self.raw.ends
        if at > high:
            raise SourceChanged(
                f"ends at offset {high:,}, and was imported up to {at:,} before: the cluster has"
                " lost records",
                hint="--restart imports it from its start",
            )
        if 0 < at < low:
            raise SourceChanged(
                f"begins at offset {low:,} now, and was imported up to {at:,}: Kafka has deleted"
                f" {low - at:,} offsets in between",
                hint=f"`headgate cursors set {names.cursor} --seq {low}` goes on without them",
            )
        if at < low:
            # What was deleted before the first import counts in no lag.
            at = cursors.settle(names.cursor, at, low)
        return at, self._dead_position()

    def _may_read(self, reader: Reader) -> bool:
        """Whether something was fetched, or failed after what was."""
        if self.raw.has_some or (isinstance(reader, KafkaReader) and reader.is_to_fail):
            return True
        if self._quiet_since is None:
            self._quiet_since = self._daemon.now()
        return False

    def _size(self) -> int | None:
        return self.raw.ends.high
