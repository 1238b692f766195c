"""The supervisor's tick and end, on real processes that are not shards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Concatenate

import pytest

from daemon.config import Override, load
from daemon.process.heartbeat import Starvation
from daemon.process.inherit import Ground
from daemon.process.listeners import Listeners, admin_listener, open_listeners
from daemon.process.supervisor import BACKOFF_TICKS, Child, Supervisor
from daemon.upkeep.owner import LOCK_NAME, this_owner
from ledger import reads, topics
from ledger.ledger import Ledger
from ledger.log import backup
from ledger.space import retention
from ledger.tx import P, T, WriteTx
from ledger.types import TopicConfig
from shards import layout as at
from shards import locks
from shards.locks import LockFile, SharedLock
from tests.e2e.daemon import HANG_S, wait_until
from tests.ledger.lakes import commit
from tests.ledger.requests import Request
from tests.shards.peer import started
from uploader.groups.puller import GroupTable
from uploader.ownership.ownerlog import OwnerLog
from uploader.stores.counted import CountedPartedStore
from uploader.stores.file import FileStore

SLEEPS = "import signal; signal.pause()"


class SlowLedger(Ledger):
    """A ledger that tells when evictions are about to be carried out, and waits there."""

    def __init__(self, path: Path, lock: SharedLock) -> None:
        super().__init__(path, lock)
        self.evicting = threading.Event()
        self.let_go = threading.Event()

    def write(
        self, function: Callable[Concatenate[WriteTx, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        if function is retention.evict:
            self.evicting.set()
            assert self.let_go.wait(HANG_S)
        return super().write(function, *args, **kwargs)


class Rig:
    """A supervisor of one shard that owns a prefix, as ``daemon/process/serve.py`` makes it."""

    def __init__(
        self, data: Path, stack: ExitStack, config_file: str | None = None, **settings: str
    ) -> None:
        settings |= {"data_dir": str(data), "shards": "1"}
        overrides = [Override(*setting) for setting in settings.items()]
        self.config = load(config_file, {}, overrides)
        Path(self.config.ledger_path).parent.mkdir(parents=True)
        lock_file = stack.enter_context(closing(LockFile(data / LOCK_NAME)))
        self.lock = SharedLock(lock_file, locks.LEDGER)
        opened = stack.enter_context(closing(FileStore(str(data / "store"))))
        store = CountedPartedStore(opened)
        self.log = OwnerLog(store, this_owner(str(data)), lambda _: None)
        path = Path(self.config.ledger_path)
        self.ledger = stack.enter_context(closing(Ledger(path, self.lock)))
        told, copied = (stack.enter_context(closing(Ledger(path, self.lock))) for _ in range(2))
        self.kept = stack.enter_context(closing(SlowLedger(path, self.lock)))
        admin = stack.enter_context(admin_listener(str(data)))
        listeners = Listeners(open_listeners("127.0.0.1", 0, 1), [], admin)
        ground = stack.enter_context(closing(Ground(self.config, listeners)))
        self.supervisor = Supervisor(
            self.config, lock_file, self.log, store, told, self.kept, copied, ground
        )
        stack.enter_context(closing(self.supervisor))
        self.supervisor.prepare(self.log.take(take_over=False))
        self.supervisor._owner.start()
        stack.callback(self.supervisor._owner.release)

    @property
    def child(self) -> Child:
        return self.supervisor.children[0]

    def word(self, word: int) -> int:
        return int(self.supervisor.segment.words[self.supervisor.layout.shard(0) + word])

    def store(self, word: int, value: int) -> None:
        self.supervisor.segment.words[self.supervisor.layout.shard(0) + word] = value

    def runs(self, program: str) -> subprocess.Popen[bytes]:
        """The child's process, which is ready."""
        self.child.process = process = subprocess.Popen([sys.executable, "-c", program])
        self.store(at.S_READY, 1)
        return process

    def ends(self, program: str, *, ready: bool = True) -> None:
        """The child's process ends by itself, and the supervisor hears of it."""
        self.runs(program).wait(HANG_S)
        self.store(at.S_READY, int(ready))
        self.supervisor._reap()
        assert self.child.process is None

    def ticks_until_started(self) -> int:
        """How many ticks pass before the shard is started again."""
        restarts = self.word(at.S_RESTARTS)
        for tick in range(1, 1_000):
            self.supervisor._tick()
            if self.word(at.S_RESTARTS) > restarts:
                assert self.child.process is not None
                self.child.process.kill()
                self.child.process.wait(HANG_S)
                self.child.process = None
                return tick
        raise AssertionError("it is not started again")


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with ExitStack() as stack:
        yield Rig(tmp_path, stack, retention_interval_ms="1000")


def test_a_shard_that_ended_itself_is_started_again_after_a_pause(rig: Rig) -> None:
    # What ended it, a lease or a broken disk, is most likely still there.
    rig.ends("raise SystemExit(1)")
    assert rig.ticks_until_started() == BACKOFF_TICKS + 1


def test_a_shard_that_was_killed_before_it_was_ready_is_started_again_after_a_pause(
    rig: Rig,
) -> None:
    rig.ends("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", ready=False)
    assert rig.ticks_until_started() == BACKOFF_TICKS + 1


def test_a_shard_that_was_killed_while_it_served_is_started_again_immediately(rig: Rig) -> None:
    rig.ends("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert rig.ticks_until_started() == 1


@pytest.mark.parametrize(
    ("inside", "routers", "ticks"), [(True, 0, 16), (False, 0, 46), (False, 3, 16)]
)
def test_a_stuck_shard_is_ended_sooner_inside_a_groups_lock_or_if_it_owns_routers(
    rig: Rig, inside: bool, routers: int, ticks: int
) -> None:
    rig.store(at.S_OWNS, routers)
    process = rig.runs(SLEEPS)
    # These ticks take no time, so a process that is still starting would seem to get no CPU.
    rig.child.starvation = Starvation(Path("/nowhere"))
    group = rig.supervisor.layout.group(0)
    rig.supervisor.segment.words[group + at.P_MARK] = int(inside)  # the mark of shard 0
    assert GroupTable(rig.supervisor.segment).inside() == ({0} if inside else set())
    rig.store(at.S_HEARTBEAT, 7)
    ended: list[int] = []
    for tick in range(1, 100):
        rig.supervisor._tick()
        if rig.child.pulse.stalled_ticks and rig.child.pulse._aborted_ticks is not None:
            ended.append(tick)
            break
    assert ended == [ticks]
    assert process.wait(HANG_S) == -signal.SIGABRT


def test_a_shard_that_is_stopped_at_its_start_in_the_ledgers_lock_is_killed(rig: Rig) -> None:
    # Its heartbeat has not begun, so that nothing else would end it, and all commits would wait.
    lock_path = Path(rig.config.data_dir) / LOCK_NAME
    with started("write_ledger", rig.config.ledger_path, lock_path) as peer:
        rig.child.process = peer.process  # type: ignore[assignment]
        assert peer.line() == "writes"
        os.kill(peer.pid, signal.SIGSTOP)
        assert os.waitid(os.P_PID, peer.pid, os.WSTOPPED) is not None
        for _ in range(30):
            rig.supervisor._tick()
        assert peer.process.wait(HANG_S) < 0
        rig.child.process = None


def test_the_last_entry_tells_what_the_upkeep_did_last(rig: Rig) -> None:
    ledger = rig.ledger
    topic, _ = ledger.write(topics.create, "t", TopicConfig(cap_records=1), 1)
    for number in range(1, 4):
        commit(ledger, number, Request(topic.topic_id, ((0, 1),)))
    rig.supervisor.segment.words[at.G_COMMITS] = 3
    upkeep = rig.supervisor._upkeep
    ends = threading.Thread(target=rig.supervisor._let_go)
    upkeep.start()
    assert rig.kept.evicting.wait(HANG_S)
    ends.start()

    def either() -> bool:
        last = rig.log.last()
        return upkeep._stopped.is_set() or (last is not None and last.kind == "release")

    wait_until(either, "the end to begin")
    rig.kept.let_go.set()
    ends.join(HANG_S)
    last = rig.log.last()
    assert last is not None and last.kind == "release"
    assert ledger.read(reads.partition_states, topic.topic_id)[0].earliest_seq == 3
    assert last.mark == ledger.read(backup.mark)


@pytest.mark.parametrize("number", [None, signal.SIGTERM, signal.SIGHUP])
def test_only_a_stop_that_comes_while_it_lets_go_keeps_it_from_going_on(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, number: signal.Signals | None
) -> None:
    supervisor = rig.supervisor
    supervisor._standby = True
    supervisor.segment.words[at.G_HANDED_OVER_NS] = 1
    monkeypatch.setattr(supervisor._owner, "start", lambda: None)  # the rig has
    let_go = supervisor._let_go

    def is_told() -> None:
        let_go()
        if number is not None:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(supervisor, "_let_go", is_told)
    changed = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
    before = [signal.getsignal(each) for each in changed]
    try:
        assert supervisor.run() == 0
        found = signal.getsignal(signal.SIGTERM)
    finally:
        for each, handler in zip(changed, before, strict=True):
            signal.signal(each, handler)
    is_stopped = number is signal.SIGTERM
    assert supervisor.goes_on is not is_stopped
    assert found is (signal.SIG_IGN if is_stopped else signal.SIG_DFL), "exec keeps what is ignored"
