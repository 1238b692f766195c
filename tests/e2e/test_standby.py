"""Two daemons and a bucket: a standby takes over by itself, and the old owner stands by."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import groupby
from pathlib import Path

import msgspec
import psutil
import pytest
from confluent_kafka import Producer

from ledger.log.entry import VERSION, entry_key
from tests.e2e.daemon import HANG_S, ROOT, UNANSWERED, wait_until
from tests.e2e.kafka import bootstrap
from tests.e2e.proxy import Fault, store_proxy
from tests.e2e.standbys import STANDBY, Standby, handover, started, wait_known
from tests.minio import Bucket

pytestmark = [pytest.mark.slow, pytest.mark.s3]


def test_a_standby_takes_over_from_a_killed_owner_and_the_paused_one_becomes_its_standby(
    data: Path, tmp_path: Path, bucket: Bucket
) -> None:
    first, second = Standby(data, bucket), Standby(tmp_path / "second", bucket)
    with started(first):
        first.wait_owner()  # the prefix was free
        first.produce("t", "first")
        with started(second):
            second.wait_standby()
            refused = second.produce("t", "too early")
            assert (refused.status, refused.code) == (503, "standby")
            assert second.get("/livez").status == 200
            assert second.get("/readyz").code == "standby"
            assert b"headgate_standby 1\n" in second.get("/metrics").body
            wait_known(first)
            first.produce("t", "second")
            wait_until(
                lambda: second.status()["standby"]["commits"] == first.status()["commits"],
                "the standby to have all commits",
            )
            os.killpg(first.process.pid, signal.SIGSTOP)
            second.wait_owner()
            assert second.produce("t", "third").status == 200
            os.killpg(first.process.pid, signal.SIGCONT)
            first.wait_standby()
            assert first.produce("t", "never").code == "standby"
            assert "has taken the prefix over" in first.text
            assert [each["data"] for each in second.read_all("t")] == ["first", "second", "third"]
            # And back, by the same way.
            wait_known(second)
            second.kill_everything()
            first.wait_owner()
            assert [each["data"] for each in first.read_all("t")] == ["first", "second", "third"]
            assert first.produce("t", "fourth").status == 200
            assert first.stop() == 0


def acknowledged(found: list[int], *daemons: Standby, count: int = 10) -> None:
    """Sends to one daemon after the other until it is acknowledged, again and again, until the
    last one has acknowledged ``count``. ``found`` gets by which daemon each was."""
    at = 0
    while found.count(len(daemons) - 1) < count:
        with contextlib.suppress(*UNANSWERED):
            answer = daemons[at].produce("t", len(found))
            if answer.status == 200:
                found.append(at)
                continue
            assert answer.status == 503, answer.body
        at = (at + 1) % len(daemons)
        time.sleep(0.01)


def test_a_handover_loses_nothing_and_the_former_owner_stands_by(
    data: Path, tmp_path: Path, bucket: Bucket
) -> None:
    first, second = Standby(data, bucket), Standby(tmp_path / "second", bucket)
    with started(first):
        first.wait_owner()
        first.produce("t", "first")
        refused = handover(data)
        assert refused.returncode == 1 and "no standby has asked" in refused.stderr
        with started(second):
            second.wait_standby()
            wait_known(first)
            with ThreadPoolExecutor(1) as pool:
                found: list[int] = []
                sending = pool.submit(acknowledged, found, first, second)
                wait_until(lambda: found, "the first to acknowledge something")
                done = handover(data)
                assert done.returncode == 0, done.stderr
                sending.result()
            assert set(found) == {0, 1}
            records = [each["data"] for each in second.read_all("t")][1:]
            assert [each for each, _ in groupby(records)] == list(range(len(found)))
            first.wait_standby()
            assert second.stop() == 0  # a clean stop hands over too
            first.wait_owner()


def refused(*arguments: str, environ: dict[str, str] | None = None) -> str:
    """What a standby says that must not start."""
    done = subprocess.run(
        [*STANDBY, "--listen", "127.0.0.1:0", *arguments], env={**os.environ, **(environ or {})},
        cwd=ROOT, timeout=2 * HANG_S, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    return done.stderr


def test_a_client_of_kafka_that_meets_a_standby_goes_on_to_the_owner(
    data: Path, tmp_path: Path, bucket: Bucket
) -> None:
    first, second = (
        Standby(each, bucket, kafka_listen="127.0.0.1:0") for each in (data, tmp_path / "second")
    )
    with started(first):
        first.wait_owner()
        with started(second):
            second.wait_standby()
            ports = {
                each.laddr.port
                for each in psutil.Process(second.process.pid).net_connections("tcp")
                if each.status == psutil.CONN_LISTEN and each.laddr.port != second.port
            }
            assert len(ports) > 1, "the common one and a broker's"
            for port in ports:
                with closing(socket.create_connection(("127.0.0.1", port), HANG_S)) as client:
                    assert client.recv(1) == b""
            addresses = [*(f"127.0.0.1:{port}" for port in ports), bootstrap(first)]
            producer = Producer({"bootstrap.servers": ",".join(addresses)})
            producer.produce("t", b"1")
            assert producer.flush(HANG_S) == 0
            assert len(first.read_all("t")) == 1


def test_a_standby_that_could_never_take_over_is_refused_by_name(
    data: Path, tmp_path: Path, bucket: Bucket
) -> None:
    said = refused("--data", str(data), "--store", f"file://{tmp_path}/store")
    assert "--standby cannot be used with the embedded store" in said
    place = ("--store", bucket.url, "--set", f"s3_endpoint_url={bucket.endpoint_url}")
    owner = Standby(data, bucket)
    with started(owner):
        owner.wait_owner()
        # On the owner's own directory, and two on one.
        said = refused("--data", str(data), *place, environ=bucket.environment)
        assert f"is in use by the headgate with pid {owner.process.pid}" in said
        # With credentials that may read only.
        with store_proxy(bucket.endpoint_url) as proxy:
            proxy.decide = lambda r: Fault.FORBIDDEN if r.method == "PUT" else Fault.NONE
            reading = ("--store", bucket.url, "--set", f"s3_endpoint_url={proxy.endpoint_url}")
            said = refused("--data", str(tmp_path / "reader"), *reading,
                           environ=bucket.environment)  # fmt: skip
            assert "403" in said or "AccessDenied" in said
            # And with some that may not list the objects.
            proxy.decide = lambda r: Fault.FORBIDDEN if "l0%2F" in r.path else Fault.NONE
            said = refused("--data", str(tmp_path / "reader"), *reading,
                           environ=bucket.environment)  # fmt: skip
            assert "LIST of l0/" in said
        # A log that a newer version writes.
        key = f"prefix/{entry_key(1, 2)}"
        bucket.client.put_object(
            Bucket=bucket.bucket, Key=key, Body=msgspec.msgpack.encode({"version": VERSION + 1})
        )
        said = refused("--data", str(tmp_path / "older"), *place, environ=bucket.environment)
        assert f"has version {VERSION + 1}, this headgate knows {VERSION}" in said


# Of every process of a daemon: its own clock is an hour ahead, and that of its requests too or not.
_AHEAD = """
import time
now_s, now_ns = time.time, time.time_ns
time.time = lambda: now_s() + 3_600
time.time_ns = lambda: now_ns() + 3_600 * 10**9
"""
_SIGNED_AHEAD = """
import datetime
import botocore.compat
present, hour = botocore.compat.get_current_datetime, datetime.timedelta(hours=1)
botocore.compat.get_current_datetime = lambda *args, **named: present(*args, **named) + hour
"""


def ahead(folder: Path, code: str) -> dict[str, str]:
    """The environment in which Python begins with this code."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(code)
    return {"PYTHONPATH": f"{folder}:{ROOT}"}


def test_a_clock_that_is_an_hour_off_robs_nobody_and_hinders_no_take_over(
    data: Path, tmp_path: Path, bucket: Bucket
) -> None:
    first, second = Standby(data, bucket), Standby(tmp_path / "second", bucket)
    second.environ = {**second.environ, **ahead(tmp_path / "ahead", _AHEAD)}
    with started(first):
        first.wait_owner()
        first.produce("t", "by a right clock")
        with started(second):
            second.wait_standby()
            wait_known(first)
            # A look, a question and its answer: nothing has frightened the standby.
            wait_until(
                lambda: second.status()["standby"]["answered_ms"] is not None, "an answer", 90
            )
            assert first.produce("t", "still by a right clock").status == 200
            first.kill_everything()
            second.wait_owner()
            assert second.produce("t", "by a wrong clock").status == 200
            first.start()
            first.wait_standby()
            wait_known(second)
            assert second.readiness() == 200, "the owner with the wrong clock is left alone"
            second.kill_everything()
            first.wait_owner()
            assert first.produce("t", "by a right clock again").status == 200
            records = first.read_all("t")
            assert [each["data"] for each in records] == [
                "by a right clock", "still by a right clock", "by a wrong clock",
                "by a right clock again",
            ]  # fmt: skip
            assert records[2]["ts"] - records[1]["ts"] > 3_500_000, "the clock was not wrong"


def test_a_reload_before_there_is_anything_to_reload_ends_nothing(
    data: Path, bucket: Bucket
) -> None:
    with store_proxy(bucket.endpoint_url) as proxy:
        standby = Standby(data, bucket, proxy.endpoint_url)

        def reload(_: object) -> Fault:
            standby.process.send_signal(signal.SIGHUP)
            return Fault.NONE

        proxy.decide = reload
        with started(standby):
            standby.wait_owner()
            assert standby.stop() == 0


def test_a_standby_ends_quietly_at_a_ctrl_c(data: Path, tmp_path: Path, bucket: Bucket) -> None:
    owner, standby = Standby(data, bucket), Standby(tmp_path / "second", bucket)
    with started(owner):
        owner.wait_owner()
        with started(standby):
            standby.wait_standby()
            os.killpg(standby.process.pid, signal.SIGINT)
            assert standby.process.wait(HANG_S) == 0
            standby.stop()  # it has ended; its log is read to the end
            assert "Traceback" not in standby.text and standby.text.count("stopped") == 1


def test_a_clock_that_the_store_refuses_is_named(tmp_path: Path, bucket: Bucket) -> None:
    said = refused(
        "--data", str(tmp_path / "data"), "--store", bucket.url, "--set",
        f"s3_endpoint_url={bucket.endpoint_url}",
        environ={**bucket.environment, **ahead(tmp_path / "ahead", _AHEAD + _SIGNED_AHEAD)},
    )  # fmt: skip
    assert "clock" in said, said


def test_a_standby_that_loses_its_right_to_write_or_its_store_says_so_and_takes_nothing(
    data: Path, tmp_path: Path, bucket: Bucket
) -> None:
    with store_proxy(bucket.endpoint_url) as proxy:
        first, second = Standby(data, bucket), Standby(tmp_path / "2", bucket, proxy.endpoint_url)
        with started(first):
            first.wait_owner()
            with started(second):
                second.wait_standby()
                wait_known(first)
                proxy.decide = lambda r: Fault.FORBIDDEN if r.method == "PUT" else Fault.NONE
                wait_until(
                    lambda: "cannot write to the store" in second.status()["standby"]["trouble"],
                    "the standby to say that it cannot write", 90,
                )  # fmt: skip
                assert not second.status()["standby"]["able"]
                proxy.decide = lambda _: Fault.RESET
                wait_until(
                    lambda: second.status()["standby"]["behind_ms"] > 25_000,
                    "the standby to be cut off for longer than a take-over takes",
                )
                proxy.decide = lambda _: Fault.NONE
                second.wait_standby()
                assert first.readiness() == 200 and first.produce("t", 1).status == 200
                assert "taking over" not in second.text


def test_of_two_standbys_one_wins_and_the_other_waits_for_it(
    data: Path, tmp_path: Path, bucket: Bucket
) -> None:
    first = Standby(data, bucket)
    others = [Standby(tmp_path / name, bucket) for name in ("a", "b")]
    with started(first):
        first.wait_owner()
        first.produce("t", 1)
        with started(*others):
            for each in others:
                each.wait_standby()
            wait_known(first, 2)
            first.kill_everything()
            wait_until(lambda: any(o.readiness() == 200 for o in others), "one to win", 90)
            winner, loser = sorted(others, key=lambda each: each.readiness() != 200)
            loser.wait_standby()
            assert winner.produce("t", 2).status == 200
            wait_known(winner)
            assert loser.status()["standby"]["owner"].count(f"pid {winner.process.pid},")
            assert [each["data"] for each in winner.read_all("t")] == [1, 2]
