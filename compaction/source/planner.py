"""Who plans a read: a daemon over HTTP, or the ledger itself; the rest sees no difference.

Both are plain data and travel to executors, which plan again what they miss and renew the lease.
While a daemon runs, it alone has its ledger, so the planner of a data directory asks it by its
socket. Without a daemon, one process at a time holds the directory for the length of a call.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

import msgspec
from msgspec import Struct

from compaction.access.bearer import TokenUnusable
from compaction.access.http_calls import (
    TIMEOUT_S,
    DaemonRefused,
    DaemonUnreachable,
    answers,
    call,
    socket_address,
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
from shards.clock import boot_id, boottime_ms, monotonic_ns, wall_ms
from shards.locks import LockFile, SharedLock

WHAT_CHARACTERS_MAX = 200
HOLD_WAIT_S = 20.0  # a daemon that starts, or many tasks that plan again
HOLD_PAUSE_S = 0.02
RENEW_TIMEOUT_S = 5.0  # of an executor that may not reach the daemon at all


class TopicPartitions(Struct, frozen=True):
    """A topic as it is now."""

    topic: str
    topic_id: int
    partitions: list[PartitionState]


class Planner(Protocol):
    """What a source asks. Every method may raise SourceError."""

    def state(self, topic: str) -> TopicPartitions:
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

    def extent_at(self, topic: TopicPartitions, partition: int, timestamp_ms: int) -> int:
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


class DaemonPlanner(Struct, frozen=True):
    """The daemon at ``url``. ``token_file`` has the token, which itself goes to no executor."""

    url: str
    token_file: str = ""

    def ask(
        self, method: str, path: str, body: bytes | None = None, *,
        once: bool = False, timeout_s: float = TIMEOUT_S,
    ) -> bytes:  # fmt: skip
        """The body of a good answer. Raises PlannerRefused and PlannerUnreachable."""
        try:
            return call(
                self.url, method, path, body, once=once, timeout_s=timeout_s,
                token_file=self.token_file,
            )  # fmt: skip
        except DaemonRefused as error:
            raise PlannerRefused(error.status, error.code, error.message) from error
        except DaemonUnreachable as error:
            raise PlannerUnreachable(str(error)) from error
        except TokenUnusable as error:
            raise SourceError(str(error)) from error

    def state(self, topic: str) -> TopicPartitions:
        try:
            return msgspec.json.decode(
                self.ask("GET", f"/v0/topics/{quote(topic, safe='')}"),
                type=TopicPartitions,
            )
        except PlannerRefused as error:
            if error.status == 404:
                raise TopicUnknown(topic, self.url) from error
            raise

    def page(self, request: PlanRequest) -> Plan:
        try:
            body = self.ask("POST", "/v0/plans", msgspec.json.encode(request))
        except PlannerRefused as error:
            if error.code == "unknown_topic":
                raise TopicUnknown(_named(error, request.topics), self.url) from error
            if error.code == "forbidden":
                raise SourceError(
                    f"{error}. Spark reads whole objects, which have the records of all topics: use"
                    " a token with the scope read for all topics, or read by"
                    " POST /v0/topics/TOPIC/diff"
                ) from error
            raise
        return msgspec.json.decode(body, type=Plan)

    def renew(self, lease: str) -> bool:
        try:
            self.ask("PUT", f"/v0/plans/{lease}", once=True, timeout_s=RENEW_TIMEOUT_S)
        except PlannerRefused as error:
            if error.status == 404:
                return False
            raise
        return True

    def end(self, lease: str) -> None:
        try:
            self.ask("DELETE", f"/v0/plans/{lease}", once=True, timeout_s=RENEW_TIMEOUT_S)
        except PlannerRefused as error:
            if error.status != 404:
                raise

    def extent_at(self, topic: TopicPartitions, partition: int, timestamp_ms: int) -> int:
        asked = {"partition": partition, "from_ts": timestamp_ms, "limit": 1}
        path = f"/v0/topics/{quote(topic.topic, safe='')}/diff"
        answer = msgspec.json.decode(
            self.ask("POST", path, msgspec.json.encode(asked)), type=_FirstRecord
        )
        _check_id(topic.topic, answer.topic_id, topic.topic_id)
        return answer.records[0].seq if answer.records else answer.next_from_seq + 1


class LedgerPlanner(Struct, frozen=True):
    """The ledger in the data directory ``data`` of this machine: its daemon plans while one runs.
    Without one, each call holds the directory for itself."""

    data: str
    store: PlanStore

    def state(self, topic: str) -> TopicPartitions:
        daemon = _daemon_of(self.data)
        if daemon is not None:
            return daemon.state(topic)
        with _open(self.data) as ledger:
            found = ledger.read(topics.find, topic)
            if found is None:
                raise TopicUnknown(topic, self.data)
            return TopicPartitions(
                topic, found.topic_id, ledger.read(reads.partition_states, found.topic_id)
            )

    def page(self, request: PlanRequest) -> Plan:
        daemon = _daemon_of(self.data)
        if daemon is not None:
            return msgspec.structs.replace(daemon.page(request), store=self.store)
        lease = request.plan or secrets.token_hex(12)
        what = f"Spark reads {', '.join(request.topics)}"[:WHAT_CHARACTERS_MAX]
        page = Page(request.limit)
        with _open(self.data) as ledger:
            if request.plan is None:
                now_ms = _age_ms(ledger)
                ledger.write(readleases.take, lease, what, now_ms, now_ms + LEASE_MS)
            for name in request.topics:
                topic = ledger.read(topics.find, name)
                if topic is None:
                    raise TopicUnknown(name, self.data)
                states = ledger.read(reads.partition_states, topic.topic_id)
                starts, stops = request.from_.get(name, {}), request.to.get(name, {})
                try:
                    for part in wanted(topic, states, starts, stops):
                        ledger.read(fill, page, part)
                except PlanInvalid as error:
                    raise PlannerRefused(400, "invalid", str(error)) from error
        return finished(page, lease, wall_ms() + LEASE_MS, self.store)

    def renew(self, lease: str) -> bool:
        daemon = _daemon_of(self.data)
        if daemon is not None:
            return daemon.renew(lease)
        with _open(self.data) as ledger:
            now_ms = _age_ms(ledger)
            return ledger.write(readleases.renew, lease, now_ms, now_ms + LEASE_MS)

    def end(self, lease: str) -> None:
        daemon = _daemon_of(self.data)
        if daemon is not None:
            daemon.end(lease)
            return
        with _open(self.data) as ledger:
            ledger.write(readleases.end, lease)

    def extent_at(self, topic: TopicPartitions, partition: int, timestamp_ms: int) -> int:
        daemon = _daemon_of(self.data)
        if daemon is not None:
            return daemon.extent_at(topic, partition, timestamp_ms)
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


def _daemon_of(data: str) -> DaemonPlanner | None:
    """The daemon that has a data directory, by its socket."""
    address = socket_address(data)
    try:
        return DaemonPlanner(address) if answers(address) else None
    except DaemonUnreachable as error:
        raise PlannerUnreachable(str(error)) from error


_holding = threading.Lock()  # closing a lock file drops all locks of this process on it


@contextmanager
def _open(data: str) -> Iterator[Ledger]:
    """The ledger of a directory that no daemon has, held for a call. Raises SourceError."""
    path = Path(data) / "ledger" / "ledger.db"
    try:
        if not path.exists():
            raise LedgerMissing(path)
        with _holding, closing(LockFile(Path(data) / "lock")) as lock_file:
            _hold(lock_file, data)
            lock = SharedLock(lock_file, locks.LEDGER)
            with closing(Ledger(path, lock, must_exist=True)) as ledger:
                yield ledger
    except (LedgerError, OSError) as error:
        raise SourceError(f"option 'data' = {data!r}: {error}") from error


def _hold(lock_file: LockFile, data: str) -> None:
    """Takes the directory's lock; other processes of a read hold it for moments."""
    deadline_ns = monotonic_ns() + int(HOLD_WAIT_S * 1e9)
    while not (lock_file.try_lock(locks.DIRECTORY) and lock_file.try_lock(locks.SHARDS)):
        if monotonic_ns() > deadline_ns:
            pid = lock_file.holder(locks.DIRECTORY) or lock_file.holder(locks.SHARDS)
            raise SourceError(
                f"option 'data' = {data!r}: process {pid} has had the data directory for"
                f" {HOLD_WAIT_S:.0f} s and answers on no socket; wait until it has ended or started"
            )
        time.sleep(HOLD_PAUSE_S)
