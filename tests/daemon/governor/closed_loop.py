"""Clients that wait for their answers, one shard, and the governor's window: a closed loop.

Virtual time in steps of 1 ms. A request costs CPU, then waits for the next upload; its answer makes
the client send the next one. A wider window makes clients send less, so the CPU is less busy, so
the window gets narrower.
"""

from __future__ import annotations

from daemon.config.sensors import INDEX, SENSORS, Reading
from daemon.governor.governor import Governor

MS = 1_000_000
TICK_MS = 100
SLOTS = 4


class ClosedLoop:
    """``clients`` with one request each; each costs ``cost_ms`` of CPU, an upload ``upload_ms``."""

    def __init__(
        self, clients: int, *, cost_ms: float, put_ms: float, window_min_ms: float,
        window_max_ms: float, upload_ms: float = 1.0,
    ) -> None:  # fmt: skip
        self.governor = Governor({})
        self.now_ms = 0
        self.window_ms = self._min_ms = window_min_ms
        self.windows: list[float] = []
        self.steady = 0.0
        self._max_ms = window_max_ms
        self._cost_ms, self._put_ms, self._upload_ms = cost_ms, put_ms, upload_ms
        self._to_serve = clients  # requests that want CPU
        self._owed_ms = 0.0  # CPU that was begun to be spent
        self._busy_ms = 0.0  # since the last tick
        self._pending = 0  # requests in the ring
        self._oldest_ms = self._last_ms = -1_000_000
        self._puts: list[tuple[float, int]] = []  # when it ends, with how many requests

    def run(self, seconds: int) -> None:
        """Lets time pass; ``windows`` has the window of each tick."""
        for _ in range(seconds * 1000):
            self._step()

    def _step(self) -> None:
        self.now_ms += 1
        now_ms = self.now_ms
        self._spend()
        while self._puts and self._puts[0][0] <= now_ms:
            self._to_serve += self._puts.pop(0)[1]
        idle = now_ms - self._last_ms >= self.window_ms
        due = idle or now_ms - self._oldest_ms >= self.window_ms
        if self._pending and due and len(self._puts) < SLOTS:
            self._puts.append((now_ms + self._put_ms, self._pending))
            self._pending, self._last_ms = 0, now_ms
            self._owed_ms += self._upload_ms
        if now_ms % TICK_MS == 0:
            self._tick()

    def _spend(self) -> None:
        """One millisecond of CPU."""
        left_ms = 1.0
        while left_ms > 0:
            if self._owed_ms > 0:
                spent = min(left_ms, self._owed_ms)
                self._owed_ms -= spent
                left_ms -= spent
                self._busy_ms += spent
            elif self._to_serve:
                self._to_serve -= 1
                self._owed_ms += self._cost_ms
                if not self._pending:
                    self._oldest_ms = self.now_ms
                self._pending += 1
            else:
                return

    def _tick(self) -> None:
        readings = [Reading(0.0)] * len(SENSORS)
        readings[INDEX["busy"]] = Reading(self._busy_ms / TICK_MS)
        readings[INDEX["uploads"]] = Reading(len(self._puts) / SLOTS)
        self._busy_ms = 0.0
        governed = self.governor.sample(readings, self._min_ms, self._max_ms, self.now_ms * MS)
        self.window_ms, self.steady = governed.window_ms, governed.steady
        self.windows.append(self.window_ms)
