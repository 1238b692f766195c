"""Fails a test that leaks child processes, threads that are not daemons, or memory of segments.

What a fixture of a module or session starts belongs to that fixture until it is finalized; after
that it is a leak too. Each leak is reported once.

``Watch`` only looks; ``LeakCheck`` is the pytest plugin that calls it around fixtures and tests.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Generator
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

MEMORY = "/memfd:headgate"
# Ends a hang only: an executor's threads are often still on their way out when a test returns.
THREAD_ENDS_WITHIN_S = 60.0


class Found(NamedTuple):
    """What is there at one moment. Memory is that of segments."""

    children: set[int]
    threads: set[threading.Thread]
    memory: set[int]

    @classmethod
    def now(cls) -> Found:
        return cls(children(), threads(), memory())

    def without(self, other: Found) -> Found:
        return Found(
            self.children - other.children, self.threads - other.threads, self.memory - other.memory
        )

    def with_(self, other: Found) -> Found:
        return Found(
            self.children | other.children, self.threads | other.threads, self.memory | other.memory
        )


class Watch:
    """Remembers what is accounted for."""

    def __init__(self) -> None:
        self._known = Found.now()
        self._owned: dict[object, Found] = {}
        self._before_fixture: list[Found] = []

    def fixture_starts(self) -> None:
        """A fixture of wider scope than a function is about to be set up. Calls may be nested."""
        self._before_fixture.append(Found.now())

    def fixture_is_up(self, fixture: object) -> None:
        """The fixture is set up. It owns what was started since ``fixture_starts``."""
        old = self._before_fixture.pop()
        # What is known by now belongs to a fixture that was set up within this one.
        new = Found.now().without(old).without(self._known)
        if any(new):
            self._owned[fixture] = new
            self._known = self._known.with_(new)

    def fixture_is_down(self, fixture: object) -> None:
        """It was finalized; whatever it owned must be gone by the next ``leaks``."""
        owned = self._owned.pop(fixture, None)
        if owned is not None:
            self._known = self._known.without(owned)

    def leaks(self) -> list[str]:
        """Descriptions of what is new, each reported once."""
        new = Found.now().without(self._known)
        found = [_describe(pid) for pid in sorted(new.children - _of_multiprocessing())]
        for thread in new.threads:
            thread.join(timeout=THREAD_ENDS_WITHIN_S)
            if thread.is_alive():
                found.append(f"thread {thread.name!r} still runs")
        found += [f"segment {inode} is not closed" for inode in sorted(new.memory)]
        self._known = Found.now()
        return found


class LeakCheck:
    """Fails a test that leaks something, and names it."""

    def __init__(self) -> None:
        self._watch = Watch()

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any]
    ) -> Generator[None, object, object]:
        """Lets a fixture of wide scope keep what it starts."""
        if fixturedef.scope == "function":
            return (yield)
        self._watch.fixture_starts()
        try:
            return (yield)
        finally:
            self._watch.fixture_is_up(fixturedef)

    def pytest_fixture_post_finalizer(self, fixturedef: pytest.FixtureDef[Any]) -> None:
        """From now on what the finalized fixture started counts as a leak."""
        self._watch.fixture_is_down(fixturedef)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Generator[None, None, None]:
        """Looks when all fixtures that end with this test have ended."""
        yield
        leaks = self._watch.leaks()
        if leaks:
            pytest.fail("the test leaked: " + "; ".join(leaks), pytrace=False)


def children() -> set[int]:
    """Process ids of our direct children, including those that ended and were not waited for."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        # The usual case, one system call.
        return set()
    # Linux may leave one out while another one ends. A walk over all processes takes 5 ms.
    found = _listed_children()
    while (again := _listed_children()) != found:
        found = again
    return found


def _listed_children() -> set[int]:
    """What Linux lists as children of our threads."""
    found: set[int] = set()
    for name in os.listdir("/proc/self/task"):
        try:
            listed = Path(f"/proc/self/task/{name}/children").read_text()
        except OSError:
            continue  # the thread ended, and another one has its children
        found.update(map(int, listed.split()))
    return found


def threads() -> set[threading.Thread]:
    """Our threads that keep the process alive."""
    return {thread for thread in threading.enumerate() if not thread.daemon}


def memory() -> set[int]:
    """The segments, by inode, that have more descriptors than mappings: a mapping has one of its
    own, as long as anything looks into it."""
    open_: Counter[int] = Counter()
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith(MEMORY):
                open_[os.fstat(int(name)).st_ino] += 1
        except OSError:
            continue  # the one that lists them, or a thread closed it
    if open_:
        for line in Path("/proc/self/maps").read_text().splitlines():
            if MEMORY in line:
                open_[int(line.split()[4])] -= 1
    return {inode for inode, count in open_.items() if count > 0}


def _of_multiprocessing() -> set[int]:
    """Helpers that multiprocessing starts once and keeps for the whole run."""
    found = {
        getattr(resource_tracker._resource_tracker, "_pid", None),
        getattr(forkserver._forkserver, "_forkserver_pid", None),
    }
    return {pid for pid in found if pid is not None}


def _describe(pid: int) -> str:
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return f"process {pid} has ended and was not waited for"
        return f"process {pid} still runs: {' '.join(process.cmdline())[:200]}"
    except psutil.NoSuchProcess:
        return f"process {pid} ended a moment after the test"
