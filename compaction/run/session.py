"""A Spark session that is silent on the terminal, needs little memory, and ends with its block.

A session is *ours* if this module started its JVM; session and JVM end with the ``with`` block. A
session that exists already, or whose JVM ``spark-submit`` started, is *given*: its settings are not
changed.

Three parts of Spark write to the terminal: log4j, the JVM, and the Python workers, whose output the
JVM repeats. All use the JVM's stdout and stderr, so these go to a file in the scratch folder. If
Spark does not start, the error quotes the end of that file.

pyspark is imported when a session is made, not with this module.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compaction.access.bearer import TOKEN
from compaction.archive import NAME as ARCHIVE_NAME
from compaction.archive import build_archive, is_local
from compaction.run.java import Java, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIB = 1 << 20
DRIVER_MEMORY_BYTES = 1024 * MIB  # records are in Python workers and shuffle files only
EXTRA = ("pyspark", "pyiceberg", "sqlalchemy")  # packages of the extra `spark` that are imported
LOG_NAME = "spark.log"
LOG_LINES_QUOTED = 12  # in an error: the first line of a Java trace and its causes
ENDS_WITHIN_S = 20.0  # for a JVM whose pipe was closed; then it is killed

_LOG4J = """\
rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{{HH:mm:ss}} %p %c{{1}}: %m%n%ex
"""


class SparkMissing(Exception):
    """A package of the extra ``spark`` is not installed."""

    def __init__(self, package: str = "pyspark") -> None:
        super().__init__(
            f"a compaction needs the extra `spark`, and {package} is not installed: run"
            " `pip install 'headgate[spark]'`"
        )


def check_extra() -> None:
    """Raises SparkMissing unless the packages of the extra ``spark`` can be imported."""
    for package in EXTRA:
        if util.find_spec(package) is None:
            raise SparkMissing(package)


class SparkFailed(Exception):
    """Spark did not start. The end of its log is part of the message."""

    def __init__(self, cause: str, log: Path) -> None:
        try:
            lines = log.read_text(errors="replace").splitlines()
        except OSError:
            lines = []  # it failed before it wrote a log
        told = "".join(f"\n  {line}" for line in lines[-LOG_LINES_QUOTED:])
        super().__init__(f"Spark did not start: {cause}{told}")


@contextmanager
def spark_session(
    master: str | None,
    scratch: Path,
    *,
    cores: int | None = None,
    app_name: str = "headgate",
    conf: Mapping[str, str] | None = None,
    java: Java | None = None,
) -> Iterator[SparkSession]:
    """The session that exists, else one of ours on ``master``, for the ``with`` block.

    ``master`` defaults to ``local[cores]``, ``cores`` to all that this process may use. ``scratch``
    is an existing folder for spills, archive, and log; the caller removes it. ``conf`` overrides
    the settings made here and does not apply to a given session. A session of ours knows
    ``format("headgate")``, which must be told of a file if it needs a token. Raises SparkMissing,
    NoJava, SparkFailed.
    """
    try:
        import pyspark
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise SparkMissing from error
    active = SparkSession.getActiveSession()
    if active is None and pyspark.SparkContext._active_spark_context is not None:
        active = SparkSession.builder.getOrCreate()
    if active is not None:
        yield active
        return
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        given = SparkSession.builder.appName(app_name).getOrCreate()
        try:
            yield given
        finally:
            given.stop()
        return
    java = java or find_java()
    master = master or f"local[{cores or len(os.sched_getaffinity(0))}]"
    settings = {**_settings(master, app_name, scratch), **(conf or {})}
    with _process_as_it_was(), _ours(master, settings, scratch, java) as session:
        yield session


def _settings(master: str, app_name: str, scratch: Path) -> dict[str, str]:
    options = (
        f'"-Dlog4j2.configurationFile={(scratch / "log4j2.properties").as_uri()}"'
        f' "-Djava.io.tmpdir={scratch}"'
        # In a small heap, G1 treats a shuffle's arrays of megabytes as "humongous": the JVM uses
        # two thirds more CPU time, and more with each job.
        " -XX:+UseParallelGC"
    )
    settings = {
        "spark.master": master,
        "spark.app.name": app_name,
        "spark.driver.memory": f"{DRIVER_MEMORY_BYTES // MIB}m",
        "spark.driver.extraJavaOptions": options,
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": (scratch / "warehouse").as_uri(),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if is_local(master):
        settings["spark.driver.bindAddress"] = "127.0.0.1"
        settings["spark.driver.host"] = "127.0.0.1"
        # Loopback is shared with every account of the machine. Spark makes the secret itself.
        settings["spark.authenticate"] = "true"
    return settings


@contextmanager
def _without_token() -> Iterator[None]:
    """What the block starts does not inherit the token: only this process asks the daemon."""
    token = os.environ.pop(TOKEN, None)
    try:
        yield
    finally:
        if token is not None:
            os.environ[TOKEN] = token


@contextmanager
def _ours(
    master: str, settings: Mapping[str, str], scratch: Path, java: Java
) -> Iterator[SparkSession]:
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    from compaction.source.data_source import HeadgateDataSource

    os.environ["JAVA_HOME"] = str(java.home)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if is_local(master):
        # Workers need the packages of this environment, not of the python3 on PATH.
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    (scratch / "log4j2.properties").write_text(_LOG4J.format(level="warn"))
    log = scratch / LOG_NAME
    made: SparkConf = SparkConf(loadDefaults=False)
    for key, value in settings.items():
        made.set(key, value)
    gateway: Any = None
    try:
        with log.open("ab") as output, _without_token():
            gateway = launch_gateway(  # type: ignore[no-untyped-call]  # pyspark has no types here
                made, {"stdout": output, "stderr": output}
            )
        context = SparkContext(conf=made, gateway=gateway)
        if not is_local(master):
            context.addPyFile(str(build_archive(scratch / ARCHIVE_NAME)))
        session = SparkSession(context)
        session.dataSource.register(HeadgateDataSource)
    # The errors of py4j have no common base class below Exception.
    except Exception as error:
        _end(gateway)
        _close_forgotten(error)
        if isinstance(error, PySparkException) and gateway is None:
            cause = f"the JVM ended immediately ({java})"
        else:
            cause = str(error).strip().partition("\n")[0] or type(error).__name__
        raise SparkFailed(cause, log) from error
    try:
        yield session
    finally:
        try:
            session.stop()
        finally:
            _end(gateway)


def _end(gateway: Any) -> None:
    """Ends the JVM, so that the next session starts its own."""
    from pyspark import SparkContext

    SparkContext._gateway = None
    SparkContext._jvm = None
    if gateway is None:
        return
    gateway.shutdown()
    process: subprocess.Popen[bytes] = gateway.proc
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _close_forgotten(error: BaseException) -> None:
    """Closes the pipe to a JVM that ended before pyspark had made a gateway of it."""
    trace = error.__traceback__
    while trace is not None:
        process = trace.tb_frame.f_locals.get("proc")
        if isinstance(process, subprocess.Popen) and process.stdin is not None:
            process.stdin.close()
            process.wait(ENDS_WITHIN_S)
        trace = trace.tb_next


@contextmanager
def _process_as_it_was() -> Iterator[None]:
    """Restores what pyspark changes in this process: environment, sys.path, handling of Ctrl-C."""
    environ = dict(os.environ)
    path = list(sys.path)
    interrupt = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        for name in os.environ.keys() - environ.keys():
            del os.environ[name]
        os.environ.update(environ)
        sys.path[:] = path
        try:
            signal.signal(signal.SIGINT, interrupt)
        except ValueError:
            pass  # not the main thread, so pyspark has not changed it either
