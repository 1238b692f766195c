"""SIGHUP changes what is reloadable and names the rest; a broken file changes nothing."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.daemon import Daemon, running, wait_until
from tests.e2e.processes import Line, shard_pids
from tests.e2e.proxy import Fault, object_puts, store_proxy
from tests.e2e.stores import on_s3
from tests.minio import Bucket
from tools.receiver.process import ReceiverProcess

BEGIN = "commit_window_min_ms = 3\ncommit_window_max_ms = 3\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A configuration file."""
    path = tmp_path / "headgate.toml"
    path.write_text(BEGIN)
    return path


@pytest.fixture(scope="module")
def reloading(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, Path]]:
    """A daemon and its configuration file."""
    folder = tmp_path_factory.mktemp("reloading")
    file = folder / "headgate.toml"
    file.write_text(BEGIN)
    with running(folder / "data", shards=2, config_file=file) as daemon:
        yield daemon, file


def reload(daemon: Daemon, file: Path, text: str, sentence: str) -> None:
    """Changes the file, sends SIGHUP, and waits until the log has ``sentence`` once more."""
    before = daemon.text.count(sentence)
    file.write_text(text)
    daemon.process.send_signal(signal.SIGHUP)
    wait_until(lambda: daemon.text.count(sentence) > before, f"the log to say {sentence!r}")


def wait_window(daemon: Daemon, window_ms: float) -> None:
    """Waits until a window is in force; with minimum = maximum pressure does not move it."""
    wait_until(lambda: daemon.status()["window_ms"] == window_ms, f"a window of {window_ms} ms")


def test_sighup_takes_what_is_reloadable_and_names_what_needs_a_restart(
    reloading: tuple[Daemon, Path],
) -> None:
    daemon, file = reloading
    reload(daemon, file, BEGIN, "configuration reloaded")
    wait_window(daemon, 3)
    pids = [daemon.process.pid, *shard_pids(daemon)]

    text = "commit_window_min_ms = 7\ncommit_window_max_ms = 7\nrecords_max = 5\n"
    reload(daemon, file, text, "these keys need a restart: records_max")
    wait_window(daemon, 7)
    assert "changed: commit_window_min_ms, commit_window_max_ms" in daemon.text
    assert daemon.produce("t", *range(6)).status == 200

    for broken, problem in (
        (
            "commit_window_min_ms = 'long'\n",
            "commit_window_min_ms must be a number, got 'long'",
        ),
        ("commit_window_min = 9\n", "did you mean commit_window_min_ms?"),
        ("commit_window_min_ms = \n", "is not valid TOML"),
    ):
        reload(daemon, file, broken, problem)
        assert "configuration is not reloaded: " in daemon.text
        assert daemon.status()["window_ms"] == 7

    reload(daemon, file, 'log_level = "debug"\n', "log_level")
    wait_window(daemon, 0.5)  # without the keys, the default again
    assert [daemon.process.pid, *shard_pids(daemon)] == pids
    assert daemon.get("/readyz").status == 200


@pytest.mark.slow
def test_a_reloaded_log_level_reaches_the_shards(data: Path, file: Path, bucket: Bucket) -> None:
    failed = "DEBUG shard 0: the upload of l0/"

    with store_proxy(bucket.endpoint_url) as proxy:
        options = on_s3(bucket, proxy.endpoint_url, commit_window_min_ms=1)
        with running(data, shards=1, config_file=file, **options) as daemon, Line(daemon) as line:

            def fails_in_silence() -> bool:
                said, failures = daemon.text.count(failed), _put_failures(daemon)
                wait_until(lambda: _put_failures(daemon) >= failures + 2, "PUTs to fail")
                return daemon.text.count(failed) == said

            proxy.decide = object_puts(Fault.SLOW_DOWN)
            line.send("t", 1, ack_timeout_ms=600_000)
            wait_until(fails_in_silence, "PUTs to fail, which is not worth a line")
            reload(daemon, file, 'log_level = "debug"\n', failed)
            reload(daemon, file, 'log_level = "error"\n', "changed: ")
            wait_until(fails_in_silence, "the shard to fall silent")
            proxy.release()
            answer = line.answer()
            assert answer is not None and answer.status == 200


def _put_failures(daemon: Daemon) -> int:
    return int(daemon.status()["store"]["put_failures"])


def test_whom_push_may_call_changes_with_a_reload_at_each_shard(
    reloading: tuple[Daemon, Path],
) -> None:
    """Also for a shard that starts later, and for connections that are open."""
    daemon, file = reloading
    reload(daemon, file, BEGIN, "configuration reloaded")
    with ReceiverProcess() as receiver:
        assert daemon.json("PUT", "/v0/topics/called", {}).status == 201
        push = {"push": {"endpoint": receiver.url("hook"), "rate_max": 1_000}}

        def answers() -> set[int]:
            """Of as many connections as reach both shards."""
            return {
                daemon.json("PUT", f"/v0/topics/called/subscriptions/s{number}", push).status
                for number in range(20)
            }

        assert answers() == {400}
        reload(daemon, file, 'push_allow = ["127.0.0.1"]\n', "push_allow")
        wait_until(lambda: answers() <= {200, 201}, "both shards to call 127.0.0.1")
        assert daemon.produce("called", 1).status == 200
        wait_until(lambda: receiver.counts("hook").posts >= 20, "POSTs of all subscriptions")
        reload(daemon, file, 'push_allow = ["public"]\n', "changed: push_allow")
        wait_until(lambda: answers() == {400}, "neither shard to call 127.0.0.1")
        assert daemon.produce("called", 2).status == 200
        path = "/v0/topics/called/subscriptions/s0"
        wait_until(
            lambda: daemon.get(path).json["push"]["outcomes"].get("forbidden"), "it to be forbidden"
        )
        assert receiver.counts("hook").posts == 20
