"""The supervisor: starts, pins, drains, refuses a second daemon, gives up with a sentence."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.daemon import HANG_S, Daemon, running, wait_until
from tests.e2e.load import check_stored, load
from tests.e2e.processes import Line, connect_to, kill_shards, serving, shard_pids
from tests.e2e.proxy import store_proxy
from tests.e2e.stores import on_s3
from tests.minio import Bucket

PLACES = [("orders", 0), ("clicks", 0)]
MORE_SHARDS_THAN_CPUS = len(os.sched_getaffinity(0)) + 1
# More than the 128 KiB that one argument of a process may have.
MANY_HOSTS = [f"{'.'.join(['a' * 60] * 3)}.host-{number}.example" for number in range(1_000)]


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with one shard more than there are CPUs; its tests leave it as it is."""
    data = tmp_path_factory.mktemp("crowded")
    file = data / "headgate.toml"
    file.write_text(f"push_allow = {MANY_HOSTS}\n")
    with running(data, shards=MORE_SHARDS_THAN_CPUS, config_file=file) as daemon:
        yield daemon


def ended(daemon: Daemon) -> int:
    """Waits for the end of a daemon that was told to stop, or refused to start."""
    code = daemon.process.wait(HANG_S)
    daemon.stop()
    return code


def refused(daemon: Daemon) -> str:
    """Starts a daemon that must refuse with exit code 1; what it said."""
    daemon.start()
    try:
        assert ended(daemon) == 1
    finally:
        daemon.kill_everything()
    return daemon.text


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGINT]
)
def test_a_stop_under_load_answers_all_or_none_and_keeps_what_it_answered(
    data: Path, number: signal.Signals
) -> None:
    with running(data, shards=2) as daemon:
        with load(daemon, PLACES, connections=6, depth=6) as run:
            wait_until(lambda: run.acknowledged_count > 200, "the load to run")
            # As a terminal's Ctrl-C or a service manager does: to every process of the group.
            os.killpg(daemon.process.pid, number)
            assert ended(daemon) == 0
            for producer in run.producers:
                producer.stopping.set()
        # load() raises HalfAnswer if anybody got one.
        assert {answer.status for _, answer in run.refused} <= {503}
        assert {answer.code for _, answer in run.refused} <= {"shutting_down"}
        assert all("retry-after" in answer.headers for _, answer in run.refused)
    with running(data) as successor:
        check_stored(successor, PLACES, run)
        assert [shard["restarts"] for shard in successor.status()["shards"]] == [0]


@pytest.mark.slow
def test_a_stop_does_not_wait_for_a_long_window(data: Path) -> None:
    windows = {"commit_window_min_ms": 60_000, "commit_window_max_ms": 60_000}
    with running(data, shards=2, settings=windows) as daemon:
        with connect_to(daemon, 1) as line:
            # A lone request is uploaded immediately; the next one waits for the window.
            line.produce("t", 1)
            line.send("t", 2, ack_timeout_ms=600_000)
            wait_until(lambda: daemon.status()["shards"][1]["ring_used_bytes"], "it to wait")
            daemon.process.send_signal(signal.SIGTERM)
            answer = line.answer()
        assert answer is not None and answer.json["first_seq"] == 2
        assert answer.headers["connection"] == "close"
        assert ended(daemon) == 0
    assert "takes too long" not in daemon.text


@pytest.mark.slow
def test_a_request_during_the_drain_is_refused_and_not_stored(data: Path, bucket: Bucket) -> None:
    with store_proxy(bucket.endpoint_url) as proxy:
        options = on_s3(bucket, proxy.endpoint_url, commit_window_min_ms=1)
        with running(data, shards=1, **options) as daemon:
            daemon.produce("t", "before")
            with Line(daemon) as first, Line(daemon) as second:
                # Its head is in, its body is not: this connection is busy when the drain begins.
                second.socket.sendall(b"POST /v0/topics/t HTTP/1.1\r\nHost: localhost\r\n")
                proxy.hold_object_puts()
                first.send("t", "accepted")
                wait_until(lambda: proxy.held, "the PUT to be under way")
                daemon.process.send_signal(signal.SIGTERM)
                wait_until(lambda: "stopping" in daemon.text, "the drain to begin")
                wait_until(lambda: _refuses_connections(daemon.port), "the listener to be closed")
                body = b'{"records": [{"data": "x"}]}'
                rest = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
                second.socket.sendall(rest.encode() + body)
                answer = second.answer()
                assert answer is not None
                assert (answer.status, answer.code) == (503, "shutting_down")
                assert int(answer.headers["retry-after"]) >= 1
                proxy.release()
                accepted = first.answer()
                assert accepted is not None and accepted.json["first_seq"] == 2
            assert ended(daemon) == 0
        with running(data, shards=1, **options) as daemon:
            assert [r["data"] for r in daemon.read_all("t")] == ["before", "accepted"]


def _refuses_connections(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=HANG_S):
            return False
    except ConnectionError:
        return True


def test_each_shard_is_pinned_to_one_cpu_and_more_shards_than_cpus_share_them(
    crowded: Daemon,
) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    for shard, state in enumerate(crowded.status()["shards"]):
        affinity = psutil.Process(state["pid"]).cpu_affinity()
        assert affinity == [cpus[shard % len(cpus)]] == [state["cpu"]]


def test_the_kernel_kills_a_shard_for_memory_before_the_supervisor(crowded: Daemon) -> None:
    def adjustment(pid: int) -> int:
        return int(Path(f"/proc/{pid}/oom_score_adj").read_text())

    supervisor = adjustment(crowded.process.pid)
    assert all(adjustment(pid) > supervisor for pid in shard_pids(crowded))


def test_the_command_line_of_a_shard_is_short_whatever_its_configuration(crowded: Daemon) -> None:
    for shard, pid in enumerate(shard_pids(crowded)):
        assert psutil.Process(pid).cmdline()[1:] == ["-P", "-m", "daemon.process.shard", str(shard)]


def test_all_processes_stay_in_the_process_group_of_serve(crowded: Daemon) -> None:
    groups = {os.getpgid(pid) for pid in [crowded.process.pid, *shard_pids(crowded)]}
    assert groups == {crowded.process.pid}


def test_a_second_daemon_on_the_same_data_is_refused_and_told_the_pid(crowded: Daemon) -> None:
    said = refused(Daemon(crowded.data))
    assert f"in use by the headgate with pid {crowded.process.pid}" in said
    assert str(crowded.data) in said


def test_a_port_that_is_taken_is_refused_with_a_sentence(crowded: Daemon, data: Path) -> None:
    said = refused(Daemon(data, listen=f"127.0.0.1:{crowded.port}"))
    assert f"listen = 127.0.0.1:{crowded.port} cannot be used: Address already in use" in said
    assert "Traceback" not in said
    assert crowded.get("/readyz").status == 200


def test_a_shard_that_ends_by_itself_is_started_again_and_counted(shared_daemon: Daemon) -> None:
    before = serving(shared_daemon)
    kill_shards(shared_daemon, 0)
    first, second = shared_daemon.status()["shards"]
    assert first["restarts"] == before[0]["restarts"] + 1
    assert first["pid"] not in (None, before[0]["pid"])
    assert psutil.Process(first["pid"]).cpu_affinity() == [first["cpu"]]
    assert all(second[name] == before[1][name] for name in ("pid", "restarts"))
    assert shared_daemon.text.count("ready on http://") == 1


@pytest.mark.slow
def test_a_shard_that_cannot_start_makes_the_daemon_give_up_with_a_sentence(data: Path) -> None:
    with running(data, shards=1) as daemon:
        daemon.produce("t", 1)
        # Its successor finds no ledger; what it had open goes with it.
        shutil.rmtree(data / "ledger")
        os.kill(shard_pids(daemon)[0], signal.SIGKILL)
        assert ended(daemon) == 1
    assert "shard 0 died 5 times before it was ready; giving up" in daemon.text
    assert f"{data}/ledger/ledger.db" in daemon.text
    assert "Traceback" not in daemon.text


@pytest.mark.slow
def test_a_stop_with_a_store_that_does_not_answer_ends_within_its_time(
    data: Path, bucket: Bucket
) -> None:
    with store_proxy(bucket.endpoint_url) as proxy:
        options = on_s3(bucket, proxy.endpoint_url, commit_window_min_ms=1)
        with running(data, shards=2, **options) as daemon, connect_to(daemon, 0) as line:
            line.produce("t", "first")
            proxy.hold_object_puts()
            line.send("t", "never answered")
            wait_until(lambda: proxy.held, "the PUT to be under way")
            daemon.process.send_signal(signal.SIGTERM)
            assert ended(daemon) == 0
            assert line.answer() is None
            proxy.release()
    assert "the drain takes too long: " in daemon.text
    assert "bytes were accepted and are not durable yet" in daemon.text
    assert "died" not in daemon.text
