"""When a shard's loop counts as stuck: ticks of the supervisor without a new heartbeat.

Pure. Only a shard's loop raises its heartbeat, ten times a second, so a loop that does not turn is
noticed whatever its threads do. Ticks of the supervisor are counted, not time, so that a machine
that was suspended kills no shard (docs/protocol.md 3); and ticks for which the shard starved
(daemon/process/starvation.py) are not counted.

moving -> missing (the watchdog is not fed) -> ABORT, for a dump of its stacks -> KILL, since a
stopped process does not react to anything else.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

STALLED_TICKS_HOLDING = 20  # 2 s with a lease or a lock: others wait for it
STALLED_TICKS = 50  # 5 s with neither: only its own connections wait
ABORT_TICKS = 5  # before the kill: half a second to write the stacks
MISSING_TICKS = 10  # a second is longer than a busy machine delays a heartbeat


class HeartbeatVerdict(enum.Enum):
    """What to do to a shard."""

    LEAVE = enum.auto()
    ABORT = enum.auto()
    KILL = enum.auto()


class Pulse:
    """The heartbeat of one process of a shard."""

    def __init__(self) -> None:
        self._heartbeat = 0
        self._ready = False
        self._aborted_ticks: int | None = None
        self.stalled_ticks = 0
        self.starved_ticks = 0  # since the last heartbeat

    @property
    def moving(self) -> bool:
        """The shard serves, and its loop has turned within the last second of ticks."""
        return self._ready and self.stalled_ticks < MISSING_TICKS

    def tick(
        self,
        heartbeat: int,
        *,
        ready: bool,
        holding: bool,
        starves: Callable[[], bool] = lambda: False,
    ) -> HeartbeatVerdict:
        """The verdict of one tick; ABORT and KILL are given once each.

        A shard that is starting has no loop yet, and is left alone. ``starves`` is asked only when
        there was no heartbeat.
        """
        self._ready = ready
        if heartbeat != self._heartbeat or not ready:
            self._heartbeat = heartbeat
            self.stalled_ticks = self.starved_ticks = 0
            self._aborted_ticks = None
            return HeartbeatVerdict.LEAVE
        if self._aborted_ticks is None and starves():
            self.starved_ticks += 1
            return HeartbeatVerdict.LEAVE
        self.stalled_ticks += 1
        limit = STALLED_TICKS_HOLDING if holding else STALLED_TICKS
        if self._aborted_ticks is None:
            if self.stalled_ticks < limit - ABORT_TICKS:
                return HeartbeatVerdict.LEAVE
            self._aborted_ticks = self.stalled_ticks
            return HeartbeatVerdict.ABORT
        due = self.stalled_ticks == self._aborted_ticks + ABORT_TICKS
        return HeartbeatVerdict.KILL if due else HeartbeatVerdict.LEAVE
