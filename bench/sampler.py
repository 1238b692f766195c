"""Samples the status of a daemon during a load, and twice a second its memory, in a thread."""

from __future__ import annotations

import threading
from typing import Any, Self

import psutil

from bench.figures import put_optimum_per_s
from bench.processes import OBJECT_BYTES_TARGET, Daemon, ServerError
from shards.clock import monotonic_ns

INTERVAL_S = 0.5


class Sampler:
    """A context manager around a load; the figures are ready at its end."""

    def __init__(self, daemon: Daemon, interval_s: float = INTERVAL_S) -> None:
        self._daemon = daemon
        self._interval_s = interval_s
        self._memory_due_ns = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler")
        self._before: dict[str, Any] = {}
        self._after: dict[str, Any] = {}
        self._started_ns = 0
        self._cpu_before_s = 0.0
        self._side_before_s = 0.0
        self._failure: ServerError | None = None
        self.windows_ms: list[float] = []
        self.levels: list[float] = []
        self.rungs: set[str] = set()
        self.memory_peak_bytes = 0
        self.cpu_s = 0.0
        self.side_threads_cpu_s = 0.0
        self.seconds = 0.0

    def __enter__(self) -> Self:
        self._before = self._sample()
        self._cpu_before_s = self._daemon.cpu_s()
        self._side_before_s = self._daemon.side_threads_cpu_s()
        self._started_ns = monotonic_ns()
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.seconds = (monotonic_ns() - self._started_ns) / 1e9
        self._over.set()
        self._thread.join()
        if error is not None:
            return
        self.cpu_s = self._daemon.cpu_s() - self._cpu_before_s
        self.side_threads_cpu_s = self._daemon.side_threads_cpu_s() - self._side_before_s
        self._after = self._sample()
        if self._failure is not None:
            raise self._failure
        restarts = sum(shard["restarts"] for shard in self._after["shards"])
        if restarts:
            raise ServerError(f"shards died {restarts} times; {self._daemon.log_end()}")

    def store(self, name: str) -> int:
        """How much a counter of the store has grown."""
        return int(self._after["store"][name] - self._before["store"][name])

    @property
    def puts_per_s(self) -> float:
        return self.store("puts") / self.seconds

    @property
    def put_optimum_per_s(self) -> float:
        put_bytes_per_s = self.store("put_bytes") / self.seconds
        return put_optimum_per_s(self.windows_ms, put_bytes_per_s, OBJECT_BYTES_TARGET)

    @property
    def memory_bound_bytes(self) -> int:
        return int(self._after["memory_bound_bytes"])

    def _run(self) -> None:
        while not self._over.wait(self._interval_s):
            try:
                self._sample()
            except ServerError as error:
                self._failure = error
                return

    def _sample(self) -> dict[str, Any]:
        status: dict[str, Any] = self._daemon.ask("GET", "/v0/status")
        self.windows_ms.append(status["window_ms"])
        self.levels.append(status["pressure"]["level"])
        self.rungs.update(status["pressure"]["rungs"])
        if monotonic_ns() >= self._memory_due_ns:
            self._sample_memory()
        return status

    def _sample_memory(self) -> None:
        self._memory_due_ns = monotonic_ns() + int(INTERVAL_S * 1e9)
        total = 0
        for process in self._daemon.processes():
            try:
                # pss divides shared pages among the processes that map them.
                total += process.memory_full_info().pss
            except psutil.NoSuchProcess:
                continue
        self.memory_peak_bytes = max(self.memory_peak_bytes, total)
