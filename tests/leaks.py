"""Fails a test that leaks child processes, or threads that are not daemons.

Processes and threads that a fixture of a module or session starts belong to that fixture until it
is finalized; after that they are leaks too. Each leak is reported once.

``Watch`` only looks; ``LeakCheck`` is the pytest plugin that calls it around fixtures and tests.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from multiprocessing import forkserver, resource_tracker
from typing import Any

import psutil
import pytest

# Ends a hang only: an executor's threads are often still on their way out when a test returns.
THREAD_ENDS_WITHIN_S = 5.0


class Watch:
    """Remembers which processes and threads are accounted for."""

    def __init__(self) -> None:
        self._known_children = children()
        self._known_threads = threads()
        self._owned: dict[object, tuple[set[int], set[threading.Thread]]] = {}
        self._before_fixture: list[tuple[set[int], set[threading.Thread]]] = []

    def fixture_starts(self) -> None:
        """A fixture of wider scope than a function is about to be set up. Calls may be nested."""
        self._before_fixture.append((children(), threads()))

    def fixture_is_up(self, fixture: object) -> None:
        """The fixture is set up. It owns what was started since ``fixture_starts``."""
        old_children, old_threads = self._before_fixture.pop()
        # What is known by now belongs to a fixture that was set up within this one.
        new = (
            children() - old_children - self._known_children,
            threads() - old_threads - self._known_threads,
        )
        if any(new):
            self._owned[fixture] = new
            self._known_children |= new[0]
            self._known_threads |= new[1]

    def fixture_is_down(self, fixture: object) -> None:
        """It was finalized; whatever it owned must be gone by the next ``leaks``."""
        owned_children, owned_threads = self._owned.pop(fixture, (set(), set()))
        self._known_children -= owned_children
        self._known_threads -= owned_threads

    def leaks(self) -> list[str]:
        """Descriptions of new processes and threads, each reported once."""
        new_children = children() - self._known_children - _of_multiprocessing()
        found = [_describe(pid) for pid in sorted(new_children)]
        new_threads = threads() - self._known_threads
        for thread in new_threads:
            thread.join(timeout=THREAD_ENDS_WITHIN_S)
            if thread.is_alive():
                found.append(f"thread {thread.name!r} still runs")
        self._known_children = children()
        self._known_threads = threads()
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
        # The usual case, one system call instead of a walk over all processes.
        return set()
    return {child.pid for child in psutil.Process().children()}


def threads() -> set[threading.Thread]:
    """Our threads that keep the process alive."""
    return {thread for thread in threading.enumerate() if not thread.daemon}


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
