"""``headgate gc``: exactly what nothing needs is deleted, with and without a daemon, killed or not.

Compactions are made by hand: files and the switch in the ledger, without a catalog, which a
collection names as its one problem.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from ledger import notes
from tests.compaction.by_hand import compact, opened
from tests.e2e.daemon import HANG_S, ROOT, UNANSWERED, Daemon, running, wait_until
from tests.e2e.killed_gc import POINTS
from tests.e2e.orphans import Place, write_some
from tests.e2e.processes import locked_ledger, unlisted
from tests.e2e.stores import on_s3
from tests.minio import Bucket


@pytest.fixture(params=["embedded", pytest.param("s3", marks=[pytest.mark.s3, pytest.mark.slow])])
def options(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A store for the daemon."""
    if request.param == "embedded":
        return {}
    bucket: Bucket = request.getfixturevalue("bucket")
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)  # the test itself opens the store too
    return on_s3(bucket, commit_window_min_ms=10)


@pytest.mark.slow
def test_orphans_of_every_start_go_beside_a_daemon_and_nothing_else(
    data: Path, options: dict[str, Any]
) -> None:
    place = Place(data, options)
    with running(data, **options) as daemon:
        write_some(daemon)
    with running(data, **options) as daemon:
        records = write_some(daemon)
        # Of the present start too: no lease that lives has such an id.
        orphans = {place.put(1, 1, 900_001), place.put(1, 0, 900_002), place.put(2, 2, 900_004)}
        others = {place.put(7, 1, 900_003)}
        committed = {row.key for row in place.rows()}

        dry = place.json("gc", "--dry-run")
        assert set(dry["keys"]) == orphans and dry["deleted"] == 0
        assert place.present() == committed | orphans | others
        assert place.named() == []

        done = place.json("gc")
        assert (done["orphans"], done["deleted"], done["foreign"]) == (3, 3, 1)
        assert set(done["keys"]) == orphans and done["daemon_pid"] == daemon.process.pid
        assert place.present() == committed | others
        assert place.named() == []
        assert (done["usd"] > 0) == (options != {})
        assert daemon.read_all("orders") == records
        assert place.json("gc")["orphans"] == 0
        assert len(write_some(daemon)) == len(records) + 10


@pytest.mark.slow
def test_what_a_kill_of_everything_left_uncommitted_goes_without_a_daemon(
    data: Path, options: dict[str, Any]
) -> None:
    place = Place(data, options)
    with running(data, **options) as daemon:
        records = write_some(daemon)
        committed = {row.key for row in place.rows()}
        with locked_ledger(daemon):  # an upload ends after its PUT
            lost = threading.Thread(target=_produce_in_vain, args=(daemon,))
            lost.start()
            wait_until(lambda: place.present() - committed, "an object that is not committed")
            daemon.kill_everything()
            lost.join(HANG_S)
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


@pytest.mark.slow
def test_an_object_whose_lease_lives_is_no_orphan(data: Path) -> None:
    place = Place(data, {})
    with running(data) as daemon:
        write_some(daemon)
        committed = {row.key for row in place.rows()}
        with locked_ledger(daemon):  # an upload waits after its PUT
            patient = {"ack_timeout_ms": 600_000}
            late = threading.Thread(target=daemon.produce, args=("orders", "late"), kwargs=patient)
            late.start()
            wait_until(lambda: place.present() - committed, "an object that is not committed")
            found = place.json("gc", "--dry-run")
            assert (found["keys"], found["orphans"], found["foreign"]) == ([], 0, 0)
        late.join(HANG_S)
        assert place.json("gc")["deleted"] == 0
        assert daemon.read_all("orders")[-1]["data"] == "late"


def _produce_in_vain(daemon: Daemon) -> None:
    with pytest.raises(UNANSWERED):
        daemon.produce("orders", "never acknowledged", ack_timeout_ms=600_000)


@pytest.mark.slow
def test_nothing_is_deleted_before_an_entry_names_it_and_a_killed_run_is_finished(
    data: Path,
) -> None:
    place = Place(data, {})
    with running(data) as daemon:
        records = write_some(daemon)
        orphan = place.put(1, 0, 900_001)
        with unlisted(daemon):
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


@pytest.mark.slow
def test_a_run_whose_daemon_ends_says_so_and_deletes_nothing(data: Path) -> None:
    place = Place(data, {})
    with running(data) as daemon:
        write_some(daemon)
        orphan = place.put(1, 0, 900_001)
        with unlisted(daemon):
            run = subprocess.Popen(
                place.command("gc"), cwd=ROOT, env=place.environ, text=True,
                stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
            )  # fmt: skip
            wait_until(place.named, "the orphan to be named")
            daemon.kill_everything()
            _, said = run.communicate(timeout=2 * HANG_S)
    # It was told that the orphan is named, and waits for the backup of that; or it has yet to hear.
    assert run.returncode == 3 and ("await_backup" in said or "orphans.name" in said), said
    assert orphan in place.present()
    assert place.json("gc")["keys"] == [orphan]


def test_a_directory_without_a_ledger_is_refused_and_left_as_it_is(data: Path) -> None:
    for name in ("gc", "check"):
        done = Place(data, {}).run(name)
        assert done.returncode == 1 and "there is no ledger" in done.stderr
        assert "there is no ledger" in json.loads(done.stdout)["error"]["message"]
    assert not data.exists()


@pytest.mark.slow
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


@pytest.mark.slow
def test_people_read_what_went_and_what_it_cost(data: Path) -> None:
    place = Place(data, {})
    with running(data) as daemon:
        write_some(daemon)
    orphan = place.put(1, 1, 900_001)
    done = place.run("gc", "-o", "table")
    assert done.returncode == 0, done.stderr
    assert orphan in done.stdout and "1 deleted, 0 too young" in done.stdout
    assert json.loads(place.run("gc").stdout)["usd"] == 0.0


# Committed objects that nothing needs any more


def evicted(daemon: Daemon, topic: str = "orders", keep: int = 2) -> list[Any]:
    """Produces ten objects of a topic that keeps some records; what it holds then."""
    assert daemon.json("PUT", f"/v0/topics/{topic}", {"cap_records": keep}).status < 300
    for number in range(10):
        assert daemon.produce(topic, number).status == 200
    wait_until(
        lambda: daemon.get(f"/v0/topics/{topic}").json["partitions"][0]["count"] == keep,
        "the eviction",
    )
    return daemon.read_all(topic)


SOON = {"retention_interval_ms": 100}


@pytest.mark.slow
def test_what_was_evicted_goes_beside_a_daemon_in_one_call(
    data: Path, options: dict[str, Any]
) -> None:
    options = {**options, "settings": {**options.get("settings", {}), **SOON}}
    place = Place(data, options)
    with running(data, shards=2, **options) as daemon:
        records = evicted(daemon)
        rows = place.rows()
        look = place.json("gc", "--dry-run")
        assert (look["collected"], look["deleted"]) == (8, 0) and place.rows() == rows
        done = place.json("gc")
        assert (done["collected"], done["waiting"], done["keys"]) == (8, 0, look["keys"])
        assert done["collected_bytes"] == look["collected_bytes"] > 0
        assert {row.key for row in place.rows()} == place.present()
        assert len(place.rows()) == 2 and place.named() == []
        assert daemon.read_all("orders") == records
        assert place.json("check", "--deep")["problems"] == []
        assert daemon.produce("orders", "more").status == 200
    with running(data, **options) as daemon:
        assert daemon.read_all("orders")[-1]["data"] == "more"


@pytest.mark.slow
def test_a_collection_from_elsewhere_has_the_daemons_store_and_grace(
    data: Path, tmp_path: Path
) -> None:
    def gc(daemon: Daemon) -> Any:
        done = subprocess.run(
            [sys.executable, "-m", "cli", "gc", "--url", daemon.url, "-o", "json"],
            cwd=ROOT, env={**daemon.environ, "HEADGATE_DATA_DIR": str(tmp_path / "nothing")},
            capture_output=True, text=True, timeout=HANG_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    settings: dict[str, object] = {**SOON, "admin_over_tcp": "true"}
    with running(data, settings=settings) as daemon:
        evicted(daemon)
        found = gc(daemon)
        assert (found["collected"], found["waiting"]) == (0, 8), "its grace is an hour"
        assert found["daemon_pid"] == daemon.process.pid
    with running(data, settings={**settings, "gc_grace_ms": 0}) as daemon:
        assert gc(daemon)["collected"] == 8
        assert len(Place(data, {}).present()) == 2
    assert not (tmp_path / "nothing").exists()


def test_a_deleted_topic_leaves_nothing_but_the_last_commits_object(data: Path) -> None:
    place = Place(data, {})
    with running(data) as daemon:
        write_some(daemon)
        daemon.json("DELETE", "/v0/topics/orders")
        daemon.produce("other", 1)
    done = place.json("gc")
    assert (done["collected"], done["daemon_pid"]) == (5, None)
    assert len(place.present()) == 1
    assert place.json("check", "--deep")["problems"] == []


def test_what_may_go_stays_for_its_grace_time_and_a_mistyped_store_is_refused(
    data: Path, tmp_path: Path
) -> None:
    mistyped = f"file://{tmp_path}/mistyped"
    place = Place(data, {"settings": {"gc_grace_ms": 3_600_000}})
    with running(data, settings=SOON) as daemon:
        evicted(daemon)
        orphan = place.put(1, 0, 900_001)
        done = place.json("gc")
        assert (done["collected"], done["waiting"]) == (0, 8)
        assert (done["orphans"], done["young"], done["deleted"]) == (1, 1, 0)
        assert orphan in place.present() and len(place.present()) == 11

        refused = Place(data, {"store": mistyped}).run("gc")  # without asking the daemon
        assert refused.returncode == 1, refused
        assert "that the daemon was started with" in refused.stderr
        assert not (tmp_path / "mistyped").exists()


@pytest.mark.slow
def test_a_recovery_after_a_collection_misses_nothing(data: Path, tmp_path: Path) -> None:
    store = f"file://{tmp_path}/store"
    place = Place(data, {"store": store})
    with running(data, store=store, settings=SOON) as daemon:
        evicted(daemon)
        assert place.json("gc")["collected"] == 8
        assert daemon.produce("orders", "last").status == 200
        records = daemon.read_all("orders")
        daemon.kill_everything()
    with running(data, store=store) as daemon:  # lists what no entry had
        assert daemon.read_all("orders")[-1]["data"] == "last"
    other = Place(tmp_path / "other", {"store": store})
    other.data.mkdir()
    report = other.json("recover")
    assert (report["missing"], report["corrupt"], report["records_taken"]) == ([], [], 0)
    with running(other.data, store=store) as daemon:
        assert daemon.read_all("orders")[-1] == records[-1]
        assert other.json("check", "--deep")["problems"] == []
        assert other.json("gc")["deleted"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "with_daemon", [pytest.param(True, id="with a daemon"), pytest.param(False, id="alone")]
)
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_any_point_and_run_again_it_is_finished(
    data: Path, point: str, with_daemon: bool
) -> None:
    place = Place(data, {})

    def kill_and_finish() -> None:
        command = [sys.executable, "-m", "tests.e2e.killed_gc", point, *place.arguments]
        run = subprocess.run(
            command, cwd=ROOT, env=place.environ, timeout=2 * HANG_S, check=False,
            capture_output=True, text=True,
        )  # fmt: skip
        assert run.returncode == -signal.SIGKILL, run.stderr
        assert place.json("check", "--deep")["problems"] == []
        place.json("gc")
        assert {row.key for row in place.rows()} == place.present()
        assert len(place.present()) == 2

    with running(data, settings=SOON) as daemon:
        records = evicted(daemon)
        if with_daemon:
            kill_and_finish()
            assert daemon.read_all("orders") == records
    if not with_daemon:
        kill_and_finish()
    with running(data) as daemon:
        assert daemon.read_all("orders") == records
        assert place.json("check", "--deep")["problems"] == []


@pytest.mark.slow
def test_a_reader_in_flight_never_meets_a_missing_object(data: Path) -> None:
    """Pages of a diff and a plan's objects, while compactions and collections without grace
    go on."""
    place = Place(data, {})
    with running(data, shards=2) as daemon:
        daemon.json("PUT", "/v0/topics/t", {"partitions": 2})
        sent: list[list[int]] = [[], []]
        for number in range(60):
            partition = number % 2
            assert daemon.produce("t", number, partition=partition).status == 200
            sent[partition].append(number)
        failures: list[str] = []
        ended = threading.Event()

        def read(partition: int) -> None:
            while not ended.is_set() and not failures:
                found: list[int] = []
                from_seq = 0
                while len(found) < len(sent[partition]):
                    answer = daemon.json(
                        "POST", "/v0/topics/t/diff",
                        {"partition": partition, "from_seq": from_seq, "limit": 3},
                    )  # fmt: skip
                    if answer.status != 200 or answer.json["tombstone"]:
                        failures.append(str(answer))
                        return
                    found += [record["data"] for record in answer.json["records"]]
                    from_seq = answer.json["next_from_seq"]
                if found != sent[partition]:
                    failures.append(f"partition {partition}: {found}")

        readers = [threading.Thread(target=read, args=(partition,)) for partition in (0, 1)]
        for reader in readers:
            reader.start()
        try:
            plan = daemon.json("POST", "/v0/plans", {"topics": ["t"]}).json
            planned = {each["key"] for each in plan["objects"]}
            assert planned
            for turn in range(3):
                compact(data, f"r{turn}", ["t"], objects_max=20)
                done = place.json("gc", code=1)
                assert "is not in the catalog any more" in done["problems"][0]
                assert done["collected"] == 0 and done["kept_by_lease"] > 0
                assert planned <= place.present(), "a bulk reader has planned with them"
            assert daemon.json("DELETE", f"/v0/plans/{plan['plan']}").status == 200
            assert place.json("gc", code=1)["collected"] > 0
            assert not planned <= place.present()
            wait_until(lambda: failures or not ended.wait(1.0), "some more reads")
        finally:
            ended.set()
            for reader in readers:
                reader.join(HANG_S)
        assert failures == []
        assert [[r["data"] for r in daemon.read_all("t", p)] for p in (0, 1)] == sent


@pytest.mark.slow
def test_a_clock_that_was_accepted_is_trusted_again(data: Path) -> None:
    place = Place(data, {})
    with running(data, settings=SOON) as daemon:
        daemon.json("PUT", "/v0/topics/t", {"ttl_ms": 1_000})
        # A note as of a moment when the wall clock was ten hours ahead.
        with opened(data) as ledger:
            note = wait_until(lambda: ledger.read(notes.get, "clock"), "the clock's note")
            noted = json.loads(str(note))
            ledger.write(
                notes.put, "clock", json.dumps({**noted, "wall_ms": noted["wall_ms"] + 36_000_000})
            )
        jump_ms = wait_until(
            lambda: daemon.status()["retention"]["clock_jump_ms"], "the jump to be noticed"
        )
        daemon.json("POST", "/v0/topics/t", {"records": [{"data": "kept", "ts": 1}]})
        assert -36_010_000 < jump_ms < -35_990_000
        said = "the wall clock went back by 10.0 hours"
        wait_until(lambda: said in daemon.text, "the log to say so")
        degraded = subprocess.run(
            [sys.executable, "-m", "cli", "status", "--url", daemon.url], cwd=ROOT,
            capture_output=True, text=True, check=False, timeout=HANG_S,
        )  # fmt: skip
        assert degraded.returncode == 4 and "--accept-clock" in degraded.stderr
        assert len(daemon.read_all("t")) == 1
        assert place.json("gc", "--accept-clock")["problems"] == []
        wait_until(lambda: daemon.read_all("t") == [], "time to live to go on")
        assert daemon.status()["retention"]["clock_jump_ms"] is None
    assert place.run("gc", "--accept-clock", "--dry-run").returncode == 2
