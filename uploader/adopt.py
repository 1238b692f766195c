"""Taking over the leases of a dead shard.

The supervisor makes them orphans after ``waitpid``; any shard may adopt one, under the adoption
lock and after reading its id again. The adopter asks the ledger for the lease id first (that is
``Uploads`` with no requests given), then goes on where the dead holder stopped.
"""

from __future__ import annotations

from shards import locks
from shards.leases import ORPHAN, Lease, LeaseTable
from shards.locks import LockFile


def adopt_orphans(leases: LeaseTable, lock_file: LockFile, shard: int) -> list[Lease]:
    """The orphans that ``shard`` now holds; none while another shard adopts (it will be rung)."""
    orphans = list(leases.in_state(ORPHAN))
    if not orphans or not lock_file.try_lock(locks.ADOPTION):
        return []
    try:
        adopted = [leases.adopt(orphan, shard) for orphan in orphans]
    finally:
        lock_file.unlock(locks.ADOPTION)
    return [lease for lease in adopted if lease is not None]
