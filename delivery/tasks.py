"""Tasks of a part of a process: one way to begin them, and one way to fail."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine

log = logging.getLogger("headgate.tasks")


def logged(error: Exception) -> None:
    """For tasks without which the process goes on as well: their error is a bug."""
    log.error("a task failed because of a bug", exc_info=error)


class Tasks:
    """Tasks in the loop of a process. ``failed`` is told of an error that none of them expected,
    and ``ended`` of each that has ended in another way."""

    def __init__(
        self,
        failed: Callable[[Exception], object] = logged,
        ended: Callable[[], object] | None = None,
    ) -> None:
        self._failed, self._ended = failed, ended
        self._running: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def start(self, work: Coroutine[object, object, None]) -> asyncio.Task[None]:
        """Begins one."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._done)
        return task

    def cancel(self) -> None:
        """Cancels all."""
        for task in self._running:
            task.cancel()

    async def wait(self, timeout_s: float | None = None) -> None:
        """Returns when those that are there are done, or have taken too long."""
        if self._running:
            await asyncio.wait(self._running, timeout=timeout_s)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._failed(error)
        elif self._ended is not None:
            self._ended()
