"""Real processes that hold the ledger and are stopped, and what looks do about them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from daemon import alarms
from daemon.config import load
from daemon.lockwatch import LOCK_LIMITS, PIN_LIMITS, PIN_TICKS, Act, LedgerWatch, Limits, Pulse
from ledger import notes
from ledger.ledger import Ledger
from shards import locks
from shards.alarms import AlarmBoard
from shards.layout import Layout
from shards.locks import LockFile, SharedLock
from shards.segment import Segment
from tests.shards.peer import Peer, started

TICK_NS = 100_000_000
CONFIG = load(None, {}, [])


class Watched:
    """A ledger and its watch; a tick is a call."""

    def __init__(self, directory: Path, wal_bytes_max: int) -> None:
        self.path = directory / "ledger.db"
        self.lock_path = directory / "lock"
        self.lock_file = LockFile(self.lock_path)
        self.ledger = Ledger(self.path, SharedLock(self.lock_file, locks.LEDGER))
        self.segment = Segment.create(Layout(2, 4096))
        board = AlarmBoard(self.segment, 2)
        self.watch = LedgerWatch(self.lock_file, self.path, board, wal_bytes_max)
        self.now_ns = 0

    def tick(self, ticks: int = 1, children: tuple[int, ...] = ()) -> None:
        for _ in range(ticks):
            self.now_ns += TICK_NS
            self.watch.tick(self.now_ns, children)

    def told(self) -> list[str]:
        troubles = alarms.active(self.segment, CONFIG, self.now_ns)
        return [f"{trouble.alarm}: {trouble.message}" for trouble in troubles]

    def close(self) -> None:
        self.ledger.close()
        self.lock_file.close()
        self.segment.close()
        os.close(self.segment.fd)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    with closing(Watched(tmp_path, wal_bytes_max=1 << 30)) as made:
        yield made


@pytest.fixture
def watched_wal(tmp_path: Path) -> Iterator[Watched]:
    """One whose WAL is always long enough to be looked at."""
    with closing(Watched(tmp_path, wal_bytes_max=1)) as made:
        made.ledger.write(notes.put, "there is", "a WAL")
        yield made


def stop(peer: Peer) -> None:
    """Stops a process, and returns when it is."""
    os.kill(peer.pid, signal.SIGSTOP)
    assert os.waitid(os.P_PID, peer.pid, os.WSTOPPED) is not None


def is_continued(peer: Peer) -> bool:
    return os.waitid(os.P_PID, peer.pid, os.WCONTINUED | os.WNOHANG) is not None


def test_a_command_that_is_stopped_in_its_transaction_is_continued_and_commits_go_on(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    with started("write_ledger", watched.path, watched.lock_path) as peer:
        assert peer.line() == "writes"
        stop(peer)
        watched.tick(LOCK_LIMITS.continued)
        assert is_continued(peer)
        assert f"process {peer.pid} (" in caplog.text and "write_ledger" in caplog.text
        assert peer.process.stdin is not None
        print(file=peer.process.stdin, flush=True)
        assert peer.line() == "done"
        watched.ledger.write(notes.put, "commits", "go on")
        watched.tick()
        assert watched.told() == []


def test_a_command_that_does_not_go_on_is_killed_and_leaves_nothing_half_done(
    watched: Watched,
) -> None:
    with started("write_ledger", watched.path, watched.lock_path) as peer:
        assert peer.line() == "writes"
        stop(peer)
        for _ in range(LOCK_LIMITS.killed - 1):
            watched.tick()
            if is_continued(peer):
                stop(peer)
        watched.tick()
        assert peer.wait() == -signal.SIGKILL
        watched.ledger.write(notes.put, "commits", "go on")


def test_a_command_that_is_at_work_is_named_after_a_second_and_left_alone(
    watched: Watched,
) -> None:
    with started("write_ledger", watched.path, watched.lock_path) as peer:
        assert peer.line() == "writes"
        watched.tick(9)
        assert watched.told() == []
        watched.tick()
        (told,) = watched.told()
        assert told.startswith("ledger_held: ledger lock held for 0 s: process ")
        assert f"process {peer.pid} (" in told and "write_ledger" in told
        watched.tick(100)
        assert peer.process.poll() is None
        assert watched.told()[0].startswith("ledger_held: ledger lock held for 10 s: process ")
        peer.kill()
        watched.tick()
        assert watched.told() == []


def test_a_shard_that_is_stopped_is_left_to_its_heartbeat(watched: Watched) -> None:
    with started("write_ledger", watched.path, watched.lock_path) as peer:
        assert peer.line() == "writes"
        stop(peer)
        watched.tick(3 * LOCK_LIMITS.killed, children=(peer.pid,))
        assert not is_continued(peer) and peer.process.poll() is None
        assert "which is stopped" in watched.told()[0]


def test_a_reader_that_is_stopped_in_a_read_is_continued(watched_wal: Watched) -> None:
    with started("read_ledger", watched_wal.path) as peer:
        assert peer.line() == "reads"
        stop(peer)
        watched_wal.tick(PIN_TICKS * PIN_LIMITS.continued)
        assert is_continued(peer)


def test_a_reader_that_keeps_the_wal_in_use_is_named_until_it_ends(watched_wal: Watched) -> None:
    with started("read_ledger", watched_wal.path) as peer:
        assert peer.line() == "reads"
        watched_wal.tick(PIN_TICKS * PIN_LIMITS.named)
        (told,) = watched_wal.told()
        assert told.startswith("wal_pinned: ")
        assert f"process {peer.pid} (" in told and "read_ledger" in told
        peer.kill()
        watched_wal.tick(PIN_TICKS)
        assert watched_wal.told() == []


def test_a_process_that_is_stopped_now_and_then_is_continued_each_time() -> None:
    pulse = Pulse(Limits(named=10, continued=2, killed=4))
    acts = [pulse.look(stopped=bool(int(each))) for each in "1101100"]
    assert acts == [
        Act.LEAVE, Act.CONTINUE, Act.LEAVE, Act.LEAVE, Act.CONTINUE, Act.LEAVE, Act.LEAVE,
    ]  # fmt: skip
