"""Fixtures and checks for every test."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import signal
from collections.abc import Iterator

import hypothesis
import pytest

from tests.e2e.daemon import PAGE_ORIGIN, Daemon, empty, running
from tests.e2e.pushing import TIMES
from tests.leaks import LeakCheck
from tests.long import LONG, examples
from tests.minio import bucket, find_binary, minio
from tests.spark import spark

__all__ = ["bucket", "minio", "spark"]


# A busy machine is not a failure: pytest's time limit ends a hang.
hypothesis.settings.register_profile(
    "headgate",
    deadline=None,
    print_blob=True,
    max_examples=examples(100),
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("headgate")

# Ends a hang of a test that takes long. On a busy machine a job of Spark alone takes a minute, and
# a property that fails is made small first.
LONG_TIMEOUT_S = 600
ID_PART_CHARACTERS_MAX = 80

# A JVM of a test does little and ends: what the second compiler makes of it costs more than it
# saves. Spark starts one that only makes the command of the other.
JVM_OPTIONS = {
    "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1",
    "SPARK_LAUNCHER_OPTS": "-XX:TieredStopAtLevel=1",
}


@pytest.fixture(scope="session")
def worker_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with two shards on the embedded store, which serves Kafka's clients and a page too,
    and pushes. A start takes seconds of CPU: most modules that need a daemon share this one."""
    settings = {
        **TIMES, "admin_over_tcp": "true", "kafka_listen": "127.0.0.1:0",
        "cors_origins": PAGE_ORIGIN,
    }  # fmt: skip
    with running(tmp_path_factory.mktemp("worker"), shards=2, settings=settings) as daemon:
        yield daemon
        assert "Traceback" not in daemon.text


@pytest.fixture(scope="module")
def shared_daemon(worker_daemon: Daemon) -> Iterator[Daemon]:
    """The daemon of all modules that only add topics, routers and cursors: names are theirs until
    the module ends. What the daemon has counted is not."""
    yield worker_daemon
    empty(worker_daemon)


def pytest_configure(config: pytest.Config) -> None:
    """Adds the check for leaks. A plugin, since a conftest is not told of session fixtures.

    The collection of the tests makes a million objects that stay: the garbage collector looks at
    them neither meanwhile nor later (``pytest_collection_finish``).

    A shell starts background jobs with SIGINT ignored, and what a test starts would inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(LeakCheck(), "leak-check")
    for name, options in JVM_OPTIONS.items():
        os.environ.setdefault(name, options)
    gc.disable()


def pytest_make_parametrize_id(val: object) -> str | None:
    """Short ids for long values. pytest sets the id of the test that runs as a variable of its
    environment, and Linux starts no process with one of 128 KiB: a daemon that such a test was the
    first to need was not started, and all tests that share it failed."""
    if isinstance(val, str | bytes) and len(val) > ID_PART_CHARACTERS_MAX:
        begin = val[:ID_PART_CHARACTERS_MAX]
        text = begin if isinstance(begin, str) else begin.decode("latin-1")
        return f"{text.encode('unicode_escape').decode()}...{len(val)}"
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests that need MinIO, so that ``-m s3`` and ``-m 'not s3'`` find them. Slow tests
    have more time.

    Tests that may take longer than others of their kind come first, in every order: one that began
    last would leave the other workers without work.

    With several workers (``make test``), tests that share a fixture of their module run in one, and
    so do all that need Spark: a session takes 16 s of CPU to start.
    """
    items.sort(key=_may_take_s, reverse=True)
    for item in items:
        if not isinstance(item, pytest.Function):
            continue
        if "minio" in item.fixturenames:
            item.add_marker("s3")
        takes_long = LONG or item.get_closest_marker("slow")
        if takes_long and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(LONG_TIMEOUT_S))
        if "spark" in item.fixturenames:
            item.add_marker(pytest.mark.xdist_group("spark"))
        elif _shares_a_fixture(item):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine runs in a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


def _may_take_s(item: pytest.Item) -> float:
    """The time limit that a test names for itself, if that is longer than all others have."""
    named = item.get_closest_marker("timeout")
    limit_s = float(named.args[0]) if named is not None and named.args else 0.0
    return limit_s if limit_s > LONG_TIMEOUT_S else 0.0


def _shares_a_fixture(item: pytest.Function) -> bool:
    """Whether a fixture of its module or class is made for it and others."""
    definitions = item._fixtureinfo.name2fixturedefs.values()
    return any(found[-1].scope in ("module", "class") for found in definitions)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Turns the garbage collector on again, and finds MinIO before the first test, because a build
    takes longer than a test may.

    If that fails, the tests that need it fail with the reason.
    """
    gc.freeze()
    gc.enable()
    _check_groups(session)
    wanted = any(item.get_closest_marker("s3") for item in session.items)
    if wanted and not session.config.option.collectonly:
        find_binary(session.config)


def _check_groups(session: pytest.Session) -> None:
    """Of a worker: pytest-xdist puts the group into the id of a test. If pytest keeps ids elsewhere
    than it believes, each worker makes each fixture of a module, which nobody would notice."""
    if not session.config.getoption("loadgroup", False):
        return
    for item in session.items:
        if item.get_closest_marker("xdist_group") and "@" not in item.nodeid:
            raise pytest.UsageError(
                f"pytest {pytest.__version__} and this pytest-xdist do not group tests: install"
                " what constraints.txt names (make setup)"
            )
