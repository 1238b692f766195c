"""The check for leaks, and real runs of pytest that report them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from shards.layout import Layout
from shards.segment import Segment
from tests.leaks import Watch

ROOT = Path(__file__).parent.parent
SLEEPER = [sys.executable, "-c", "import sys; sys.stdin.read()"]


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(SLEEPER, stdin=subprocess.PIPE)
    yield process
    process.communicate()


def test_a_running_child_is_named_once() -> None:
    watch = Watch()
    with subprocess.Popen(SLEEPER, stdin=subprocess.PIPE) as process:
        (leak,) = watch.leaks()
        assert f"process {process.pid} still runs" in leak
        assert watch.leaks() == []
        process.communicate()


def test_a_child_that_was_not_waited_for_is_named_and_left_to_its_owner() -> None:
    watch = Watch()
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert watch.leaks() == [f"process {process.pid} has ended and was not waited for"]
        assert process.wait() == 7


def test_a_thread_that_ends_is_not_a_leak_and_one_that_stays_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.leaks.THREAD_ENDS_WITHIN_S", 0.05)
    watch = Watch()
    done = threading.Event()
    thread = threading.Thread(target=done.wait, name="loiterer")
    thread.start()
    try:
        assert watch.leaks() == ["thread 'loiterer' still runs"]
    finally:
        done.set()
        thread.join()
    assert watch.leaks() == []


def test_a_segment_that_is_not_closed_is_named_once() -> None:
    watch = Watch()
    segment = Segment.create(Layout(1, 4096))
    inode = os.fstat(segment.fd).st_ino
    assert watch.leaks() == [f"segment {inode} is not closed"]
    assert watch.leaks() == []
    segment.close()


def test_a_segment_that_is_closed_may_be_looked_into() -> None:
    watch = Watch()
    segment = Segment.create(Layout(1, 4096))
    ring = segment.ring(0)
    segment.close()
    assert watch.leaks() == [] and ring[0] == 0


def test_what_a_wide_fixture_starts_is_its_own_until_it_is_down() -> None:
    watch = Watch()
    watch.fixture_starts()
    with subprocess.Popen(SLEEPER, stdin=subprocess.PIPE) as process:
        watch.fixture_is_up("the fixture")
        assert watch.leaks() == []
        watch.fixture_is_down("the fixture")
        (leak,) = watch.leaks()
        assert str(process.pid) in leak
        process.communicate()


def test_a_nested_wide_fixture_keeps_its_own_when_the_outer_one_goes() -> None:
    watch = Watch()
    watch.fixture_starts()
    watch.fixture_starts()
    with subprocess.Popen(SLEEPER, stdin=subprocess.PIPE) as process:
        watch.fixture_is_up("inner")
        watch.fixture_is_up("outer")
        watch.fixture_is_down("outer")
        assert watch.leaks() == []
        process.communicate()


def test_what_ran_before_is_not_blamed(child: subprocess.Popen[bytes]) -> None:
    assert child.poll() is None
    assert Watch().leaks() == []


SAMPLE = """
import subprocess, sys, threading
import pytest, tests.leaks
tests.leaks.THREAD_ENDS_WITHIN_S = 0.05

def start():
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

@pytest.fixture(scope="session")
def tidy_server():
    with start() as process:
        yield process
        process.communicate()

@pytest.fixture(scope="module")
def untidy_server():
    process = start()
    yield process
    left.append(process)

left = []
over = threading.Event()

def test_leaver():
    threading.Thread(target=over.wait, name="left").start()

def test_first_user(tidy_server, untidy_server):
    over.set()

def test_second_user(tidy_server, untidy_server):
    pass
"""


def test_a_run_of_pytest_blames_the_test_that_leaves_a_thread_and_the_fixture_that_leaves_a_process(
    tmp_path: Path,
) -> None:
    (tmp_path / "test_sample.py").write_text(SAMPLE)
    options = ["-q", "-p", "tests.conftest", "-p", "no:randomly", "-p", "no:cacheprovider"]
    options += ["-c", str(ROOT / "pyproject.toml"), f"--rootdir={tmp_path}", str(tmp_path)]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "3 passed, 2 errors" in run.stdout, run.stdout + run.stderr
    assert "thread 'left' still runs" in run.stdout
    assert "ERROR at teardown of test_leaver" in run.stdout
    assert "ERROR at teardown of test_second_user" in run.stdout
    assert "ERROR at teardown of test_first_user" not in run.stdout
