"""What runs on executors: map tasks read objects and write, reducers write what is shuffled.

These functions exchange pairs with Spark, of a key ``(reducer, group, partition, first offset)``
and bytes. The bytes are a *chunk*, extents of one file group as a msgpack array of at most
CHUNK_BYTES_MAX, unless a single extent is larger; or, if the group is REPORT, a *report*. Reducers
pass reports on and add their own. So bytes of extents are shuffled, never rows, and the job returns
only reports.

If a file group cannot be written, its topic has failed: the task reports why and continues with
the other groups; the driver commits nothing of that topic.

A task attempt that fails leaves files that no report names. A repeated map task writes other files
and another report; exactly one of the reports reaches the driver, because Spark counts the result
of a reducer once.

pyspark is imported only on executors, and pandas is not needed.
"""

from __future__ import annotations

import ctypes
import functools
import resource
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing

import msgspec
import pyarrow as pa
from msgspec import Struct

from compaction.inputs.objects import ExtentBytes, TaskExtent, fetch_all
from compaction.inputs.place import Place
from compaction.parquet.row_builder import TimesSetAside
from compaction.parquet.writer import Syncs, WrittenFile
from compaction.run.chunk_sort import by_key
from compaction.run.file_groups import TopicWork, write_file_group
from compaction.run.job_plan import FileGroup, MapTask
from ledger.lake.types import Hole

CHUNK_BYTES_MAX = 1 << 20
# PySpark gathers up to 10 elements per reducer, at most 1,000, before it sends them on.
GATHERED_BYTES_MAX = 128 << 20
REPORT = -1
# For glibc's mallopt: smaller buffers come from the heap, and the heap keeps this much at its end.
_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES = -1, 1 << 30
_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES = -3, 1 << 30
REPORT_FILES_MAX = 1000  # in one report; a footer has a few KB
ERROR_CHARACTERS_MAX = 300
# The store of the lake fails, or Arrow refuses a value. A lack of memory fails the task instead.
_UNWRITABLE = (OSError, ValueError, ArithmeticError, pa.ArrowException)

Key = tuple[int, int, int, int]
"""(reducer, group, partition, first offset): where a chunk goes, and its position there."""

Count = Callable[[int, int], None]
"""Called with (objects read, bytes of L0 written)."""


class Setup(Struct, frozen=True):
    """What all tasks of a job have in common; it is pickled with the functions."""

    place: Place
    run: str
    topics: tuple[TopicWork, ...]


class TaskReport(Struct, frozen=True, array_like=True):
    """What a task did, or a part of it. ``kept`` are files that should have joined and could not
    be read, with the reason; ``failed`` are ids of topics that could not be written, with the
    reason; ``set_aside`` has the topic's id too."""

    files: tuple[WrittenFile, ...] = ()
    holes: tuple[Hole, ...] = ()
    joined: tuple[str, ...] = ()
    kept: tuple[tuple[str, str], ...] = ()
    objects: int = 0
    bytes_read: int = 0
    requests: int = 0
    memory_peak_bytes: int = 0
    set_aside: tuple[tuple[int, TimesSetAside], ...] = ()
    failed: tuple[tuple[int, str], ...] = ()


class _ChunkExtent(ExtentBytes):
    """An extent out of a chunk; its bytes are a view of the chunk's."""

    data: memoryview


_encode = msgspec.msgpack.Encoder().encode
_decode_chunk = msgspec.msgpack.Decoder(list[_ChunkExtent]).decode
decode_report = msgspec.msgpack.Decoder(TaskReport).decode
_decode_task = msgspec.msgpack.Decoder(MapTask).decode
encode_task: Callable[[MapTask], bytes] = _encode


class TaskWriter:
    """Writes file groups in one task attempt and collects its report. It does not use Spark."""

    def __init__(self, setup: Setup, attempt: int) -> None:
        self._setup = setup
        # The attempt's number is unique in a Spark application only, and a run may have several.
        self._task = attempt * 10**8 + secrets.randbelow(10**8)
        self._syncs = Syncs()
        self._files: list[WrittenFile] = []
        self._holes: list[Hole] = []
        self._joined: list[str] = []
        self._kept: list[tuple[str, str]] = []
        self._set_aside: list[tuple[int, TimesSetAside]] = []
        self._failed: dict[int, str] = {}
        self.objects = 0
        self.bytes_read = 0
        self.requests = 0

    def hole(self, topic: int, extent: TaskExtent, key: str, reason: str) -> None:
        """Reports an extent that cannot be read; ``topic`` is its index."""
        self._holes.append(
            Hole(
                self._setup.topics[topic].topic_id,
                extent.partition,
                extent.first_offset,
                extent.last_offset,
                key,
                reason,
            )
        )

    def write(self, group: FileGroup, extents: list[ExtentBytes]) -> None:
        """Writes a group and empties ``extents``. A failure is noted for the report."""
        topic = self._setup.topics[group.topic]
        try:
            result = write_file_group(
                self._setup.place,
                self._syncs,
                topic,
                extents,
                group.joining,
                self._setup.run,
                self._task,
                len(self._files),
            )
        except MemoryError:
            raise
        except _UNWRITABLE as error:
            said = " ".join(str(error).split())[:ERROR_CHARACTERS_MAX]
            self._failed.setdefault(topic.topic_id, f"{type(error).__name__}: {said}")
            extents.clear()
            return
        self._files += result.files
        self._holes += result.holes
        self._joined += result.joined
        self._kept += result.kept
        self._set_aside += [(topic.topic_id, each) for each in result.set_aside]

    def reports(self) -> Iterator[TaskReport]:
        """The task's report, in parts if it has many files. The files are durable then."""
        self._syncs.wait()
        yield TaskReport(
            tuple(self._files[:REPORT_FILES_MAX]),
            tuple(self._holes),
            tuple(self._joined),
            tuple(self._kept),
            self.objects,
            self.bytes_read,
            self.requests,
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            tuple(self._set_aside),
            tuple(self._failed.items()),
        )
        for start in range(REPORT_FILES_MAX, len(self._files), REPORT_FILES_MAX):
            yield TaskReport(files=tuple(self._files[start : start + REPORT_FILES_MAX]))

    def close(self) -> None:
        """Ends the threads. Without ``reports`` before, the attempt is given up."""
        self._syncs.close()


def run_map_task(
    task: MapTask, shuffled: Sequence[FileGroup], writer: TaskWriter, setup: Setup, count: Count
) -> Iterator[tuple[Key, bytes]]:
    """Reads the task's objects, yields what is shuffled, then writes its local groups."""
    local = {group.number: group for group in task.local}
    others = {group.number: group for group in shuffled}
    extents: dict[int, list[ExtentBytes]] = {number: [] for number in local}
    for fetched in fetch_all(setup.place, task.objects):
        for extent, data in fetched.extents:
            if isinstance(data, str):
                group = local.get(extent.group) or others[extent.group]
                writer.hole(group.topic, extent, fetched.key, data)
                continue
            extents.setdefault(extent.group, []).append(data)
        writer.objects += 1
        writer.bytes_read += fetched.bytes_read
        writer.requests += fetched.requests
        count(1, 0)
    reducers = 1 + max((group.reducer or 0 for group in shuffled), default=0)
    chunk_bytes = chunk_bytes_for(reducers)
    for number in sorted(extents.keys() - local.keys()):
        yield from _chunks(others[number], extents.pop(number), chunk_bytes)
    for number, group in local.items():
        of_group = extents.pop(number)
        size = sum(len(extent.data) for extent in of_group)
        writer.write(group, of_group)
        count(0, size)


def chunk_bytes_for(reducers: int) -> int:
    """The size of chunks with which PySpark gathers at most GATHERED_BYTES_MAX."""
    return min(CHUNK_BYTES_MAX, GATHERED_BYTES_MAX // min(10 * reducers, 1000))


def _chunks(
    group: FileGroup, extents: list[ExtentBytes], chunk_bytes: int
) -> Iterator[tuple[Key, bytes]]:
    def chunk() -> tuple[Key, bytes]:
        first = part[0]
        return (group.reducer or 0, group.number, first.partition, first.first_offset), _encode(
            part
        )

    extents.sort(key=lambda extent: (extent.partition, extent.first_offset))
    part: list[ExtentBytes] = []
    size = 0
    for extent in extents:
        if part and size + len(extent.data) > chunk_bytes:
            yield chunk()
            part, size = [], 0
        part.append(extent)
        size += len(extent.data)
    yield chunk()


class MapFunction:
    """For ``mapPartitions`` over encoded map tasks: yields chunks and reports.

    A class rather than a closure, so that pickle stores its name and not this module's code.
    """

    def __init__(self, setup: Setup, shuffled: Sequence[FileGroup], count: Count) -> None:
        self._setup = setup
        self._shuffled = tuple(shuffled)
        self._reducers = max((group.reducer or 0 for group in shuffled), default=0) + 1
        self._count = count

    def __call__(self, tasks: Iterable[bytes]) -> Iterator[tuple[Key, bytes]]:
        for each in tasks:
            _keep_memory()
            task = _decode_task(each)
            with closing(TaskWriter(self._setup, _attempt())) as writer:
                yield from run_map_task(task, self._shuffled, writer, self._setup, self._count)
                for report in writer.reports():
                    yield (task.number % self._reducers, REPORT, 0, 0), _encode(report)


def reducer_of(key: Key) -> int:
    """Spark's partition of a key: the reducer's number, so each reducer has its own."""
    return key[0]


class ReduceFunction:
    """For ``mapPartitions`` over one reducer's pairs, in any order: yields reports."""

    def __init__(self, setup: Setup, shuffled: Sequence[FileGroup], count: Count) -> None:
        self._setup = setup
        self._groups = {group.number: group for group in shuffled}
        self._count = count

    def __call__(self, pairs: Iterable[tuple[Key, bytes]]) -> Iterator[tuple[Key, bytes]]:
        _keep_memory()
        number = REPORT
        extents: list[ExtentBytes] = []
        with closing(TaskWriter(self._setup, _attempt())) as writer:
            for key, body in by_key(pairs):
                if key[1] == REPORT:
                    yield key, body
                    continue
                if key[1] != number:
                    self._end(writer, number, extents)
                    number, extents = key[1], []
                extents += _decode_chunk(body)
            self._end(writer, number, extents)
            for report in writer.reports():
                yield (0, REPORT, 0, 0), _encode(report)

    def _end(self, writer: TaskWriter, number: int, extents: list[ExtentBytes]) -> None:
        if number != REPORT:
            size = sum(len(extent.data) for extent in extents)
            writer.write(self._groups[number], extents)
            self._count(0, size)


def _attempt() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else int(context.taskAttemptId())


@functools.cache
def _keep_memory() -> None:
    """Lets this process keep freed memory, if its C library is glibc.

    A task allocates and frees buffers of megabytes all the time, and each new page costs a fault:
    up to a quarter of a task's CPU time on a virtual machine.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES)
