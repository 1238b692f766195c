"""What a shard process has open: memory, locks, the ledger twice, the store, and their threads; and
who may do what.

All other parts of the shard are made from it, and end before it does.
"""

from __future__ import annotations

import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from daemon.access.access import Access, read_before
from daemon.access.allowance import Allowances
from daemon.access.audit import AuditLog
from daemon.memory import READERS_AT_ONCE
from daemon.process.inherit import Inheritance
from delivery.ledger_thread import LedgerThread
from delivery.reading.store_threads import StoreThreads
from ledger.ledger import Ledger
from shards import layout as at
from shards import locks
from shards.alarms import AlarmBoard
from shards.boards.namecounts import TOKENS, NameCounts, NameKind, Tally
from shards.clock import monotonic_ns
from shards.doorbell import Doorbells
from shards.locks import LockFile, SharedLock
from shards.segment import Segment
from uploader.stores import faults, open_store
from uploader.stores.base import ObjectStore


class Opened:
    """Of one process. ``commit_ledger`` is for the threads of the uploads, ``ledger`` for all
    else; ``threads`` read the store. The sockets that it inherits are of the sides that serve."""

    def __init__(self, inheritance: Inheritance) -> None:
        config = inheritance.config
        self.inheritance = inheritance
        self.config, self.shard = config, inheritance.shard
        self.segment = Segment.attach(inheritance.segment_fd, inheritance.layout)
        self.segment.map_ring(self.shard)
        self.words = self.segment.words
        self.base = self.segment.layout.shard(self.shard)
        self.bells = Doorbells(inheritance.bell_fds)
        self.lock_file = LockFile(Path(config.data_dir) / "lock")
        if not self.lock_file.try_share(locks.SHARDS):
            raise RuntimeError("another daemon is starting on this data directory")
        self.ledger_lock = SharedLock(self.lock_file, locks.LEDGER)
        self.rng = random.Random(f"{os.getpid()} {self.shard} {monotonic_ns()}")
        self.store: ObjectStore = open_store(
            config.store_url,
            endpoint_url=config.s3_endpoint_url,
            region=config.s3_region,
            encryption=config.s3_encryption,
            threads=config.uploads_in_flight_max * (1 + config.hedge_puts) + READERS_AT_ONCE,
        )
        if inheritance.chaos:
            plan = faults.parse(inheritance.chaos)
            self.store = faults.FaultyStore(
                self.store, plan, self.rng, threading.Event().wait, lambda: monotonic_ns() / 1e9
            )
        self.commit_ledger, self._read_ledger = self.open_ledger(), self.open_ledger()
        self._ledger_thread = ThreadPoolExecutor(1, thread_name_prefix="ledger")
        self._readers = ThreadPoolExecutor(READERS_AT_ONCE, thread_name_prefix="reader")
        self.ledger = LedgerThread(self._read_ledger, self._ledger_thread)
        self.threads = StoreThreads(self._readers, self._count_get, self.rng)
        self.audit = AuditLog(
            config.audit_log,
            f"shard {self.shard}",
            int(self.words[at.G_INCARNATION]),
            self.words,
            self.base + at.S_AUDITED,
            config.trusted_proxies,
        )
        self.alarms = AlarmBoard(self.segment, self.shard)
        self.alarms.clear_all()  # those of the previous process
        self.token_counts = self.counts_of(TOKENS)
        self.access = Access(
            None if config.auth_file is None else Path(config.auth_file),
            ticket_key=bytes.fromhex(inheritance.ticket_key),
            allowances=Allowances(self.segment, self.shard, config.limits),
            audit=self.audit if self.shard == 0 else None,
            tally_of=self.token_counts.tally_of,
            read_before=read_before(config, writes=self.shard == 0, stands_in=True),
        )

    def counts_of(self, names: NameKind[Tally]) -> NameCounts[Tally]:
        """Counts by name of this shard."""
        return NameCounts(
            names, self.segment, self.shard,
            partial(self.lock_file.try_lock, locks.NAME_SLOTS),
            partial(self.lock_file.unlock, locks.NAME_SLOTS),
        )  # fmt: skip

    def open_ledger(self) -> Ledger:
        """One more connection to the ledger, which the caller closes."""
        return Ledger(
            Path(self.config.ledger_path),
            self.ledger_lock,
            must_exist=True,
            dedupe_limits=self.config.dedupe_limits,
        )

    def _count_get(self, size_bytes: int) -> None:
        self.words[self.base + at.S_GETS] += 1
        self.words[self.base + at.S_GET_BYTES] += size_bytes

    def close(self) -> None:
        """Waits for the threads, and closes ledger and store."""
        self.audit.close()
        self._ledger_thread.shutdown()
        self._readers.shutdown()
        self.commit_ledger.close()
        self._read_ledger.close()
        self.store.close()
