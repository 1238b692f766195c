"""One daemon in simulation: the shipped rings, groups, leases, uploads, adoption, log and ledger.

Real: segment, RingWriter, Puller (map, turns, pulls), LeaseTable, adopt_orphans, Uploads with
assemble and the L0 format, CommitLog, Ledger on SQLite, Pulse (when a stuck shard is killed).
Modeled here: the shard's loop and the supervisor's tick (the order of steps of ``shard.py`` and
``supervisor.py`` in daemon/process/), bells, lock file, threads, clocks, the store and its faults.

The supervisor never dies here (its death ends all shards); it may be slow.
"""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from unittest.mock import patch

from daemon.intake.commit_feed import followed_and_live
from daemon.process.heartbeat import HeartbeatVerdict, Pulse
from ledger import commits, epochs
from ledger.errors import LedgerBusy, LedgerError
from ledger.ledger import Ledger
from ledger.space import reclaim
from ledger.types import Commit
from shards import alarms
from shards import layout as at
from shards.alarms import AlarmBoard, AlarmKind, raised
from shards.commitlog import CommitLog
from shards.doorbell import Doorbells
from shards.layout import Layout
from shards.leases import ORPHAN, Lease, LeaseTable
from shards.ring import RingFull, RingWriter
from shards.segment import Segment
from tests.sim.collection import Collections
from tests.sim.cursors import Copier, CursorClient
from tests.sim.deadlines import runs_of
from tests.sim.ledger_lock import LedgerLock
from tests.sim.load import Load
from tests.sim.oracle import Oracle
from tests.sim.pressure import Pressure
from tests.sim.recovery import Backup
from tests.sim.schedule import (
    MS,
    NEVER,
    Flag,
    Locks,
    LockTable,
    Mutex,
    Pool,
    Process,
    S,
    Schedule,
    Violation,
    Words,
    log_uniform,
)
from tests.sim.store import Store
from tests.sim.view import View
from tests.sim.watched_ledger import Injected, WatchedLedger
from uploader.groups import adopt
from uploader.groups import puller as groups
from uploader.groups.adopt import ADOPTIONS_MAX, Orphans, adopt_orphans
from uploader.groups.puller import GroupTable, Puller
from uploader.groups.upload_turn import Policy
from uploader.ownership.ownership import PERIOD_NS, Moment, tell_sent
from uploader.pipeline import outage, upload
from uploader.pipeline.upload import Uploads
from uploader.pipeline.voids import Run, Voids
from uploader.stores.retry import Budget

WALL_NS = 1_700_000_000 * S
TICK_NS = 100 * MS
EPOCH_NS = 2 * S  # ten minutes in the daemon; raised often here, so that leases and names meet it


class Bells(Doorbells):
    """Bells of one machine."""

    def __init__(self, machine: Machine) -> None:
        super().__init__([])
        self._machine = machine

    @property
    def owner(self) -> int:
        return self._machine.layout.shards

    def ring(self, shard: int) -> None:
        self._machine.schedule.point()
        self._machine.rung[shard] = True

    def clear(self, shard: int) -> None:
        self._machine.rung[shard] = False


class Shard:
    """One life of a shard: what daemon/process/shard.py wires, in its order."""

    def __init__(self, machine: Machine, shard: int) -> None:
        self.machine = machine
        self.shard = shard
        schedule = machine.schedule
        self.process = Process(schedule, f"shard {shard}")
        self.pulse = Pulse()
        self.heartbeat = 0
        self.inbox = 0
        self.copier: Copier | None = None
        self.waiting: dict[int, int] = {}  # position: request number, not yet answered
        self.pool: Pool | None = None
        schedule.start(self.process, "loop", self._run)

    def _run(self) -> None:
        machine, shard, schedule = self.machine, self.shard, self.machine.schedule
        segment = self._segment = View(machine.segment, self.process)
        self._words = segment.words
        self._log = CommitLog(segment)
        self._seen = self._log.end
        alarm_board = AlarmBoard(segment, shard)
        alarm_board.clear_all()
        self._leases = LeaseTable(segment.words, segment.layout)
        self._lock_file = Locks(machine.locks, self.process)
        self._ring = RingWriter(segment, shard)
        self._bells = Bells(machine)
        self._puller = Puller(
            segment, shard, self._lock_file, self._bells, self._leases, machine.policy
        )
        machine.starting[self.process] = self
        self._uploads = Uploads(
            segment, shard, self._leases, self._bells, machine.store, machine.ledger,
            machine.ledger.name_of, random.Random(schedule.rng.random()), alarm_board,
            self._ended,
        )  # fmt: skip
        self._voids = Voids(segment, self._puller, self._ring)
        self._look_at = NEVER
        self._look_soon = False
        self._quiet_until = 0
        self._expire_at = schedule.now_ns
        self._base = segment.layout.shard(shard)
        if shard == machine.copier_shard:
            self.copier = Copier(machine)
        segment.words[self._base + at.S_READY] = 1
        machine.log(f"{self.process.name} is up")
        self._on_bell()
        while True:
            schedule.wait(self._is_awake, min(self._look_at, self._expire_at))
            choices = []
            if self._expire_at <= schedule.now_ns:
                choices.append(self._expire)
            if machine.rung[shard]:
                choices.append(self._on_bell)
            if self.inbox:
                choices.append(self._take_in)
            if self._look_soon or self._look_at <= schedule.now_ns:
                choices.append(self._look)
            if choices:
                schedule.rng.choice(choices)()

    def new_pool(self, threads_max: int) -> Pool:
        """The threads of this life's uploads."""
        self.pool = Pool(self.machine.schedule, self.process, threads_max)
        self.pool.unexpected = self.machine.upload_ended
        return self.pool

    def _ended(self) -> None:
        """Replaces os._exit of an upload that cannot continue; allowed only for injected errors."""
        error = sys.exception()
        if not isinstance(error, Injected):
            raise Violation(f"an upload ended with {error!r}") from error
        self.machine.log(f"{self.process.name} ends itself")
        self.machine.ended += 1
        self.machine.to_kill.append(self.shard)
        self.machine.schedule.wait(None)

    def _is_awake(self) -> bool:
        return self.machine.rung[self.shard] or bool(self.inbox) or self._look_soon

    def _take_in(self) -> None:
        if self._words[at.G_GATE]:
            self.inbox = 0  # refused
        for _ in range(min(self.inbox, self.machine.rng.randrange(1, 8))):
            self.inbox -= 1
            self._take_one()

    def _take_one(self) -> None:
        machine = self.machine
        copier = self.copier
        if copier is not None:
            copier.skip()
        number, conditions, parts = machine.load.request(self.shard, machine.client, copier)
        now_ns = machine.schedule.now_ns
        try:
            position = self._ring.append(now_ns, now_ns // MS, conditions, parts)
        except RingFull:
            return
        machine.oracle.published(self.shard, position, self._ring.head, number)
        if copier is not None:
            copier.published(number, position)
        self.waiting[position] = number
        if self._ring.head > self._quiet_until:
            self._look_soon = True

    def _on_bell(self) -> None:
        self._bells.clear(self.shard)
        end = self._log.end
        while self._seen < end:
            commit = self._log.read(self._seen + 1)
            if commit is None:
                try:
                    commit = self.machine.ledger.read(commits.by_number, self._seen + 1)
                except LedgerError:
                    self.machine.rung[self.shard] = True  # the daemon tries again, too
                    break
            self._seen = commit.number
            self._answer(commit)
        self._words[self._base + at.S_SEEN] = self._seen
        self._uploads.committed_moved()
        for lease in self._adopt():
            self.machine.log(f"{self.process.name} adopts {lease}")
            self._uploads.start(lease)
        self._look_soon = True

    def _adopt(self) -> list[Lease]:
        now_ns = self.machine.schedule.now_ns
        return adopt_orphans(self._leases, self._lock_file, self.shard, now_ns)

    def _answer(self, commit: Commit) -> None:
        """Answers the producers of this life whose requests the commit covers."""
        for leased in commit.ranges:
            if leased.shard != self.shard:
                continue
            covered = [p for p in self.waiting if leased.start <= p < leased.end]
            if self.copier is not None:
                self.copier.ended(covered, commit)
            for position in covered:
                number = self.waiting.pop(position)
                self.machine.oracle.acknowledged(number, self.shard, position, commit)

    def _expire(self) -> None:
        """Lets the deadlines of some requests pass: those that were not pulled are withdrawn."""
        self._segment.follow_epoch(self.shard)  # the heartbeat's part
        rng = self.machine.rng
        self._expire_at = self.machine.schedule.now_ns + int(log_uniform(rng, 100, 5_000) * MS)
        if not self.waiting or not self.machine.faults:
            self._voids.pass_over()
            return
        share, void = rng.random() ** 2, list[int]()
        overdue = {position for position in self.waiting if rng.random() < share}

        def choose(pulled: int) -> list[Run]:
            void.extend(position for position in overdue if position >= pulled)
            self.machine.oracle.voided(self.shard, void)
            return runs_of(void, sorted(self.waiting), self._ring.head)

        if self._voids.take_back(choose):
            for position in void:
                del self.waiting[position]
            if self.copier is not None:
                self.copier.ended(void, None)
            self._look_soon = True

    def _look(self) -> None:
        self._look_soon = False
        self._look_at = NEVER
        now_ns = self.machine.schedule.now_ns
        look = self._puller.look(now_ns)
        for pulled in look.pulled:
            self.machine.log(f"{self.process.name} pulls {pulled.lease}")
            self._uploads.start(pulled.lease, pulled.requests)
        self._quiet_until = self._ring.head + look.quiet_bytes
        if look.again_at_ns <= now_ns:
            self._look_soon = True
        elif look.again_at_ns < NEVER:
            self._look_at = look.again_at_ns


class Machine:
    """Shards, supervisor, store and ledger under one schedule."""

    def __init__(self, seed: int | str, directory: Path, log: Callable[[str], None]) -> None:
        self.schedule = Schedule(seed)
        self.log = log
        rng = self.rng = self.schedule.rng
        shards = rng.randrange(2, 9)
        self.layout = Layout(
            shards,
            rng.choice((4096, 16384, 65536)),
            lease_slots=rng.randrange(1, 5),
            commit_slots=rng.choice((4, 8, 64)),
            commit_log_bytes=rng.choice((1024, 4096, 65536)),
            commit_bytes_max=rng.choice((128, 512)),
        )
        self.policy = Policy(object_bytes_target=rng.choice((200, 500, 1500)))
        self.segment = Segment.create(self.layout)
        self.words = self.segment.words
        self.locks = LockTable()
        self.rung = [False] * (shards + 1)
        self.store = Store(self.schedule)
        self.ledger = WatchedLedger(directory / "ledger.db", LedgerLock(self))
        self.ledger.machine = self
        # The oracle sees what is committed, not what another connection is about to.
        self.seen_ledger = Ledger(directory / "ledger.db", LedgerLock(self), must_exist=True)
        incarnation, epoch = self.ledger.write(epochs.begin_incarnation, 1)
        self.cleared = 0  # results of commits up to here
        self.words[at.G_INCARNATION], self.words[at.G_EPOCH] = incarnation, epoch
        self.starting: dict[Process, Shard] = {}  # until they have their threads
        self.wall_off_ns = 0  # steps of the wall clock
        tell_sent(self.words, self.moment())
        self.pressure = Pressure(rng, self.layout, self.policy.object_bytes_target, log)
        self.words[at.G_WINDOW_NS] = self.pressure.window_ns
        self.words[at.G_TARGET_BYTES] = self.pressure.target_bytes
        buddies = GroupTable(self.segment).map
        buddies.start()
        for _ in range(rng.randrange(shards)):
            group = buddies.group_of(rng.randrange(shards))
            if buddies.can_split(group):
                buddies.split(group)
        self.oracle = Oracle(self.segment, self.seen_ledger, self.store, self.schedule, log)
        self.load = Load(self.schedule, self.oracle, self.ledger, shards)
        self.client = CursorClient(self, self.oracle.cursors)
        self.copier_shard = rng.randrange(shards)
        self.backup = Backup(self.seen_ledger, self.store, self.oracle, directory)
        self.supervisor = Process(self.schedule, "supervisor")
        self.schedule.start(self.supervisor, "tick", self._supervise)
        self.owner = Process(self.schedule, "owner")
        self.schedule.start(self.owner, "owner", self._own)
        self._collection_ledger = Ledger(directory / "ledger.db", LedgerLock(self), must_exist=True)
        self.collections = Collections(self, self._collection_ledger)
        self.held_back: int | None = None  # a dead shard that is not started again yet
        self.dead: dict[int, int] = {}  # shard: when waitpid tells
        self.absent: dict[int, int] = {}  # shard: when it starts again
        self.lives = [Shard(self, shard) for shard in range(shards)]
        self.faults = True
        self.ledger_fails_every: int | None = None  # in calls
        self.to_kill: list[int] = []  # done by the run, between two steps
        self.poison_every: int | None = None  # in leases; no process can commit a poisonous one
        self.ended = 0  # processes that ended themselves
        self.stuck_ticks = 0  # with the alarm of a stuck lease
        self.deaths = 0
        log(f"machine of {shards} shards, {self.layout}, {self.policy}")

    def close(self) -> None:
        """Ends all tasks and frees everything."""
        self.schedule.close()
        self.seen_ledger.close()
        self._collection_ledger.close()
        self.ledger.close()
        self.segment.close()

    # Load

    def publish(self, shard: int) -> None:
        """A request arrives at a living shard."""
        if self.lives[shard].process.alive and self.lives[shard].inbox < 20:
            self.lives[shard].inbox += 1

    # Faults

    def kill(self, shard: int) -> None:
        """SIGKILL; waitpid reports it a little later."""
        life = self.lives[shard]
        if not life.process.alive:
            return
        self.log(f"{life.process.name} is killed")
        self.deaths += 1
        self.schedule.kill(life.process)
        self.dead[shard] = self.schedule.now_ns + self.rng.randrange(1, 300) * MS

    def stop(self, shard: int, duration_ns: int) -> None:
        """SIGSTOP for a while."""
        process = self.lives[shard].process
        if process.alive:
            self.log(f"{process.name} stops for {duration_ns} ns")
            process.stopped_until_ns = self.schedule.now_ns + duration_ns

    def fail(self, where: str) -> None:
        """Makes the ledger sometimes fail when a shard calls it, mostly only for a moment."""
        task = self.schedule.current
        every = self.ledger_fails_every
        if task is None or not self.faults or every is None or self.rng.randrange(every):
            return
        self.log(f"{task.process.name}: the ledger fails, {where}")
        if self.rng.randrange(10) or task.name != "upload":
            raise LedgerBusy(self.ledger.path, 1)
        raise Injected(self.ledger.path, 1, where)

    # The supervisor's tick

    def _supervise(self) -> None:
        schedule = self.schedule
        words = Words(self.segment.words, self.supervisor)
        leases = LeaseTable(words, self.layout)
        orphans = Orphans(View(self.segment, self.supervisor))
        group_table = GroupTable(View(self.segment, self.supervisor))
        bells = Bells(self)
        epoch_due_ns = schedule.now_ns + EPOCH_NS
        while True:
            schedule.sleep(TICK_NS)
            self.pressure.tick(words)
            if orphans.tick(schedule.now_ns):
                bells.ring_all(range(self.layout.shards))
            for shard, told_ns in sorted(self.dead.items()):
                if told_ns > schedule.now_ns:
                    continue
                del self.dead[shard]
                words[self.layout.shard(shard) + at.S_READY] = 0
                found = orphans.died(shard, schedule.now_ns)
                self.log(f"shard {shard} died, {len(found)} orphans")
                bells.ring_all(range(self.layout.shards))
                pause_ns = self.rng.choice((0, 1_000 * MS)) if self.faults else 0
                self.absent[shard] = schedule.now_ns + pause_ns
            for shard, life in enumerate(self.lives):
                if shard == self.held_back:
                    continue
                if shard in self.absent:
                    if self.absent[shard] <= schedule.now_ns:
                        del self.absent[shard]
                        self.rung[shard] = False
                        self.lives[shard] = Shard(self, shard)
                elif life.process.alive:
                    self._watch(life, words, leases, group_table)
            self._check_stuck(leases)
            seen = followed_and_live(cast(memoryview, words), self.layout, leases)
            to = self.ledger.read(commits.before_leases, *seen)
            self.cleared = reclaim.clear_results(self.ledger, self.cleared, to)
            if not self.rng.randrange(8):
                self.client.set()
            if schedule.now_ns >= epoch_due_ns:
                if self.rng.randrange(2):
                    oldest = leases.oldest_epoch()
                    self.log(f"floor {oldest}")
                    self.ledger.write(epochs.raise_floor, oldest)
                words[at.G_EPOCH] = self.ledger.write(epochs.advance)
                epoch_due_ns = schedule.now_ns + EPOCH_NS

    def _check_stuck(self, leases: LeaseTable) -> None:
        alarm = any(found.kind is AlarmKind.LEASE_STUCK for found in raised(self.segment))
        self.stuck_ticks += alarm
        for lease in leases.in_state(ORPHAN):
            if lease.deaths > ADOPTIONS_MAX and not alarm:
                raise Violation(f"a stuck lease has its alarm: {lease}")

    def _watch(
        self, life: Shard, words: Words, leases: LeaseTable, group_table: GroupTable
    ) -> None:
        if not life.process.stopped():
            life.heartbeat += 1
        holding = life.shard in leases.holders() | group_table.inside()
        ready = bool(words[self.layout.shard(life.shard) + at.S_READY])
        if life.pulse.tick(life.heartbeat, ready=ready, holding=holding) is HeartbeatVerdict.KILL:
            self.log(f"{life.process.name} is stuck")
            self.to_kill.append(life.shard)

    def moment(self) -> Moment:
        """Both clocks. After a pause, too, a machine sees a wall clock that was set."""
        now_ns = self.schedule.now_ns
        return Moment(now_ns, WALL_NS + now_ns + self.wall_off_ns)

    # The owner's thread: entries that are accepted

    def _own(self) -> None:
        words = Words(self.segment.words, self.owner)
        while True:
            sent = self.moment()
            self.schedule.sleep(int(log_uniform(self.rng, 5, 100)) * MS)
            tell_sent(cast(memoryview, words), sent)
            if self.faults and not self.rng.randrange(8):
                step_ms = int(log_uniform(self.rng, 100, 7_200_000))
                self.wall_off_ns = self.rng.choice((-1, 1)) * step_ms * MS
                self.log(f"the wall clock is set {self.wall_off_ns} ns off")
            outage = self.faults and not self.rng.randrange(8)
            pause_ns = self.rng.randrange(8, 24) * S if outage else PERIOD_NS
            self.schedule.sleep(pause_ns)

    # What ended

    def upload_ended(self, error: BaseException) -> None:
        """An upload raised: the run ends with it."""
        if isinstance(error, Violation):
            raise error
        raise Violation(f"an upload ended with {error!r}") from error

    def check(self) -> None:
        """Checks all invariants between two steps."""
        self.oracle.check(self.locks)

    def start_if_alone(self) -> None:
        """Starts a shard that is its own group: its successor uploads what it accepted."""
        if self.held_back is not None:
            buddies = GroupTable(self.segment).map
            if len(buddies.members(buddies.group_of(self.held_back))) == 1:
                self.held_back = None

    def quiet(self) -> bool:
        """Whether nothing is left to do: all requests committed and answered, all slots free."""
        lives = [life for life in self.lives if life.shard != self.held_back]
        alarm = any(alarm.process != self.held_back for alarm in raised(self.segment))
        if alarm or self.dead or any(not life.process.alive for life in lives):
            return False
        busy = any(life.waiting or life.inbox for life in lives)
        return not busy and self.oracle.all_committed(self.held_back)

    def describe(self) -> str:
        """Describes what is not at rest."""
        words = self.words
        shards = []
        for shard, life in enumerate(self.lives):
            base = self.layout.shard(shard)
            ring = [words[base + w] for w in (at.S_COMMITTED, at.S_PULLED, at.S_HEAD)]
            shards.append(f"shard {shard} alive {life.process.alive} ring {ring}"
                          f" waiting {len(life.waiting)} inbox {life.inbox}")  # fmt: skip
        leases = [
            (lease, LeaseTable(words, self.layout).state(lease.shard, lease.slot))
            for lease in LeaseTable(words, self.layout).in_state(1, 2)
        ]
        return f"{shards}, leases {leases}, alarms {list(raised(self.segment))}"


@contextmanager
def simulated(machine: Machine) -> Iterator[None]:
    """For a while the shipped modules get threads, locks and clocks from the machine."""
    schedule = machine.schedule

    def wall_ms() -> int:
        return schedule.now_ns // MS

    def boottime_ns() -> int:
        task = schedule.current
        if task is not None:
            task.looked_ns = schedule.now_ns
        return schedule.now_ns

    def wall_ns() -> int:
        task = schedule.current
        if task is not None:
            task.looked_wall_ns = machine.moment().wall_ns
        return machine.moment().wall_ns

    def new_pool(threads_max: int, **_: object) -> Pool:
        # Several shards may start at a time: making an Uploads loads words.
        task = schedule.current
        assert task is not None
        return machine.starting.pop(task.process).new_pool(threads_max)

    threads = SimpleNamespace(Lock=lambda: Mutex(schedule), Event=lambda: Flag(schedule))
    uploader_log = logging.getLogger("headgate.uploader")
    level = uploader_log.level
    uploader_log.setLevel(logging.CRITICAL + 1)
    with ExitStack() as stack:
        for module, name, value in (
            (upload, "threading", threads),
            (upload, "ThreadPoolExecutor", new_pool),
            (upload, "monotonic_ns", lambda: schedule.now_ns),
            (outage, "threading", threads),
            (alarms, "threading", threads),
            # Steps of 0.2 ms leave no time for waits of a minute.
            (adopt, "ADOPTION", Budget("adoption", None, 0.01, 0.5)),
            (upload, "boottime_ms", wall_ms),
            (upload, "boottime_ns", boottime_ns),
            (upload, "wall_ns", wall_ns),
            (groups, "wall_ms", wall_ms),
        ):
            stack.enter_context(patch.object(module, name, value))
        try:
            yield
        finally:
            uploader_log.setLevel(level)
