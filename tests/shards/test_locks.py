"""Locks between processes and threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from shards import locks
from shards.locks import LockFile, SharedLock
from tests.shards.peer import started

BYTE = locks.GROUP + 3


@pytest.fixture
def lock_file(tmp_path: Path) -> Iterator[LockFile]:
    file = LockFile(tmp_path / "lock")
    yield file
    file.close()


def test_a_lock_is_free_again_when_its_holder_is_killed_with_sigkill(lock_file: LockFile) -> None:
    with started("hold", lock_file.path, BYTE, "alone") as peer:
        assert peer.line() == "held"
        assert not lock_file.try_lock(BYTE)
        peer.kill()
        assert lock_file.try_lock(BYTE)


def test_waiting_for_a_lock_ends_when_its_holder_dies(lock_file: LockFile) -> None:
    with started("hold", lock_file.path, BYTE, "alone") as peer:
        assert peer.line() == "held"
        waiter = threading.Thread(target=lock_file.lock, args=(BYTE,))
        waiter.start()
        peer.kill()
        waiter.join(timeout=60)
        assert not waiter.is_alive()
    with started("hold", lock_file.path, BYTE, "alone") as peer:
        assert peer.line() == "refused"


def test_processes_exclude_each_other(lock_file: LockFile, tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    with (
        started("count", lock_file.path, BYTE, counter, 400) as first,
        started("count", lock_file.path, BYTE, counter, 400) as second,
    ):
        assert (first.wait(), second.wait()) == (0, 0)
    assert counter.read_text() == "800"


def test_each_byte_of_a_file_is_a_separate_lock(lock_file: LockFile) -> None:
    with started("hold", lock_file.path, BYTE, "alone") as peer:
        assert peer.line() == "held"
        assert lock_file.try_lock(BYTE + 1)
        assert lock_file.try_lock(BYTE - 1)


def test_the_holder_of_a_lock_is_named_by_its_pid(lock_file: LockFile) -> None:
    assert lock_file.holder(BYTE) is None
    with started("hold", lock_file.path, BYTE, "alone") as peer:
        assert peer.line() == "held"
        assert lock_file.holder(BYTE) == peer.pid
        assert lock_file.holder(BYTE + 1) is None
    with started("hold", lock_file.path, BYTE, "share") as peer:
        assert peer.line() == "held"
        assert lock_file.holder(BYTE) == peer.pid


def test_a_shared_lock_admits_sharers_and_no_exclusive_holder(lock_file: LockFile) -> None:
    with started("hold", lock_file.path, BYTE, "share") as peer:
        assert peer.line() == "held"
        assert not lock_file.try_lock(BYTE)
        assert lock_file.try_share(BYTE)
        lock_file.unlock(BYTE)
        peer.kill()
        assert lock_file.try_lock(BYTE)
        with started("hold", lock_file.path, BYTE, "share") as late:
            assert late.line() == "refused"


def test_a_shared_lock_file_excludes_threads_that_the_kernel_would_let_in(
    lock_file: LockFile,
) -> None:
    lock = SharedLock(lock_file, BYTE)
    count = 0

    def add() -> None:
        nonlocal count
        for _ in range(200):
            with lock:
                seen = count
                os.sched_yield()
                count = seen + 1

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count == 800


def test_a_shared_lock_is_released_after_an_error(lock_file: LockFile) -> None:
    lock = SharedLock(lock_file, BYTE)
    with pytest.raises(KeyError), lock:
        raise KeyError
    with started("hold", lock_file.path, BYTE, "alone") as peer:
        assert peer.line() == "held"
    with lock:
        assert lock_file.holder(BYTE) is None


def test_closing_the_file_releases_all_locks(tmp_path: Path) -> None:
    file = LockFile(tmp_path / "lock")
    assert file.try_lock(BYTE)
    with started("hold", file.path, BYTE, "alone") as peer:
        assert peer.line() == "refused"
    file.close()
    with started("hold", tmp_path / "lock", BYTE, "alone") as peer:
        assert peer.line() == "held"
