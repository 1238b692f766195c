"""Who plans a read: a daemon over HTTP, or the ledger itself; the rest sees no difference.

Both are plain data and travel to executors, which plan again what they miss and renew the lease.
An open ledger is kept per process and used by one thread at a time: its lock file must be opened
once only (``shards/locks.py``).
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

import msgspec
from msgspec import Struct

from compaction.access.http_calls import (
    TIMEOUT_S,
    DaemonRefused,
    DaemonUnreachable,
    call,
)
from compaction.source.errors import (
    PlannerRefused,
    PlannerUnreachable,
    SourceError,
    TopicRecreated,
    TopicUnknown,
)
from compaction.source.plan import LEASE_MS, Page, PlanInvalid, fill, finished, wanted
from compaction.source.schemas import Plan, PlanRequest, PlanStore
from ledger import ages, reads, topics
from ledger.ages import Clocks
from ledger.errors import LedgerError, LedgerMissing
from ledger.lake import readleases
from ledger.ledger import Ledger
from ledger.types import PartitionState
from shards import locks
from shards.clock import boot_id, boottime_ms, wall_ms
from shards.locks import LockFile, SharedLock

WHAT_CHARACTERS_MAX = 200
RENEW_TIMEOUT_S = 5.0  # of an executor that may not reach the daemon at all


class TopicState(Struct, frozen=True):
    """A topic as it is now."""

    topic: str
    topic_id: int
    partitions: list[PartitionState]


class Planner(Protocol):
    """What a source asks. Every method may raise SourceError."""

    def state(self, topic: str) -> TopicState:
        """A topic's partitions. Raises TopicUnknown."""
        ...

    def page(self, request: PlanRequest) -> Plan:
        """A page of a plan; its ``next`` asks for the next one. Raises TopicUnknown."""
        ...

    def renew(self, lease: str) -> bool:
        """Holds a plan for longer; False when it has expired."""
        ...

    def end(self, lease: str) -> None:
        """Holds a plan no longer; one that has expired is not an error."""
        ...

    def extent_at(self, topic: TopicState, partition: int, timestamp_ms: int) -> int:
        """An offset before which no record is that late; the next offset where none is. Raises
        TopicRecreated."""
        ...


def plan(planner: Planner, request: PlanRequest, ids: Mapping[str, int]) -> list[Plan]:
    """The whole plan, all its pages under one lease. ``ids`` are of the topics that the request's
    offsets are of.

    Each page stands by itself: what it takes of files and of objects fits together, what two
    pages take need not. Raises SourceError; TopicRecreated for a topic with another id, whose
    lease ends by itself.
    """
    pages: list[Plan] = []
    left: PlanRequest | None = request
    while left is not None:
        page = planner.page(left)
        for part in page.partitions:
            _check_id(part.topic, part.topic_id, ids[part.topic])
        pages.append(page)
        left = page.next
    return pages


def ask_daemon(
    url: str,
    method: str,
    path: str,
    body: bytes | None = None,
    *,
    once: bool = False,
    timeout_s: float = TIMEOUT_S,
) -> bytes:
    """The body of a good answer. Raises PlannerRefused and PlannerUnreachable."""
    try:
        return call(url, method, path, body, once=once, timeout_s=timeout_s)
    except DaemonRefused as error:
        raise PlannerRefused(error.status, error.code, error.message) from error
    except DaemonUnreachable as error:
        raise PlannerUnreachable(str(error)) from error


class DaemonPlanner(Struct, frozen=True):
    """The daemon at ``url``."""

    url: str

    def state(self, topic: str) -> TopicState:
        try:
            return msgspec.json.decode(
                ask_daemon(self.url, "GET", f"/v0/topics/{quote(topic, safe='')}"), type=TopicState
            )
        except PlannerRefused as error:
            if error.status == 404:
                raise TopicUnknown(topic, self.url) from error
            raise

    def page(self, request: PlanRequest) -> Plan:
        try:
            body = ask_daemon(self.url, "POST", "/v0/plans", msgspec.json.encode(request))
        except PlannerRefused as error:
            if error.code == "unknown_topic":
                raise TopicUnknown(_named(error, request.topics), self.url) from error
            raise
        return msgspec.json.decode(body, type=Plan)

    def renew(self, lease: str) -> bool:
        try:
            ask_daemon(self.url, "PUT", f"/v0/plans/{lease}", once=True, timeout_s=RENEW_TIMEOUT_S)
        except PlannerRefused as error:
            if error.status == 404:
                return False
            raise
        return True

    def end(self, lease: str) -> None:
        try:
            ask_daemon(
                self.url, "DELETE", f"/v0/plans/{lease}", once=True, timeout_s=RENEW_TIMEOUT_S
            )
        except PlannerRefused as error:
            if error.status != 404:
                raise

    def extent_at(self, topic: TopicState, partition: int, timestamp_ms: int) -> int:
        asked = {"partition": partition, "from_ts": timestamp_ms, "limit": 1}
        path = f"/v0/topics/{quote(topic.topic, safe='')}/diff"
        answer = msgspec.json.decode(
            ask_daemon(self.url, "POST", path, msgspec.json.encode(asked)), type=_FirstRecord
        )
        _check_id(topic.topic, answer.topic_id, topic.topic_id)
        return answer.records[0].seq if answer.records else answer.next_from_seq + 1


class LedgerPlanner(Struct, frozen=True):
    """The ledger in the data directory ``data`` of this machine."""

    data: str
    store: PlanStore

    def state(self, topic: str) -> TopicState:
        with _open(self.data) as ledger:
            found = ledger.read(topics.find, topic)
            if found is None:
                raise TopicUnknown(topic, self.data)
            return TopicState(
                topic, found.topic_id, ledger.read(reads.partition_states, found.topic_id)
            )

    def page(self, request: PlanRequest) -> Plan:
        lease = request.plan or secrets.token_hex(12)
        what = f"Spark reads {', '.join(request.topics)}"[:WHAT_CHARACTERS_MAX]
        page = Page(request.limit)
        with _open(self.data) as ledger:
            if request.plan is None:
                now_ms = _age_ms(ledger)
                ledger.write(readleases.take, lease, what, now_ms, now_ms + LEASE_MS)
            gaps = ledger.read(reads.gaps)
            for name in request.topics:
                topic = ledger.read(topics.find, name)
                if topic is None:
                    raise TopicUnknown(name, self.data)
                states = ledger.read(reads.partition_states, topic.topic_id)
                starts, stops = request.from_.get(name, {}), request.to.get(name, {})
                try:
                    for part in wanted(topic, states, starts, stops):
                        ledger.read(fill, page, part, gaps)
                except PlanInvalid as error:
                    raise PlannerRefused(400, "invalid", str(error)) from error
        return finished(page, lease, wall_ms() + LEASE_MS, self.store)

    def renew(self, lease: str) -> bool:
        with _open(self.data) as ledger:
            now_ms = _age_ms(ledger)
            return ledger.write(readleases.renew, lease, now_ms, now_ms + LEASE_MS)

    def end(self, lease: str) -> None:
        with _open(self.data) as ledger:
            ledger.write(readleases.end, lease)

    def extent_at(self, topic: TopicState, partition: int, timestamp_ms: int) -> int:
        with _open(self.data) as ledger:
            found = ledger.read(topics.find, topic.topic)
            if found is None:
                raise TopicUnknown(topic.topic, self.data)
            _check_id(topic.topic, found.topic_id, topic.topic_id)
            return ledger.read(reads.offset_at_time, found.topic_id, partition, timestamp_ms)


class _First(Struct):
    seq: int


class _FirstRecord(Struct):
    records: list[_First]
    next_from_seq: int
    topic_id: int


def _age_ms(ledger: Ledger) -> int:
    return ledger.read(ages.now_ms, Clocks(boot_id(), wall_ms(), boottime_ms()))


def _check_id(topic: str, found: int, wanted: int) -> None:
    if found != wanted:
        raise TopicRecreated(topic, wanted, found)


def _named(error: PlannerRefused, topics: Sequence[str]) -> str:
    """The topic that a refusal is about."""
    return next((topic for topic in topics if repr(topic) in str(error)), topics[0])


class _Opened:
    """A ledger of this process, for one thread at a time."""

    def __init__(self, data: str) -> None:
        path = Path(data) / "ledger" / "ledger.db"
        if not path.exists():
            raise LedgerMissing(path)
        lock = SharedLock(LockFile(Path(data) / "lock"), locks.LEDGER)
        self._ledger = Ledger(path, lock, must_exist=True)
        self._thread = threading.Lock()

    def __enter__(self) -> Ledger:
        self._thread.acquire()
        return self._ledger

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._thread.release()
        if isinstance(error, LedgerError):
            raise SourceError(str(error)) from error


_opened: dict[str, _Opened] = {}
_opening = threading.Lock()


def _open(data: str) -> _Opened:
    with _opening:
        found = _opened.get(data)
        if found is None:
            try:
                found = _opened[data] = _Opened(data)
            except (LedgerError, OSError) as error:
                raise SourceError(f"option 'data' = {data!r}: {error}") from error
        return found
