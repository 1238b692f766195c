"""``headgate read``: records of a topic as NDJSON, by repeated ``diff``.

Where to start: everything, the offset behind ``from_seq``, a time, or the last N records. Several
partitions are read one after the other, each to the head it had when its turn came; with
``follow`` they are then polled in turn. One partition alone is followed by a long poll and shows a
record at once; of several, one that is empty holds up the others for ``POLL_SHARED_MS`` at most.

``tail`` reads the last N offsets of every partition and keeps the newest N of them, by timestamp.
The Reader prints nothing: a page's lines go to ``emit``, gaps to ``warn``.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import click
import msgspec
from msgspec import Struct

from commands.client import Client, Refused, UnknownAnswer, Unreachable, topic_path
from commands.exits import failure
from commands.options import client_option, parsed_by
from commands.output import print_lines, say
from shards.clock import wall_ms

RECREATED = "recreated"  # a tombstone's reason
PAGE_RECORDS = 1_000  # the most that diff gives at once
POLL_ALONE_MS = 20_000  # below the client's own timeout and diff's 30 s
POLL_SHARED_MS = 500
TAIL_MAX = 100_000  # a tail is held in memory
DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
DURATION_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Start(Struct, frozen=True):
    """At most one is given; none of them means from the beginning."""

    from_seq: int | None = None
    from_ts: int | None = None
    tail: int | None = None

    def query(self) -> dict[str, Any]:
        if self.from_ts is not None:
            return {"from_ts": self.from_ts}
        return {"from_seq": self.from_seq or 0}


class Resume(Struct, frozen=True):
    """Where a read that ended goes on, and of which topic: by partition an offset, or the time
    that it was to begin with. Printed as ``TOPIC_ID:P=SEQ,P@MS``."""

    topic_id: int
    starts: dict[int, Start]

    def __str__(self) -> str:
        places = [
            f"{partition}={start.from_seq or 0}" if start.from_ts is None
            else f"{partition}@{start.from_ts}"
            for partition, start in self.starts.items()
        ]  # fmt: skip
        return f"{self.topic_id}:{','.join(places)}"


def parse_resume(text: str) -> Resume:
    """A resume point as it was printed. Raises ValueError."""
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
    return Resume(int(topic_id), starts)


class Gap(Struct, frozen=True):
    """Offsets that a reader does not get, inclusive, and why."""

    gap_from: int
    gap_to: int
    reason: str


class Page(Struct, frozen=True):
    """An answer of diff; records stay as they came."""

    records: list[msgspec.Raw]
    next_from_seq: int
    head_seq: int
    caught_up: bool
    topic_id: int
    tombstone: Gap | None = None

    @property
    def is_anew(self) -> bool:
        """The cursor was of a former topic of this name: offsets begin again."""
        return self.tombstone is not None and self.tombstone.reason == RECREATED


class _Line(Struct):
    seq: int
    ts: int
    data: msgspec.Raw = msgspec.Raw()
    data_b64: str | None = None


class _Partition(Struct):
    partition: int
    head_seq: int


class _Topic(Struct):
    topic_id: int
    partitions: list[_Partition]


_page_decoder = msgspec.json.Decoder(Page)
_line_decoder = msgspec.json.Decoder(_Line)


def since_ms(text: str, now_ms: int) -> int:
    """Epoch milliseconds of ``1h`` ago, or of an ISO 8601 time (UTC without an offset).

    Raises ValueError for anything else.
    """
    match = DURATION.fullmatch(text.strip())
    if match is not None:
        return max(0, int(now_ms - float(match[1]) * DURATION_MS[match[2]]))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is neither a duration like 90s, 15m, 1h, 2d nor a time like"
            " 2026-01-31T12:00:00Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0, int(moment.timestamp() * 1000))


def heads_of(client: Client, topic: str, patience_ms: float) -> tuple[int, dict[int, int]]:
    """A topic's id, and the last committed offset of each of its partitions."""
    body = client.call("GET", topic_path(topic), patience_ms=patience_ms)
    try:
        state = msgspec.json.decode(body, type=_Topic)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UnknownAnswer(f"an answer of {client.url} cannot be read: {error}") from error
    return state.topic_id, {each.partition: each.head_seq for each in state.partitions}


class Reader:
    """Reads ``topic`` once, all of it or one ``partition``, from ``start`` on or from a resume
    point; ``follow`` then goes on from where it stands. Each call waits ``patience_ms`` for a
    daemon that does not answer, and ``reach_ms`` for one that never did."""

    def __init__(
        self,
        client: Client,
        topic: str,
        start: Start | Resume,
        partition: int | None,
        *,
        patience_ms: float,
        reach_ms: float,
        emit: Callable[[list[bytes]], None],
        warn: Callable[[str], None],
        with_meta: bool = False,
        records_max: int | None = None,
    ) -> None:
        self._client = client
        self._topic = topic
        self._emit = emit
        self._warn = warn
        self._with_meta = with_meta
        self._left = records_max
        self._patience_ms = patience_ms
        self._reach_ms = reach_ms
        self._is_whole = partition is None
        self._tail = start.tail if isinstance(start, Start) else None
        self._topic_ids: dict[int, int] = {}  # of which topic ``_next`` is an offset
        self._next: dict[int, Start] = {}
        if isinstance(start, Resume):
            self._next = dict(start.starts)
            self._topic_ids = dict.fromkeys(start.starts, start.topic_id)
        else:
            whole = partition is None
            partitions = list(self._heads()[1]) if whole else [partition or 0]
            self._next = dict.fromkeys(partitions, start)

    def done(self) -> bool:
        """As many records as were asked for have been emitted."""
        return self._left is not None and self._left <= 0

    def resume(self) -> Resume | None:
        """Where to go on; None when nothing was emitted for good yet, or a tail was under way."""
        if self._tail is not None or not self._topic_ids:
            return None
        newest = max(self._topic_ids.values())
        # An offset of a former topic is none of the new one: of that everything is left.
        starts = {
            partition: Start(from_seq=0) if self._topic_ids.get(partition, newest) != newest
            else start
            for partition, start in self._next.items()
        }  # fmt: skip
        return Resume(newest, starts)

    def read(self) -> None:
        """Emits what is there, partition by partition."""
        if self._tail is not None:
            self._read_tail(self._tail)
            self._tail = None
            return
        for partition in list(self._next):
            for page in self._pages(partition, self._limit()):
                self._print(partition, page.records)
                if self.done():
                    return

    def follow(self) -> None:
        """Emits what is committed from now on, until ``done`` or an exception ends it."""
        while not self.done():
            alone = len(self._next) == 1
            wait_ms = POLL_ALONE_MS if alone else max(1, POLL_SHARED_MS // len(self._next))
            for partition in list(self._next):
                page = self._diff(partition, self._limit(), wait_ms)
                self._print(partition, page.records)
                if self.done():
                    return

    def _read_tail(self, count: int) -> None:
        newest: list[tuple[int, int, int, bytes]] = []
        topic_id, heads = self._heads()
        for partition in list(self._next):
            self._topic_ids[partition] = topic_id
            self._next[partition] = Start(from_seq=max(0, heads.get(partition, 0) - count))
            for page in self._pages(partition, PAGE_RECORDS):
                for record in page.records:
                    line = _line_decoder.decode(record)
                    item = (line.ts, partition, line.seq, bytes(record))
                    keep = heapq.heappush if len(newest) < count else heapq.heappushpop
                    keep(newest, item)
        for _, partition, _, text in sorted(newest):
            self._print(partition, [msgspec.Raw(text)])
            if self.done():
                return

    def _limit(self) -> int:
        return PAGE_RECORDS if self._left is None else max(1, min(PAGE_RECORDS, self._left))

    def _heads(self) -> tuple[int, dict[int, int]]:
        return heads_of(self._client, self._topic, self._waits_ms())

    def _waits_ms(self) -> float:
        return self._patience_ms if self._client.reached else self._reach_ms

    def _pages(self, partition: int, limit: int) -> Iterator[Page]:
        """Pages up to the head as the first one names it, for a writer may be faster."""
        head_seq: int | None = None
        while True:
            page = self._diff(partition, limit, 0)
            yield page
            head_seq = page.head_seq if head_seq is None or page.is_anew else head_seq
            if page.caught_up or page.next_from_seq >= head_seq:
                return

    def _diff(self, partition: int, limit: int, wait_ms: int) -> Page:
        ask = self._next[partition].query()
        ask |= {"partition": partition, "limit": limit, "wait_ms": wait_ms}
        if "from_seq" in ask and partition in self._topic_ids:
            ask["topic_id"] = self._topic_ids[partition]
        body = self._client.call(
            "POST", topic_path(self._topic, "diff"), msgspec.json.encode(ask),
            patience_ms=self._waits_ms(), silent_ms=wait_ms,
        )  # fmt: skip
        try:
            page = _page_decoder.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise UnknownAnswer(
                f"an answer of {self._client.url} cannot be read: {error}"
            ) from error
        gap = page.tombstone
        if gap is not None and page.is_anew:
            missed = f"records {gap.gap_from} to {gap.gap_to} of it are gone"
            self._warn(
                f"{self._topic} was deleted and made anew; partition {partition} goes on from the"
                f" new topic's start; {missed if gap.gap_to >= gap.gap_from else 'none was missed'}"
            )
        elif gap is not None:
            self._warn(
                f"records {gap.gap_from} to {gap.gap_to} of partition {partition} of"
                f" {self._topic} are gone: {gap.reason}"
            )
        self._next[partition] = Start(from_seq=page.next_from_seq)
        self._topic_ids[partition] = page.topic_id
        if page.is_anew and self._is_whole:
            # A new topic may have more partitions; where it has fewer, reading them is refused.
            for each in self._heads()[1]:
                self._next.setdefault(each, Start(from_seq=0))
        return page

    def _print(self, partition: int, records: list[msgspec.Raw]) -> None:
        shown = records if self._left is None else records[: self._left]
        if not shown:
            return
        if self._left is not None:
            self._left -= len(shown)
        if self._with_meta:
            self._emit([whole_line(partition, record) for record in shown])
        else:
            self._emit([data_line(record) for record in shown])


def data_line(record: msgspec.Raw) -> bytes:
    """The record's data on one line; bytes as ``{"data_b64": ...}``."""
    line = _line_decoder.decode(record)
    if line.data_b64 is not None:
        return msgspec.json.encode({"data_b64": line.data_b64})
    return _one_line(bytes(line.data) or b"null")


def whole_line(partition: int, record: msgspec.Raw) -> bytes:
    """The record as diff gave it, on one line, with its partition in front."""
    return b'{"partition":%d,' % partition + _one_line(bytes(record).strip())[1:]


def _one_line(text: bytes) -> bytes:
    """JSON text keeps its spelling unless it spans lines."""
    return msgspec.json.format(text, indent=-1) if b"\n" in text or b"\r" in text else text


@click.command()
@click.argument("topic")
@click.option("--follow", "-f", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@click.option("--since", metavar="TIME", help="From 90s, 15m, 1h, 2d ago, or an ISO 8601 time.")
@click.option("--tail", type=click.IntRange(1, TAIL_MAX), metavar="N", help="The newest N.")
@click.option("--from-seq", type=click.IntRange(0), metavar="N", help="Behind this offset.")
@click.option("-n", "--records", type=click.IntRange(1), metavar="N", help="End after N records.")
@click.option("--partition", type=click.IntRange(0, 999), metavar="P", help="Only this one.")
@click.option("--with-meta", is_flag=True, help="Whole records, not only their data.")
@click.option(
    "--resume",
    metavar="POINT",
    callback=parsed_by(parse_resume),
    help="Go on where a run of this command ended, whatever else says where to begin.",
)
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(0, 86_400),
    metavar="SECONDS",
    help="At most this long for a daemon that does not answer, or says that it is busy; 60 for one"
    " that answered before, else 0.",
)
@client_option
def read(
    topic: str,
    follow: bool,
    since: str | None,
    tail: int | None,
    from_seq: int | None,
    records: int | None,
    partition: int | None,
    with_meta: bool,
    resume: Resume | None,
    wait_s: float | None,
    client: Client,
) -> None:
    """Print the records of TOPIC as NDJSON, from the beginning by default.

    A daemon that restarts is waited for, a minute at most. One that was never reached is not,
    unless --wait is given. A run that ends early names where to go on.

    \b
    Examples:
      headgate read orders --tail 10 --follow
      headgate read orders --follow --resume 7:0=120,1=98
    """
    if sum(choice is not None for choice in (since, tail, from_seq)) > 1:
        raise click.UsageError("--since, --tail and --from-seq exclude each other")
    try:
        from_ts = None if since is None else since_ms(since, wall_ms())
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--since") from error
    client.say = say
    reader = Reader(
        client,
        topic,
        resume or Start(from_seq=from_seq, from_ts=from_ts, tail=tail),
        partition,
        patience_ms=(60 if wait_s is None else wait_s) * 1000,
        reach_ms=(wait_s or 0) * 1000,
        emit=print_lines,
        warn=say,
        with_meta=with_meta,
        records_max=records,
    )
    try:
        reader.read()
        if follow:
            reader.follow()
    except KeyboardInterrupt:
        pass  # how a person ends it: no failure
    except (Refused, Unreachable, UnknownAnswer) as error:
        point = reader.resume()
        also = f"the same command with --resume {point} goes on there" if point else ""
        raise failure(error, also) or error from error
