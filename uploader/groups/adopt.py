"""Taking over the leases of a dead shard.

The supervisor makes them orphans after ``waitpid``. Any shard may adopt an orphan, under the
adoption lock and after reading its id again. The adopter first asks the ledger for the lease id
(``Uploads`` without requests), then continues where the dead holder stopped.

A lease may itself be what killed its holder. So only its first adoption is immediate. Each further
one waits twice as long as the one before, which leaves the shards time to serve.
"""

from __future__ import annotations

from shards import locks
from shards.leases import Lease, LeaseTable
from shards.locks import LockFile
from uploader.stores.retry import ADOPTION, ceiling_s


def adoption_delay_ns(deaths: int) -> int:
    """How long an orphan waits for its adoption after ``deaths`` of its holders died."""
    return int(ceiling_s(deaths - 1, ADOPTION) * 1e9) if deaths > 1 else 0


def adopt_orphans(leases: LeaseTable, lock_file: LockFile, shard: int, now_ns: int) -> list[Lease]:
    """Adopts orphans for ``shard``; none while another shard adopts, which rings this one later."""
    orphans = leases.orphans(now_ns)
    if not orphans or not lock_file.try_lock(locks.ADOPTION):
        return []
    try:
        adopted = [leases.adopt(orphan, shard) for orphan in orphans]
    finally:
        lock_file.unlock(locks.ADOPTION)
    return [lease for lease in adopted if lease is not None]
