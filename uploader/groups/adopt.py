"""Taking over the leases of a dead shard.

The supervisor makes them orphans after ``waitpid``; any shard may adopt one, under the adoption
lock and after reading its id again. The adopter asks the ledger for the lease id first (that is
``Uploads`` with no requests given), then goes on where the dead holder stopped.

A holder may have died of its lease. The first adoption of a lease is immediate; each further one
waits twice as long as the one before it, so that such a lease leaves the shards time to serve.
"""

from __future__ import annotations

from shards import locks
from shards.leases import Lease, LeaseTable
from shards.locks import LockFile
from uploader.stores.retry import ADOPTION, ceiling_s


def adoption_delay_ns(deaths: int) -> int:
    """How long an orphan waits that lost ``deaths`` holders."""
    return int(ceiling_s(deaths - 1, ADOPTION) * 1e9) if deaths > 1 else 0


def adopt_orphans(leases: LeaseTable, lock_file: LockFile, shard: int, now_ns: int) -> list[Lease]:
    """The orphans that ``shard`` now holds; none while another shard adopts (it will be rung)."""
    orphans = leases.orphans(now_ns)
    if not orphans or not lock_file.try_lock(locks.ADOPTION):
        return []
    try:
        adopted = [leases.adopt(orphan, shard) for orphan in orphans]
    finally:
        lock_file.unlock(locks.ADOPTION)
    return [lease for lease in adopted if lease is not None]
