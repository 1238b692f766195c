"""Owners of one prefix in simulation: the shipped OwnerLog, OwnerThread and Ownership.

Daemons start on the prefix of one that may be alive (``--take-over``). Each has its own clock,
which runs up to 1 % fast or slow. Each is sometimes stopped at any point for up to minutes, or held
by a hypervisor, which its clock since boot does not show. Wall clocks are set. The store loses
answers and is slow. Each daemon uploads in the order of uploader/pipeline/upload.py: PUT, then the
check of ownership, then the commit.

What must hold, by true time:

- what an owner commits, every later owner has found by its LIST, and takes in after every offset
  that could have been assigned;
- no owner considers its ownership valid after a later owner's LIST;
- of two starts one gets the prefix, and the numbers of the log are written once each;
- only another daemon's entry supersedes an owner, never its own;
- an owner puts at most one new entry per 5 s of its clock, whatever happens to its images;
- image and entries that a new owner finds hold every commit that was told, as it was told.

A commit may come later than its check, if the process is stopped in between: its object is in the
LIST.
"""

from __future__ import annotations

import logging
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

from daemon.upkeep import image as image_module
from daemon.upkeep import owner as owner_module
from daemon.upkeep import standby as standby_module
from daemon.upkeep.image import ImageThread
from daemon.upkeep.owner import OtherHistory, OwnerThread
from ledger.ledger import Ledger
from ledger.log.entry import PREFIX, Entry, EntryError, Owner
from shards import alarms
from shards import layout as at
from shards.alarms import AlarmBoard
from shards.doorbell import Doorbells
from shards.layout import Layout
from shards.segment import Segment
from tests.sim.images import (
    BucketParts,
    ListLedger,
    ToldLedger,
    is_due,
    of_the_machine,
    recovered,
)
from tests.sim.schedule import (
    MS,
    Mutex,
    Process,
    S,
    Schedule,
    Violation,
    Words,
    log_uniform,
    require,
)
from uploader.ownership import ownerlog as ownerlog_module
from uploader.ownership.ownerlog import OwnedByAnother, OwnerLog, SealedLog
from uploader.ownership.ownership import Moment, may_commit, sent_of, should_ask
from uploader.pipeline import outage
from uploader.stores.base import ObjectHead, ObjectMissing, StoreBusy, StoreError

RAM = Path("/dev/shm")
DAEMONS_MAX = 12
WALL_NS = 1_700_000_000 * S
UPLOADS = 2  # of each daemon simultaneously
PERIOD_MIN_NS = 5 * S
RATE_MAX = 0.01
LAYOUT = Layout(
    UPLOADS, 4096, lease_slots=1, commit_slots=4, commit_log_bytes=128, commit_bytes_max=64
)


class Bucket:
    """Keys, each written once. The answer of a PUT may differ from what it did."""

    url = "sim://"

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self.kept: dict[str, bytes] = {}
        self.writers: dict[str, Process] = {}
        self.faults = True
        # Whose entries are refused, until when: an owner that cannot renew while it still uploads.
        self.refused_until_ns: dict[Process, int] = {}
        self.cut_until_ns: dict[Process, int] = {}  # who cannot reach the store
        self.down_until_ns = 0  # for everybody
        self.spared: set[Process] = set()  # for whom it always works, and fast

    def _pass(self) -> int:
        rng = self._schedule.rng
        task = self._schedule.current
        faults = self.faults and (task is None or task.process not in self.spared)
        slow = faults and not rng.randrange(30)
        self._schedule.sleep(int(log_uniform(rng, 1, 20_000 if slow else 200)) * MS)
        cut_until_ns = 0 if task is None else self.cut_until_ns.get(task.process, 0)
        if max(cut_until_ns, self.down_until_ns) > self._schedule.now_ns:
            raise StoreError("no route", retryable=True, outcome_unknown=True)
        return rng.randrange(10) if faults else 9

    def put_if_absent(self, key: str, body: bytes) -> bool:
        """One attempt."""
        fate = self._pass()
        task = self._schedule.current
        assert task is not None
        refused_until_ns = self.refused_until_ns.get(task.process, 0)
        if fate == 0 or (key.startswith("ledger/") and refused_until_ns > self._schedule.now_ns):
            raise StoreBusy("503 SlowDown")
        free = key not in self.kept
        if free:
            self.kept[key] = body
            self.writers[key] = task.process
        if self._pass() <= 1:
            raise StoreError("timeout, though it was kept", retryable=True, outcome_unknown=True)
        return free

    def put(self, key: str, body: bytes, crc32c: int) -> str:
        """One attempt."""
        self.put_if_absent(key, body)
        return key

    def get(self, locator: str, start: int = 0, length: int | None = None) -> bytes:
        """The bytes."""
        self._pass()
        body = self.kept.get(locator)
        if body is None:
            raise ObjectMissing(f"{locator} was removed after an image")
        return body[start:] if length is None else body[start : start + length]

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectHead]:
        """All of it as of one moment: LIST is strongly consistent."""
        self._pass()
        found = sorted(k for k in self.kept if k.startswith(prefix) and k > start_after)
        return iter([ObjectHead(key, key, len(self.kept[key]), 0) for key in found])

    def delete(self, locators: Sequence[str]) -> None:
        """Removes keys."""
        self._pass()
        for key in locators:
            self.kept.pop(key, None)

    def attempt(self) -> None:
        """A call that may fail, and take its time."""
        if self._pass() <= 1:
            raise StoreError("timeout", retryable=True, outcome_unknown=True)

    def put_in_parts(self, key: str) -> BucketParts:
        """Begins an image."""
        return BucketParts(self, key)

    def discard_unfinished(self, prefix: str) -> int:
        """Nothing that was not finished is kept here."""
        self.attempt()
        return 0

    def check(self) -> None:
        """This store can be used."""

    def reconnect(self) -> None:
        """There is nothing to connect to."""

    def close(self) -> None:
        """There is nothing to close."""


class Daemon:
    """One start on the prefix."""

    pause_ms_max = 30_000  # between two uploads

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        rng = world.schedule.rng
        self.rate = 1 + rng.uniform(-RATE_MAX, RATE_MAX)
        self.clock_start_ns = rng.randrange(10 * S)
        self.held_ns = 0
        self.wall_off_ns = 0
        self.process = Process(world.schedule, f"daemon {number}")
        self.incarnation: int | None = None
        self.listed: frozenset[str] | None = None  # objects, when it took the prefix over
        self.listed_ns = 0
        self.committed: list[str] = []
        self.looked_good_ns = 0
        self.entries_ns: list[int] = []  # when new ones were sent, by its clock
        self.rung = False
        self.segment = Segment.create(LAYOUT)
        self.ledger: ListLedger | None = None  # once it owns
        self.drains = False
        self.uploading = 0
        self._objects = 0
        world.schedule.start(self.process, "start", self._start)

    def now_ns(self) -> int:
        """The daemon's clock, which stands still while a hypervisor holds the machine."""
        passed_ns = self.world.schedule.now_ns - self.held_ns
        return self.clock_start_ns + int(passed_ns * self.rate)

    def moment(self) -> Moment:
        """Both clocks; the wall clock is set right when the machine goes on, and now and then
        wrong."""
        return Moment(self.now_ns(), WALL_NS + self.now_ns() + self.held_ns + self.wall_off_ns)

    def hold(self, duration_ns: int) -> None:
        """A hypervisor holds the machine, which its clock since boot does not show."""
        schedule = self.world.schedule
        self.process.stopped_until_ns = schedule.now_ns + duration_ns
        self.held_ns += duration_ns

    def sleep_own_ns(self, duration_ns: int) -> None:
        """Sleeps by its own clock."""
        until_ns = self.world.schedule.now_ns + int(duration_ns / self.rate)
        self.world.schedule.wait(None, until_ns)

    def _start(self) -> None:
        world = self.world
        owner = Owner(f"host {self.number}", 1, f"boot {self.number}", 1, self.number, "/data")
        owner_log = OwnerLog(world.bucket, owner, lambda s: self.sleep_own_ns(int(s * 1e9)))
        words = Words(self.segment.words, self.process)
        view = SimpleNamespace(words=words, layout=LAYOUT, data=self.segment.data)
        bells = cast(Doorbells, _OwnerBells(self))
        try:
            taken, told_commits = self.take(owner_log)
            listed = frozenset(head.key for head in world.bucket.list("l0/"))
            listed_ns = world.schedule.now_ns
            told = 0 if taken.last is None else taken.last.mark.commit_number
            try:
                commits = recovered(owner_log, told) if told_commits is None else told_commits
                world.check_recovered(commits, taken.last)
            except (ObjectMissing, EntryError, Violation) as error:
                # A faster start, whose images have removed what this one has listed, gets it.
                faster = any((d.incarnation or 0) > taken.incarnation for d in world.daemons)
                require(faster, "what a recovery needs is there", str(error))
                return
            ledger = ListLedger(world.schedule, world.directory / f"ledger-{self.number}", commits)
            thread = OwnerThread(cast(Segment, view), bells, owner_log, cast(Ledger, ledger))
            words[at.G_INCARNATION] = taken.incarnation + 1
            thread.own(taken.incarnation + 1, taken)
        except (StoreError, OwnedByAnother, OtherHistory) as error:
            world.log(f"{self.process.name} does not start: {error}")
            return
        self.incarnation = taken.incarnation + 1
        self.listed, self.listed_ns = listed, listed_ns
        self.ledger = ledger
        world.log(f"{self.process.name} owns as {self.incarnation}, {len(listed)} objects")
        self.owns(thread, words)
        thread.start()
        board = AlarmBoard(cast(Segment, view), LAYOUT.shards)
        ImageThread(
            cast(Segment, view), thread, owner_log, world.bucket, cast(Ledger, ledger), board
        ).start()
        for upload in range(UPLOADS):
            world.schedule.start(self.process, "upload", partial(self._upload, words, upload))

    def take(self, owner_log: OwnerLog) -> tuple[SealedLog, list[str] | None]:
        """Takes the prefix over; the commits that were told, if they are known without a
        recovery."""
        return owner_log.take(take_over=True), None

    def owns(self, thread: OwnerThread, words: Words) -> None:
        """Its first entry stands."""

    def _upload(self, words: Words, upload: int) -> None:
        """Uploads forever, in the order of uploader/pipeline/upload.py."""
        world, schedule = self.world, self.world.schedule
        wanted_at = LAYOUT.shard(upload) + at.S_ENTRY_WANTED_NS
        while True:
            schedule.sleep(int(log_uniform(schedule.rng, 1, self.pause_ms_max)) * MS)
            if self.drains:
                return
            self.uploading += 1
            self._objects += 1
            key = f"l0/{self.number}-{self._objects}"
            while True:
                self._ask(words, wanted_at)
                try:
                    world.bucket.put(key, b"", 0)
                    break
                except StoreError:
                    schedule.sleep(100 * MS)
            while True:
                now, true_ns = self.moment(), schedule.now_ns
                if may_commit(now, sent_of(cast(memoryview, words))):
                    break
                self._ask(words, wanted_at)
                schedule.sleep(50 * MS)
            if words[at.G_SUPERSEDED]:
                return
            schedule.point(1_000)
            self.looked_good_ns = max(self.looked_good_ns, true_ns)
            self.committed.append(key)
            assert self.ledger is not None
            self.ledger.commits.append(key)
            words[at.G_COMMITS] = len(self.ledger.commits)
            world.log(f"{self.process.name} commits {key}")
            self.uploading -= 1

    def _ask(self, words: Words, wanted_at: int) -> None:
        now = self.moment()
        if should_ask(now, sent_of(cast(memoryview, words))):
            words[wanted_at] = now.boot_ns
            self.rung = True

    def close(self) -> None:
        """Frees its memory."""
        self.segment.close()


class _OwnerBells:
    """The owner thread's bell."""

    owner = UPLOADS

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.fds = [daemon] * (UPLOADS + 1)

    def ring(self, _: int) -> None:
        self.daemon.rung = True

    def ring_all(self, _: object) -> None:
        """Does nothing: the shards' loops are not in this simulation."""

    def clear(self, _: int) -> None:
        self.daemon.rung = False


class World:
    """One prefix and all daemons that start on it."""

    def __init__(self, seed: int | str, log: Callable[[str], None]) -> None:
        self.schedule = Schedule(seed)
        self.schedule.mean_gap = 8.0
        self.log = log
        self.bucket = Bucket(self.schedule)
        self.daemons: list[Daemon] = []
        self._folder = tempfile.TemporaryDirectory(dir=RAM if RAM.is_dir() else None)
        self.directory = Path(self._folder.name)

    def close(self) -> None:
        """Ends all tasks and frees everything."""
        self.schedule.close()
        self._folder.cleanup()
        for daemon in self.daemons:
            daemon.close()

    def step(self) -> None:
        """Runs one step, and sometimes a new daemon or a stop. Raises Violation."""
        schedule, rng = self.schedule, self.schedule.rng
        if not schedule.tasks or (len(self.daemons) < DAEMONS_MAX and not rng.randrange(250)):
            for _ in range(1 + (not rng.randrange(4))):
                self.daemons.append(Daemon(self, len(self.daemons)))
        task = schedule.choose()
        if task is None:
            raise Violation("nothing can run any more")
        self.log(f"{task.process.name} {task.name}")
        schedule.run(task)
        if not rng.randrange(60):
            stop_ns = int(log_uniform(rng, 1, 150_000)) * MS
            daemon = next(d for d in self.daemons if d.process is task.process)
            if rng.randrange(2) and not task.process.stopped():
                self.log(f"{task.process.name} is held for {stop_ns} ns")
                daemon.hold(stop_ns)
            else:
                self.log(f"{task.process.name} stops for {stop_ns} ns")
                task.process.stopped_until_ns = schedule.now_ns + stop_ns
            if not rng.randrange(4):
                daemon.wall_off_ns = rng.choice((-1, 1)) * int(log_uniform(rng, 1, 7_200_000)) * MS
                self.log(f"the wall clock of {task.process.name} is off {daemon.wall_off_ns} ns")
        if not rng.randrange(150):
            refused_ns = rng.randrange(10, 45) * S
            self.log(f"entries of {task.process.name} are refused for {refused_ns} ns")
            self.bucket.refused_until_ns[task.process] = schedule.now_ns + refused_ns
        self.check()

    def check_recovered(self, commits: list[str], last: Entry | None) -> None:
        """What a new owner found told is what the writer of the last entry had committed."""
        if last is None:
            return
        number = last.mark.commit_number
        for former in self.daemons:
            if former.incarnation == last.incarnation and former.ledger is not None:
                there = former.ledger.commits[:number]
                require(commits[:number] == there, "what was told is recovered", commits, there)

    def check(self) -> None:
        """The invariants of this module's head."""
        owners = sorted(
            (d for d in self.daemons if d.incarnation is not None), key=lambda d: d.incarnation or 0
        )
        for daemon in owners:
            if daemon.segment.words[at.G_SUPERSEDED]:
                log = f"{PREFIX}{daemon.incarnation:012d}/"
                writers = {w for key, w in self.bucket.writers.items() if key.startswith(log)}
                require(
                    writers != {daemon.process}, "superseded by another, not by oneself",
                    daemon.number,
                )  # fmt: skip
        for later_index, later in enumerate(owners):
            assert later.listed is not None
            for former in owners[:later_index]:
                require(
                    former.incarnation != later.incarnation, "one start gets the prefix",
                    former.number, later.number,
                )  # fmt: skip
                missed = [key for key in former.committed if key not in later.listed]
                require(not missed, "the next owner has found what was committed", missed)
                require(
                    former.looked_good_ns <= later.listed_ns,
                    "nobody finds ownership valid after the next owner's LIST",
                    former.number, former.looked_good_ns, later.number, later.listed_ns,
                )  # fmt: skip


@contextmanager
def simulated_owners(world: World) -> Iterator[None]:
    """The owner's thread, its select and the clocks are the world's, for a while."""
    schedule = world.schedule

    def current() -> Daemon:
        assert schedule.current is not None
        process = schedule.current.process
        return next(d for d in world.daemons if d.process is process)

    def select(readers: Sequence[Daemon], _w: object, _x: object, timeout_s: float) -> None:
        (daemon,) = readers
        until_ns = schedule.now_ns + int(timeout_s * 1e9 / daemon.rate)
        schedule.wait(lambda: daemon.rung, max(until_ns, schedule.now_ns + 1))

    class Thread:
        def __init__(self, target: Callable[[], None], name: str, **_: object) -> None:
            self._target = target
            self._name = name

        def start(self) -> None:
            self._task = schedule.start(current().process, self._name, self._target)

        def join(self) -> None:
            schedule.wait(lambda: self._task.ended)

    class OwnEvent:
        """Nothing stops a daemon here: a wait is a sleep by its own clock."""

        def is_set(self) -> bool:
            return False

        def wait(self, timeout_s: float) -> bool:
            current().sleep_own_ns(int(timeout_s * 1e9))
            return False

    def put(self: OwnerLog, entry: Any) -> bool:
        daemon = current()
        number = (entry.incarnation, entry.number)
        if entry.kind == "entry" and number not in sent[daemon.number]:
            sent[daemon.number][number] = daemon.now_ns()
            times = list(sent[daemon.number].values())
            gap_ns = times[-1] - times[-2] if len(times) > 1 else PERIOD_MIN_NS
            require(gap_ns >= PERIOD_MIN_NS, "one entry per 5 s", daemon.number, gap_ns)
        return real_put(self, entry)

    real_put = OwnerLog.put
    sent: dict[int, dict[tuple[int, int], int]] = defaultdict(dict)
    mutexes = SimpleNamespace(Lock=lambda: Mutex(schedule))
    names = ("owner", "image", "store", "standby")
    loggers = [logging.getLogger(f"headgate.{name}") for name in names]
    levels = [logger.level for logger in loggers]
    with ExitStack() as stack:
        for target, name, value in (
            (owner_module, "threading", SimpleNamespace(Thread=Thread)),
            (owner_module, "monotonic_ns", lambda: current().now_ns()),
            (outage, "threading", mutexes),
            (alarms, "threading", mutexes),
            (owner_module, "select", SimpleNamespace(select=select)),
            (owner_module, "boottime_ns", lambda: current().now_ns()),
            (owner_module, "wall_ns", lambda: current().moment().wall_ns),
            (image_module, "threading", SimpleNamespace(Thread=Thread, Event=OwnEvent)),
            (image_module, "monotonic_ns", lambda: current().now_ns()),
            (image_module, "os", of_the_machine(schedule)),
            (image_module, "is_due", is_due),
            (ownerlog_module, "wall_ms", lambda: current().now_ns() // MS),
            (
                standby_module,
                "threading",  # nobody reads a warm ledger here, so nothing waits for its lock
                SimpleNamespace(Thread=Thread, Event=OwnEvent, Lock=nullcontext),
            ),
            (standby_module, "boottime_ns", lambda: current().now_ns()),
            (standby_module, "os", of_the_machine(schedule)),
            (standby_module, "Ledger", ToldLedger),
            (OwnerLog, "put", put),
        ):
            stack.enter_context(patch.object(target, name, value))
        for logger in loggers:
            logger.setLevel(logging.CRITICAL + 1)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
