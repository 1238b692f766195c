"""The commit pipeline: from a lease to its commit, in uploader threads.

Lifecycle of a lease here::

    started -> assembled -> PUT (repeated until it is there) -> waits for its predecessors
            -> ledger transaction -> commit log -> committed words -> bells -> done

Several leases are in flight per shard; an upload that finishes early waits until ``committed`` of
each of its sources stands at its start, so commits of one source happen in pull order. The object
is a function of the lease, so a PUT whose answer was lost is simply made again. Nothing is given
up: a store that fails is asked again, with backoff, until it answers or the process ends.

A key that is taken by other bytes (ForeignObject) stops this lease for good, loudly: no other key
is ever chosen, nothing behind it in its sources commits, producers meet full rings.

Threads: ``start``, ``committed_moved`` and ``stop`` belong to the loop, the rest to the pool. The
ledger given here is used by one thread at a time, under its mutex.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

from msgspec import Struct

from ledger.errors import LeaseBelowFloor, LedgerError
from ledger.ledger import Ledger
from ledger.types import Commit, CommitDraft
from shards import layout as at
from shards.alarms import AlarmBoard
from shards.clock import boottime_ms, boottime_ns, monotonic_ns, wall_ns
from shards.commitlog import CommitLog
from shards.doorbell import Doorbells
from shards.leases import Lease, LeaseTable
from shards.ring import RequestAt, RingReader
from shards.segment import Segment
from uploader import l0
from uploader.assemble import assemble, requests_of
from uploader.hedge import HedgedPut
from uploader.outage import Outage
from uploader.ownership import Moment, may_commit, sent_of, should_ask
from uploader.retry import delay_s
from uploader.stores.base import ForeignObject, ObjectStore, StoreError

log = logging.getLogger("headgate.uploader")

OWNERSHIP_POLL_S = 0.002

Requests = Iterable[tuple[int, RequestAt]]


class _Stopped(Exception):
    """The process ends, or the prefix is another's; the lease stays as it is."""


class _Ready(Struct):
    """A lease whose object is in the store."""

    lease: Lease
    draft: CommitDraft


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
        self._outage = Outage(AlarmBoard(segment, shard))
        self._log = CommitLog(segment)
        layout = segment.layout
        self._readers = [RingReader(segment, source) for source in range(layout.shards)]
        self._committed_at = [layout.shard(s) + at.S_COMMITTED for s in range(layout.shards)]
        self._counters_at = layout.shard(shard)
        self._mutex = threading.Lock()  # the waiting leases and the counters
        self._waiting: list[_Ready] = []  # at most as many as leases are held
        self._stopping = threading.Event()
        # One thread per lease slot: a PUT blocks its thread, and slots bound what is in flight.
        self._pool = ThreadPoolExecutor(layout.lease_slots, thread_name_prefix="uploader")
        slots = layout.lease_slots
        self.hedged = HedgedPut(self._put_once, slots, monotonic_ns) if hedge_puts else None
        self._put_object = self._put_once if self.hedged is None else self.hedged.put
        self.foreign = False

    def start(self, lease: Lease, requests: Requests | None = None) -> None:
        """Uploads and commits a lease that this shard holds; ``requests`` None: an adopted one."""
        future = self._pool.submit(self._run, lease, requests)
        future.add_done_callback(self._report)

    def committed_moved(self) -> None:
        """Looks again at uploads that wait for their predecessors; after each commit."""
        with self._mutex:
            ready = [item for item in self._waiting if self._is_next(item.lease)]
            self._waiting = [item for item in self._waiting if item not in ready]
        for item in ready:
            self._pool.submit(self._commit_loop, item).add_done_callback(self._report)

    def stop(self) -> None:
        """Ends the threads; leases that are not committed stay as they are."""
        self._stopping.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _report(self, future: Future[None]) -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None and not isinstance(error, _Stopped):
            log.critical("an upload ended with a bug; its lease stays uncommitted", exc_info=error)

    def _run(self, lease: Lease, requests: Requests | None) -> None:
        if requests is None:
            if not lease.lease_id.incarnation:
                # Its holder died while it renamed it: nothing was committed under what stands
                # there now, and that may stand in another such slot as well.
                lease = self._leases.rename(lease, self._segment.next_lease_id(self._shard))
            with self._ledger_mutex:
                # The dead holder may have committed and not told the log: producers wait for it.
                earlier = self._ledger.publish_again(lease.lease_id, self._publish)
            if earlier is not None:
                self._finish(lease, earlier)
                return
            requests = list(requests_of(lease, self._readers))
        self._advance(_Ready(lease, self._put(lease, requests)))

    def _advance(self, item: _Ready) -> None:
        with self._mutex:
            if not self._is_next(item.lease):
                self._waiting.append(item)
                waits = True
            else:
                waits = False
        if waits:
            # A predecessor may have committed between the look and the append.
            self._bells.ring(self._shard)
        else:
            self._commit_loop(item)

    def _is_next(self, lease: Lease) -> bool:
        return all(self._words[self._committed_at[s.shard]] == s.start for s in lease.sources)

    def _put(self, lease: Lease, requests: Requests) -> CommitDraft:
        extents, conditions = assemble(requests, self._readers, self._topic_name)
        built = l0.build(lease.lease_id, lease.created_ms, extents, conditions, lease.commits_seen)
        key = l0.object_key(lease.lease_id)
        self._ask_for_entry()
        attempt = 0
        while True:
            attempt += 1
            try:
                locator = self._put_object(key, built.body, built.crc32c)
                break
            except ForeignObject:
                self.foreign = True
                log.critical("object %s is not ours; its lease cannot be committed", key)
                raise
            except StoreError as error:
                # The supervisor says it aloud, once for all that fails (daemon/alarms.py).
                log.debug("PUT %s failed (attempt %d): %s", key, attempt, error)
                self._pause(attempt)
        return CommitDraft(
            lease_id=lease.lease_id,
            key=key,
            locator=locator,
            size_bytes=len(built.body),
            created_ms=lease.created_ms,
            sources=lease.sources,
            extents=built.drafts,
            conditions=tuple(conditions),
        )

    def _put_once(self, key: str, body: bytes, crc32c: int) -> str:
        """One attempt, counted."""
        self._count(at.S_PUTS, 1)
        self._count(at.S_PUT_BYTES, len(body))
        began_ns = monotonic_ns()
        try:
            locator = self._store.put(key, body, crc32c)
        except ForeignObject:
            self._outage.kept(monotonic_ns())  # the store works; that is an alarm of its own
            raise
        except StoreError as error:
            self._count(at.S_PUT_FAILURES, 1)
            self._outage.failed(error, began_ns, monotonic_ns())
            raise
        self._outage.kept(monotonic_ns())
        return locator

    def _pause(self, attempt: int) -> None:
        if self._stopping.wait(delay_s(attempt, self._rng)):
            raise _Stopped

    def _ask_for_entry(self) -> None:
        """Has the owner's thread send an entry beside our object if ownership is growing old."""
        now = Moment(boottime_ns(), wall_ns())
        if should_ask(now, sent_of(self._words)):
            with self._mutex:
                self._words[self._counters_at + at.S_ENTRY_WANTED_NS] = now.boot_ns
            self._bells.ring(self._bells.owner)

    def _await_ownership(self) -> None:
        """Returns while the prefix is surely ours: after the PUT, before the transaction.

        Polls a word, for only a store that does not take entries makes it wait at all.
        """
        while not may_commit(Moment(boottime_ns(), wall_ns()), sent_of(self._words)):
            self._ask_for_entry()
            if self._stopping.wait(OWNERSHIP_POLL_S):
                raise _Stopped
        if self._words[at.G_SUPERSEDED]:
            raise _Stopped

    def _commit_loop(self, item: _Ready) -> None:
        attempt = 0
        while True:
            attempt += 1
            try:
                self._await_ownership()
                with self._ledger_mutex:
                    commit = self._ledger.commit(item.draft, self._age_ms(), self._publish)
                break
            except LeaseBelowFloor as error:
                # The floor passed this epoch before the commit: the same range, a new name.
                log.warning("%s; its requests are leased again", error)
                if self._words[at.G_EPOCH] < error.epoch_floor:
                    self._pause(attempt)  # the supervisor is about to store the new epoch
                    continue
                lease_id = self._segment.next_lease_id(self._shard)
                lease = self._leases.rename(item.lease, lease_id)
                again = list(requests_of(lease, self._readers))
                item = _Ready(lease, self._put(lease, again))
            except LedgerError as error:
                if not error.retryable:
                    raise
                log.error("commit of %s failed (attempt %d): %s", item.draft.key, attempt, error)
                self._pause(attempt)
        self._finish(item.lease, commit)

    def _age_ms(self) -> int:
        """By the clock of ages: a step of the wall clock forgets no idempotency key."""
        return boottime_ms() + int(self._words[at.G_AGE_OFFSET_MS])

    def _publish(self, commit: Commit) -> None:
        """Under the ledger lock: the log follows the ledger without a gap.

        A process may be stopped between the look at ownership and the transaction's end, and
        another owner begin meanwhile. So a commit is told only while the prefix is still ours;
        then it was made before anybody else looked what there is.
        """
        self._await_ownership()
        for number in range(self._log.end + 1, commit.number):
            self._log.publish(self._ledger.commit_by_number(number))
        self._log.publish(commit)

    def _finish(self, lease: Lease, commit: Commit) -> None:
        for source in lease.sources:
            index = self._committed_at[source.shard]
            if self._words[index] == source.start:
                self._words[index] = source.end
        shards = range(self._segment.layout.shards)
        self._bells.ring_all(shard for shard in shards if shard != self._shard)
        self._count(at.S_OBJECTS_COMMITTED, 0 if commit.repeated else 1)
        self._count(at.S_ORPHANS_ADOPTED, 0 if lease.shard == self._shard else 1)
        self._leases.finish(lease)
        self._bells.ring(lease.shard)
        self._bells.ring(self._shard)

    def _count(self, word: int, amount: int) -> None:
        index = self._counters_at + word
        with self._mutex:
            self._words[index] += amount
