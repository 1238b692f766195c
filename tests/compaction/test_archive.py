"""The archive for executors has all that they need."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from compaction.archive import NAME, PACKAGES, build_archive
from tests.compaction.by_hand import compact
from tests.e2e.daemon import ROOT, running
from tests.e2e.packages import download

# What the docs promise that executors need, with pyspark itself.
EXECUTORS_HAVE = ("pyspark", "pyarrow", "boto3", "msgspec")


def test_the_archive_is_the_python_of_four_packages(tmp_path: Path) -> None:
    archive = build_archive(tmp_path / "dist" / NAME)
    with zipfile.ZipFile(archive) as file:
        names = file.namelist()
        assert file.testzip() is None
        assert (
            file.read("compaction/source/data_source.py")
            == (ROOT / "compaction" / "source" / "data_source.py").read_bytes()
        )
    assert {name.partition("/")[0] for name in names} == set(PACKAGES)
    assert all(name.endswith(".py") for name in names)
    assert {"compaction/source/data_source.py", "uploader/l0/reader.py", "ledger/types.py"} <= set(
        names
    )
    assert os.listdir(archive.parent) == [NAME], "nothing is left next to it"


def test_the_same_sources_are_the_same_bytes(tmp_path: Path) -> None:
    first = build_archive(tmp_path / "a" / NAME).read_bytes()
    assert build_archive(tmp_path / "b" / NAME).read_bytes() == first


def test_what_executors_import_needs_nothing_but_the_stated_packages(tmp_path: Path) -> None:
    archive = build_archive(tmp_path / NAME)
    script = f"""
import sys

class Refuse:
    refused = {{"crc32c", "click", "httptools", "psutil", "uvloop", "zstandard", "pyiceberg",
               "sqlalchemy", "duckdb", "pandas", "numpy"}}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.refused:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
        return None

sys.meta_path.insert(0, Refuse())
sys.path = [{str(archive)!r}] + [p for p in sys.path if p != {str(ROOT)!r}]
import compaction
assert "pyspark" not in sys.modules and "pyarrow" not in sys.modules
import compaction.run.executor, compaction.source.data_source, compaction.source.stream
from compaction import HeadgateDataSource
for module in ("compaction", "uploader.l0", "shards.frame", "ledger.types"):
    assert sys.modules[module].__file__.startswith({str(archive)!r}), sys.modules[module].__file__
print(HeadgateDataSource.name())
"""
    answer = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True,
        check=False, cwd=tmp_path, env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
    )  # fmt: skip
    assert (answer.stdout, answer.returncode) == ("headgate\n", 0), answer.stderr
    assert "crc32c" in answer.stderr, "a warning says that it is slower without"


JOB = """
import sys
from compaction import HeadgateDataSource
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

url, archive = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
spark.dataSource.register(HeadgateDataSource)
frame = spark.read.format("headgate").option("url", url).option("subscribe", "orders").load()

@udf("string")
def where(_):
    import compaction
    return compaction.__file__

rows = frame.withColumn("where", where("offset")).orderBy("offset").collect()
assert all(".zip" in row["where"] for row in rows), rows[0]["where"]
print("rows", [(row["offset"], bytes(row["value"]).decode()) for row in rows])
spark.stop()
"""


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the stated packages and nothing else."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    command = [
        sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet",
        "--disable-pip-version-check", "--no-input", "--constraint",
        str(ROOT / "constraints.txt"), *EXECUTORS_HAVE,
    ]  # fmt: skip
    download(command)
    return python


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("master", ["local[1]", "local-cluster[1,1,1024]"])
def test_a_topic_is_read_with_the_archive_and_the_stated_packages_alone(
    tmp_path: Path, bare_python: Path, master: str
) -> None:
    archive = build_archive(tmp_path / "dist" / NAME)
    job = tmp_path / "job.py"
    job.write_text(JOB)
    listed = subprocess.run(
        [str(bare_python), "-m", "pip", "list", "--format", "freeze"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert "crc32c" not in listed and "headgate" not in listed
    home = subprocess.run(
        [str(bare_python), "-c", "import pyspark; print(pyspark.__path__[0])"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    environ = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "SPARK", "VIRTUAL"))},
        "SPARK_HOME": home,
        "PYSPARK_PYTHON": str(bare_python),
        "PYSPARK_DRIVER_PYTHON": str(bare_python),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SCALA_VERSION": "2.13",
    }
    with running(tmp_path / "data") as daemon:
        daemon.produce("orders", 1, 2)
        compact(daemon.data, "run", ["orders"])
        daemon.produce("orders", {"a": 3})
        command = [
            f"{home}/bin/spark-submit", "--master", master, "--py-files", str(archive),
            "--driver-memory", "512m", "--conf", "spark.ui.enabled=false",
            "--conf", f"spark.local.dir={tmp_path}", str(job), daemon.url, str(archive),
        ]  # fmt: skip
        answer = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environ
        )
    assert answer.returncode == 0, answer.stderr[-3000:]
    assert "rows [(1, '1'), (2, '2'), (3, '{\"a\": 3}')]" in answer.stdout
