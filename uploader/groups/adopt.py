"""Taking over the leases of a dead shard.

A lease: its holder died -> orphan, due at a time -> adopted by a shard -> committed, or the adopter
died too and it starts again. The supervisor makes the orphans, after ``waitpid`` (``Orphans``). Any
shard may adopt one, under the adoption lock and after reading its id again (``adopt_orphans``). The
adopter first asks the ledger for the lease id (``Uploads`` without requests), then continues where
the dead holder stopped.

A lease may itself be what killed its holder. So only its first adoption is immediate. Each further
one waits twice as long as the one before, which leaves the shards time to serve. A lease that lost
``ADOPTIONS_MAX`` adopters is *stuck*: an alarm names it until it is committed. It is still adopted,
since the cause may go away.
"""

from __future__ import annotations

from shards import locks
from shards.alarms import AlarmBoard, AlarmKind
from shards.leases import LIVE, ORPHAN, Lease, LeaseTable
from shards.locks import LockFile
from shards.segment import Segment
from uploader.stores.retry import ADOPTION, ceiling_s

# Shards are killed for other reasons too, but rarely two adopters in a row, and more rarely three.
ADOPTIONS_MAX = 3


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


class Orphans:
    """The supervisor's part: the leases whose holders died."""

    def __init__(self, segment: Segment) -> None:
        self._leases = LeaseTable(segment.words, segment.layout)
        self._alarms = AlarmBoard(segment, segment.layout.shards)
        self._dues_ns: list[int] = []  # of orphans that are not due yet
        self._stuck = False

    def died(self, shard: int, now_ns: int) -> list[Lease]:
        """Makes orphans of the leases that the shard held. Call it after ``waitpid``."""
        orphans = self._leases.orphan(shard, lambda lease: now_ns + adoption_delay_ns(lease.deaths))
        delays_ns = (adoption_delay_ns(lease.deaths) for lease in orphans)
        self._dues_ns += [now_ns + delay_ns for delay_ns in delays_ns if delay_ns]
        self._stuck = self._stuck or any(map(_is_stuck, orphans))
        if self._stuck:
            self._tell(now_ns)
        return orphans

    def tick(self, now_ns: int) -> bool:
        """Whether an orphan has become due, so that the shards must be rung."""
        if self._stuck:
            self._tell(now_ns)
        waiting = [due_ns for due_ns in self._dues_ns if due_ns > now_ns]
        due = len(waiting) < len(self._dues_ns)
        self._dues_ns = waiting
        return due

    def _tell(self, now_ns: int) -> None:
        """Keeps the alarm as long as there is a stuck lease."""
        stuck = [lease for lease in self._leases.in_state(LIVE, ORPHAN) if _is_stuck(lease)]
        self._stuck = bool(stuck)
        if not stuck:
            self._alarms.clear(AlarmKind.LEASE_STUCK)
            return
        worst = max(stuck, key=lambda lease: lease.deaths)
        self._alarms.raise_(
            AlarmKind.LEASE_STUCK,
            f"lease {worst.lease_id} of shard {worst.shard} was taken over {worst.deaths - 1} times"
            " and is not committed; the log says why each of its holders ended",
            now_ns,
        )


def _is_stuck(lease: Lease) -> bool:
    return lease.deaths > ADOPTIONS_MAX
