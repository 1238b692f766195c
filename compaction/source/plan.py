"""Makes the plan of a bulk reader from the ledger: which files and objects it reads.

A *plan* covers offsets [from, to) of partitions: the *files* that have what is compacted, the
*extents* of L0 objects that have the rest, and *holes*, offsets that no reader can have. It is made
in *pages* of limited size: if ``next`` of a page is not null, the page covers less than was
requested, and ``next`` requests the rest. As in Kafka, *from* is inclusive and *to* exclusive.

A plan may be made by several reads of the ledger: files are used up to the ``compacted_seq`` that
was read first, extents above it. A compaction that switches between two reads adds files, of which
offsets above are ignored, and removes no extent, because the read lease is older than the switch.

One planner serves the daemon (``POST /v0/plans``) and a source that opens the ledger itself.
Asks the ledger, and nothing else; pyarrow and pyspark are not imported.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field

from compaction.source.schemas import (
    Offsets,
    Plan,
    PlanExtent,
    PlanFile,
    PlanHole,
    PlanObject,
    PlanPartition,
    PlanRange,
    PlanRequest,
    PlanStore,
)
from ledger import reads
from ledger.lake import lake_files, lake_tables
from ledger.tx import ReadTx
from ledger.types import Extent, PartitionState, Topic

FILES_AT_ONCE = 1_000
LEASE_MS = 300_000
RECOVERY = "recovery"  # the reason of a hole that never had records


class PlanInvalid(ValueError):
    """A request that cannot be planned, because of its ``field``."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.field = name


class Asked(Struct, frozen=True):
    """Offsets [start, stop) of one partition of a topic, before they are looked up."""

    topic: Topic
    state: PartitionState
    start: int
    stop: int


class Page(Struct):
    """A page of a plan while it is built, partition by partition."""

    limit: int
    partitions: list[PlanPartition] = field(default_factory=list)
    extents: list[list[tuple[Extent, str]]] = field(default_factory=list)
    ranges: dict[str, tuple[int, Topic, list[PlanRange]]] = field(default_factory=dict)
    holes: list[PlanHole] = field(default_factory=list)
    left: list[tuple[str, int, int, int]] = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        return self.limit <= 0


def wanted(
    topic: Topic, states: Sequence[PartitionState], starts: Mapping[int, int],
    stops: Mapping[int, int],
) -> list[Asked]:  # fmt: skip
    """The requested offsets of a topic, checked against its partitions. Raises PlanInvalid."""
    by_number = {state.partition: state for state in states}
    for name, offsets in (("from", starts), ("to", stops)):
        for partition, offset in offsets.items():
            state = by_number.get(partition)
            at = f"{name}.{topic.name}.{partition}"
            if state is None:
                raise PlanInvalid(
                    at, f"topic {topic.name!r} has partitions 0 to {len(states) - 1}, not"
                    f" {partition}",
                )  # fmt: skip
            if not 1 <= offset <= state.next_seq:
                raise PlanInvalid(
                    at, f"{at} is {offset}; the partition's offsets begin at 1 and its next one"
                    f" is {state.next_seq}",
                )  # fmt: skip
    found = []
    for state in states:
        start = starts.get(state.partition, state.earliest_seq)
        stop = stops.get(state.partition, state.next_seq)
        if start > stop and state.partition in starts and state.partition in stops:
            raise PlanInvalid(
                f"from.{topic.name}.{state.partition}",
                f"from is {start} and to is {stop} in partition {state.partition} of topic"
                f" {topic.name!r}: there is nothing to read",
            )
        found.append(Asked(topic, state, start, max(start, stop)))
    return found


def fill(tx: ReadTx, page: Page, asked: Asked) -> None:
    """Adds requested offsets to the page while it has room; the rest goes to ``left``.

    Each call is a short read of the ledger.
    """
    topic, state = asked.topic, asked.state
    name, topic_id, partition = topic.name, topic.topic_id, state.partition
    start = max(asked.start, min(state.earliest_seq, asked.stop))
    stop = asked.stop
    if start >= stop:
        stop = start
    elif page.is_full:
        page.left.append((name, partition, asked.start, stop))
        return
    else:
        stop = _fill_files(tx, page, asked, start, stop)
        stop = _fill_extents(tx, page, asked, start, stop)
    page.partitions.append(
        PlanPartition(
            name, topic_id, partition, state.earliest_seq, state.head_seq, state.compacted_seq,
            start, stop,
        )
    )  # fmt: skip
    _fill_holes(tx, page, asked, stop)
    if stop < asked.stop:
        page.left.append((name, partition, stop, asked.stop))


def _fill_files(tx: ReadTx, page: Page, asked: Asked, start: int, stop: int) -> int:
    """Adds files for what is compacted of [start, stop). Returns where the page ends."""
    topic, state = asked.topic, asked.state
    below = min(stop, state.compacted_seq + 1)
    if start >= below:
        return stop
    limit = min(page.limit, FILES_AT_ONCE)
    while True:
        found = lake_files.ranges_from(tx, topic.topic_id, state.partition, start, limit + 1)
        cut = found[limit].range.first_offset if len(found) > limit else below
        if cut > start:
            break
        limit *= 2  # that many files of other days begin before the next offset
    for file in found:
        one = file.range
        if one.first_offset < min(cut, below):
            entry = page.ranges.setdefault(file.path, (file.size_bytes, topic, []))
            entry[2].append(
                PlanRange(one.partition, one.first_offset, one.last_offset, one.rows, one.bytes)
            )
            page.limit -= 1
    return min(cut, stop) if cut < below else stop


def _fill_extents(tx: ReadTx, page: Page, asked: Asked, start: int, stop: int) -> int:
    topic, state = asked.topic, asked.state
    above = max(start, state.compacted_seq + 1)
    if above >= stop:
        return stop
    if page.is_full:
        return above
    holes = lake_tables.holes_among(tx, topic.topic_id, state.partition, above, stop - 1)
    found = reads.extents_from(tx, topic.topic_id, state.partition, above, page.limit + 1)
    if len(found) > page.limit:
        stop = min(stop, found[page.limit].first_offset)
    planned = [
        (extent, topic.name)
        for extent in found[: page.limit]
        if extent.first_offset < stop
        and not any(
            h.first_offset <= extent.last_offset and h.last_offset >= extent.first_offset
            for h in holes
        )
    ]
    page.extents.append(planned)
    page.limit -= len(planned)
    return stop


def _fill_holes(tx: ReadTx, page: Page, asked: Asked, stop: int) -> None:
    """Adds the offsets of [asked.start, stop) that cannot be read or never had records."""
    topic, state = asked.topic, asked.state
    key = (topic.topic_id, state.partition)
    found = [(gap.gap_from, gap.gap_to, gap.reason) for gap in reads.gaps(tx, *key)]
    found += [
        (hole.first_offset, hole.last_offset, "quarantined")
        for hole in lake_tables.holes_among(tx, *key, asked.start, stop - 1)
    ]
    if asked.start < min(state.earliest_seq, stop):
        reason = state.lost_reason if asked.start <= state.lost_seq else "trim"
        found.append((asked.start, state.earliest_seq - 1, reason or "trim"))
    for first, last, reason in found:
        first, last = max(first, asked.start), min(last, stop - 1)
        if first <= last:
            page.holes.append(PlanHole(topic.name, *key, first, last, reason))


def finished(page: Page, plan: str, expires_ms: int, store: PlanStore) -> Plan:
    """The answer made of a page."""
    left: PlanRequest | None = None
    if page.left:
        starts: Offsets = {}
        stops: Offsets = {}
        for topic, partition, start, stop in page.left:
            starts.setdefault(topic, {})[partition] = start
            stops.setdefault(topic, {})[partition] = stop
        # Partitions that are done must not be read again from their earliest offset.
        for done in page.partitions:
            if done.topic in starts and done.partition not in starts[done.topic]:
                starts[done.topic][done.partition] = done.to
                stops[done.topic][done.partition] = done.to
        left = PlanRequest(sorted(starts), starts, stops, plan)
    return Plan(
        plan=plan,
        expires_ms=expires_ms,
        store=store,
        partitions=page.partitions,
        objects=_objects(page.extents),
        files=[
            PlanFile(path, size, topic.name, topic.topic_id, ranges)
            for path, (size, topic, ranges) in page.ranges.items()
        ],
        holes=page.holes,
        next=left,
    )


def _objects(partitions: Iterable[list[tuple[Extent, str]]]) -> list[PlanObject]:
    """Extents by object, in an order in which the offsets of each partition ascend.

    The order of commits is one. It is found by a topological sort of the partitions' orders, so
    that the ledger can be read along its index by offset.
    """
    queues = [extents for extents in partitions if extents]
    waits: dict[str, int] = {}  # object -> partitions with an earlier extent that is not placed
    holds: dict[str, list[tuple[int, int]]] = {}  # object -> positions of its extents in the queues
    for number, queue in enumerate(queues):
        for index, (extent, _) in enumerate(queue):
            holds.setdefault(extent.locator, []).append((number, index))
            waits[extent.locator] = waits.get(extent.locator, 0) + (index > 0)
    ready = deque(locator for locator in holds if waits[locator] == 0)
    objects: list[PlanObject] = []
    while ready:
        locator = ready.popleft()
        extents = [queues[number][index] for number, index in holds[locator]]
        objects.append(
            PlanObject(
                extents[0][0].key,
                locator,
                extents[0][0].object_size_bytes,
                [_extent(extent, name) for extent, name in extents],
            )
        )
        for number, index in holds[locator]:
            if index + 1 < len(queues[number]):
                after = queues[number][index + 1][0].locator
                waits[after] -= 1
                if waits[after] == 0:
                    ready.append(after)
    if len(objects) != len(holds):
        raise AssertionError("no order of commits fits the ledger's extents")
    return objects


def _extent(extent: Extent, name: str) -> PlanExtent:
    return PlanExtent(
        topic=name,
        topic_id=extent.topic_id,
        partition=extent.partition,
        first_offset=extent.first_offset,
        last_offset=extent.last_offset,
        record_count=extent.record_count,
        byte_start=extent.byte_start,
        byte_length=extent.byte_length,
        crc32c=extent.crc32c,
        codec=extent.codec,
        voids=extent.voids,
    )
