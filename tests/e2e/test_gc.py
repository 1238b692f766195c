"""``headgate gc``: exactly the orphans go, beside a daemon and without one, killed or not."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from shards import locks
from shards.locks import LockFile
from tests.e2e.daemon import HANG_S, ROOT, Daemon, running, wait_until
from tests.e2e.orphans import Place, write_some
from tests.e2e.processes import stopped
from tests.e2e.stores import on_s3
from tests.minio import Bucket


@pytest.fixture(params=["embedded", pytest.param("s3", marks=pytest.mark.s3)])
def options(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A store for the daemon."""
    if request.param == "embedded":
        return {}
    bucket: Bucket = request.getfixturevalue("bucket")
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)  # the test itself opens the store too
    return on_s3(bucket, commit_window_min_ms=10)


def test_orphans_of_former_starts_go_beside_a_daemon_and_nothing_else(
    data: Path, options: dict[str, Any]
) -> None:
    place = Place(data, options)
    with running(data, **options) as daemon:
        write_some(daemon)
    with running(data, **options) as daemon:
        records = write_some(daemon)
        orphans = {place.put(1, 1, 900_001), place.put(1, 0, 900_002)}
        others = {place.put(7, 1, 900_003), place.put(2, 2, 900_004)}
        committed = {row.key for row in place.rows()}

        dry = place.json("gc", "--dry-run")
        assert set(dry["keys"]) == orphans and dry["deleted"] == 0
        assert place.present() == committed | orphans | others
        assert place.named() == []

        done = place.json("gc")
        assert (done["orphans"], done["deleted"], done["foreign"]) == (2, 2, 1)
        assert set(done["keys"]) == orphans and done["daemon_pid"] == daemon.process.pid
        assert place.present() == committed | others
        assert place.named() == []
        assert (done["usd"] > 0) == (options != {})
        assert daemon.read_all("orders") == records
        assert place.json("gc")["orphans"] == 0
        assert len(write_some(daemon)) == len(records) + 10


def test_what_a_kill_of_everything_left_uncommitted_goes_without_a_daemon(
    data: Path, options: dict[str, Any]
) -> None:
    place = Place(data, options)
    with running(data, **options) as daemon:
        records = write_some(daemon)
        committed = {row.key for row in place.rows()}
        lock_file = LockFile(data / "lock")
        try:
            # With the ledger locked an upload ends behind its PUT.
            wait_until(lambda: lock_file.try_lock(locks.LEDGER), "the ledger lock")
            lost = threading.Thread(target=_produce_in_vain, args=(daemon,))
            lost.start()
            wait_until(lambda: place.present() - committed, "an object that is not committed")
            daemon.kill_everything()
            lost.join(HANG_S)
        finally:
            lock_file.close()
    (orphan,) = place.present() - committed
    assert place.json("gc", "--dry-run")["keys"] == [orphan]
    assert place.present() == committed | {orphan}

    done = place.json("gc")
    assert (done["keys"], done["daemon_pid"]) == ([orphan], None)
    assert place.present() == committed
    assert place.json("check", "--deep")["objects"] == len(committed)
    with running(data, **options) as daemon:
        assert daemon.read_all("orders") == records
        assert len(write_some(daemon)) == len(records) + 10


def _produce_in_vain(daemon: Daemon) -> None:
    with pytest.raises((OSError, http.client.HTTPException)):
        daemon.produce("orders", "never acknowledged")


def test_nothing_is_deleted_before_an_entry_names_it_and_a_killed_run_is_finished(
    data: Path,
) -> None:
    place = Place(data, {})
    with running(data) as daemon:
        records = write_some(daemon)
        orphan = place.put(1, 0, 900_001)
        with stopped(daemon.process.pid):  # the supervisor: no entry is written
            run = subprocess.Popen(place.command("gc"), cwd=ROOT, env=place.environ)
            try:
                assert wait_until(place.named, "the orphan to be named") == [orphan]
                # Long enough for what must not happen: it looks for the entry again meanwhile.
                with pytest.raises(subprocess.TimeoutExpired):
                    run.wait(2.5)
                assert orphan in place.present()
            finally:
                run.send_signal(signal.SIGKILL)
                run.wait(HANG_S)
        assert place.named() == [orphan] and orphan in place.present()
        assert place.json("gc")["keys"] == [orphan]
        assert place.named() == [] and orphan not in place.present()
        assert daemon.read_all("orders") == records


def test_a_run_whose_daemon_ends_says_so_and_deletes_nothing(data: Path) -> None:
    place = Place(data, {})
    with running(data) as daemon:
        write_some(daemon)
        orphan = place.put(1, 0, 900_001)
        with stopped(daemon.process.pid):
            run = subprocess.Popen(
                place.command("gc"), cwd=ROOT, env=place.environ, text=True,
                stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
            )  # fmt: skip
            wait_until(place.named, "the orphan to be named")
            daemon.kill_everything()
            _, said = run.communicate(timeout=HANG_S)
    assert run.returncode == 1 and "run the command again" in said
    assert orphan in place.present()
    assert place.json("gc")["keys"] == [orphan]


def test_an_orphan_stays_for_its_grace_time(data: Path) -> None:
    place = Place(data, {"settings": {"gc_grace_ms": 3_600_000}})
    with running(data) as daemon:
        write_some(daemon)
        orphan = place.put(1, 0, 900_001)
        done = place.json("gc")
        assert (done["orphans"], done["young"], done["deleted"]) == (1, 1, 0)
        assert orphan in place.present()


def test_a_directory_without_a_ledger_is_refused_and_left_as_it_is(data: Path) -> None:
    for name in ("gc", "check"):
        done = Place(data, {}).run(name)
        assert done.returncode == 1 and "there is no ledger" in done.stderr and not done.stdout
    assert not data.exists()


def test_the_store_of_another_directory_is_refused(data: Path, tmp_path: Path) -> None:
    store = f"file://{tmp_path}/store"
    with running(data, store=store) as daemon:
        write_some(daemon)
        orphan = Place(data, {"store": store}).put(1, 0, 900_001)
        with running(tmp_path / "other") as other:
            write_some(other)
        for more in ((), ("--dry-run",)):
            done = Place(tmp_path / "other", {"store": store}).run("gc", *more)
            assert done.returncode == 1 and "belongs to" in done.stderr, done
        assert orphan in Place(data, {"store": store}).present()


def test_people_read_what_went_and_what_it_cost(data: Path) -> None:
    place = Place(data, {})
    with running(data) as daemon:
        write_some(daemon)
    orphan = place.put(1, 1, 900_001)
    done = place.run("gc", "-o", "table")
    assert done.returncode == 0, done.stderr
    assert orphan in done.stdout and "1 deleted, 0 too young" in done.stdout
    assert json.loads(place.run("gc").stdout)["usd"] == 0.0
