"""The commit pipeline: from a lease to its commit, in uploader threads.

Lifecycle of a lease here; each arrow is a step::

    (adopted: looked up in the ledger) -> built -> PUT -> waits for its predecessors
            -> ledger transaction and commit log -> committed words, bells, done

Several leases are in flight per shard. An upload that finishes early waits until ``committed`` of
each of its ranges has reached its start, so commits of one ring happen in pull order. The object
is a function of the lease, so a PUT whose answer was lost is simply repeated.

**A lease that cannot commit stalls all that follow it.** So no error ends a lease silently. Every
step can be repeated, and ``_advance`` alone decides: an error that may pass
(``uploader/stores/retry.py``) is retried with backoff until the step succeeds or the process ends.
Any other error ends the process (``ended``), and another process adopts the lease.

A key that holds other bytes (ForeignObject) holds up its lease, with an alarm, until an operator
has removed them: no other key is ever chosen, and nothing after it in its rings is committed.

Threads: ``start``, ``committed_moved`` and ``stop`` belong to the loop, the rest to the pool. The
ledger is used by one thread at a time, under a mutex.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Optional

from msgspec import Struct

from ledger import commits
from ledger.errors import LedgerError
from ledger.ledger import Ledger
from ledger.types import Commit, CommitDraft, Condition
from shards import layout as at
from shards.alarms import AlarmBoard, AlarmKind
from shards.clock import boottime_ms, boottime_ns, monotonic_ns, wall_ns
from shards.commitlog import CommitLog
from shards.doorbell import Doorbells
from shards.latency import SAMPLED, UPLOADER_STAGES, LatencyHistogram, Stage
from shards.leases import Lease, LeaseTable
from shards.ring import RequestAt, RingReader
from shards.segment import Segment
from uploader import l0
from uploader.ownership.ownership import Moment, may_commit, sent_of, should_ask
from uploader.pipeline.assemble import assemble, requests_of
from uploader.pipeline.health import UploadHealth
from uploader.pipeline.hedge import HedgedPut
from uploader.pipeline.outage import Outage
from uploader.stores.base import ForeignObject, ObjectStore, StoreError
from uploader.stores.retry import COMMIT, delay_s, may_pass

log = logging.getLogger("headgate.uploader")

POLL_S = 0.002  # between looks at words that another process is about to store

Requests = Sequence[tuple[int, RequestAt]]


class _Stopped(Exception):
    """The process ends, or another owner has the prefix; the lease stays as it is."""


class _Work(Struct, eq=False):
    """A lease in progress: what its steps have made so far and the next ones need."""

    lease: Lease
    requests: Requests | None  # None: read from the rings again
    since_ns: int  # when its last stage ended (shards/latency.py)
    built: l0.BuiltObject | None = None
    conditions: Sequence[Condition] = ()
    draft: CommitDraft | None = None


_Step = Callable[[_Work], Optional["_Step"]]  # returns the next step


class Uploads:
    """All leases that one shard holds."""

    def __init__(
        self,
        segment: Segment,
        shard: int,
        leases: LeaseTable,
        bells: Doorbells,
        store: ObjectStore,
        ledger: Ledger,
        topic_name: Callable[[int], str],
        rng: random.Random,
        alarms: AlarmBoard,
        ended: Callable[[], None],
        *,
        hedge_puts: bool = False,
    ) -> None:
        self._segment = segment
        self._words = segment.words
        self._shard = shard
        self._leases = leases
        self._bells = bells
        self._store = store
        self._ledger = ledger
        self._ledger_mutex = threading.Lock()
        self._topic_name = topic_name
        self._rng = rng
        self._alarms = alarms
        self._ended = ended
        self._outage = Outage(alarms)
        self.health = UploadHealth(self._outage.hangs)
        self._log = CommitLog(segment)
        layout = segment.layout
        self._readers = [RingReader(segment, shard) for shard in range(layout.shards)]
        self._committed_at = [layout.shard(s) + at.S_COMMITTED for s in range(layout.shards)]
        self._counters_at = layout.shard(shard)
        self._mutex = threading.Lock()  # the waiting leases and the counters
        self._waiting: list[_Work] = []  # at most as many as there are leases
        self._stopping = threading.Event()
        # One thread per lease slot: a PUT blocks its thread, and the slots bound what is in flight.
        self._pool = ThreadPoolExecutor(layout.lease_slots, thread_name_prefix="uploader")
        slots = layout.lease_slots
        self.hedged = HedgedPut(self._put_once, slots, monotonic_ns) if hedge_puts else None
        self._put_object = self._put_once if self.hedged is None else self.hedged.put
        self._foreign: set[str] = set()  # our keys that hold other bytes; under the mutex
        self._pulled_after = LatencyHistogram(segment, shard, Stage.PULLED)
        self._after = {
            stage: LatencyHistogram(segment, shard, stage) for stage in UPLOADER_STAGES
        }  # under the mutex

    def start(self, lease: Lease, requests: Requests | None = None) -> None:
        """Uploads and commits a lease that this shard holds; ``requests`` None: it was adopted."""
        first = self._recognize if requests is None else self._build
        now_ns = monotonic_ns()
        for _, request in (requests or ())[::SAMPLED]:
            self._pulled_after.observe(now_ns - request.arrival_ns)
        self._pool.submit(self._advance, _Work(lease, requests, now_ns), first)

    def committed_moved(self) -> None:
        """Continues uploads that wait for their predecessors. Called after each commit."""
        with self._mutex:
            ready = [work for work in self._waiting if self._is_next(work.lease)]
            self._waiting = [work for work in self._waiting if work not in ready]
        for work in ready:
            self._pool.submit(self._advance, work, self._commit)

    def stop(self) -> None:
        """Ends the threads. Leases that are not committed stay as they are."""
        self._stopping.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _advance(self, work: _Work, step: _Step | None) -> None:
        """Carries a lease on from a step, by the rule in the head of this module."""
        attempt = 0
        while step is not None:
            try:
                step = step(work)
                attempt = 0
            except _Stopped:
                return
            except Exception as error:
                lease = work.lease
                if not may_pass(error):
                    log.critical(
                        "lease %s of shard %d, taken over %d times so far, cannot continue in this"
                        " process, which ends: another one takes it over",
                        lease.lease_id, lease.shard, lease.deaths, exc_info=error,
                    )  # fmt: skip
                    self._ended()
                    return
                attempt += 1
                self._tell_failure(l0.object_key(lease.lease_id), error, attempt)
                if self._stopping.wait(delay_s(attempt, self._rng, COMMIT)):
                    return

    def _tell_failure(self, key: str, error: Exception, attempt: int) -> None:
        # The supervisor logs it, once for all that fails (daemon/alarms/alarms.py).
        log.debug("the upload of %s waits (attempt %d failed): %s", key, attempt, error)
        if isinstance(error, ForeignObject):
            with self._mutex:
                self._foreign.add(key)
            self._alarms.raise_(AlarmKind.FOREIGN_OBJECT, str(error), monotonic_ns())
        elif isinstance(error, LedgerError):
            self._alarms.raise_(AlarmKind.LEDGER_FAILING, str(error), monotonic_ns())

    # The steps

    def _recognize(self, work: _Work) -> _Step | None:
        """An adopted lease: its dead holder may have committed it."""
        return self._tell(work) or self._build

    def _build(self, work: _Work) -> _Step | None:
        lease = work.lease
        requests = work.requests
        if requests is None:
            requests = list(requests_of(lease, self._readers))
        extents, work.conditions = assemble(requests, self._readers, self._topic_name)
        work.built = l0.build(
            lease.lease_id, lease.created_ms, extents, work.conditions, lease.commits_seen
        )
        work.requests = None
        return self._put

    def _put(self, work: _Work) -> _Step | None:
        lease, built = work.lease, work.built
        assert built is not None
        key = l0.object_key(lease.lease_id)
        self.ask_for_entry()
        # The outage and the sensor follow the outcome of the whole PUT, which is repeated until it
        # succeeds. A single attempt, the loser of a hedge, may fail or hang when there is nothing
        # left to put.
        began_ns = monotonic_ns()
        call = self.health.put_begins(len(built.body), began_ns)
        failed = True
        try:
            locator = self._put_object(key, built.body, built.crc32c)
            failed = False
        except ForeignObject:
            failed = False
            self._outage.kept(monotonic_ns())  # the store works; this has its own alarm
            raise
        except StoreError as error:
            self._outage.failed(error, began_ns, monotonic_ns())
            raise
        finally:
            self.health.put_ends(call, len(built.body), monotonic_ns(), failed=failed)
        self._outage.kept(monotonic_ns())
        self._stage_ends(work, Stage.PUT)
        with self._mutex:
            self._foreign.discard(key)
            foreign = bool(self._foreign)
        if not foreign:
            self._alarms.clear(AlarmKind.FOREIGN_OBJECT)
        work.draft = CommitDraft(
            lease_id=lease.lease_id,
            key=key,
            locator=locator,
            size_bytes=len(built.body),
            created_ms=lease.created_ms,
            ranges=lease.ranges,
            extents=built.drafts,
            conditions=tuple(work.conditions),
        )
        work.built = None
        return self._wait_for_predecessors

    def _wait_for_predecessors(self, work: _Work) -> _Step | None:
        with self._mutex:
            if self._is_next(work.lease):
                return self._commit
            self._waiting.append(work)
        # A predecessor may have committed between the check and the append.
        self._bells.ring(self._shard)
        return None

    def _commit(self, work: _Work) -> _Step | None:
        assert work.draft is not None
        self._await_ownership()
        with self._ledger_mutex, self.health.commit(monotonic_ns):
            commit = self._ledger.commit(work.draft, self._age_ms(), self._publish)
        self._stage_ends(work, Stage.COMMITTED)
        self._alarms.clear(AlarmKind.LEDGER_FAILING)
        return self._finish if self._log.end >= commit.number else self._tell

    def _tell(self, work: _Work) -> _Step | None:
        """Publishes a commit that is in the ledger in the log; None if there is none."""
        while True:
            self._await_ownership()
            with self._ledger_mutex:
                commit = self._ledger.publish_again(work.lease.lease_id, self._publish)
            self._alarms.clear(AlarmKind.LEDGER_FAILING)
            if commit is None:
                return None
            if self._log.end >= commit.number:
                return self._finish

    def _finish(self, work: _Work) -> _Step | None:
        lease = work.lease
        for leased in lease.ranges:
            index = self._committed_at[leased.shard]
            if self._words[index] == leased.start:
                self._words[index] = leased.end
        shards = range(self._segment.layout.shards)
        self._bells.ring_all(shard for shard in shards if shard != self._shard)
        self._count(at.S_OBJECTS_COMMITTED, 1)
        self._count(at.S_ORPHANS_ADOPTED, 0 if lease.shard == self._shard else 1)
        self._leases.finish(lease)
        self._bells.ring(lease.shard)
        self._bells.ring(self._shard)
        return None

    # What they need

    def _is_next(self, lease: Lease) -> bool:
        return all(self._words[self._committed_at[s.shard]] == s.start for s in lease.ranges)

    def _put_once(self, key: str, body: bytes, crc32c: int) -> str:
        """One attempt, counted."""
        self._count(at.S_PUTS, 1)
        self._count(at.S_PUT_BYTES, len(body))
        try:
            return self._store.put(key, body, crc32c)
        except StoreError as error:
            self._count(at.S_PUT_FAILURES, not isinstance(error, ForeignObject))
            raise

    def ask_for_entry(self) -> None:
        """Has the owner's thread send an entry with our object if ownership is growing old."""
        now = Moment(boottime_ns(), wall_ns())
        if should_ask(now, sent_of(self._words)):
            with self._mutex:
                self._words[self._counters_at + at.S_ENTRY_WANTED_NS] = now.boot_ns
            self._bells.ring(self._bells.owner)

    def _await_ownership(self) -> None:
        """Returns when the prefix is certainly ours. Called after the PUT, before the transaction.

        Never called under the ledger lock: it waits when the store does not accept entries, and
        everything that needs the ledger would wait too.
        """
        while not self._is_owned():
            self.ask_for_entry()
            self._poll()

    def _is_owned(self) -> bool:
        """Raises _Stopped if another owner has the prefix."""
        owned = may_commit(Moment(boottime_ns(), wall_ns()), sent_of(self._words))
        if self._words[at.G_SUPERSEDED]:
            raise _Stopped
        return owned

    def _poll(self) -> None:
        if self._stopping.wait(POLL_S):
            raise _Stopped

    def _age_ms(self) -> int:
        """Now by the clock of ages, so that a step of the wall clock forgets no idempotency key."""
        return boottime_ms() + int(self._words[at.G_AGE_OFFSET_MS])

    def _publish(self, commit: Commit) -> None:
        """Under the ledger lock: the log follows the ledger without a gap.

        A process may be stopped between the check of ownership and the end of the transaction, and
        another owner may begin meanwhile. So a commit is published only while the prefix is still
        ours: then it was made before any other owner read the store. Otherwise the log lacks it,
        and the holder publishes it later, or the next commit does.
        """
        if not self._is_owned():
            return
        for number in range(self._log.end + 1, commit.number):
            self._log.publish(self._ledger.read(commits.by_number, number), monotonic_ns())
        self._log.publish(commit, monotonic_ns())

    def _stage_ends(self, work: _Work, stage: Stage) -> None:
        began_ns, work.since_ns = work.since_ns, monotonic_ns()
        with self._mutex:
            self._after[stage].observe(work.since_ns - began_ns)

    def _count(self, word: int, amount: int) -> None:
        index = self._counters_at + word
        with self._mutex:
            self._words[index] += amount
