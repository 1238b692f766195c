"""Whether the store takes what one process puts: what raises the alarm STORE_FAILING.

A PUT that fails is usual and is made again. The store is *failing* when nothing was kept for
DOWN_AFTER_NS: that counts from the beginning of the first call that failed, and begins again
after each call that succeeds. The alarm then stands until a call succeeds. Nobody else ends it,
so whoever reports a failure has to try again until the store answers or the process ends: the
outcome of a whole PUT is reported, not that of each attempt of a hedged one.

One object per process, for all its threads. It neither logs nor refuses: ``daemon/alarms.py``
says what the alarm means and ``daemon/intake/gate.py`` who is refused for it.
"""

from __future__ import annotations

import threading

from shards.alarms import AlarmBoard, AlarmKind

# Four retries in a row take 1.5 s at most (uploader/stores/retry.py): a storm of SlowDown in which
# one call in four succeeds is not an outage.
DOWN_AFTER_NS = 2_000_000_000


class Outage:
    """What one process knows. Times are of ``shards.clock.monotonic_ns``."""

    def __init__(self, board: AlarmBoard) -> None:
        self._board = board
        self._mutex = threading.Lock()
        self._kept_ns = 0  # when a call succeeded last
        self._since_ns = 0  # 0: nothing has failed since then

    def failed(self, error: Exception, began_ns: int, now_ns: int) -> None:
        """A call that began at ``began_ns`` failed."""
        with self._mutex:
            if not self._since_ns:
                self._since_ns = max(self._kept_ns, began_ns)
            if now_ns - self._since_ns >= DOWN_AFTER_NS:
                self._board.raise_(AlarmKind.STORE_FAILING, reason_of(error), self._since_ns)

    def kept(self, now_ns: int) -> None:
        """A call succeeded, or the store answered that it has kept something else."""
        with self._mutex:
            self._kept_ns = now_ns
            self._since_ns = 0
            self._board.clear(AlarmKind.STORE_FAILING)


def reason_of(error: Exception) -> str:
    """What is wrong in the shortest words: an operating system's error without its paths."""
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return str(error)
