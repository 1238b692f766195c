"""One thing at a time, in an order that a seed decides: tasks, processes, virtual time.

A *task* is a Python thread that runs only while the scheduler lets it; it returns control at
*points*. Every load and store of a shared word, every lock and every wait is a point. At some
points, as the seed decides, another task is chosen: that is one *step*. A *process* has tasks. It
may be *stopped* (its tasks get no steps for a while) or *killed*: each of its tasks ends at its
point, before the store that would have come next, its locks are free immediately, and nothing that
it does while it unwinds has an effect.

The shipped code runs in tasks unchanged. What it takes from the machine (threads, locks, words,
clocks) consists of points here. Only one thread runs at any time, so a run is a function of its
seed.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, MutableSequence
from concurrent.futures import Future
from typing import Any

from shards.locks import LockFile

NEVER = (1 << 63) - 1
MS = 1_000_000
S = 1_000 * MS
STORE_WEIGHT = 6  # a store is a better place for a switch than a load
LOCK_WEIGHT = 20  # and in front of a lock is a better one still: what was seen may be over


class Died(BaseException):
    """The process of this task was killed; the task unwinds without effect."""


class Violation(AssertionError):
    """A broken rule, which is what the simulation looks for."""


def require(holds: bool, rule: str, *operands: object) -> None:
    """Raises Violation naming the rule."""
    if not holds:
        raise Violation(f"{rule}: {', '.join(map(str, operands))}")


class Process:
    """One life of a shard, or the supervisor."""

    def __init__(self, schedule: Schedule, name: str) -> None:
        self.schedule = schedule
        self.name = name
        self.alive = True
        self.stopped_until_ns = 0
        self.tasks: list[Task] = []

    def stopped(self) -> bool:
        """Whether it gets no steps now."""
        return self.stopped_until_ns > self.schedule.now_ns


class _Worker:
    """A thread that runs one task after the other."""

    def __init__(self, back: threading.Lock) -> None:
        self.go = threading.Lock()
        self.go.acquire()
        self._back = back
        self.work: Callable[[], None] | None = None
        self.thread = threading.Thread(target=self._run, name="sim")
        self.thread.start()

    def _run(self) -> None:
        while True:
            self.go.acquire()
            if self.work is None:
                return
            self.work()
            self._back.release()


class Task:
    """Something that a process does."""

    def __init__(self, process: Process, name: str, work: Callable[[], None]) -> None:
        self.process = process
        self.name = name
        self.work = work
        self.worker: _Worker | None = None
        self.ready: Callable[[], bool] | None = None
        self.until_ns = 0
        self.error: BaseException | None = None
        self.ended = False
        self.looked_ns = 0  # when it looked at the clock of ownership last
        self.looked_wall_ns = 0  # what the wall clock said then

    def can_run(self, now_ns: int) -> bool:
        """Whether a step of it does anything."""
        if self.process.stopped_until_ns > now_ns:
            return False
        return self.until_ns <= now_ns or (self.ready is not None and self.ready())


class Schedule:
    """The tasks of a simulated machine."""

    def __init__(self, seed: int | str) -> None:
        self.rng = random.Random(seed)
        self.now_ns = 1_000 * S
        self.tasks: list[Task] = []
        self.current: Task | None = None
        self.mean_gap = 40.0  # points between two switches
        self.left = 1
        # A stop right before a store or a lock, this often; None: never.
        self.hazard_mean: float | None = None
        self._hazard_left = 1
        self._back = threading.Lock()
        self._back.acquire()
        self._idle: list[_Worker] = []
        self._workers: list[_Worker] = []

    # Called by tasks

    def point(self, weight: int = 1) -> None:
        """A point: another task may be chosen here, or this one killed."""
        task = self.current
        if task is None:
            return
        if not task.process.alive:
            raise Died
        self.left -= weight
        if weight >= STORE_WEIGHT and self.hazard_mean is not None:
            self._hazard_left -= 1
            if self._hazard_left <= 0:
                self._hazard_left = 1 + int(self.rng.expovariate(1 / self.hazard_mean))
                task.process.stopped_until_ns = self.now_ns + int(
                    log_uniform(self.rng, 0.1, 8_000) * MS
                )
                self.left = 0
        if self.left <= 0:
            task.ready, task.until_ns = None, 0
            self._hand_back(task)

    def wait(self, ready: Callable[[], bool] | None, until_ns: int = NEVER) -> None:
        """Returns control until a condition holds or a time has come."""
        task = self.current
        if task is None:
            if ready is not None and ready():
                return
            raise Violation("a wait outside of any task")
        if not task.process.alive:
            raise Died
        task.ready, task.until_ns = ready, until_ns
        self._hand_back(task)

    def sleep(self, duration_ns: int) -> None:
        """Lets virtual time pass."""
        self.wait(None, self.now_ns + max(1, duration_ns))

    def hazards(self, mean: float | None) -> None:
        """From now on a process is stopped at one store in ``mean``, or never."""
        self.hazard_mean = mean
        self._hazard_left = 1 if mean is None else 1 + int(self.rng.expovariate(1 / mean))

    def _hand_back(self, task: Task) -> None:
        assert task.worker is not None
        self._back.release()
        task.worker.go.acquire()
        if not task.process.alive:
            raise Died

    # Called by the scheduler's own thread

    def start(self, process: Process, name: str, work: Callable[[], None]) -> Task:
        """A new task; it begins at its first step. May also be called by a task."""
        task = Task(process, name, work)
        process.tasks.append(task)
        self.tasks.append(task)
        return task

    def choose(self) -> Task | None:
        """The task whose step is next. Time passes if none can run; None if none ever will."""
        for _ in range(2):
            now_ns = self.now_ns
            runnable = [task for task in self.tasks if task.can_run(now_ns)]
            if runnable:
                self.now_ns += self.rng.randrange(1, 300_000)
                return self.rng.choice(runnable)
            times = [
                max(task.process.stopped_until_ns, min(task.until_ns, self._when(task)))
                for task in self.tasks
            ]
            soonest_ns = min(times, default=NEVER)
            if soonest_ns >= NEVER:
                return None
            self.now_ns = max(self.now_ns, soonest_ns)
        raise Violation("time does not pass")

    def _when(self, task: Task) -> int:
        return task.process.stopped_until_ns if task.ready is not None and task.ready() else NEVER

    def run(self, task: Task) -> None:
        """One step of a task."""
        worker = task.worker
        if worker is None:
            worker = task.worker = self._idle.pop() if self._idle else self._new_worker()
            worker.work = lambda: self._body(task)
        self.left = 1 + int(self.rng.expovariate(1 / self.mean_gap))
        self.current = task
        worker.go.release()
        self._back.acquire()
        self.current = None
        if task.ended:
            self._idle.append(worker)
            self.tasks.remove(task)
            task.process.tasks.remove(task)
            if task.error is not None:
                raise task.error

    def _new_worker(self) -> _Worker:
        worker = _Worker(self._back)
        self._workers.append(worker)
        return worker

    def _body(self, task: Task) -> None:
        try:
            if task.process.alive:
                task.work()
        except Died:
            pass
        except BaseException as error:
            task.error = error
        task.ended = True

    def kill(self, process: Process) -> None:
        """SIGKILL: each task ends where it is."""
        process.alive = False
        for task in list(process.tasks):
            if task.worker is None:
                self.tasks.remove(task)
                process.tasks.remove(task)
            else:
                self.run(task)
        assert not process.tasks

    def close(self) -> None:
        """Ends all tasks and threads."""
        for task in list(self.tasks):
            task.process.alive = False
        for task in list(self.tasks):
            if task.worker is not None:
                task.error = None
                self.run(task)
        for worker in self._workers:
            worker.work = None
            worker.go.release()
            worker.thread.join()


class Words(MutableSequence[int]):
    """The shared words as one process sees them: each load and store is a point."""

    def __init__(
        self, memory: memoryview, process: Process, published_by: frozenset[int] = frozenset()
    ) -> None:
        self._memory = memory
        self._published_by = published_by  # head words: the oracle is told right after them
        self._process = process
        self._schedule = process.schedule

    def __getitem__(self, index: Any) -> Any:
        if type(index) is slice:  # a load each
            return [self[i] for i in range(*index.indices(len(self._memory)))]
        schedule = self._schedule
        if schedule.left <= 1 or not self._process.alive:
            schedule.point()
        else:
            schedule.left -= 1
        return self._memory[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._schedule.point(STORE_WEIGHT)
        self._memory[index] = value
        if index not in self._published_by:
            self._schedule.point(2)  # before bytes that are written after it, which are not points

    def __len__(self) -> int:
        return len(self._memory)

    def __delitem__(self, index: Any) -> None:
        raise TypeError("words cannot be deleted")

    def insert(self, index: int, value: int) -> None:
        raise TypeError("words cannot be inserted")


class LockTable:
    """Who holds which byte of the lock file; a dead process holds none."""

    def __init__(self) -> None:
        self.holders: dict[int, Process] = {}

    def holder(self, byte: int) -> Process | None:
        """The living process that holds a byte."""
        found = self.holders.get(byte)
        return found if found is not None and found.alive else None

    def holds_any(self, process: Process) -> bool:
        """Whether a process holds a byte."""
        return process.alive and process in self.holders.values()


class Locks(LockFile):
    """A process's view of the lock file. As with lockf, its own locks never refuse it."""

    def __init__(self, table: LockTable, process: Process) -> None:
        self._table = table
        self._process = process

    def try_lock(self, byte: int) -> bool:
        self._process.schedule.point(LOCK_WEIGHT)
        if self._table.holder(byte) not in (None, self._process):
            return False
        self._table.holders[byte] = self._process
        return True

    def lock(self, byte: int) -> None:
        while not self.try_lock(byte):
            self._process.schedule.wait(lambda: self._table.holder(byte) is None)

    def unlock(self, byte: int) -> None:
        if not self._process.alive:
            return  # freed when it died
        self._process.schedule.point(STORE_WEIGHT)
        if self._table.holders.get(byte) is self._process:
            del self._table.holders[byte]


class Mutex:
    """threading.Lock for the tasks of a process."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._held = False

    def __enter__(self) -> None:
        self._schedule.point()
        while self._held:
            self._schedule.wait(lambda: not self._held)
        self._held = True

    def __exit__(self, *_: object) -> None:
        self._held = False


class Flag:
    """threading.Event whose waits take virtual time."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._set = False

    def set(self) -> None:
        self._set = True

    def wait(self, timeout_s: float) -> bool:
        self._schedule.sleep(int(timeout_s * 1e9))
        return self._set


class Pool:
    """An executor of a process: a limited number of tasks run, the others queue."""

    def __init__(self, schedule: Schedule, process: Process, threads_max: int) -> None:
        self._schedule = schedule
        self._process = process
        self._free = threads_max
        self._queue: deque[tuple[Future[None], Callable[..., None], tuple[Any, ...]]] = deque()
        self.unexpected: Callable[[BaseException], None] = _raise

    @property
    def busy(self) -> bool:
        """Whether anything runs or is queued."""
        return bool(self._process.alive and (self._queue or len(self._process.tasks) > 1))

    def submit(self, work: Callable[..., None], /, *args: Any) -> Future[None]:
        future: Future[None] = Future()
        self._queue.append((future, work, args))
        if self._free:
            self._free -= 1
            self._schedule.start(self._process, "upload", self._drain)
        return future

    def _drain(self) -> None:
        while self._queue:
            future, work, args = self._queue.popleft()
            try:
                work(*args)
            except Exception as error:
                future.set_exception(error)
                self.unexpected(error)
            else:
                future.set_result(None)
        self._free += 1


def _raise(error: BaseException) -> None:
    raise Violation(f"an upload ended with {error!r}") from error


def log_uniform(rng: random.Random, low: float, high: float) -> float:
    """A number between two, each order of magnitude equally likely."""
    return float(low * (high / low) ** rng.random())
