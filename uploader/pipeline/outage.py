"""Whether the store accepts what one process puts; raises the alarm STORE_FAILING.

Single PUTs fail normally and are repeated. The store is *failing* if no PUT succeeded for
DOWN_AFTER_NS, counted from the beginning of the first call that failed since the last success. The
alarm then stays until a call succeeds. Only a success ends it, so a caller that reports a failure
must try again until the store answers or the process ends. Hedged PUTs report the outcome of the
whole PUT, not of each attempt.

A call that hangs fails late, so it is looked at while it runs: ``hangs`` is told of one that has
taken so long that the sensor of the store reads full (``health.py``).

One object per process, for all its threads. It neither logs nor refuses:
``daemon/alarms/alarms.py`` says what the alarm means and ``daemon/governor/producers_gate.py`` who
is refused for it.
"""

from __future__ import annotations

import threading

from shards.alarms import AlarmBoard, AlarmKind

# Four retries in succession take 1.5 s at most (uploader/stores/retry.py): a storm of SlowDown in
# which one call in four succeeds is not an outage.
DOWN_AFTER_NS = 2_000_000_000


class Outage:
    """What one process knows. Times are those of ``shards.clock.monotonic_ns``."""

    def __init__(self, board: AlarmBoard) -> None:
        self._board = board
        self._mutex = threading.Lock()
        self._kept_ns = 0  # when a call last succeeded
        self._since_ns = 0  # when the first call after it failed; 0: none did
        self._is_hanging = False  # it was told since then that a call hangs

    def failed(self, error: Exception, began_ns: int, now_ns: int) -> None:
        """A call that began at ``began_ns`` failed."""
        with self._mutex:
            if not self._since_ns:
                self._since_ns = max(self._kept_ns, began_ns)
            if now_ns - self._since_ns >= DOWN_AFTER_NS:
                self._board.raise_(AlarmKind.STORE_FAILING, reason_of(error), self._since_ns)

    def hangs(self, began_ns: int, now_ns: int) -> None:
        """A call that began at ``began_ns`` has no answer yet."""
        with self._mutex:
            since_ns = self._since_ns or max(self._kept_ns, began_ns)
            if not self._is_hanging and now_ns - since_ns >= DOWN_AFTER_NS:
                self._is_hanging, self._since_ns = True, since_ns
                self._board.raise_(AlarmKind.STORE_FAILING, "a PUT has no answer", since_ns)

    def kept(self, now_ns: int) -> None:
        """A call succeeded, or the store answered that the key holds something else."""
        with self._mutex:
            self._kept_ns = now_ns
            self._since_ns = 0
            self._is_hanging = False
            self._board.clear(AlarmKind.STORE_FAILING)


def reason_of(error: Exception) -> str:
    """The cause in few words: the error of the operating system without paths, if there is one."""
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return str(error)
