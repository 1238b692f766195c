"""Reads a topic by repeated ``diff`` requests.

It begins at an offset, a time or the last N records. Several partitions are merged by the times of
their records, each in its own order, up to the head that it had at the beginning; a page of each is
in memory. ``follow`` then continues with a stream of all of them (stream.py), in the order of the
commits. More partitions than a stream can have are polled in turn, and an empty one delays the
others by POLL_SHARED_MS in all.

A tail reads the last N offsets of every partition and keeps the N newest records by timestamp.
The Reader prints nothing: the lines of a page go to ``emit``, warnings of gaps to ``warn``.
"""

from __future__ import annotations

import contextlib
import heapq
import re
from collections.abc import Callable, Iterator

import msgspec
from msgspec import UNSET, Struct

from commands.client.http import Client, decoded, topic_path
from commands.client.records import iso_ms
from commands.client.stream import RECREATED, WatchStream
from commands.client.topics import state_of
from commands.quantities import duration_ms
from delivery.filters import Filter, compiled
from delivery.schemas import BYTES_MAX, DiffAnswer, DiffRecord, DiffRequest
from delivery.streams.events import WatchRecord, WatchTombstone
from delivery.watch.token import PLACES_MAX

PAGE_RECORDS = 1_000  # the most records of one answer
POLL_SHARED_MS = 500
MERGED_BYTES = 64 << 20  # of the pages that are merged; a single larger record comes alone
MERGED_PAGE_BYTES_MIN = 64 << 10
EVERYTHING = Filter()


class Start(Struct, frozen=True):
    """Where to begin. At most one is given; none means at the first record."""

    from_seq: int | None = None
    from_ts: int | None = None
    tail: int | None = None


class ReadResume(Struct, frozen=True):
    """Where to continue a read that ended: the topic, and for each partition an offset, or the time
    at which a partition that was not begun starts. Printed as ``TOPIC_ID:P=SEQ,P@MS``."""

    topic_id: int
    starts: dict[int, Start]

    def __str__(self) -> str:
        places = [
            f"{partition}={start.from_seq or 0}" if start.from_ts is None
            else f"{partition}@{start.from_ts}"
            for partition, start in self.starts.items()
        ]  # fmt: skip
        return f"{self.topic_id}:{','.join(places)}"


def parse_resume(text: str) -> ReadResume:
    """Reads a resume point as it was printed. Raises ValueError."""
    number = r"[0-9]{1,18}"
    place = rf"[0-9]{{1,3}}[=@]{number}"
    if re.fullmatch(rf"{number}:{place}(,{place})*", text) is None:
        raise ValueError(f"{text!r} is not a resume point, like 7:0=120,1=98")
    topic_id, _, places = text.partition(":")
    starts = {}
    for each in places.split(","):
        partition, mark, at = re.split("([=@])", each)
        start = Start(from_seq=int(at)) if mark == "=" else Start(from_ts=int(at))
        starts[int(partition)] = start
    return ReadResume(int(topic_id), starts)


def since_ms(text: str, now_ms: int) -> int:
    """Epoch milliseconds of ``1h`` ago, or of an ISO 8601 time (UTC without an offset).

    Raises ValueError for anything else.
    """
    with contextlib.suppress(ValueError):
        return max(0, int(now_ms - duration_ms(text)))
    try:
        return max(0, iso_ms(text))
    except ValueError:
        raise ValueError(
            f"must be a duration like 90s, 15m, 1h, 2d or a time like 2026-01-31T12:00:00Z, got"
            f" {text!r}"
        ) from None


class TopicReader:
    """Reads a topic, or one ``partition`` of it, once; ``follow`` then waits for new records.

    Each call waits ``patience_ms`` for a daemon that answered before, and ``reach_ms`` for one
    that never did.
    """

    def __init__(
        self,
        client: Client,
        topic: str,
        start: Start | ReadResume,
        partition: int | None,
        *,
        patience_ms: float,
        reach_ms: float,
        emit: Callable[[list[bytes]], None],
        warn: Callable[[str], None],
        with_meta: bool = False,
        as_text: bool = False,
        only: Filter = EVERYTHING,
        records_max: int | None = None,
    ) -> None:
        self._client = client
        self._topic = topic
        self._emit = emit
        self._warn = warn
        self._with_meta = with_meta
        self._as_text = as_text
        named = {"tag": only.tag, "node": only.node, "key": only.key}
        self._patterns = {name: text for name, text in named.items() if text is not None}
        self._left = records_max
        self._unprinted: list[bytes] = []
        self._patience_ms = patience_ms
        self._reach_ms = reach_ms
        self._is_whole = partition is None
        self._tail = start.tail if isinstance(start, Start) else None
        self._topic_ids: dict[int, int] = {}  # of which topic ``_next`` is an offset
        self._next: dict[int, Start] = {}
        if isinstance(start, ReadResume):
            self._next = dict(start.starts)
            self._topic_ids = dict.fromkeys(start.starts, start.topic_id)
        else:
            whole = partition is None
            partitions = list(self._heads()[1]) if whole else [partition or 0]
            self._next = dict.fromkeys(partitions, start)

    def done(self) -> bool:
        """Whether all records that were asked for have been emitted."""
        return self._left is not None and self._left <= 0

    def resume(self) -> ReadResume | None:
        """Where to continue; None before the first answer, and while a tail is read."""
        if self._tail is not None or not self._topic_ids:
            return None
        newest = max(self._topic_ids.values())
        # An offset of a deleted topic means nothing in the new one, which is read from its start.
        starts = {
            partition: Start(from_seq=0) if self._topic_ids.get(partition, newest) != newest
            else start
            for partition, start in self._next.items()
        }  # fmt: skip
        return ReadResume(newest, starts)

    def read(self) -> None:
        """Emits the records that are there."""
        if self._tail is not None:
            self._read_tail(self._tail)
            self._tail = None
            return
        page_bytes = max(MERGED_PAGE_BYTES_MIN, min(BYTES_MAX, MERGED_BYTES // len(self._next)))
        lanes = [self._lane(partition, page_bytes) for partition in self._next]
        try:
            for *_, line in heapq.merge(*lanes):
                self._unprinted.append(line)
                if len(self._unprinted) == self._left:
                    return
        finally:
            self._flush()

    def follow(self) -> None:
        """Emits records as they are committed, until ``done`` or an exception."""
        if len(self._next) > PLACES_MAX or not (self._is_whole or len(self._next) == 1):
            self._poll()
        elif not self.done():
            self._watch()

    def _watch(self) -> None:
        position = {
            (self._topic_ids[partition], partition): start.from_seq or 0
            for partition, start in self._next.items()
        }
        only = {} if self._is_whole else {"partition": str(next(iter(self._next)))}
        only |= self._patterns
        stream = WatchStream(
            self._client, topic_path(self._topic, "watch"), only, {self._topic: None}, position,
            patience_ms=self._patience_ms, reach_ms=self._reach_ms,
        )  # fmt: skip
        try:
            for told in stream.told():
                if isinstance(told, list):
                    self._print([self._line(each.partition, each.record) for each in told])
                elif isinstance(told, WatchTombstone):
                    self._warn_of(told.partition, told.gap_from, told.gap_to, told.reason)
                if self.done():
                    return
        finally:
            position = stream.position
            self._topic_ids = {partition: topic_id for topic_id, partition in position}
            self._next = {key[1]: Start(from_seq=seq) for key, seq in position.items()}

    def _poll(self) -> None:
        while not self.done():
            wait_ms = max(1, POLL_SHARED_MS // len(self._next))
            for partition in list(self._next):
                page = self._diff(partition, self._limit(), wait_ms)
                self._print(self._lines(partition, page.records))
                if self.done():
                    return

    def _read_tail(self, count: int) -> None:
        newest: list[tuple[int, int, int, bytes]] = []
        topic_id, heads = self._heads()
        for partition in list(self._next):
            self._topic_ids[partition] = topic_id
            self._next[partition] = Start(from_seq=max(0, heads.get(partition, 0) - count))
            for page in self._pages(partition, PAGE_RECORDS):
                for record in filter(self._is_wanted, page.records):
                    # The line, not the record, which would keep its whole answer in memory.
                    item = (record.ts, partition, record.seq, self._line(partition, record))
                    keep = heapq.heappush if len(newest) < count else heapq.heappushpop
                    keep(newest, item)
        self._print([line for *_, line in sorted(newest)])

    def _lane(self, partition: int, page_bytes: int) -> Iterator[tuple[int, int, int, bytes]]:
        """The records of a partition as (time, partition, offset, line). What it has given counts
        as read when it is asked for more, and is printed before the next page is asked for."""
        for page in self._pages(partition, self._limit(), page_bytes):
            after = self._next[partition]
            for record in filter(self._is_wanted, page.records):
                self._next[partition] = Start(from_seq=record.seq - 1)
                yield record.ts, partition, record.seq, self._line(partition, record)
            self._next[partition] = after
            self._flush()

    def _flush(self) -> None:
        lines, self._unprinted = self._unprinted, []
        self._print(lines)

    def _limit(self) -> int:
        if self._left is None or self._patterns:
            return PAGE_RECORDS
        return max(1, min(PAGE_RECORDS, self._left))

    def _heads(self) -> tuple[int, dict[int, int]]:
        state = state_of(self._client, self._topic, self._waits_ms())
        return state.topic_id, {each.partition: each.head_seq for each in state.partitions}

    def _waits_ms(self) -> float:
        return self._patience_ms if self._client.reached else self._reach_ms

    def _pages(
        self, partition: int, limit: int, page_bytes: int = BYTES_MAX
    ) -> Iterator[DiffAnswer]:
        """Pages up to the head that the first page names: a writer may be faster than we are."""
        head_seq: int | None = None
        while True:
            page = self._diff(partition, limit, 0, page_bytes)
            yield page
            head_seq = page.head_seq if head_seq is None or _is_recreated(page) else head_seq
            if page.caught_up or page.next_from_seq >= head_seq:
                return

    def _diff(
        self, partition: int, limit: int, wait_ms: int, page_bytes: int = BYTES_MAX
    ) -> DiffAnswer:
        start = self._next[partition]
        by_time = start.from_ts is not None
        ask = DiffRequest(
            from_seq=UNSET if by_time else start.from_seq or 0,
            from_ts=start.from_ts if start.from_ts is not None else UNSET,
            topic_id=UNSET if by_time else self._topic_ids.get(partition, UNSET),
            partition=partition, limit=limit, max_bytes=page_bytes, wait_ms=wait_ms,
        )  # fmt: skip
        body = self._client.call(
            "POST", topic_path(self._topic, "diff"), msgspec.json.encode(ask),
            patience_ms=self._waits_ms(), silent_ms=wait_ms,
        )  # fmt: skip
        page = decoded(self._client, body, DiffAnswer)
        gap = page.tombstone
        if gap is not None:
            self._warn_of(partition, gap.gap_from, gap.gap_to, gap.reason)
        self._next[partition] = Start(from_seq=page.next_from_seq)
        self._topic_ids[partition] = page.topic_id
        if _is_recreated(page) and self._is_whole:
            # A new topic may have more partitions; the daemon refuses those it no longer has.
            for each in self._heads()[1]:
                self._next.setdefault(each, Start(from_seq=0))
        return page

    def _warn_of(self, partition: int, gap_from: int, gap_to: int, reason: str) -> None:
        if reason != RECREATED:
            self._warn(
                f"records {gap_from} to {gap_to} of partition {partition} of {self._topic} are"
                f" gone: {reason}"
            )
            return
        missed = "no record of it was missed"
        if gap_to >= gap_from:
            missed = f"records {gap_from} to {gap_to} of it are gone"
        self._warn(
            f"{self._topic} was deleted and created again; partition {partition} continues at the"
            f" start of the new topic; {missed}"
        )

    def _lines(self, partition: int, records: list[DiffRecord]) -> list[bytes]:
        return [self._line(partition, each) for each in records if self._is_wanted(each)]

    def _is_wanted(self, record: DiffRecord) -> bool:
        return all(
            (text := getattr(record, name)) is not UNSET and compiled(pattern)(text)
            for name, pattern in self._patterns.items()
        )

    def _line(self, partition: int, record: DiffRecord) -> bytes:
        if self._with_meta:
            return whole_line(partition, record)
        return text_line(record) if self._as_text else data_line(record)

    def _print(self, lines: list[bytes]) -> None:
        shown = lines if self._left is None else lines[: self._left]
        if not shown:
            return
        if self._left is not None:
            self._left -= len(shown)
        self._emit(shown)


def _is_recreated(page: DiffAnswer) -> bool:
    """The cursor belongs to a deleted topic of this name: offsets begin again."""
    return page.tombstone is not None and page.tombstone.reason == RECREATED


def data_line(record: DiffRecord) -> bytes:
    """The data of the record on one line; bytes as ``{"data_b64": ...}``."""
    if record.data_b64 is not UNSET:
        return msgspec.json.encode({"data_b64": record.data_b64})
    return _one_line(b"null" if record.data is UNSET else bytes(record.data))


def text_line(record: DiffRecord) -> bytes:
    """A text without its quotes, as ``produce --format lines`` takes it; else as ``data_line``."""
    line = data_line(record)
    return msgspec.json.decode(line, type=str).encode() if line[:1] == b'"' else line


def whole_line(partition: int, record: DiffRecord, topic: str | None = None) -> bytes:
    """The record as ``diff`` returns it, on one line, with its topic, if given, and its partition
    first."""
    if isinstance(record, WatchRecord):
        record = msgspec.structs.replace(record, topic=UNSET, partition=UNSET)
    named = b"" if topic is None else b'"topic":%b,' % msgspec.json.encode(topic)
    return b'{%b"partition":%d,' % (named, partition) + _one_line(msgspec.json.encode(record))[1:]


def _one_line(text: bytes) -> bytes:
    """JSON text is printed as it was written, unless it spans lines."""
    return msgspec.json.format(text, indent=-1) if b"\n" in text or b"\r" in text else text
